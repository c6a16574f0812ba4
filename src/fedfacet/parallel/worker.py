"""A worker process: it takes orders through a channel until the other end is gone."""

import pickle
import shutil
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fedfacet.clients.divided_training import HalfTrained
from fedfacet.clients.program import Clients
from fedfacet.parallel import wire
from fedfacet.parallel.messages import unpack_task
from fedfacet.parallel.processes import ignore_signals, is_orphan, keep_freed_memory
from fedfacet.parallel.shared_memory import Channel, SharedBytes
from fedfacet.types import ClientTask, Query, State


class Common(NamedTuple):
    """Bundles in memory that all workers see: where it lies, and what is in it."""

    memory: SharedBytes
    manifest: wire.Manifest


class Order(NamedTuple):
    """What a worker shall do: answer a ``query`` on a task, train on it without one, or without a task predict ``batches``.

    A task is packed: ``places`` are those of its bundles among the common ones, and then among its own, which come beside the
    order. To predict, the common bundle is the model, and the own one what the client keeps. Last come those that
    ``wire.pack_half`` makes of a half-trained client, whose numbers are ``half``. ``common`` says where the common bundles are
    if that is news. ``stop`` is the number of steps after which training is put down; ``None`` to finish it.
    """

    task: ClientTask | None = None
    places: tuple[int, ...] = ()
    common: Common | None = None
    half: dict[str, Any] | None = None
    stop: int | None = None
    query: Query | None = None
    batches: Sequence[NDArray[np.int64]] = ()

    @property
    def name(self) -> str:
        """What is done, for a message."""
        return f"client {self.task.client_id} in round {self.task.round}" if self.task is not None else "an evaluation"


def serve(connection: Connection, pickled: bytes, settings: dict[str, Any]) -> None:
    """Take orders until the other end is gone; the entry point of a worker process.

    ``pickled`` is a pair: the keyword arguments of a ``Clients``, its memory format by name, and the pickle of its data.
    ``settings`` are ``threads``, ``deterministic``, ``device``, and the folder that the other end has for ``temporary`` files.
    """
    ignore_signals()
    keep_freed_memory()
    torch.set_num_threads(settings["threads"])
    torch.use_deterministic_algorithms(settings["deterministic"])
    channel, common = Channel(connection), list[State]()
    clients: Clients | None = None
    try:
        clients = _unpacked(pickled, torch.device(settings["device"]))
        while True:
            order, bundles = channel.receive()
            if torch.get_num_threads() != settings["threads"]:  # a module that was imported since, a query's say, has set it
                torch.set_num_threads(settings["threads"])
            try:
                if order.common is not None:
                    common = wire.read(order.common.manifest, order.common.memory.tensor)
                message, outgoing = _carry_out(order, bundles, common, clients)
            except Exception as error:
                message, outgoing = wire.Failure.of(error, f"In a worker process, over {order.name}"), []
            channel.send(message, outgoing)
    except (EOFError, OSError):
        if is_orphan():  # who gives the orders was killed, and cannot tidy up itself
            shutil.rmtree(settings["temporary"], ignore_errors=True)
        elif clients is None:
            raise


def _unpacked(pickled: bytes, device: torch.device) -> Clients:
    arguments, data = pickle.loads(pickled)
    arguments["memory_format"] = getattr(torch, arguments["memory_format"])
    for objective in (arguments["objective"], *arguments["other_objectives"]):
        objective.to(device=device, memory_format=arguments["memory_format"])
    return Clients(**arguments, **pickle.loads(data), device=device)


def _carry_out(order: Order, bundles: list[State], common: Sequence[State], clients: Clients) -> tuple[Any, list[State]]:
    # New tensors, since the other end writes the next model to the same place, and a device knows a model by its tensors.
    bundles = [*({name: tensor.detach() for name, tensor in bundle.items()} for bundle in common), *bundles]
    if order.task is None:
        return clients.predict(bundles[0], order.batches, bundles[1]), []
    task = unpack_task(order.task, order.places, bundles)
    if order.query is not None:
        return clients.answer(order.query, task), []
    half = wire.unpack_half(order.half, bundles[-3:]) if order.half is not None else None
    outcome = clients.train_part(task, half, order.stop)
    return wire.pack_half(outcome) if isinstance(outcome, HalfTrained) else wire.pack_update(outcome)
