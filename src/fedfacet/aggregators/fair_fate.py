"""Momentum along the updates of clients whose models are fairer than the server's."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedfacet import state
from fedfacet.aggregators.base import MEASURES, Aggregator, compared_rates
from fedfacet.arguments import Choice, Number, Whole, Within
from fedfacet.types import ClientUpdate, Facts, ServerState, State


@dataclass(eq=False, kw_only=True)
class FairFate(Aggregator):
    r"""Mix the average update with a momentum along the updates that make the model fairer.

    The server judges its own model and each client's on samples of its own. Let F be the smallest over the largest of the
    groups' rates that ``measure`` compares, in [0, 1], 1 for a fair model; the smaller ratio of two for ``"equalized_odds"``.
    With F of the server's model and :math:`F_k` of each client's brought to [0, 1] by the smallest and the largest of all of
    them, round t of T takes

    .. math::
        \alpha_F = \frac{\sum_{k: F_k > F} p_k F_k \Delta_k}{\sum_{k: F_k > F} p_k F_k}, \quad
        v \leftarrow \beta_t v + (1 - \beta_t) \alpha_F, \quad
        w \leftarrow w + \lambda_t \frac{v}{1 - \beta_t^t} + (1 - \lambda_t) \frac{\sum_k p_k \Delta_k}{\sum_k p_k}

    .. math::
        \beta_t = \beta_0 \frac{1 - t / T}{(1 - \beta_0) + \beta_0 (1 - t / T)}, \quad
        \lambda_t = \min(\lambda_0 (1 + \rho)^t, \lambda_{\max})

    with :math:`p_k` as ``weighting`` says, v = 0 at first, and :math:`\alpha_F = 0` where no client is fairer than the server.
    A ratio is NaN where a group has no samples, or where the largest rate is 0, as of a model that takes nobody for positive.
    A client without a ratio is not fairer. If the server's model has none, or no client has one, the round is an average, and
    v stays.

    Source: Salazar et al., FAIR-FATE: Fair Federated Learning with Momentum, ICCS 2023, arXiv:2209.13678. Formulas and defaults
    are those of its authors' code (teresalazar13/FAIR-FATE, the class ``FairFateAggregation``), not checked against the paper;
    ``measure`` is a choice of ours. The authors' runs have ``beta0`` of 0.8 to 0.99, ``l0`` of 0.1 and 0.5, ``rho`` of 0.04 and
    0.05, and ``largest`` of 0.8, 0.9 and 1.

    Deviations from the code: :math:`\lambda_t` ends at 1 at the latest, where the class has 1000, with which the average would
    count negatively. At 1, where it arrives after 47 rounds by default, the average counts no more: what is left is the
    momentum along fairer clients, and the model forgets the others; ``largest`` below 1 keeps a part of the average.
    T is the run's rounds rather than 100. Ratios are not rounded to two digits. A ratio is NaN where the code says 0, but for
    one group's rate of 0. The average is of equal weights by default, where the code counts samples; with ``weighting=samples``
    the fair update counts them too. One measure is taken, where the code adds up several. Floating-point buffers are averaged.
    As in the code, the correction :math:`1 - \beta_t^t` is exact for a constant beta alone. t counts the rounds in which
    updates arrived.

    Args:
        rounds: T, of the whole run.
        measure: whose rates are compared, ``"equal_opportunity"``, ``"equalized_odds"``, ``"demographic_parity"`` or
            ``"accuracy_parity"``.
        positive_class: of these rates.
        beta0: in [0, 1); 0 is no momentum.
        l0: lambda_0 in [0, 1]; 0 is FedAvg, and nothing is judged.
        rho: 0 or larger.
        largest: lambda_max, at least ``l0`` and at most 1.
    """

    rounds: Annotated[int, Whole()]
    measure: Annotated[str, Choice(*MEASURES)] = "equal_opportunity"
    positive_class: Annotated[int, Whole(0)] = 1
    beta0: Annotated[float, Within("[0, 1)")] = 0.9
    l0: Annotated[float, Within("[0, 1]")] = 0.1
    rho: Annotated[float, Number("0 or larger, and finite")] = 0.05
    largest: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.l0 <= self.largest <= 1:
            raise ValueError(f"Expected `largest` to be in [l0, 1], that is [{self.l0:g}, 1], but got {self.largest}.")

    def judges(self) -> str | None:
        """Return that groups matter, if anything does."""
        return "groups" if self.l0 else None

    def init(self, facts: Facts) -> ServerState:
        """Return a velocity v of zero, before the first round."""
        return {"velocity": {}, "round": 0}

    def aggregate(self, server: ServerState, model: State, updates: Iterable[ClientUpdate]) -> tuple[ServerState, State]:
        """Return the velocity and the next model."""
        if not self.l0:
            delta, buffers = self.average(updates)
            return server, state.add(model, {**delta, **buffers})
        arrived = list(updates)
        t, velocity = server["round"] + 1, server["velocity"]
        delta, buffers = self.average(arrived)
        fairer = self._fairer(arrived)
        if fairer is None:
            return {"velocity": velocity, "round": t}, state.add(model, {**delta, **buffers})
        left = max(1 - t / self.rounds, 0)
        beta = self.beta0 * left / ((1 - self.beta0) + self.beta0 * left)
        # By logarithms, since a large power of 1 + rho overflows.
        weight = math.exp(min(math.log(self.l0) + t * math.log1p(self.rho), math.log(self.largest)))
        fair = state.weighted_mean((update.delta, self.weight(update) * f) for update, f in fairer)
        velocity = state.add(state.scaled(fair, 1 - beta), velocity, scale=beta) if fair else state.scaled(velocity, beta)
        if weight < 1:
            model = state.add(model, delta, scale=1 - weight)
        model = state.add(model, velocity, scale=weight / (1 - beta**t))
        return {"velocity": velocity, "round": t}, state.add(model, buffers)

    def _fairer(self, updates: list[ClientUpdate]) -> list[tuple[ClientUpdate, float]] | None:
        """Return the updates whose models are fairer than the server's, and how fair; ``None`` where that cannot be said."""
        judged = [update.judged for update in updates if update.judged is not None]  # all of them
        before, *own = (self._ratio(counts) for counts in (judged[0][0], *(counts for _, counts in judged)))
        known = [f for f in (before, *own) if not np.isnan(f)]
        if np.isnan(before) or len(known) < 2:
            return None
        least, most = min(known), max(known)
        return [(update, (f - least) / (most - least)) for update, f in zip(updates, own, strict=True) if f > before]

    def _ratio(self, counts_YAY: NDArray[np.int64]) -> float:
        """Return F of a model."""
        rates_RA = compared_rates(counts_YAY, self.measure, self.positive_class)
        with np.errstate(invalid="ignore"):
            return float((rates_RA.min(axis=1) / rates_RA.max(axis=1)).min())
