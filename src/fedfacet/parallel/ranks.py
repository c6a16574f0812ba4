"""The processes of one run on one machine or many, as torchrun or SLURM starts them, and the messages between them."""

import atexit
import contextlib
import logging
import os
import pickle
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from lightning.fabric import Fabric
from lightning.fabric.strategies.ddp import DDPStrategy
from torch import Tensor
from torch import distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from fedfacet.errors import EngineError
from fedfacet.parallel import wire
from fedfacet.parallel.messages import Message
from fedfacet.parallel.place import Place, machine
from fedfacet.parallel.processes import ignore_signals
from fedfacet.types import State

log = logging.getLogger(__name__)

T = TypeVar("T")

_EVER = timedelta(days=3650)  # a message may be long in coming; for how long it is waited is decided in `Ranks.receive`
MAX_RANKS_WITH_0 = 8
"""With more ranks, rank 0 does not train: it has enough to do with what the others send."""

_RELAYED = 1  # the tag of what all ranks get, by which it is told apart from the messages between two ranks


def _meet_again(place: Place, group: str, timeout: timedelta) -> None:
    """Have the ranks that torchrun starts once more meet where nobody has been; Fabric takes a meeting that is there.

    torchrun keeps one store for all its starts, and a rank that finds there where a dead one listened waits for it.
    """
    again = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if again == "0" or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return
    store, rank, world_size = next(rendezvous("env://", place.rank, place.num_ranks, timeout=timeout))
    store = PrefixStore(f"start-{again}", store)
    dist.init_process_group(group, store=store, rank=rank, world_size=world_size, timeout=timeout)


def _stay_on_this_machine() -> None:
    """Have ranks of one machine talk over its loopback, unless the environment names an interface: they exchange pickles."""
    names = {name for _, name in socket.if_nameindex()} & {"lo", "lo0"}
    for library in ("GLOO", "NCCL"):
        for name in names:
            os.environ.setdefault(f"{library}_SOCKET_IFNAME", name)


class RankLost(EngineError):
    """A rank whose connection broke, or that was silent for too long.

    Args:
        rank: its number.
        sentence: says so to the user.
    """

    def __init__(self, rank: int, sentence: str) -> None:
        super().__init__(sentence)
        self.rank = rank


class _Common(NamedTuple):
    """What lies in the bundles that all ranks get with a message, by which ``order`` they hand them on, and their number."""

    manifest: wire.Manifest
    order: Sequence[int] = ()
    number: int = 0


class _Missed(NamedTuple):
    """To rank 0: the rank that should have handed on the common bundles is lost, so send them yourself."""

    number: int
    num_bytes: int


_NOTHING = _Common(wire.manifest_of([]))


class Ranks:
    """The connection between a run's processes.

    A thread waits for what may take long, so that the main thread hears signals meanwhile. Plain objects travel through gloo,
    tensors through the chosen backend, those of single tasks apart. Rank 0 keeps count of the ranks that live: a rank that is
    lost stays lost. With nccl the first loss ends the run.

    Args:
        place: of this process, among several.
        backend: ``"gloo"`` or ``"nccl"``.
        device: that tensors travel from and to with nccl.
        timeout_seconds: how long the others are waited for.

    Raises:
        EngineError: if they do not come.
    """

    _joined: ClassVar["Ranks | None"] = None

    @classmethod
    def join(cls, place: Place, backend: str, device: str, timeout_seconds: float) -> "Ranks":
        """Return the connection, which a process has one of; the first call waits for all processes of the run."""
        if cls._joined is None:
            cls._joined = cls(place, backend, device, timeout_seconds)
        return cls._joined

    def __init__(self, place: Place, backend: str, device: str, timeout_seconds: float) -> None:
        self.place = place
        self.timeout_seconds = timeout_seconds
        self.stuck = False  # whether a message may have got stuck halfway, so that nothing more can be said
        self.owed: dict[int, int] = {}  # how many results each rank has still to send
        self.halted: set[int] = set()  # those ranks that were told to send no more
        self.machines = [""] * place.num_ranks  # of each rank
        self._living = set(range(1, place.num_ranks))
        self._sent: Sequence[State] = ()  # what rank 0 last sent to all, and how often it did
        self._number = 0
        self._route = torch.device(device if backend == "nccl" else "cpu")
        self._expected: dict[int, Future[Message]] = {}
        assert place.environment is not None, "one process has nobody to talk to"
        num_threads = torch.get_num_threads()
        if self._route.type == "cuda":
            torch.cuda.set_device(self._route)
        if place.num_ranks == place.num_local_ranks:
            _stay_on_this_machine()
        group = "cpu:gloo,cuda:nccl" if backend == "nccl" else "gloo"
        fabric = Fabric(
            # Fabric is asked for the meeting alone: with its accelerator "cuda" it would want a GPU of its own for every rank.
            accelerator="cpu",
            devices=place.num_local_ranks,
            num_nodes=place.num_ranks // place.num_local_ranks,
            strategy=DDPStrategy(process_group_backend=group, timeout=timedelta(seconds=timeout_seconds)),
            plugins=[place.environment],
        )
        try:
            with _quiet("lightning.fabric", "lightning.pytorch"):
                if place.num_ranks == place.num_local_ranks:
                    _meet_again(place, group, timedelta(seconds=timeout_seconds))
                fabric.launch()
                dist.all_gather_object(self.machines, machine())
        except (RuntimeError, ValueError) as error:
            raise EngineError(
                f"Expected the {place.num_ranks} processes of the run to meet within {timeout_seconds:g} seconds, but rank "
                f"{place.rank} waited in vain ({str(error).splitlines()[0]}): start all of them with the same command line, "
                "under SLURM with srun."
            ) from None
        if backend == "nccl":
            atexit.register(dist.destroy_process_group)  # or torch warns; Fabric sees to it where that is the only backend
        torch.set_num_threads(num_threads)  # Fabric sets them, but they are part of a run's numbers
        if place.rank:
            ignore_signals()
        else:
            idle = f", of which rank 0 does not train, since there are more than {MAX_RANKS_WITH_0}"
            log.info("%d ranks, %s%s.", place.num_ranks, backend, idle if place.num_ranks > MAX_RANKS_WITH_0 else "")

    @property
    def others(self) -> list[int]:
        """The ranks that live, without rank 0."""
        return sorted(self._living)

    def lose(self, error: RankLost, num_clients: int = 0) -> None:
        """Talk no more to a rank.

        Args:
            error: by which it was found to be lost.
            num_clients: how many clients are dealt again.

        Raises:
            RankLost: the error, with nccl, which works only while all ranks do.
        """
        if self._route.type == "cuda":
            raise error
        if error.rank not in self._living:
            return
        self._living.discard(error.rank)
        self.owed.pop(error.rank, None)
        self.halted.discard(error.rank)
        self._expected.pop(error.rank, None)
        left = f"{len(self._living) + 1} of {self.place.num_ranks} ranks"
        log.warning("Rank %d is lost: %d of its clients are dealt again, and %s go on.", error.rank, num_clients, left)

    def send(self, messages: Mapping[int, Message], common: Sequence[State] = ()) -> None:
        """Send messages to ranks that live, and wait until they have them; a rank that does not take its message is lost.

        The ``common`` bundles go to all other ranks (``messages`` has one for each), in front of their own. Rank 0 sends them
        to two ranks, each of these to two more, and so on.
        """
        self._sent, self._number = common, self._number + 1
        order, number = [0, *messages] if common else [], self._number
        pending = set(messages)

        def deliver() -> None:
            manifest, parts = wire.manifest_of(common), {}
            for rank, message in messages.items():
                with contextlib.suppress(RuntimeError):  # then the rank is pending for ever
                    parts[rank] = self._start(rank, message, _Common(manifest, order, number))
            flat = self._flat(common, manifest, self._route) if manifest.num_bytes else None
            if flat is not None and self._route.type == "cuda":
                dist.broadcast(flat, src=0)
            elif flat is not None:
                for child in parts.keys() & set(order[1:3]):
                    with contextlib.suppress(RuntimeError):  # its wait below fails too
                        parts[child].append((dist.isend(flat, child, tag=_RELAYED), flat))
            for rank, sent in parts.items():
                with contextlib.suppress(RuntimeError):
                    for work, _ in sent:
                        work.wait(_EVER)
                    pending.discard(rank)

        self.stuck = True  # unless all of it gets through
        future = in_background(deliver)
        for rank in order[3:]:  # what they receive comes through another rank, which may be lost
            self.expect(rank)
        with contextlib.suppress(TimeoutError, RuntimeError):
            future.result(self.timeout_seconds)
        self.stuck = bool(pending) and self._route.type == "cuda"
        for rank in sorted(pending):
            self.lose(self.gone(rank, "to take a message"))

    def post(self, rank: int, message: Message) -> None:
        """Send a message without waiting until the other takes it.

        That the other is gone is said by a ``RankLost`` here, or where the next message of it is waited for.
        """
        try:
            parts = self._start(rank, message)
        except RuntimeError as error:
            raise self.gone(rank, "to take a message") from error
        in_background(lambda: _finish(parts))  # which is all that holds the parts: they are freed once the other has them

    def expect(self, rank: int) -> "Future[Message]":
        """Begin to receive a rank's next message."""
        if rank not in self._expected:
            self._expected[rank] = in_background(lambda: self._take(rank))
        return self._expected[rank]

    def ready(self, rank: int) -> bool:
        """Tell whether a rank's next message is there."""
        return self.expect(rank).done()

    def receive(self, rank: int) -> Message:
        """Return a rank's next message; a ``RankLost`` says that the rank is gone, or silent for too long."""
        try:
            message = self.expect(rank).result(self.timeout_seconds)
        except TimeoutError:
            raise self.silent(rank) from None
        except RuntimeError as error:
            raise self.gone(rank) from error
        del self._expected[rank]
        return message

    def silent(self, rank: int) -> RankLost:
        """Return the error that says that nothing came in time."""
        return RankLost(
            rank,
            f"Expected rank {rank} to go on within {self.timeout_seconds:g} seconds, but nothing came: look at its machine, or "
            "raise `engine.timeout_seconds` if a client may take that long.",
        )

    def gone(self, rank: int, doing: str = "to go on") -> RankLost:
        """Return the error that says that a rank's connection broke."""
        return RankLost(
            rank,
            f"Expected rank {rank} {doing}, but the connection is lost: see what the other ranks said, then resume the run by "
            "`resume=RUN_FOLDER`, with any number of ranks.",
        )

    def _start(self, rank: int, message: Message, common: _Common = _NOTHING) -> list[tuple[Any, Tensor]]:
        """Begin to send a message; return its parts, which have to be kept until each one's work is done."""
        manifest = wire.manifest_of(message.bundles)
        pickled = torch.frombuffer(bytearray(pickle.dumps((message.body, manifest, common))), dtype=torch.uint8)
        parts = [torch.tensor([len(pickled)]), pickled]
        if manifest.num_bytes:
            parts.append(self._flat(message.bundles, manifest, self._route_between(self.place.rank, rank)))
        return [(dist.isend(part, rank), part) for part in parts]

    def _take(self, rank: int) -> Message:
        size = torch.empty(1, dtype=torch.int64)
        header = dist.irecv(size, rank)
        assert header is not None
        header.wait(_EVER)
        pickled = torch.empty(int(size), dtype=torch.uint8)
        dist.recv(pickled, rank)
        body, manifest, common = pickle.loads(pickled.numpy().tobytes())
        if isinstance(body, _Missed):
            flat = torch.empty(body.num_bytes, dtype=torch.uint8)
            if body.number == self._number:  # else the orders are of a round that is over
                wire.write(self._sent, wire.manifest_of(self._sent), flat)
            in_background(partial(_finish, [(dist.isend(flat, rank, tag=_RELAYED), flat)]))
            return self._take(rank)
        own = torch.empty(manifest.num_bytes, dtype=torch.uint8, device=self._route_between(rank, self.place.rank))
        if manifest.num_bytes:
            dist.recv(own, rank)
        shared = self._relayed(common)
        return Message(body, [*wire.read(common.manifest, shared.cpu()), *wire.read(manifest, own.cpu())])

    def _relayed(self, common: _Common) -> Tensor:
        """Receive what rank 0 sends to all, and hand it on: a rank at place i of the order to those at 2 i + 1 and 2 i + 2."""
        order, num_bytes = common.order, common.manifest.num_bytes
        flat = torch.empty(num_bytes, dtype=torch.uint8, device=self._route)
        if not num_bytes:
            return flat
        if self._route.type == "cuda":
            dist.broadcast(flat, src=0)
            return flat
        here = order.index(self.place.rank)
        source = order[(here - 1) // 2]
        try:
            dist.recv(flat, source, tag=_RELAYED)
        except RuntimeError:
            if source == 0:
                raise
            self.post(0, Message(_Missed(common.number, num_bytes)))
            dist.recv(flat, 0, tag=_RELAYED)
        for child in order[2 * here + 1 : 2 * here + 3]:
            with contextlib.suppress(RuntimeError):  # no rank needs what a lost one misses
                parts = [(dist.isend(flat, child, tag=_RELAYED), flat)]
                in_background(partial(_finish, parts))
        return flat

    def _route_between(self, sender: int, receiver: int) -> torch.device:
        """Return by what device bundles of a message travel: with nccl, only those to rank 0 by the accelerator.

        The tasks from rank 0 go through gloo, or a task and a result on their ways between two ranks would wait for each other.
        """
        return self._route if sender and not receiver else torch.device("cpu")

    def _flat(self, bundles: Sequence[State], manifest: wire.Manifest, route: torch.device) -> Tensor:
        flat = torch.empty(manifest.num_bytes, dtype=torch.uint8)
        wire.write(bundles, manifest, flat)
        return flat.to(route)


@contextlib.contextmanager
def _quiet(*names: str) -> Iterator[None]:
    """Keep what some loggers say below a warning off the terminal."""
    loggers = {logger: logger.level for logger in map(logging.getLogger, names)}
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    yield
    for logger, level in loggers.items():
        logger.setLevel(level)


def _finish(parts: list[tuple[Any, Tensor]]) -> None:
    """Wait until what was sent is taken."""
    for work, part in parts:
        if part.is_cuda:  # nccl's wait() would hold up the stream that the next client is trained on, and not this thread
            while not work.is_completed():
                time.sleep(0.005)
        else:  # gloo notices only in wait() that a message is taken
            work.wait(_EVER)
    parts.clear()


def in_background(action: Callable[[], T]) -> "Future[T]":
    """Do something in a thread that does not keep the process from ending."""
    future: Future[T] = Future()

    def work() -> None:
        try:
            future.set_result(action())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return future
