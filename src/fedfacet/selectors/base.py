"""The contract of a client selector."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from fedfacet.types import ClientUpdate, RoundResult, SelectionContext


class ClientSelector(ABC):
    """Who takes part in a round."""

    needs_updates = False
    """Whether ``observe`` wants the updates; where nobody does, each is freed as soon as it is aggregated."""

    def cohort_size(self, context: SelectionContext) -> int:
        """Return how many clients the round shall have; by default what is asked for, at most those available."""
        return min(context.cohort_size, len(context.available))

    @abstractmethod
    def select(self, context: SelectionContext) -> list[int]:
        """Return the cohort: ``cohort_size(context)`` distinct clients out of ``context.available``, in order.

        Must not change the selector: a round that is stopped halfway is drawn again.
        """

    def observe(self, result: RoundResult, updates: Sequence[ClientUpdate]) -> None:
        """Learn from a finished round; ``updates`` is empty unless ``needs_updates``."""

    def state_dict(self) -> dict[str, Any]:
        """Return what must survive a round, as tensors and plain data that is never changed in place afterwards."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up what ``state_dict`` returned."""
