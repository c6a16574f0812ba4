"""The contract of an aggregator."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedfacet import state
from fedfacet.arguments import Choice, Declared
from fedfacet.confusion import accuracy_of
from fedfacet.types import PARTS, Broadcast, ClientUpdate, Facts, Query, ServerState, State

log = logging.getLogger(__name__)


@dataclass(eq=False, kw_only=True)
class Aggregator(Declared, ABC):
    """How updates become the next global model; plain single-process tensor code.

    An aggregator is immutable: its constructor takes hyperparameters, of which those out of range raise ``ValueError``, and its
    state goes in and comes out, so that a round may be run twice without a thought.

    Args:
        weighting: ``"equal"`` gives every client weight 1, ``"samples"`` its number of samples n_k, as FedAvg's paper does.
        buffers: ``"average"`` moves floating-point buffers (running statistics) to the clients' weighted average, ``"keep"``
            leaves the server's untouched. Integer buffers always keep the server's value.
    """

    provides: ClassVar[frozenset[str]] = frozenset()
    """Names of what the server sends along with the model; some other part must need each of them."""

    requires: ClassVar[frozenset[str]] = frozenset()
    """Names of what clients must send along with their updates; some other part must give each of them."""

    excludes: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """What it cannot do with if another part provides it, each with the reason and the remedy."""

    @property
    def exclusions(self) -> Mapping[str, str]:
        """``excludes``, and what follows from what else it declares."""
        parts = {} if self.entrywise else {PARTS: "needs whole models: choose fedavg, fedavgm or fednova"}
        return {**parts, **self.excludes}

    broadcast: ClassVar[Callable[..., Broadcast] | None] = None
    """``broadcast(self, server, model, client_id)`` returns what a client is sent; ``None`` for the model and nothing else."""

    report: ClassVar[Callable[..., Query | None] | None] = None
    """``report(self)`` returns what a cohort's members are asked before they train; ``None`` for nothing.

    ``ClientUpdate.report`` has the answer. The question is put on the round's model. A client that the selector has asked the
    same in this round is not asked again; a question that needs no model is put to a client once in a run.
    """

    prepare: ClassVar[Callable[..., ServerState] | None] = None
    """``prepare(self, server, reports)`` returns the state that ``broadcast`` and ``aggregate`` see in this round.

    ``reports`` are answers by client: those of this round, or, if the question needs no model, all that were given in the run.
    ``None`` for a state that is what the last round left.
    """

    judges: ClassVar[Callable[..., str | None] | None] = None
    """``judges(self)`` returns what the server must know of samples of its own so that models are judged on them.

    That is ``"groups"``, classes and attribute values, or ``"classes"``; ``None`` if no model is judged. The counts are in
    ``ClientUpdate.judged``. With ``"groups_of_sent"`` no update is judged. A mechanism of the aggregator looks at the model
    that is sent. A run without such samples is refused.
    """

    takes_mean: ClassVar[bool] = False
    """Whether the mean of a cohort's updates is all that it needs, so that it may be handed that as the only update.

    A class must say so itself: what it inherits does not count, since it may look at each update in ``aggregate`` of its own.
    """

    noised: ClassVar[Callable[..., Mapping[str, tuple[float, float]]] | None] = None
    """``noised(self)`` returns names in ``extras`` -> the largest l2 norm and the noise multiplier under ``privacy=central``.

    The server then clips each client's tensor, and hands the noised mean along with the mean update, which is all that
    ``aggregate`` may need. ``None`` if the aggregator does not do with means; a class must say so itself, as above.
    """

    weighting: Annotated[str, Choice("equal", "samples")] = "equal"
    buffers: Annotated[str, Choice("average", "keep")] = "average"

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

    def mechanisms(self, clock: Any, cohort_size: int, num_clients: int) -> Sequence[Any]:
        """Return what else of a round the method has a hand in, each a ``Mechanism``; nothing by default.

        Args:
            clock: that of the clients' devices; ``None`` without devices.
            cohort_size: how many clients a round asks for.
            num_clients: how many there are.
        """
        return ()

    def reporters(self, trains: Sequence[int], available: Sequence[int]) -> Sequence[int]:
        """Return to whom ``report`` is put: those who will train, or others who are available."""
        return trains

    def without_updates(self, server: ServerState, model: State) -> tuple[ServerState, State]:
        """Return the next state and model of a round in which no update counts: what was there before it."""
        return server, model

    def weight(self, update: ClientUpdate) -> float:
        """Return p_k, up to the constant that makes the cohort's add up to 1."""
        return 1.0 if self.weighting == "equal" else float(update.num_samples)

    def sent(self, update: ClientUpdate) -> State:
        """Return what of an update moves the model: its delta, and its buffers unless the server's are kept."""
        return update.delta | update.buffers if self.buffers == "average" else update.delta

    def average(self, updates: Iterable[ClientUpdate]) -> tuple[State, State]:
        """Fold the updates into the weighted mean of their deltas and of their buffers, each entry's over its holders."""
        mean = state.weighted_mean(map(self._with_weight, updates))
        delta = {name[2:]: tensor for name, tensor in mean.items() if name.startswith("d|")}
        return delta, {name[2:]: tensor for name, tensor in mean.items() if name.startswith("b|")}

    def _with_weight(self, update: ClientUpdate) -> tuple[State, float | tuple[float, State]]:
        """Return what is averaged of an update, and p_k, with the entries that it is for unless the client held all."""
        # One fold for both, so that a stream of updates is read once; the prefixes keep the names apart.
        sent = _apart(update.delta, update.buffers if self.buffers == "average" else {})
        weight, mask = self.weight(update), update.mask
        if mask is None:
            return sent, weight
        return sent, (weight, _apart(*({name: mask[name] for name in part} for part in (update.delta, update.buffers))))


def judged_accuracy(update: ClientUpdate) -> float:
    """Return the accuracy of a client's model on the server's samples."""
    assert update.judged is not None  # a run without such samples is refused
    return accuracy_of(update.judged[1])


class GroupReports:
    """Adds up what clients report of their groups, as their updates pass by: sums and counts, each of shape (Y, A), float64."""

    def __init__(self) -> None:
        self.sums_YA = self.counts_YA = torch.zeros(0, dtype=torch.float64)

    def noted(self, updates: Iterable[ClientUpdate]) -> Iterator[ClientUpdate]:
        """Yield updates as they are."""
        for update in updates:
            sums, counts = torch.tensor(update.report, dtype=torch.float64)
            self.sums_YA = sums + self.sums_YA if self.sums_YA.numel() else sums
            self.counts_YA = counts + self.counts_YA if self.counts_YA.numel() else counts
            yield update

    def present(self, groups: str) -> Tensor:
        """Return which groups have samples among those counted, bool of shape (A,) or (Y A,); the log names the others."""
        present = of_groups(self.counts_YA, groups) > 0
        if absent := (~present).nonzero().flatten().tolist():
            log.info("No client of the round has samples of the groups %s by %s: their weights do not ascend.", absent, groups)
        return present


GROUPINGS = ("a", "ya")
"""What a group of samples is: those of one attribute value, or those of one class with one attribute value."""


def of_groups(table_YA: Tensor, groups: str) -> Tensor:
    """Return a table's sums over groups, shape (A,) or (Y A,)."""
    return table_YA.sum(dim=0) if groups == "a" else table_YA.flatten()


def of_cells(values_G: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return for every class and attribute value the value of its group, shape (Y, A), as clients take weights: float32."""
    return (values_G.expand(shape) if len(values_G) == shape[1] else values_G.view(shape)).float()


MEASURES = ("equal_opportunity", "equalized_odds", "demographic_parity", "accuracy_parity")
"""By which a model can be judged; each compares other rates of the groups."""


def compared_rates(counts_YAY: NDArray[np.int64], measure: str, positive_class: int) -> NDArray[np.float64]:
    """Return the rates of groups that a measure compares, one or two of them, shape (R, A); NaN for a group without samples.

    They are true positive rates for ``"equal_opportunity"``, these and false positive rates for ``"equalized_odds"``, rates of
    being classified as positive for ``"demographic_parity"``, accuracies for ``"accuracy_parity"``; ``metrics.group_fairness``
    has the formulas.

    Args:
        counts_YAY: by class, attribute value and predicted class.
        measure: one of ``MEASURES``.
        positive_class: in [0, Y).

    Example:
        >>> compared_rates(np.array([[[30, 10], [20, 40]], [[5, 15], [25, 5]]]), "accuracy_parity", 1)
        array([[0.75      , 0.27777778]])
    """
    totals_YA = counts_YAY.sum(axis=2)
    hits_YA, of_class = counts_YAY[:, :, positive_class], np.arange(len(counts_YAY)) == positive_class
    pairs = {
        "equal_opportunity": [(hits_YA[of_class], totals_YA[of_class])],
        "equalized_odds": [(hits_YA[rows], totals_YA[rows]) for rows in (of_class, ~of_class)],
        "demographic_parity": [(hits_YA, totals_YA)],
        "accuracy_parity": [(np.einsum("yay->ya", counts_YAY), totals_YA)],
    }[measure]
    with np.errstate(invalid="ignore"):
        return np.stack([above.sum(axis=0) / below.sum(axis=0) for above, below in pairs])


def _apart(delta: State, buffers: State) -> State:
    return {f"d|{name}": tensor for name, tensor in delta.items()} | {f"b|{name}": tensor for name, tensor in buffers.items()}
