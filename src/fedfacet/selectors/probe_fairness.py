"""Probe + fairness: clients whose training sets out fast, and clients that have waited long."""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedfacet.arguments import Choice, Number, Whole, Within
from fedfacet.records import RoundResult
from fedfacet.rng import draw
from fedfacet.selectors.base import ClientSelector, Taxonomy
from fedfacet.types import WEIGHTED_DRAWS, ClientUpdate, Facts, Query, SelectionContext, ServerState

log = logging.getLogger(__name__)


@dataclass(eq=False, kw_only=True)
class ProbeFairnessSelector(ClientSelector):
    r"""Blend how far candidates' first steps lead with how seldom and how long ago they were selected.

    In a round t that asks for m clients:

    1. A pool of candidates is drawn from those who are available, uniformly (or by the weights of ``participation=``).
    2. Whoever was not selected for ``max_gap`` rounds or more is selected now, the longest gap first (anti-starvation).
    3. The other candidates answer ``probe``. With p_k the probe's term, f_k made of :math:`1 / (1 + count_k)` and
       :math:`t - last_k`, and each of the four brought to [0, 1] by its minimum and maximum, the score is

       .. math:: s_k = (1 - \beta) p_k + \beta f_k

    4. :math:`\epsilon m` of the m places, rounded, are for exploration; those left of the others go to the highest scores.
    5. The places for exploration are drawn without replacement with probabilities in proportion to :math:`e^{s_k / T}`.

    Ties are broken at random. A probe that is not finite (training that diverges) counts as the shortest. The log tells of such
    probes, and how many clients were forced, taken by score and explored.

    Source: De Cesare et al., Federated Learning Beyond Uniform Participation, section 4.1. Where the text leaves a number open
    (candidates, the parts of f_k) the default is the released code's. So is the gap for 200 rounds, of which it takes a
    quarter.

    Deviation: the text force-selects any client; the released code looks among the candidates only
    (``starvation_pool=candidates``), and as it takes clients that were never selected for starved ones, it forces almost all
    of its first rounds (``never_selected=overdue``).

    Args:
        probe: asked of the candidates in every round.
        fairness_weight: :math:`\beta` in [0, 1] (the text's :math:`\alpha`).
        fairness: ``"both"``, ``"inverse_frequency"`` or ``"recency"``.
        frequency_share: the part of the inverse frequency in f_k where both are taken, in [0, 1].
        candidate_factor: candidates per place, 1 or larger.
        epsilon: the part of the places that is for exploration, in [0, 1].
        temperature: T, larger than 0.
        max_gap: rounds after which a client is selected whatever its score, 1 or larger; ``None`` for never.
        starvation_pool: ``"available"`` or ``"candidates"``, who can be selected for that.
        never_selected: ``"since_start"``: clients that were never selected have waited since round 0; ``"overdue"``: for ever.
    """

    taxonomy = Taxonomy(
        *("efficiency, selection fairness", "DSRT", ("θ", "|D|", "probe norm")),
        *("probe norm", "ranking, probability", "fixed rounds"),
    )
    provides = frozenset({WEIGHTED_DRAWS})

    probe: Query
    fairness_weight: Annotated[float, Within("[0, 1]")] = 0.3
    fairness: Annotated[str, Choice("both", "inverse_frequency", "recency")] = "both"
    frequency_share: Annotated[float, Within("[0, 1]")] = 0.6
    candidate_factor: Annotated[float, Number("1 or larger, and finite")] = 2.0
    epsilon: Annotated[float, Within("[0, 1]")] = 0.1
    temperature: Annotated[float, Number("larger than 0 and finite")] = 0.7
    max_gap: Annotated[int | None, Whole(1, "a whole number, 1 or larger, or null for never")] = 50
    starvation_pool: Annotated[str, Choice("available", "candidates")] = "available"
    never_selected: Annotated[str, Choice("since_start", "overdue")] = "since_start"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.frequency_share = {"both": self.frequency_share, "inverse_frequency": 1.0, "recency": 0.0}[self.fairness]

    def init(self, facts: Facts) -> ServerState:
        """Return client -> how often it was selected, and in which round last; nobody was."""
        return {"history": {}}

    def select(self, server: ServerState, context: SelectionContext) -> list[int]:
        """Return the cohort: those who are forced, then those taken by score, then those explored."""
        size, history = context.num_slots, server["history"]
        number = min(len(context.available), math.ceil(self.candidate_factor * size))
        candidates = sorted(draw(context.rng, context.available, number, context.log_weights))
        pool = candidates if self.starvation_pool == "candidates" else context.available
        forced = self._forced(pool, size, history, context)
        others = [client_id for client_id in candidates if client_id not in set(forced)]
        num_slots = size - len(forced)
        explored = min(num_slots, math.floor(self.epsilon * size + 0.5))
        log.info(
            "Round %d: %d forced, %d by score, %d explored, of %d candidates.",
            *(context.round, len(forced), num_slots - explored, explored, number),
        )
        if not num_slots:
            return forced
        scores_D = self._scores(others, history, context)
        by_score = np.lexsort((context.rng.random(len(others)), -scores_D))
        taken, left = by_score[: num_slots - explored], by_score[num_slots - explored :]
        # The largest of s / T plus Gumbel noise are draws without replacement from the softmax, at any temperature.
        luck = scores_D[left] / self.temperature + context.rng.gumbel(size=len(left))
        taken = np.concatenate([taken, left[np.argsort(-luck)[:explored]]])
        return forced + [others[position] for position in taken.tolist()]

    def observe(
        self, server: ServerState, result: RoundResult, updates: Sequence[ClientUpdate], rng: np.random.Generator
    ) -> ServerState:
        """Note who was selected."""
        history = server["history"]
        return {"history": history | {k: [history.get(k, (0, 0))[0] + 1, result.round] for k in result.cohort}}

    def _forced(
        self, pool: Sequence[int], size: int, history: Mapping[int, Sequence[int]], context: SelectionContext
    ) -> list[int]:
        """Return the starved, the longest gap first, as many as there are places."""
        if self.max_gap is None:
            return []
        never = 0 if self.never_selected == "since_start" else -math.inf
        gaps = {client_id: context.round - (history[client_id][1] if client_id in history else never) for client_id in pool}
        overdue = [client_id for client_id in pool if gaps[client_id] >= self.max_gap]
        lots = dict(zip(overdue, context.rng.random(len(overdue)).tolist(), strict=True))
        return sorted(overdue, key=lambda client_id: (-gaps[client_id], lots[client_id]))[:size]

    def _scores(
        self, clients: Sequence[int], history: Mapping[int, Sequence[int]], context: SelectionContext
    ) -> NDArray[np.float64]:
        answers = context.ask(self.probe, clients)
        norms_D = np.array([answers[client_id] for client_id in clients], dtype=np.float64)
        diverged_D = ~np.isfinite(norms_D)
        if diverged_D.any():
            log.warning(
                "Round %d: %d of %d probes are not finite and rank last.", context.round, diverged_D.sum(), len(clients)
            )
            # A hair shorter than the shortest: zero would stretch the range, and draw the others' scores together.
            norms_D[diverged_D] = 0.0 if diverged_D.all() else np.nextafter(norms_D[~diverged_D].min(), -np.inf)
        past = [history.get(client_id, (0, 0)) for client_id in clients]
        frequency_D = _between_0_and_1(np.array([1 / (1 + count) for count, _ in past]))
        recency_D = _between_0_and_1(np.array([float(context.round - last) for _, last in past]))
        fair_D = _between_0_and_1(self.frequency_share * frequency_D + (1 - self.frequency_share) * recency_D)
        return (1 - self.fairness_weight) * _between_0_and_1(norms_D) + self.fairness_weight * fair_D


def _between_0_and_1(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return values less their minimum, divided by their range; zeros where all are equal."""
    spread = np.ptp(values)
    return (values - values.min()) / (spread if spread > 0 else 1.0)  # type: ignore[no-any-return]
