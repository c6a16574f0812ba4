"""What a round notes down: what arrived, what was wrong with it, and what took how long."""

import itertools
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import asdict
from typing import Any, NamedTuple, TypeVar

from fedfacet import state
from fedfacet.types import ClientUpdate, Ledger, State

Result = TypeVar("Result")


class Receipt(NamedTuple):
    """What is kept of an update when its tensors are freed."""

    client_id: int
    num_steps: int
    metrics: Mapping[str, float]
    memory: State


class Clock:
    """Wall-clock seconds by phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {"ask": 0.0}
        self._last = time.perf_counter()

    def lap(self, phase: str) -> None:
        """Book the time since the last lap to ``phase``."""
        now = time.perf_counter()
        self.seconds[phase] = now - self._last
        self._last = now

    def apart(self, phase: str, call: Callable[..., Result]) -> Callable[..., Result]:
        """Return ``call`` with its time booked to ``phase`` instead of the lap in which it is made."""

        def timed(*arguments: Any) -> Result:
            began = time.perf_counter()
            try:
                return call(*arguments)
            finally:
                spent = time.perf_counter() - began
                self.seconds[phase] = self.seconds.get(phase, 0.0) + spent
                self._last += spent

        return timed


def training_metrics(receipts: Sequence[Receipt], ledger: Ledger) -> dict[str, float]:
    """Add up what the clients measured; sums are divided only here."""
    num_seen = sum(receipt.metrics.get("num_seen", 0) for receipt in receipts)
    loss_sum = sum(receipt.metrics.get("loss_sum", 0.0) for receipt in receipts)
    return {
        "train/loss": loss_sum / num_seen if num_seen else float("nan"),
        "train/num_steps": sum(receipt.num_steps for receipt in receipts),
        **{f"comm/{name}": value for name, value in asdict(ledger).items()},
    }


def fault_of(update: ClientUpdate, model: State, names: Set[str], is_finite: state.FiniteCheck) -> str | None:
    """Say what is wrong with an update, or ``None``; ``names`` are the tensors of the round's first update."""
    for name, tensor in itertools.chain(update.delta.items(), update.buffers.items()):
        if name not in model:
            return f"it holds a tensor {name!r} that the model does not have"
        if tensor.shape != model[name].shape:
            return f"its {name!r} has shape {tuple(tensor.shape)} instead of {tuple(model[name].shape)}"
    if differing := sorted(names ^ (update.delta.keys() | update.buffers.keys())):
        return f"it {'lacks' if differing[0] in names else 'holds'} {differing[0]!r}, unlike the round's first update"
    if not all(map(is_finite, (update.delta, update.buffers, update.extras, update.memory))):
        return "it holds NaN or infinite numbers"
    return None
