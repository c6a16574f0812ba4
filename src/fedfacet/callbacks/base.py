"""The contract of a callback: what watches a run without changing it."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedfacet.types import ClientUpdate, RoundResult

if TYPE_CHECKING:
    from fedfacet.federation import Federation


class Callback:
    """Override what is needed; each method of this class does nothing.

    A round calls ``measure`` of every callback first, so that each sees all metrics in ``on_round_end``.
    """

    needs_updates = False
    """Whether ``on_updates`` wants the updates; where nobody does, each is freed as soon as it is aggregated."""

    def on_fit_start(self, federation: "Federation") -> None:
        """Run before the first round of this process, also after a resume."""

    def on_client_end(self, round: int, position: int, expected: int, phase: str) -> None:
        """Run whenever one of the ``expected`` clients of a phase (``"train"``, ``"query ..."``) is done, counted from 1."""

    def on_updates(self, federation: "Federation", updates: Sequence[ClientUpdate]) -> None:
        """Look at a round's updates; ``federation.state`` is still the state before the round, and may be kept."""

    def measure(self, federation: "Federation", round: int) -> Mapping[str, float]:
        """Return metrics of the new model, the same names every round; NaN where nothing was measured."""
        return {}

    def on_round_end(self, federation: "Federation", result: RoundResult) -> None:
        """Run when a round is complete."""

    def on_state_complete(self, federation: "Federation") -> None:
        """Run once the round is whole, with every part's state in ``federation.state``: the moment to save it."""

    def summarize(self, federation: "Federation") -> Mapping[str, Any]:
        """Return what belongs into the run's summary, JSON-able, under a name of its own; asked for at the end of a run."""
        return {}

    def on_fit_end(self, federation: "Federation", status: str) -> None:
        """Run at the very end; ``status`` is ``"finished"``, ``"interrupted"`` or ``"failed"``."""

    def state_dict(self) -> dict[str, Any]:
        """Return what must survive a round, as tensors and plain data that is never changed in place afterwards."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up what ``state_dict`` returned."""
