"""The contract of an aggregator."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from fedfacet import state
from fedfacet.arguments import check_choice
from fedfacet.types import Broadcast, ClientUpdate, State


class Aggregator(ABC):
    """How updates become the next global model; plain single-process tensor code.

    Args:
        weighting: ``"equal"`` gives every client weight 1, ``"samples"`` its number of samples n_k.
        buffers: ``"average"`` moves floating-point buffers (running statistics) to the clients' weighted average, ``"keep"``
            leaves the server's untouched. Integer buffers always keep the server's value.

    Raises:
        ValueError: for another ``weighting`` or ``buffers``.
    """

    def __init__(self, *, weighting: str = "equal", buffers: str = "average") -> None:
        check_choice("weighting", weighting, ("equal", "samples"))
        check_choice("buffers", buffers, ("average", "keep"))
        self.weighting = weighting
        self.buffers = buffers

    def broadcast(self, model: State, client_id: int) -> Broadcast:
        """Return what ``client_id`` is sent; by default the whole model, shared by reference."""
        return Broadcast(model)

    @abstractmethod
    def aggregate(self, model: State, updates: Iterable[ClientUpdate]) -> State:
        """Return the next global model.

        Args:
            model: the global model that was broadcast; never written to.
            updates: the cohort's updates in cohort order, at least one, valid, readable once. The aggregator's own state may
                change only after the last of them, so that a round which is stopped halfway leaves it as it was.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return what must survive a round, as tensors and plain data that is never changed in place afterwards."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up what ``state_dict`` returned."""

    def _weight(self, update: ClientUpdate) -> float:
        """Return p_k, up to the constant that makes the cohort's add up to 1."""
        return 1.0 if self.weighting == "equal" else float(update.num_samples)

    def _average(self, updates: Iterable[ClientUpdate]) -> tuple[State, State]:
        """Fold the updates into the weighted mean of their deltas and of their buffers."""
        mean = state.weighted_mean(
            (
                # One fold for both, so that a stream of updates is read once; the prefixes keep the names apart.
                {f"d|{name}": tensor for name, tensor in update.delta.items()}
                | ({f"b|{name}": tensor for name, tensor in update.buffers.items()} if self.buffers == "average" else {}),
                self._weight(update),
            )
            for update in updates
        )
        delta = {name[2:]: tensor for name, tensor in mean.items() if name.startswith("d|")}
        return delta, {name[2:]: tensor for name, tensor in mean.items() if name.startswith("b|")}
