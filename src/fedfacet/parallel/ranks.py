"""The processes of one run on one machine or many, as torchrun or SLURM starts them, and the messages between them."""

import atexit
import contextlib
import itertools
import logging
import os
import pickle
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from datetime import timedelta
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.fabric.strategies.ddp import DDPStrategy
from torch import Tensor
from torch import distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from fedfacet.errors import ConfigError, EngineError
from fedfacet.parallel import wire
from fedfacet.types import State

log = logging.getLogger(__name__)

T = TypeVar("T")

_EVER = timedelta(days=3650)  # a message may be long in coming; for how long it is waited is decided in `Ranks.receive`


class Place(NamedTuple):
    """Which of a run's processes this is: rank 0 drives the run, the others serve.

    ``local_rank`` is among the ``num_local_ranks`` of this machine. ``environment`` is what Lightning knows of whoever started
    the processes; ``None`` where there is only this one.
    """

    rank: int = 0
    num_ranks: int = 1
    local_rank: int = 0
    num_local_ranks: int = 1
    environment: ClusterEnvironment | None = None


def find_place() -> Place:
    """Return this process's place, as torchrun or SLURM's ``srun`` wrote it into the environment.

    Raises:
        ConfigError: if what SLURM was asked for does not fit together.
    """
    try:
        if TorchElasticEnvironment.detect():
            environment: ClusterEnvironment = TorchElasticEnvironment()
            num_local = int(os.environ["LOCAL_WORLD_SIZE"])
        elif "SLURM_NTASKS" in os.environ and SLURMEnvironment.detect():  # which warns where nobody asked for SLURM
            environment = SLURMEnvironment()
            num_local = environment.world_size() // int(os.environ.get("SLURM_NNODES", "1"))
        else:
            return Place()
    except RuntimeError as error:
        raise ConfigError(f"Expected SLURM settings that start one task per rank, but got this: {error}") from None
    if environment.world_size() == 1:
        return Place()
    return Place(environment.global_rank(), environment.world_size(), environment.local_rank(), num_local, environment)


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


class Message(NamedTuple):
    """What one process sends another: a body that can be pickled, and tensors on the CPU, which travel as one run of bytes."""

    body: Any
    bundles: Sequence[State] = ()

    @classmethod
    def joined(cls, messages: Sequence["Message"]) -> "Message":
        """Return several messages as one, whose body is ``Joined``."""
        parts = [(message.body, len(message.bundles)) for message in messages]
        return cls(Joined(parts), [bundle for message in messages for bundle in message.bundles])

    def parted(self) -> list["Message"]:
        """Return the messages that one was joined of."""
        bundles = iter(self.bundles)
        return [Message(body, list(itertools.islice(bundles, number))) for body, number in self.body.parts]


class Joined(NamedTuple):
    """The body of several messages in one: each body, and how many of the bundles are its own."""

    parts: Sequence[tuple[Any, int]]


class Ranks:
    """The connection between a run's processes.

    A thread waits for what may take long, so that the main thread hears signals meanwhile. Plain objects travel through gloo,
    tensors through the chosen backend, those of single tasks apart.

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
        self.lost = False  # whether a message may have got stuck halfway, so that nothing more can be said
        self.owed: dict[int, int] = {}  # how many results each rank has still to send
        self.halted: set[int] = set()  # those ranks that were told to send no more
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
            # They reach all processes; rank 0 finishes what is to be finished and says when it is over.
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)
        else:
            log.info("%d ranks, %s.", place.num_ranks, backend)

    @property
    def others(self) -> range:
        """All ranks but 0."""
        return range(1, self.place.num_ranks)

    def send(self, messages: Mapping[int, Message], common: Sequence[State] = ()) -> None:
        """Send messages to some ranks, and wait until they have them.

        The ``common`` bundles go to all other ranks (``messages`` has one for each), in front of their own.
        """

        def deliver() -> None:
            manifest = wire.manifest_of(common)
            parts = [part for rank, message in messages.items() for part in self._start(rank, message, manifest)]
            if manifest.num_bytes:
                dist.broadcast(self._flat(common, manifest, self._route), src=0)
            for work, _ in parts:
                work.wait()

        self.lost = True  # unless all of it gets through
        self.wait_for(in_background(deliver), "the other ranks to take a message")
        self.lost = False

    def post(self, rank: int, message: Message) -> None:
        """Send a message without waiting until the other takes it.

        That the other is gone is said by an ``EngineError`` here, or where the next message of it is waited for.
        """
        try:
            parts = self._start(rank, message, wire.manifest_of([]))
        except RuntimeError as error:
            raise self._gone(f"rank {rank} to take a message") from error
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
        """Return a rank's next message; an ``EngineError`` says that the rank is gone, or silent for too long."""
        message = self.wait_for(self.expect(rank), f"rank {rank} to go on")
        del self._expected[rank]
        return message

    def wait_for(self, future: "Future[T]", what: str) -> T:
        """Return what comes of something begun; an ``EngineError`` says that a rank is gone, or silent for too long."""
        try:
            return future.result(self.timeout_seconds)
        except TimeoutError:
            raise self.silent(what) from None
        except RuntimeError as error:
            raise self._gone(what) from error

    def silent(self, what: str) -> EngineError:
        """Return the error to be raised where nothing came in time."""
        self.lost = True
        return EngineError(
            f"Expected {what} within {self.timeout_seconds:g} seconds, but nothing came: look at its machine, or raise "
            "`engine.timeout_seconds` if a client may take that long."
        )

    def _gone(self, what: str) -> EngineError:
        self.lost = True
        return EngineError(
            f"Expected {what}, but the connection is lost: see what the other ranks said, then go on with the run by "
            "`resume=RUN_FOLDER`, with any number of ranks."
        )

    def _start(self, rank: int, message: Message, common: wire.Manifest) -> list[tuple[Any, Tensor]]:
        """Begin to send a message; return its parts, which have to be kept until each one's work is done."""
        manifest = wire.manifest_of(message.bundles)
        pickled = torch.frombuffer(bytearray(pickle.dumps((message.body, manifest, common))), dtype=torch.uint8)
        parts = [torch.tensor([len(pickled)]), pickled]
        if manifest.num_bytes:
            parts.append(self._flat(message.bundles, manifest, self._route_from(self.place.rank)))
        return [(dist.isend(part, rank), part) for part in parts]

    def _take(self, rank: int) -> Message:
        size = torch.empty(1, dtype=torch.int64)
        header = dist.irecv(size, rank)
        assert header is not None
        header.wait(_EVER)
        pickled = torch.empty(int(size), dtype=torch.uint8)
        dist.recv(pickled, rank)
        body, manifest, common = pickle.loads(pickled.numpy().tobytes())
        own = torch.empty(manifest.num_bytes, dtype=torch.uint8, device=self._route_from(rank))
        shared = torch.empty(common.num_bytes, dtype=torch.uint8, device=self._route)
        if manifest.num_bytes:
            dist.recv(own, rank)
        if common.num_bytes:
            dist.broadcast(shared, src=0)
        return Message(body, [*wire.read(common, shared.cpu()), *wire.read(manifest, own.cpu())])

    def _route_from(self, rank: int) -> torch.device:
        """Return by what device a rank's own bundles travel.

        Those of rank 0, the tasks', go through gloo: with nccl a task and a result on their ways between the same two ranks
        would wait for each other.
        """
        return self._route if rank else torch.device("cpu")

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
