"""What the server makes sure of before it believes a client's update."""

import logging
import math
import reprlib
import sys
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor

from fedfacet import state
from fedfacet.arguments import check_choice
from fedfacet.errors import BadUpdateError
from fedfacet.mechanism import Mechanism, Round
from fedfacet.types import ClientTask, ClientUpdate, Facts, Query, State

log = logging.getLogger(__name__)

Seen: TypeAlias = dict[str, tuple[Tensor, int]]

_MOST = 2**53
"""The largest count up to which a float holds every whole number."""

_REAL = (int, float)
_NUMBERS: tuple[tuple[str, Any, float, float], ...] = (
    ("num_samples", int, 1, _MOST),
    ("num_steps", int, 1, _MOST),
    ("num_lost", int, 0, _MOST),
    ("step_weight", _REAL, math.ulp(0.0), sys.float_info.max),
    ("loss_sum", _REAL, -sys.float_info.max, sys.float_info.max),
    ("num_seen", _REAL, 0, _MOST),
)
"""Name, type, least and largest value of what an update says in numbers."""


def misfit(update: object, task: ClientTask, facts: Facts, extras: Mapping[str, Tensor]) -> str | None:
    """Say what of an update is not as it must be; infinite numbers are ``is_finite``'s to find.

    Args:
        update: what came.
        task: the order that it should answer.
        facts: what clients send.
        extras: what the aggregator needs beside the update: tensors of the names, shapes and dtypes that it expects.
    """
    if not isinstance(update, ClientUpdate):
        return f"it is {type(update).__name__} instead of an update"
    if type(update.client_id) is not int or update.client_id != task.client_id:
        return f"it names client {reprlib.repr(update.client_id)} as its sender"
    metrics = update.metrics if isinstance(update.metrics, (dict, Mapping)) else {}
    measured = metrics.get("loss_sum"), metrics.get("num_seen")
    values: Any = (update.num_samples, update.num_steps, update.num_lost, update.step_weight, *measured)
    for value, (name, kind, least, most) in zip(values, _NUMBERS, strict=True):
        if type(value) is bool or not isinstance(value, kind) or not least <= value <= most:
            return f"its {name} is {reprlib.repr(value)}"
    if metrics["num_seen"] < 1 and (metrics["num_seen"], metrics["loss_sum"]) != (0, 0):  # whose batches were empty says 0 of 0
        return f"its num_seen is {reprlib.repr(metrics['num_seen'])}"
    if update.mask is not None:
        return "it says what the client held, which the server writes"
    model, sends = task.broadcast.model, update.silent is not True
    for what, bundle, names, like, others in (
        ("delta", update.delta, facts.parameters, model, False),
        ("buffers", update.buffers, facts.buffers, model, False),
        ("extras", update.extras, extras, extras, sends),
        ("memory", update.memory, (), {}, True),
    ):
        if type(bundle) is not dict or bundle or (names and sends):  # few clients send or keep more than a delta
            fault = _misfit(what, bundle, names if sends else (), like, others=others)
            if fault is not None:
                return fault
    return None


def checked(update: ClientUpdate, task: ClientTask, facts: Facts, extras: State, seen: Seen) -> tuple[str | None, int]:
    """Say what is wrong with an update, ``None`` for nothing, and count its numbers; see ``misfit`` and ``is_finite``."""
    if (fault := misfit(update, task, facts, extras)) is not None:
        return fault, 0
    sent = sum([state.num_floats(bundle) for bundle in (update.delta, update.buffers, update.extras) if bundle])
    return None if is_finite(update, seen) else "it holds NaN or infinite numbers", max(sent - update.num_lost, 0)


class UpdateCheck(Mechanism):
    """Takes no update that is malformed or holds NaN or infinity.

    Args:
        on_bad_update: ``"raise"`` ends the run, ``"drop"`` leaves the update out.

    Raises:
        ValueError: if ``on_bad_update`` is neither.
    """

    rank = 90
    verdict = staticmethod(checked)

    def __init__(self, on_bad_update: str = "raise") -> None:
        check_choice("federation.on_bad_update", on_bad_update, ("raise", "drop"))
        self.on_bad_update = on_bad_update

    def incoming(self, round: Round, task: ClientTask, update: ClientUpdate) -> ClientUpdate | None:
        """Count how many numbers arrived, and return the update if it counts."""
        seen = round.notes.setdefault("seen", {})
        fault, num_floats = self.verdict(update, task, round.federation.facts, round.federation.extras, seen)
        round.queries.ledger.floats_up += num_floats
        if fault is None:
            return update
        self.rejected(round.number, task.client_id, fault, None)
        return None

    def rejected(self, number: int, client_id: int, fault: str, query: Query | None) -> None:
        """Raise, or log what follows, as ``on_bad_update`` says.

        Raises:
            BadUpdateError: naming the client.
        """
        what, follows = "a finite update of the model's shapes", "the update is dropped"
        if query is not None:
            what, follows = f"an answer to the query {query.name} that counts", "the client is away"
        message = f"Expected {what} from client {client_id} in round {number}, but {fault}"
        if self.on_bad_update == "raise":
            raise BadUpdateError(
                f"{message}: lower the learning rate, or leave such clients out by federation.on_bad_update=drop, which a "
                "resume takes too."
            )
        log.warning("%s; %s.", message, follows)


def is_finite(update: ClientUpdate, seen: Seen) -> bool:
    """Tell whether an update holds neither NaN nor infinity.

    Args:
        update: that has no ``misfit``.
        seen: remembers during a round the finite tensors of which many updates' tensors are views.
    """
    for bundle in (update.delta, update.buffers, update.extras, update.memory):
        for name, tensor in bundle.items() if bundle else ():
            base = tensor._base
            if base is not None and base.nbytes > tensor.nbytes:
                known, version = seen.get(name, (None, 0))
                if known is base and version == base._version:  # nobody has written to it since
                    continue
                if state.is_finite(base):
                    seen[name] = base, base._version
                    continue
            if not state.is_finite(tensor):
                return False
    return True


def _misfit(what: str, bundle: object, names: Iterable[str], like: Mapping[str, Tensor], *, others: bool) -> str | None:
    """Say how a bundle that came from elsewhere differs from the names, shapes and dtypes of another; ``None`` if it does not.

    Args:
        what: the bundle's name, for the answer.
        bundle: what came; only a mapping of names to dense tensors can pass.
        names: of the tensors that it must hold.
        like: what these must be like.
        others: whether it may hold tensors of other names besides.
    """
    if not isinstance(bundle, (dict, Mapping)) or not set(map(type, bundle)) <= {str}:
        return f"its {what} is {type(bundle).__name__} instead of tensors by name"
    names = set(names)
    if lacking := names.difference(bundle):
        return f"its {what} lacks {min(lacking)!r}"
    for name, tensor in bundle.items():
        if not _is_plain(tensor):
            return f"{name!r} in its {what} is no dense tensor of real numbers, detached and with memory of its own"
        if name in names:
            known = like[name]
            if tensor.shape != known.shape:
                return f"{name!r} in its {what} has shape {tuple(tensor.shape)} instead of {tuple(known.shape)}"
            if tensor.dtype != known.dtype or tensor.device != known.device:
                return f"{name!r} in its {what} is {tensor.dtype} on {tensor.device} instead of {known.dtype} on {known.device}"
        elif not others:
            return f"its {what} holds {name!r}, which it must not"
    return None


def _is_plain(value: object) -> bool:
    """Tell whether all arithmetic in this project takes a value as a tensor."""
    return (
        isinstance(value, Tensor)
        and value.layout == torch.strided
        and not (value.is_complex() or value.is_quantized or value.is_nested or value.is_meta)
        and not (value.requires_grad or value.is_neg())
    )
