"""The contract of a client selector."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedfacet.arguments import Declared
from fedfacet.types import ASYNCHRONOUS, OVERCOMMIT, PARTS, Facts, SelectionContext, ServerState

log = logging.getLogger(__name__)

CHARACTERISTICS = {"V": "availability", "D": "addressability", "S": "statefulness", "R": "reliability", "T": "trustworthiness"}
"""What a method may require of clients: that all are there, can be addressed, come back, always answer, and truthfully."""


@dataclass(frozen=True, slots=True)
class Taxonomy:
    """A selection method's place in the taxonomy of client selection: a row of the thesis' table 4.

    It describes the method as its source does (thesis, section 3.2 and table 4; Németh et al., TMLR 2022). In FedFacet no
    selector needs V or R: it chooses among those who are there and clients may drop out. Every run ends after
    ``federation.rounds``, or before them by its ``termination``.

    Args:
        policy: what clients are selected for, for example ``"efficiency"`` or ``"selection fairness"``.
        client_characteristics: which of V, D, S, R, T (``CHARACTERISTICS``) the method requires, in this order; it does
            without the others, which the thesis prints with a bar.
        shared_information: what a client sends, its weights first: ``("θ", "|D|", "loss")``.
        value_generation: how a client comes by its value; ``"-"`` for no value.
        value_interpretation: how values become a cohort: by probability, ranking, clusters, ...
        termination_condition: when the source ends training; ``"-"`` where it does not say.

    Raises:
        ValueError: if a field is empty or the characteristics are not a part of VDSRT in order.
    """

    policy: str
    client_characteristics: str
    shared_information: tuple[str, ...]
    value_generation: str
    value_interpretation: str
    termination_condition: str

    def __post_init__(self) -> None:
        if empty := [field.name for field in fields(self) if not getattr(self, field.name)]:
            raise ValueError(f"Expected all six fields of a taxonomy, but `{empty[0]}` is empty: write '-' for nothing.")
        required = set(self.client_characteristics)
        if self.client_characteristics not in ("-", "".join(letter for letter in CHARACTERISTICS if letter in required)):
            raise ValueError(
                f"Expected `client_characteristics` to be letters of {''.join(CHARACTERISTICS)} in this order, or '-', but got "
                f"{self.client_characteristics!r}."
            )


class ClientSelector(Declared, ABC):
    """Who takes part in a round.

    A selector is immutable: its constructor takes hyperparameters, of which those out of range raise ``ValueError``, and its
    state goes in and comes out.
    """

    taxonomy: Taxonomy
    """The method in six fields, which ``python src/describe.py selectors`` prints."""

    provides: frozenset[str] = frozenset()
    """What it does for other parts.

    ``WEIGHTED_DRAWS`` if it draws clients in proportion to ``context.log_weights``, ``PAYMENTS`` if it pays them.
    """

    requires: frozenset[str] = frozenset()
    """What some other part must provide: ``DEVICES`` if it looks at how long clients take."""

    excludes: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """What it cannot do with if another part provides it, each with the reason and the remedy."""

    @property
    def exclusions(self) -> Mapping[str, str]:
        """``excludes``, and what follows from what else it declares."""
        found = {}
        if self.needs_updates is not None:
            found[PARTS] = "compares whole updates: choose selector=uniform"
        if self.sizes_itself:
            found[OVERCOMMIT] = "decides itself how many clients it takes: choose another one, or devices.overcommit=1"
        if self.sizes_itself or self.observe is not None or self.remember is not None:
            found[ASYNCHRONOUS] = "learns from rounds or does not fill the places that are free: choose selector=uniform"
        return {**found, **self.excludes}

    observe: ClassVar[Callable[..., ServerState] | None] = None
    """``observe(self, server, result, updates, rng)`` returns the next state, learnt from a finished round.

    ``None`` for a selector that learns nothing. ``updates`` are the round's, or none unless ``needs_updates``; ``rng`` is a
    generator of its own. If it has an argument ``change`` it is handed what the round added to the model that was sent too
    (tensor -> difference).
    """

    remember: ClassVar[Callable[..., ServerState] | None] = None
    """``remember(self, server, cohort)`` returns the next state, learnt from nothing but who was asked to train.

    What depends on that alone tells nothing of anybody's data, and goes with an epsilon. ``None`` for a selector that learns
    nothing, or by ``observe``.
    """

    metrics: ClassVar[Callable[..., Mapping[str, float]] | None] = None
    """``metrics(self, server, result)`` returns what a finished round came to, before anything is learnt from it.

    ``None`` for nothing. Names are the same in every round; they are columns ``selector/<name>`` of ``metrics.csv``. A selector
    that gives ``PAYMENTS`` has ``spent``, the payments of the round, 0 or larger.
    """

    judges: ClassVar[Callable[..., str | None] | None] = None
    """``judges(self)`` returns what the server must know of samples of its own, as ``Aggregator.judges`` does.

    ``None``, or a method that returns it, for nothing. Else ``observe`` is handed ``judge`` too: a function of a change of the
    model that was sent (tensor -> what to add to it) to what the changed model says of the server's samples, counts by class,
    attribute value and predicted class, int64 of shape (Y, A, Y). For ``"gradients"`` the function returns, per class, the
    squared norm of the gradient of its samples' mean cross entropy with respect to its row of the head, float64 of shape (Y,).
    A run without such samples is refused.
    """

    sizes_itself: bool = False
    """Whether it decides how many clients take part; its cohort may have any number of the available, none among them."""

    sampling_rate: ClassVar[Callable[..., float] | None] = None
    """``sampling_rate(self, cohort_size, num_clients)`` returns with what probability each client takes part by itself.

    ``None`` where it depends on others who takes part, as it does if the size of cohorts is fixed. A class must say so itself:
    an accountant does not believe what it inherits, since it may have a ``select`` of its own.
    """

    needs_updates: ClassVar[Callable[..., bool] | None] = None
    """``needs_updates(self, server)`` tells whether ``observe`` wants this round's updates; ``None`` for never.

    Where nobody wants them, each is freed as soon as it is aggregated.
    """

    def init(self, facts: Facts) -> ServerState:
        """Return the state before the first round: tensors and plain data.

        A resume holds a saved state to this one: names, types and shapes must be the same. What grows starts empty: ``{}``,
        ``[]``, ``None``, or a tensor without entries.
        """
        return {}

    def mechanisms(self) -> Sequence[Any]:
        """Return what else of a round the method has a hand in, each a ``Mechanism``; nothing by default."""
        return ()

    @abstractmethod
    def select(self, server: ServerState, context: SelectionContext) -> list[int]:
        """Return the cohort: ``context.num_slots`` distinct clients out of ``context.available``, in order; or all of these.

        One that sizes its cohort itself may return any number of them.
        """


def numbers(available: Sequence[int]) -> NDArray[np.int64]:
    """Return clients as an array; a range of a million is not gone through."""
    if isinstance(available, range):
        return np.arange(available.start, available.stop, available.step)
    return np.asarray(available, dtype=np.int64)


def lowest(number: int, *keys: NDArray[Any]) -> NDArray[np.intp]:
    """Return the first places of ``np.lexsort(keys)``, whose last key counts most, without sorting them all.

    Args:
        number: how many.
        keys: each of shape (K,).

    Example:
        >>> lowest(2, np.array([3, 1, 2]), np.array([0, 1, 0]))
        array([2, 0])
    """
    if not 0 < number < len(keys[-1]):
        return np.lexsort(keys)[: max(number, 0)]
    last = np.partition(keys[-1], number - 1)[number - 1]
    among = np.flatnonzero(~(keys[-1] > last))  # NaN is the largest
    return among[np.lexsort([key[among] for key in keys])[:number]]


def drawn_order(weights: NDArray[np.float64], rng: np.random.Generator, number: int | None = None) -> NDArray[np.intp]:
    """Return all positions in the order in which they are drawn without replacement, in proportion to ``weights``.

    With a ``number`` only so many of them are returned, the first.
    """
    # The arrivals of Poisson processes with these rates come in that order; those that never arrive are last, at random.
    with np.errstate(divide="ignore", over="ignore"):
        arrivals = rng.exponential(size=len(weights)) / weights
    return lowest(len(weights) if number is None else number, rng.random(len(weights)), arrivals)


def warn_of(round: int, what: str, client_ids: Sequence[int], number: int, consequence: str) -> None:
    """Have the log name the clients, ten of them at most, whose answers are of no use; without any it says nothing.

    Args:
        round: the current one.
        what: was asked: ``"losses"``.
        client_ids: whose answers are of no use.
        number: how many have answered.
        consequence: why, and what follows: ``"clients are not finite and come last"``.
    """
    if client_ids:
        more = f" and {len(client_ids) - 10} more" if len(client_ids) > 10 else ""
        ids = ", ".join(map(str, client_ids[:10])) + more
        log.warning("Round %d: the %s of %d of %d %s: clients %s.", round, what, len(client_ids), number, consequence, ids)
