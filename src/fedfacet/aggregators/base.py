"""The contract of an aggregator."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar

from fedfacet import state
from fedfacet.arguments import check_choice
from fedfacet.errors import BadUpdateError
from fedfacet.types import Broadcast, ClientUpdate, Facts, Query, ServerState, State


@dataclass(eq=False, kw_only=True)
class Aggregator(ABC):
    """How updates become the next global model; plain single-process tensor code.

    An aggregator is immutable: its constructor takes hyperparameters, of which those out of range raise ``ValueError``, and its
    state goes in and comes out, so that a round may be run twice without a thought.

    Args:
        weighting: ``"equal"`` gives every client weight 1, ``"samples"`` its number of samples n_k.
        buffers: ``"average"`` moves floating-point buffers (running statistics) to the clients' weighted average, ``"keep"``
            leaves the server's untouched. Integer buffers always keep the server's value.
    """

    gives: ClassVar[frozenset[str]] = frozenset()
    """Names of what the server sends along with the model; some other part must need each of them."""

    needs: ClassVar[frozenset[str]] = frozenset()
    """Names of what clients must send along with their updates; some other part must give each of them."""

    broadcast: ClassVar[Callable[..., Broadcast] | None] = None
    """``broadcast(self, server, model, client_id)`` returns what a client is sent; ``None`` for the model and nothing else."""

    @property
    def report(self) -> Query | None:
        """What the members of a cohort are asked before they train; ``ClientUpdate.report`` has the answer.

        The question is put on the round's model. A client that the selector has asked the same in this round is not asked
        again; one that needs no model is asked once in a run.
        """
        return None

    weighting: str = "equal"
    buffers: str = "average"

    def __post_init__(self) -> None:
        check_choice("weighting", self.weighting, ("equal", "samples"))
        check_choice("buffers", self.buffers, ("average", "keep"))

    def init(self, facts: Facts) -> ServerState:
        """Return the state before the first round: tensors and plain data.

        A resume holds a saved state to this one: names, types and shapes must be the same. What grows starts empty: ``{}``,
        ``[]``, ``None``, or a tensor without entries.

        Raises:
            ConfigError: if the model, or what of it stays with the clients, does not suit the aggregator.
        """
        return {}

    @property
    def entrywise(self) -> bool:
        """Whether an entry of the next model depends on this entry alone, of model, state and the updates of those who hold it.

        Then clients may hold parts of the model. ``average`` does it.
        """
        return False

    def extras(self, facts: Facts) -> State:
        """Return tensors like those in every update's ``extras`` that ``aggregate`` reads; updates without them are refused."""
        return {}

    @abstractmethod
    def aggregate(self, server: ServerState, model: State, updates: Iterable[ClientUpdate]) -> tuple[ServerState, State]:
        """Return the next state and the next global model.

        Args:
            server: the state; never written to.
            model: the global model that was broadcast; never written to.
            updates: the cohort's updates in cohort order, at least one, valid, readable once.
        """

    def weight(self, update: ClientUpdate) -> float:
        """Return p_k, up to the constant that makes the cohort's add up to 1."""
        return 1.0 if self.weighting == "equal" else float(update.num_samples)

    def average(self, updates: Iterable[ClientUpdate]) -> tuple[State, State]:
        """Fold the updates into the weighted mean of their deltas and of their buffers, each entry's over its holders."""
        mean = state.weighted_mean(
            # One fold for both, so that a stream of updates is read once; the prefixes keep the names apart.
            (_apart(update.delta, update.buffers if self.buffers == "average" else {}), self._weights(update))
            for update in updates
        )
        delta = {name[2:]: tensor for name, tensor in mean.items() if name.startswith("d|")}
        return delta, {name[2:]: tensor for name, tensor in mean.items() if name.startswith("b|")}

    def _weights(self, update: ClientUpdate) -> float | State:
        """Return p_k, or p_k for every entry that the client held and 0 for the others."""
        weight, held = self.weight(update), update.held
        if held is None:
            return weight
        return state.scaled(_apart(*({name: held[name] for name in part} for part in (update.delta, update.buffers))), weight)


def reported_loss(update: ClientUpdate) -> float:
    """Return the loss that a client has reported, or raise ``BadUpdateError`` if it is no finite number, 0 or larger."""
    loss = update.report
    if not isinstance(loss, float) or not 0 <= loss < math.inf:
        raise BadUpdateError(
            f"Expected client {update.client_id} to report a finite loss of the model that it was sent, but got {loss}: lower "
            "the learning rate, or see that the client has samples."
        )
    return loss


def _apart(delta: State, buffers: State) -> State:
    return {f"d|{name}": tensor for name, tensor in delta.items()} | {f"b|{name}": tensor for name, tensor in buffers.items()}
