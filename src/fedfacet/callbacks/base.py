"""The contract of a callback, which watches a run without changing it, and the check that one of the user's own keeps to it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, SupportsFloat

from fedfacet.arguments import check_whole
from fedfacet.builtin import is_builtin
from fedfacet.records import FederationState, RoundResult
from fedfacet.types import ClientUpdate, Query

if TYPE_CHECKING:
    from fedfacet.federation import Federation


class Callback:
    """Override what is needed. A round calls ``measure`` of every callback before it calls ``on_round_end`` of any.

    Arguments that are out of range raise ``ValueError``.
    """

    needs_updates = False
    """Whether ``on_updates`` wants the updates; where nobody does, each is freed as soon as it is aggregated."""

    judges: ClassVar[Callable[..., str | None] | None] = None
    """``judges(self)`` returns what the server must know of samples of its own, as ``Aggregator.judges`` does."""

    needs_logits: ClassVar[bool] = False
    """Whether it asks the engine for predicted classes, which not every LightningModule of the user's own has."""

    measures_held_out_clients: ClassVar[bool] = False
    """Whether it measures the clients that never take part, where there are any."""

    def on_fit_start(self, federation: "Federation") -> None:
        """Run before this process's first round, also after a resume."""

    def on_client_end(self, round: int, position: int, expected: int, phase: str) -> None:
        """Run when one of a phase's ``expected`` clients is done; ``phase`` is ``"train"`` or ``"query ..."``."""

    def question(self) -> Query | None:
        """Return what it asks all available clients of the new model, in the rounds that a ``Measurement`` measures."""
        return None

    def on_answers(self, federation: "Federation", answers: Mapping[int, Any]) -> None:
        """Take the answers to that, of the clients that gave one; ``measure`` comes next."""

    def on_updates(self, federation: "Federation", updates: Sequence[ClientUpdate]) -> None:
        """Look at a round's updates; ``federation.state`` is still the state before the round and may be kept."""

    def measure(self, federation: "Federation", round: int) -> Mapping[str, float]:
        """Return metrics of the new model, the same names every round; NaN where nothing was measured."""
        return {}

    def on_round_end(self, federation: "Federation", result: RoundResult) -> None:
        """Run when a round is complete."""

    def on_state_complete(self, federation: "Federation") -> None:
        """Run when ``federation.state`` holds the whole round and may be saved."""

    def summarize(self, federation: "Federation") -> Mapping[str, Any]:
        """Return JSON-able entries of the run's summary, asked for at the end of a run."""
        return {}

    def on_fit_end(self, federation: "Federation", status: str) -> None:
        """Run at the very end; ``status`` is ``"finished"``, ``"interrupted"`` or ``"failed"``."""

    def state_dict(self) -> dict[str, Any]:
        """Return what must survive a round: tensors and plain data that nobody changes in place afterwards."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up what ``state_dict`` returned."""


@dataclass(eq=False, kw_only=True)
class Measurement(Callback):
    """Measures every few rounds.

    Args:
        every_n_rounds: 1 or larger; the last round is measured always, also where `termination` ends the run with it, and the
            others in between are NaN.
    """

    every_n_rounds: int = 1

    name: ClassVar[str]
    """Of the callback in ``conf/callbacks``."""

    def __post_init__(self) -> None:
        check_whole(f"callbacks.{self.name}.every_n_rounds", self.every_n_rounds)

    def is_due(self, federation: "Federation", round: int) -> bool:
        """Tell whether a round is measured."""
        return round % self.every_n_rounds == 0 or round >= federation.rounds or bool(federation.state.stopped)


class UpdatesMeasurement(Measurement):
    """Also sees the updates of the rounds that it measures; the others are freed at once."""

    needs_updates = True
    _round: tuple[FederationState | None, Sequence[ClientUpdate]] = None, ()

    def on_fit_start(self, federation: "Federation") -> None:
        """Say whether the next round's updates are needed."""
        self.needs_updates = federation.may_stop or self.is_due(federation, federation.state.round + 1)

    on_state_complete = on_fit_start

    def on_updates(self, federation: "Federation", updates: Sequence[ClientUpdate]) -> None:
        """Keep the updates and the state before the round for ``take_round``."""
        self._round = federation.state, updates

    def take_round(self) -> tuple[FederationState | None, Sequence[ClientUpdate]]:
        """Return what ``on_updates`` has kept, and keep it no longer."""
        taken, self._round = self._round, (None, ())
        return taken


def measured_by(part: Callback, federation: "Federation", round: int) -> Mapping[str, float]:
    """Have a callback measure a round; one of the user's own is held to its contract.

    Raises:
        ValueError: if a callback of the user's own writes to the model, or returns anything but numbers by name.
    """
    if is_builtin(part):
        return part.measure(federation, round)
    name, model = f"{type(part).__name__}.measure", federation.state.model
    written = {key: tensor._version for key, tensor in model.items()}
    metrics = part.measure(federation, round)
    for key, tensor in model.items():
        if tensor._version != written[key]:
            raise ValueError(
                f"Expected {name} to leave the model as it is, but it has written to {key!r}: work on a copy, as in "
                "`federation.state.model[name].clone()`."
            )
    if not isinstance(metrics, Mapping):
        raise ValueError(
            f"Expected {name} to return its metrics by name, a dict of numbers, but got {type(metrics).__name__}: return {{}} "
            "where there are none."
        )
    return {key: _number(name, key, value) for key, value in metrics.items()}


def merged(measured: Mapping[str, Mapping[str, float]], known: Mapping[str, float]) -> dict[str, float]:
    """Put what callbacks have measured together, in their order.

    Args:
        measured: callback -> its metrics.
        known: what the round has measured itself.

    Raises:
        ValueError: if a name comes twice.

    Example:
        >>> merged({"evaluate": {"val/acc": 0.5}, "auc": {"val/auc": 0.7}}, {"train/loss": 1.0})
        {'val/acc': 0.5, 'val/auc': 0.7}
    """
    owners = dict.fromkeys(known, "the round itself")
    for part, metrics in measured.items():
        for metric in metrics:
            if metric in owners:
                raise ValueError(
                    f"Expected every metric to have a name of its own, but {owners[metric]} and the callback {part!r} both "
                    f"measure {metric!r}: give one of them another name."
                )
        owners |= dict.fromkeys(metrics, f"the callback {part!r}")
    return {metric: value for metrics in measured.values() for metric, value in metrics.items()}


def _number(name: str, key: Any, value: Any) -> float:
    """Return a metric as a float, also where it is a number of numpy's or a tensor of one element."""
    if isinstance(key, str) and isinstance(value, SupportsFloat):
        try:
            return float(value)
        except (TypeError, ValueError, RuntimeError):  # of an array or a tensor of more elements
            pass
    raise ValueError(
        f"Expected {name} to return numbers by name, but {key!r} is {type(value).__name__}: return one number for each name."
    )


_COUNTERPARTS = {
    "EarlyStopping": 'give the federation termination=fedfacet.termination.PlateauTermination(metric="val/acc")',
    "ModelCheckpoint": "give the federation a `folder`, which keeps its checkpoints and model/best.safetensors",
    "LearningRateMonitor": "leave it out, or log the learning rate in `training_step`",
}
_ANY = "a callback of Lightning's Trainer has no part in a round, so write `on_round_end` in a Callback, or leave it out"
"""What to do in place of Lightning's callbacks, by class."""


def check_callbacks(callbacks: Mapping[str, object]) -> None:
    """Refuse what is no callback.

    Args:
        callbacks: by name.

    Raises:
        TypeError: naming it, and what does the same if it is one of Lightning's Trainer.
    """
    for name, callback in callbacks.items():
        if not isinstance(callback, Callback):
            kind = type(callback).__name__
            raise TypeError(
                f"Expected {name!r} of `callbacks` to be a fedfacet.callbacks.base.Callback, but got {kind}: "
                f"{_COUNTERPARTS.get(kind, _ANY)}."
            )
