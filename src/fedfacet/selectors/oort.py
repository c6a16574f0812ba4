"""Oort: clients whose losses are large and who are quick, and some that are new."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray

from fedfacet import rng
from fedfacet.arguments import Whole, Within
from fedfacet.records import RoundResult
from fedfacet.selectors.base import ClientSelector, Taxonomy, numbers, warn_of
from fedfacet.types import ClientUpdate, Facts, Query, SelectionContext, ServerState

Floats = NDArray[np.float64]


@dataclass(eq=False, kw_only=True)
class OortSelector(ClientSelector):
    r"""Draw most of the cohort from those with the best scores, of loss and speed, and the rest from those never heard.

    1. Every member of a cohort reports the moments of its losses of the model that it is sent (``LossMoments``). Its utility is
       :math:`U_k = n_k \sqrt{\frac{1}{n_k} \sum \ell^2}`. The server keeps the last one, the round :math:`L_k` it is from, and
       the seconds :math:`T_k` after which the client's update arrived.
    2. In round t a share :math:`\varepsilon_t = \max(\varepsilon \, d^t, \varepsilon_{min})` of the m places is for clients
       never heard: :math:`\lfloor m (1 - \varepsilon_t) \rfloor` places are for others. Where all who are available were
       heard, all places are.
    3. A client that was heard has the score (``scores``)

       .. math:: \Big( \frac{\min(U_k, c) - \min U}{\min(\max U, c) - \min U} + \sqrt{\frac{0.1 \ln t}{L_k}} \Big)
           \cdot \begin{cases} (T / T_k)^a & T_k > T \\ 1 & \text{else} \end{cases}

       with c a quantile of the utilities of those who are available. Those whose score is at least ``cutoff`` times that of
       the first one beyond the places are drawn from, each next one in proportion to its score.
    4. Of those never heard, the ``window`` times as many as there are places that have the most samples are drawn from, in
       proportion to these. Places that are left are drawn uniformly from all others.
    5. The preferred duration T is a percentile of all known durations, at first ``round_threshold``. The pacer compares the
       utilities of those chosen in step 3, averaged over a round and summed over ``pacer_step`` rounds, with those of as many
       rounds before: where they differ by a tenth or less, the percentile rises by ``pacer_delta``; where they differ fivefold
       or more, it falls by as much, not below ``pacer_delta``. At 100, T is infinite.

    Without devices nothing is known of durations, and the clock changes nothing. The same holds where all durations are equal.

    Source: Lai et al., Oort: Efficient Federated Learning via Guided Participant Selection, OSDI 2021, arXiv:2010.06081,
    equation 2 and algorithm 1. Formulas and defaults are those of the authors' released code (``oort/oort.py`` and
    ``training/argParser.py``); they were not checked against the paper. FedScale's copy has ``exploration_decay=0.98``,
    ``exploration_least=0.3``, ``clip=0.9``, ``cutoff=0.05`` and ``round_threshold=30``.

    Deviations: losses are of the model as it is sent (``LossMoments``). The code fails where step 3 takes all who were heard,
    since there is nobody beyond the places; then the last of them counts. Utilities that are all alike count as 1, as in the
    code, which takes 0.999 of the smallest utility as the smallest; here it is the smallest. The code's largest utility is not
    clipped. Its exploration ends for good once everybody was heard; here newcomers are explored. Its pacer is one round
    behind, with a 0 as the first utility, and averages over those drawn by score. Its clients say beforehand how long they
    will take, which counts for T and for those never heard; here durations are observed. The number of samples is not capped
    at those that a client trains on. Clients that are chosen often are not put on a black list, which is off in the code too.
    A client that is late or lost has no duration and keeps what is known of it. A report that is not finite, or has negative
    numbers, counts as none, and the log names the client.

    A round costs O(K log K), and one pass of the cohort's samples through the model, which the ledger counts. A client
    discloses its number of samples once, and three numbers in every round for which it is selected.

    Args:
        loss_moments: asked of the cohort in every round.
        num_samples: asked once of those never heard.
        exploration: epsilon in [0, 1].
        exploration_decay: d in (0, 1].
        exploration_least: epsilon_min in [0, 1].
        time_exponent: a, 0 or larger; 0 looks at no durations.
        clip: the quantile of utilities above which they are cut off, in (0, 1].
        cutoff: in [0, 1].
        window: 1 or larger.
        round_threshold: a percentile in (0, 100].
        pacer_step: in rounds, 1 or larger.
        pacer_delta: points of the percentile, in [0, 100].
    """

    # Oort of the thesis' table 4, which prints 1/B for 1/|B|.
    taxonomy = Taxonomy(
        "limit round time", "DSR", ("θ", "loss", "time"), "utility", "ranking and exploration", "accuracy reached"
    )

    loss_moments: Query
    num_samples: Query
    exploration: Annotated[float, Within("[0, 1]")] = 0.9
    exploration_decay: Annotated[float, Within("(0, 1]")] = 0.95
    exploration_least: Annotated[float, Within("[0, 1]")] = 0.2
    time_exponent: Annotated[float, Within("[0, 1e3]")] = 2.0
    clip: Annotated[float, Within("(0, 1]")] = 0.98
    cutoff: Annotated[float, Within("[0, 1]")] = 0.7
    window: Annotated[float, Within("[1, 1e9]")] = 5.0
    round_threshold: Annotated[float, Within("(0, 100]")] = 10.0
    pacer_step: Annotated[int, Whole()] = 20
    pacer_delta: Annotated[float, Within("[0, 100]")] = 5.0

    def init(self, facts: Facts) -> ServerState:
        """Return what is known of clients, nothing so far, and of the pacer.

        These are utilities and seconds, float64 of shape (K,), -inf and 0 where not known; the rounds they are from, int64 of
        shape (K,), 0 for never; the percentile; and the last rounds' mean utilities of those who were heard before.
        """
        num_clients = facts.num_clients
        return {
            "utilities": torch.full((num_clients,), -torch.inf, dtype=torch.float64),
            "durations": torch.zeros(num_clients, dtype=torch.float64),
            "rounds": torch.zeros(num_clients, dtype=torch.int64),
            "percentile": float(self.round_threshold),
            "history": [],
        }

    def select(self, server: ServerState, context: SelectionContext) -> list[int]:
        """Return those drawn by score, then those never heard, then those drawn uniformly."""
        available = numbers(context.available)
        luck_K = context.rng.random(len(available))
        tried = np.flatnonzero(server["rounds"].numpy()[available] > 0)
        untried = np.flatnonzero(server["rounds"].numpy()[available] == 0)
        drawn = self._exploited(server, context, tried, luck_K, self._num_slots(context, len(tried), len(untried)))
        drawn += self._explored(context, untried, luck_K, context.num_slots - len(drawn))
        others = sorted(set(range(len(available))) - set(drawn))
        drawn += rng.draw(context.rng, others, context.num_slots - len(drawn)) if len(drawn) < context.num_slots else []
        cohort = [context.available[position] for position in drawn]
        context.ask(self.loss_moments, cohort)
        return cohort

    def observe(
        self, server: ServerState, result: RoundResult, updates: Sequence[ClientUpdate], rng: np.random.Generator
    ) -> ServerState:
        """Keep utilities and durations of those whose updates arrived, and set the pacer."""
        utilities_K, durations_K, rounds_K = (server[name].clone() for name in ("utilities", "durations", "rounds"))
        fresh, unusable = [], []
        for receipt in result.receipts:
            client_id = receipt.client_id
            utility = utility_of(receipt.answers[self.loss_moments.name])
            if client_id in result.durations:
                durations_K[client_id] = result.durations[client_id]
            if not math.isfinite(utility):
                unusable.append(client_id)
                utilities_K[client_id], rounds_K[client_id] = -torch.inf, 0
                continue
            if rounds_K[client_id]:
                fresh.append(utility)
            utilities_K[client_id], rounds_K[client_id] = utility, result.round
        warn_of(result.round, "losses", unusable, len(result.receipts), "clients are not finite and count as not heard")
        history = [*server["history"], math.fsum(fresh) / len(fresh) if fresh else 0.0][-2 * self.pacer_step :]
        percentile = server["percentile"]
        if result.round % self.pacer_step == 0 and len(history) == 2 * self.pacer_step:
            percentile = paced(percentile, history, self.pacer_delta)
        return {
            "utilities": utilities_K,
            "durations": durations_K,
            "rounds": rounds_K,
            "percentile": percentile,
            "history": history,
        }

    def _num_slots(self, context: SelectionContext, num_tried: int, num_untried: int) -> int:
        """Return how many places are for clients that were heard."""
        if not num_untried:
            return context.num_slots
        share = max(self.exploration * self.exploration_decay**context.round, self.exploration_least)
        return min(math.floor(context.num_slots * (1 - share) + 1e-9), num_tried)

    def _exploited(
        self, server: ServerState, context: SelectionContext, tried: NDArray[np.intp], luck_K: Floats, num_slots: int
    ) -> list[int]:
        """Return positions drawn by score."""
        if not num_slots:
            return []
        ids = numbers(context.available)[tried]
        durations = server["durations"].numpy()
        scores_H = scores(
            server["utilities"].numpy()[ids],
            server["rounds"].numpy()[ids],
            durations[ids],
            round=context.round,
            preferred=preferred_duration(durations[durations > 0], server["percentile"]),
            clip=self.clip,
            time_exponent=self.time_exponent,
        )
        order = np.lexsort((luck_K[tried], -scores_H))
        least = self.cutoff * scores_H[order[min(num_slots, len(order) - 1)]]
        return _drawn(context.rng, tried, scores_H, order[scores_H[order] >= least], num_slots)

    def _explored(self, context: SelectionContext, untried: NDArray[np.intp], luck_K: Floats, num_slots: int) -> list[int]:
        """Return positions of clients never heard, drawn by their numbers of samples."""
        num_slots = min(num_slots, len(untried))
        if not num_slots:
            return []
        ids = [context.available[position] for position in untried.tolist()]
        sizes = context.ask_once(self.num_samples, ids)
        sizes_U = np.array([sizes[client_id] for client_id in ids], dtype=np.float64)
        order = np.lexsort((luck_K[untried], -sizes_U))[: math.floor(self.window * num_slots)]
        return _drawn(context.rng, untried, sizes_U, order, num_slots)


def utility_of(moments: Sequence[float]) -> float:
    r"""Return the utility of a client, :math:`n \sqrt{\sum \ell^2 / n}`; NaN where a number is negative or not finite.

    Args:
        moments: n, the sum of losses and the sum of squared losses.

    Example:
        >>> utility_of([4, 8.0, 16.0])
        8.0
    """
    number, _, squares = moments
    fine = 0 <= number < math.inf and 0 <= squares < math.inf
    return math.sqrt(number) * math.sqrt(squares) if fine else math.nan


def scores(
    utilities_H: Floats,
    rounds_H: NDArray[np.int64],
    durations_H: Floats,
    *,
    round: int,
    preferred: float,
    clip: float,
    time_exponent: float,
) -> Floats:
    """Return the scores of clients that were heard, shape (H,), as in step 3 of ``OortSelector``.

    Args:
        utilities_H: finite, shape (H,).
        rounds_H: when they were heard last, 1 or later, shape (H,).
        durations_H: seconds, 0 where not known, shape (H,).
        round: the current one.
        preferred: T, in seconds.
        clip: quantile in (0, 1].
        time_exponent: a.
    """
    ascending = np.sort(utilities_H)
    largest = ascending[min(int(len(ascending) * clip), len(ascending) - 1)]
    spread = largest - ascending[0]
    normal_H = (np.minimum(utilities_H, largest) - ascending[0]) / spread if spread > 0 else np.ones(len(utilities_H))
    scores_H: Floats = normal_H + np.sqrt(0.1 * math.log(round) / rounds_H)
    slow_H = durations_H > preferred
    scores_H[slow_H] *= (preferred / durations_H[slow_H]) ** time_exponent
    return scores_H


def preferred_duration(durations: Floats, percentile: float) -> float:
    """Return T: a percentile of known durations, as the next larger of them; infinite where none is known, or at 100.

    Example:
        >>> [preferred_duration(np.array([4.0, 1.0, 2.0, 3.0]), percentile) for percentile in (10, 25, 60, 100)]
        [1.0, 2.0, 3.0, inf]
    """
    if not len(durations) or percentile >= 100:
        return math.inf
    return float(np.sort(durations)[min(int(len(durations) * percentile / 100), len(durations) - 1)])


def paced(percentile: float, history: Sequence[float], delta: float) -> float:
    """Return the percentile after the pacer has compared the two halves of a history of utilities.

    Example:
        >>> [paced(10.0, history, 5.0) for history in ([2.0, 2.1], [2.0, 3.0], [2.0, 12.0], [0.0, 0.0])]
        [15.0, 10.0, 5.0, 15.0]
    """
    half = len(history) // 2
    before, now = math.fsum(history[:half]), math.fsum(history[half:])
    if abs(now - before) <= 0.1 * before:
        return min(100.0, percentile + delta)
    if abs(now - before) >= 5 * before:
        return max(min(delta, percentile), percentile - delta)
    return percentile


def _drawn(
    generator: np.random.Generator, positions: NDArray[np.intp], weights: Floats, among: NDArray[np.intp], number: int
) -> list[int]:
    """Return ``number`` of the positions that ``among`` points at, each next one in proportion to its weight."""
    with np.errstate(divide="ignore"):
        log_weights = np.log(weights)
    return [int(positions[k]) for k in rng.draw(generator, among.tolist(), number, log_weights)]
