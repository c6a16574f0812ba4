"""A worker process: it takes orders through a channel until the other end is gone."""

import pickle
import shutil
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch

from fedfacet.clients.divided_training import HalfTrained
from fedfacet.clients.prediction import predict
from fedfacet.clients.queries.base import answer_query
from fedfacet.clients.trainer import Clients
from fedfacet.parallel import wire
from fedfacet.parallel.messages import Message, Order, unpack_task
from fedfacet.parallel.processes import ignore_signals, is_orphan, keep_freed_memory
from fedfacet.parallel.shared_memory import Channel, SharedBytes
from fedfacet.types import State


class Common(NamedTuple):
    """Bundles in memory that all workers see: where it lies, and what is in it."""

    memory: SharedBytes
    manifest: wire.Manifest


class Part(NamedTuple):
    """An order to a worker, or a part of one, and where the common bundles are if that is news.

    Last of the bundles beside come those that ``wire.pack_half`` makes of a half-trained client, whose numbers are ``half``.
    ``stop`` is the number of steps after which training is put down; ``None`` to finish it.
    """

    order: Order
    common: Common | None = None
    half: dict[str, Any] | None = None
    stop: int | None = None


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
            part, bundles = channel.receive()
            if torch.get_num_threads() != settings["threads"]:  # a module that was imported since, a query's say, has set it
                torch.set_num_threads(settings["threads"])
            try:
                if part.common is not None:
                    common = wire.read(part.common.manifest, part.common.memory.tensor)
                # New tensors: the other end writes the next model to the same place, and a device knows a model by its tensors.
                seen = [{name: tensor.detach() for name, tensor in bundle.items()} for bundle in common]
                half = wire.unpack_half(part.half, bundles[-3:]) if part.half is not None else None
                message = carry_out(part.order, [*seen, *bundles], clients, half, part.stop)
            except Exception as error:
                message = Message(wire.Failure.of(error, f"In a worker process, over {part.order.name}"))
            channel.send(*message)
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


def carry_out(
    order: Order, bundles: Sequence[State], clients: Clients, half: HalfTrained | None = None, stop: int | None = None
) -> Message:
    """Do what an order says, and return the result; ``bundles`` are the common ones and its own."""
    if order.task is None:
        return Message(predict(clients, bundles[0], order.batches, bundles[1]))
    task = unpack_task(order.task, order.places, bundles)
    if order.query is not None:
        return Message(answer_query(clients, order.query, task))
    outcome = clients.train_part(task, half, stop)
    return Message(*(wire.pack_half(outcome) if isinstance(outcome, HalfTrained) else wire.pack_update(outcome)))
