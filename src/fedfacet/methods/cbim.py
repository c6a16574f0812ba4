"""CBIM: clients of good reputation take contracts, the best types first."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedfacet import rng, state
from fedfacet.answer_form import AnswerForm
from fedfacet.arguments import Whole, Within
from fedfacet.confusion import accuracy_of
from fedfacet.query import Query, needs_of
from fedfacet.records import RoundResult
from fedfacet.selectors.base import ClientSelector, Taxonomy, warn_of
from fedfacet.types import DEVICES, PAYMENTS, Answer, ClientUpdate, Facts, SelectionContext, ServerState, State

log = logging.getLogger(__name__)

Floats = NDArray[np.float64]

_NONE, _GOOD, _BAD, _LOST = range(4)
"""How a round ended for a client."""


@dataclass(frozen=True, slots=True)
class Menu:
    r"""What the server offers: item m promises training within ``seconds[m]`` and is paid ``rewards[m]``.

    A client of type :math:`\theta` has :math:`\theta R_m - C(f_m)` of it, with :math:`C(f) = c f^2`, the energy of a processor
    at speed f. Types lie between ``lowest`` and ``highest``, which everybody knows; each is its client's secret.

    Args:
        seconds: of the items, descending, shape (M,).
        speeds: f of the items, the fastest item's seconds over an item's own, in (0, 1], ascending.
        rewards: R of the items, larger than 0, ascending.
        lowest: the least type, larger than 0.
        highest: the largest type.
        unit_cost: c, larger than 0.
    """

    seconds: tuple[float, ...]
    speeds: tuple[float, ...]
    rewards: tuple[float, ...]
    lowest: float
    highest: float
    unit_cost: float

    def utilities(self, type_: float) -> Floats:
        """Return what each item is worth to a client of a type, shape (M,)."""
        found: Floats = type_ * np.array(self.rewards) - self.unit_cost * np.square(self.speeds)
        return found

    def choice(self, type_: float, seconds: float) -> int | None:
        """Return the item that is worth most to a client, of those that its device is quick enough for; ``None`` for nothing.

        Args:
            type_: of the client.
            seconds: that a round's training takes it.
        """
        best = None
        utilities = self.utilities(type_)
        for item, most in enumerate(self.seconds):
            if seconds <= most and utilities[item] >= (0 if best is None else utilities[best]):
                best = item
        return best


def menu_of(seconds: Sequence[float], items: int, *, lowest: float, highest: float, unit_cost: float) -> Menu:
    r"""Return the cheapest menu in which each type is best off with an item of its own, and loses nothing by it.

    Item m of M asks for the :math:`(1 - (m - 1) / M)` quantile of the clients' seconds: the first is for the slowest, the last
    for the quickest M-th. It is meant for types from :math:`\theta_m = lo + (m - 1) (hi - lo) / M` on:

    .. math:: R_1 = C(f_1) / \theta_1, \quad R_m = R_{m-1} + \big( C(f_m) - C(f_{m-1}) \big) / \theta_m.

    So type :math:`\theta_1` gains nothing by item 1 (individual rationality), type :math:`\theta_m` is as well off with item m
    as with the one before, and no type is better off with another's (incentive compatibility).

    Source: Kang et al., Incentive Mechanism for Reliable Federated Learning, IEEE Internet of Things Journal 2019; the menu is
    that of arXiv:1905.07479 as it is remembered. It was not checked against the papers.

    Args:
        seconds: that a round's training takes each client, 0 or larger and finite, at least one.
        items: M, 1 or larger.
        lowest: lo, larger than 0.
        highest: hi, larger than ``lowest``.
        unit_cost: c, larger than 0.

    Example:
        >>> menu = menu_of([1.0, 2.0, 4.0, 4.0], 2, lowest=0.5, highest=1.0, unit_cost=1.0)
        >>> menu.seconds, menu.speeds, menu.rewards
        ((4.0, 2.0), (0.5, 1.0), (0.5, 1.5))
        >>> [menu.choice(type_, 2.0) for type_ in (0.5, 0.7, 0.8)], menu.choice(0.8, 3.0), menu.choice(0.8, 5.0)
        ([0, 0, 1], 0, None)
    """
    shares = 1 - np.arange(items) / items
    quantiles = np.quantile(np.asarray(seconds, dtype=np.float64), shares, method="inverted_cdf")
    speeds = [float(quantiles[-1] / most) if most > 0 else 1.0 for most in quantiles]
    types = lowest + (highest - lowest) * np.arange(items) / items
    costs = unit_cost * np.square(speeds)
    rewards = np.cumsum(np.diff(costs, prepend=0.0) / types)
    return Menu(tuple(quantiles.tolist()), tuple(speeds), tuple(rewards.tolist()), lowest, highest, unit_cost)


def budgeted(rewards: Sequence[float], budget: float) -> list[int]:
    """Return the positions of those who can be paid out of a budget, when each in turn is taken if what is left suffices.

    Example:
        >>> budgeted([4.0, 3.0, 3.0, 1.0], 8.0)
        [0, 1, 3]
    """
    taken, spent = [], 0.0
    for position, reward in enumerate(rewards):
        if spent + reward <= budget:
            taken.append(position)
            spent += reward
    return taken


class Contract(Query):
    r"""Ask which item of a menu a client takes; the answer is that item's reward, 0 for none.

    Of the items that its device is quick enough for, by the seconds of a round's training, a client takes the one that is worth
    most to it (``Menu``). Its type :math:`\theta`, how much it is served by a reward, is its secret: drawn
    once in a run, uniformly between the menu's ``lowest`` and ``highest``. One number leaves the client, from which the server
    learns of the type in which part of that range it lies. Nothing passes through a model.

    Source: Kang et al., Incentive Mechanism for Reliable Federated Learning, IEEE Internet of Things Journal 2019; types were
    not checked against the paper.
    """

    name = "contract"
    kind = "bid"
    form = AnswerForm(low=0, high=1e300)
    reads = frozenset[str]()
    needs_model = False
    menu: Menu | None = None

    def offered(self, menu: Menu) -> "Contract":
        """Return the question as it is put in a round: with the server's menu."""
        asked = copy(self)
        asked.menu = menu
        asked.floats_down = len(menu.seconds) + len(menu.rewards) + 3  # speeds follow; and what is known of types
        return asked

    def answer(self, context: Any) -> Answer:
        """Return the reward.

        Raises:
            ConfigError: without devices.
            RuntimeError: if no menu was offered.
        """
        if self.menu is None:
            raise RuntimeError("Expected a choice from a menu, but none was offered: ask `contract.offered(menu)`.")
        seconds = needs_of(context).compute
        type_ = rng.stream(context.seed, "contract-type", context.client_id).uniform(self.menu.lowest, self.menu.highest)
        item = self.menu.choice(type_, seconds)
        return Answer(0.0 if item is None else self.menu.rewards[item], floats_up=1, samples=0)


@dataclass(eq=False, kw_only=True)
class CBIMSelector(ClientSelector):
    r"""Offer contracts to the clients of good reputation, and take those who have chosen the dearest, while the budget lasts.

    1. Clients whose reputation :math:`T_k` is ``threshold`` or more are candidates.
    2. The server knows the seconds that a round's training takes each client (``Resources``), and offers a menu of M items,
       seconds against a reward (``menu_of``). Every candidate tells which it takes (``Contract``).
    3. Candidates are ranked by their rewards, which is by their types. One after another is taken whose reward fits into what
       is left of ``round_budget``, until ``federation.cohort_size`` clients are found. They are paid when updates arrive.
    4. Every update is judged on samples that the server owns. It is bad if the mean of all updates has an accuracy lower by
       more than ``tolerance`` than that of all others, and good else. Where no update arrives, the round is lost.
    5. With the client's rounds :math:`\alpha` (good), :math:`\beta` (bad) and :math:`\ell` (lost), of which the last ``recent``
       count :math:`\zeta` each and all before :math:`1 - \zeta`,

       .. math::
           u_k = \frac{\ell}{\alpha + \beta + \ell}, \quad
           b_k = (1 - u_k) \frac{(1 - \eta) \alpha}{(1 - \eta) \alpha + \eta \beta}, \quad
           T_k = b_k + \gamma u_k

       (subjective logic: belief, and a share of the uncertainty). A client never selected has :math:`u_k = 1`.

    The cohort may have fewer clients than ``federation.cohort_size``, none among them. A client that falls below the threshold
    is not asked again, and so stays there. The payments of a round are ``selector/spent`` of ``metrics.csv``, their sum is
    ``spent`` of ``summary.json``; ``termination=budget`` ends a run by them. ``callbacks=[default,reputation]`` writes
    ``reputation.csv``.

    Source: Kang et al., Incentive Mechanism for Reliable Federated Learning: A Joint Optimization Approach to Combining
    Reputation and Contract Theory, IEEE Internet of Things Journal 6(6), 2019. Neither the formulas nor the defaults were
    checked against the paper.

    Deviations: there is one server, hence no reputations of others, and no blockchain. Uncertainty is the share of lost rounds
    instead of lost packets, weighted like the others, so that a bad round always lowers a reputation above 0. A bad update is
    averaged like any other; ``aggregator=coordinate_median`` or another robust one keeps the model. Judging leaves one out:
    where two bad updates meet, the mean without either may be as bad, and then they may count as good, and others as bad. So
    it may where the tolerance is less than a few of the server's samples. A round is lost too where an update comes late, or
    is not wanted any more (``devices.overcommit``). Training takes what the device takes, whatever was promised. Clients that
    tell seconds that are not finite, or negative, or choose what was not on the menu, are not taken, and the log names the
    latter. Ties are broken by the round's draw.

    A round costs O(K log K) to select. To learn from m updates the server passes its samples through m + 1 models, each a mean
    of up to m updates; ``server/samples`` counts them. Whole updates stay in memory until then. A client discloses three
    numbers once, and one in every round in which it is a candidate.

    Args:
        contract: asked of the candidates in every round.
        resources: asked once of everybody.
        items: M, 1 or larger.
        lowest: the least type, larger than 0.
        highest: the largest type.
        unit_cost: of a round at the fastest item's speed, larger than 0.
        round_budget: that the rewards of a cohort do not exceed, larger than 0; ``None`` for no limit.
        threshold: of reputations, in [0, 1].
        tolerance: of accuracy, in [0, 1].
        bad_weight: :math:`\eta`, of a bad round against a good one, in [0.5, 1).
        recent_weight: :math:`\zeta`, of a recent round against an older one, in [0.5, 1).
        recent: how many of a client's rounds are recent, 1 or larger.
        uncertainty_weight: :math:`\gamma`, in [0, 1].
    """

    taxonomy = Taxonomy("incentives", "DS", ("θ", "time", "energy"), "contract theory", "threshold", "limited reward")

    provides = frozenset({PAYMENTS})
    sizes_itself = True
    requires = frozenset({DEVICES})

    contract: Contract
    resources: Query
    items: Annotated[int, Whole()] = 4
    lowest: float = 0.5
    highest: float = 1.0
    unit_cost: Annotated[float, Within("(0, 1e300]")] = 1.0
    round_budget: Annotated[float | None, Within("(0, 1e300]")] = None
    threshold: Annotated[float, Within("[0, 1]")] = 0.5
    tolerance: Annotated[float, Within("[0, 1]")] = 0.05
    bad_weight: Annotated[float, Within("[0.5, 1)")] = 0.6
    recent_weight: Annotated[float, Within("[0.5, 1)")] = 0.6
    recent: Annotated[int, Whole()] = 5
    uncertainty_weight: Annotated[float, Within("[0, 1]")] = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.lowest < self.highest < 1e300:
            raise ValueError(
                f"Expected `lowest` and `highest` with 0 < lowest < highest, but got {self.lowest} and {self.highest}."
            )
        if self.threshold > self.uncertainty_weight:
            raise ValueError(
                f"Expected `threshold` to be {self.uncertainty_weight} at most, the `uncertainty_weight` and so the reputation "
                f"of clients never selected, but got {self.threshold}: nobody would ever be selected, so lower it."
            )

    def init(self, facts: Facts) -> ServerState:
        """Return what is known of clients, nothing so far.

        These are how the last rounds ended for each, int8 of shape (K, ``recent``), the latest first, 0 for none, 1 good, 2
        bad, 3 lost; how many before were good, bad and lost, int64 of shape (K, 3); and reputations, float64 of shape (K,).
        """
        recent = torch.zeros(facts.num_clients, self.recent, dtype=torch.int8)
        past = torch.zeros(facts.num_clients, 3, dtype=torch.int64)
        return {"recent": recent, "past": past, "reputation": self._reputations(recent, past)}

    def needs_updates(self, server: ServerState) -> bool:
        """Return ``True``."""
        return True

    def judges(self) -> str | None:
        """Return that classes matter, and groups do not."""
        return "classes"

    def select(self, server: ServerState, context: SelectionContext) -> list[int]:
        """Return those of good reputation who have chosen the dearest items, as far as the budget goes."""
        resources = context.ask_once(self.resources, context.available)
        seconds = {k: resources[k][1] for k in context.available if 0 <= resources[k][1] < math.inf}
        reputation_K = server["reputation"].numpy()
        candidates = [k for k in seconds if reputation_K[k] >= self.threshold]
        if not candidates:
            return []
        settings = {"lowest": self.lowest, "highest": self.highest, "unit_cost": self.unit_cost}
        menu = menu_of(list(seconds.values()), self.items, **settings)
        rewards = context.ask(self.contract.offered(menu), candidates)
        offered = {*menu.rewards, 0.0}
        strange = [k for k in candidates if rewards[k] not in offered]
        warn_of(context.round, "choices", strange, len(candidates), "clients are not on the menu and they are not taken")
        takers = [k for k in candidates if rewards[k] in offered and rewards[k] > 0]
        order = np.lexsort((context.rng.random(len(takers)), [-rewards[k] for k in takers]))
        ranked = [takers[position] for position in order.tolist()]
        if self.round_budget is not None:
            ranked = [ranked[position] for position in budgeted([rewards[k] for k in ranked], self.round_budget)]
            if takers and not ranked:
                log.warning(
                    "Round %d: selector.round_budget=%g pays for none of %d contracts, the cheapest is %.4g: nobody trains.",
                    *(context.round, self.round_budget, len(takers), min(rewards[k] for k in takers)),
                )
        return ranked[: context.num_slots]

    def metrics(self, server: ServerState, result: RoundResult) -> Mapping[str, float]:
        """Return what those are paid whose updates arrived."""
        return {"spent": math.fsum(receipt.answers[self.contract.name] for receipt in result.receipts)}

    def observe(
        self,
        server: ServerState,
        result: RoundResult,
        updates: Sequence[ClientUpdate],
        rng: np.random.Generator,
        *,
        judge: Callable[[State], NDArray[np.int64]],
    ) -> ServerState:
        """Return what is known after a round of those who were selected."""
        recent, past = server["recent"].clone(), server["past"].clone()
        ends = dict.fromkeys(result.cohort, _LOST) | dict(zip(*self._judged(updates, judge), strict=True))
        for client_id, end in ends.items():
            oldest = int(recent[client_id, -1])
            if oldest != _NONE:
                past[client_id, oldest - 1] += 1
            recent[client_id] = torch.cat([torch.tensor([end], dtype=torch.int8), recent[client_id, :-1]])
        return {"recent": recent, "past": past, "reputation": self._reputations(recent, past)}

    def _judged(
        self, updates: Sequence[ClientUpdate], judge: Callable[[State], NDArray[np.int64]]
    ) -> tuple[list[int], list[int]]:
        """Return the clients of updates, and how the round ended for each."""

        def accuracy(members: Sequence[ClientUpdate]) -> float:
            return accuracy_of(judge(state.weighted_mean((one.delta | one.buffers, 1.0) for one in members)))

        if not updates:
            return [], []
        least = accuracy(updates) + self.tolerance
        others = [[*updates[:position], *updates[position + 1 :]] for position in range(len(updates))]
        return [one.client_id for one in updates], [_GOOD if least >= accuracy(members) else _BAD for members in others]

    def _reputations(self, recent: torch.Tensor, past: torch.Tensor) -> torch.Tensor:
        """Return T, as in step 5, shape (K,)."""
        good, bad, lost = (
            self.recent_weight * (recent == end).sum(dim=1).double() + (1 - self.recent_weight) * past[:, end - 1].double()
            for end in (_GOOD, _BAD, _LOST)
        )
        total = good + bad + lost
        uncertain = torch.where(total > 0, lost / total, 1.0)
        praise, blame = (1 - self.bad_weight) * good, self.bad_weight * bad
        share = torch.where(praise + blame > 0, praise / (praise + blame), 0.0)
        return (1 - uncertain) * share + self.uncertainty_weight * uncertain
