"""Averages that bear with clients whose updates are wrong, by accident or on purpose."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from fedfacet import state
from fedfacet.aggregators.base import Aggregator
from fedfacet.arguments import Number, Whole, Within
from fedfacet.errors import ConfigError
from fedfacet.types import ClientUpdate, Facts, ServerState, State


class CoordinateMedian(Aggregator):
    r"""Move every entry of the model by the median of what the clients would move it by.

    .. math:: w_j \leftarrow w_j + \operatorname{med}_k \, (\Delta_k)_j

    Where half of the weight lies on either side of a gap, as with an even number of equal weights, it is the middle of the gap.
    As long as bad clients have less than half of the weight, no entry leaves the range of what honest clients sent.

    Source: Yin et al., Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates, ICML 2018, arXiv:1803.01498,
    definition 1 and algorithm 1, option I.

    Deviations: the paper's workers send gradients, and count alike, which is ``weighting=equal``. With ``weighting=samples`` it
    is the weighted median, and a client that claims many samples has much weight.

    Args:
        buffers: ``"average"`` takes floating-point buffers as it takes parameters, by their median, or a bad client's would get
            in; ``"keep"`` leaves the server's untouched.
    """

    def aggregate(self, server: ServerState, model: State, updates: Iterable[ClientUpdate]) -> tuple[ServerState, State]:
        """Return nothing to remember, and the model moved by the median."""
        updates = list(updates)
        weights = torch.tensor([self.weight(update) for update in updates], dtype=torch.float64)

        def median(values: Tensor) -> Tensor:
            ascending, order = values.sort(dim=1)
            below = weights[order].cumsum(dim=1)
            half = below[:, -1:] / 2
            ranks = torch.stack([(below < half).sum(dim=1), (below <= half).sum(dim=1)], dim=1)
            lower, upper = ascending.gather(1, ranks).double().unbind(dim=1)
            return lower + (upper - lower) / 2

        return server, state.add(model, state.by_entry([self.sent(update) for update in updates], median))


@dataclass(eq=False, kw_only=True)
class GeometricMedian(Aggregator):
    r"""Move the model by the geometric median of the updates, nearly: a few steps of Weiszfeld's algorithm, smoothed.

    The median is the :math:`v` with the smallest :math:`\sum_k p_k \lVert v - \Delta_k \rVert_2`. From the weighted mean on,

    .. math:: v \leftarrow \frac{\sum_k \beta_k \Delta_k}{\sum_k \beta_k}, \quad
        \beta_k = \frac{p_k}{\max(\nu, \lVert v - \Delta_k \rVert_2)}

    is repeated; then the model moves by v. The exact median stays near the honest updates as long as bad clients have less
    than half of the weight. A few steps only come near it: an update of any length still pulls by a share of its length, which
    each step makes smaller. All updates of a round are held at once; what is computed are their m x m inner products.

    Source: Pillutla, Kakade and Harchaoui, Robust Aggregation for Federated Learning (RFA), IEEE Transactions on Signal
    Processing 70, 2022, arXiv:1912.13445, the smoothed Weiszfeld algorithm. The step is that of the authors' code, which starts
    at the mean too. It was not compared with the paper's text.

    Deviations: the number of steps is fixed. The code stops where a step lowers the sum by less than a millionth of it. It has
    ``nu=1e-5`` and takes up to 4 steps by default, 2 in its scripts of experiments; the defaults here are ours.

    Args:
        nu: larger than 0; a distance below it counts as this one.
        iterations: the number of steps, 0 or larger; 0 is FedAvg, bit for bit.
        weighting: ``"samples"`` (p_k = n_k, the paper) or ``"equal"`` (p_k = 1). With the former a client that claims many
            samples has much weight.
        buffers: ``"average"`` takes floating-point buffers for a part of the updates, or a bad client's would get in;
            ``"keep"`` leaves the server's untouched.
    """

    nu: Annotated[float, Number("larger than 0, and finite")] = 1e-6
    iterations: Annotated[int, Whole(0)] = 3

    def aggregate(self, server: ServerState, model: State, updates: Iterable[ClientUpdate]) -> tuple[ServerState, State]:
        """Return nothing to remember, and the model moved by the median."""
        if not self.iterations:
            return server, state.add(model, state.weighted_mean((self.sent(one), self.weight(one)) for one in updates))
        updates = list(updates)
        bundles = [self.sent(update) for update in updates]
        weights = np.array([self.weight(update) for update in updates])
        gram, shares = state.gram(bundles), weights / weights.sum()
        point = shares  # as a combination of the updates
        for _ in range(self.iterations):
            # The squares of |v - Delta_k|, which rounding may leave a little below 0.
            squares = point @ gram @ point - 2 * gram @ point + np.diag(gram)
            pull = shares / np.maximum(self.nu, np.sqrt(squares.clip(min=0)))
            point = pull / pull.sum()
        return server, state.add(model, state.combination(bundles, point))


@dataclass(eq=False, kw_only=True)
class Krum(Aggregator):
    r"""Average the m of n updates that lie closest to their neighbours; one of them for Krum, more for Multi-Krum.

    .. math::
        s(k) = \sum_{i \to k} \lVert \Delta_k - \Delta_i \rVert_2^2, \quad
        w \leftarrow w + \frac{\sum_{k \in S} p_k \Delta_k}{\sum_{k \in S} p_k}

    The first sum runs over the n - f - 2 updates that lie closest to client k's, and S are the m clients with the smallest
    :math:`s(k)`, with equal ones in the order of client numbers. All updates of a round are held at once; what is computed are
    their n x n inner products.

    Source: Blanchard et al., Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent, NeurIPS 2017,
    arXiv:1703.02757, section 4; Multi-Krum is of its section on experiments, with m = n for averaging.

    Deviations: the paper's workers send gradients. f may follow from the number of updates, which changes from round to round
    where clients drop out. Weights count among the updates that are kept, and not for the choice. The default m of
    ``aggregator=multi_krum``, n - f, is ours.

    Args:
        byzantine: f, how many updates of a round may be bad, 0 or larger; rounds with fewer than 2 f + 3 updates are refused.
            ``None`` for the most that n updates bear, (n - 3) / 2, rounded down; fewer than three are averaged then, since
            nobody can tell which is bad.
        keep: m, 1 or larger; ``None`` for n - f. With n or more it is FedAvg, bit for bit.
        buffers: ``"average"`` takes floating-point buffers for a part of the updates, or a bad client's would get in;
            ``"keep"`` leaves the server's untouched.
    """

    byzantine: Annotated[int | None, Whole(0)] = None
    keep: Annotated[int | None, Whole()] = 1

    def init(self, facts: Facts) -> ServerState:
        """Return nothing to remember.

        Raises:
            ConfigError: if not even all clients together are enough for ``byzantine``.
        """
        self._check_enough(facts.num_clients, "clients")
        return {}

    def aggregate(self, server: ServerState, model: State, updates: Iterable[ClientUpdate]) -> tuple[ServerState, State]:
        """Return nothing to remember, and the model moved by the updates that are kept.

        Raises:
            ConfigError: if there are too few updates.
        """
        updates = list(updates)
        number = len(updates)
        self._check_enough(number, "updates in a round")
        f = self.byzantine if self.byzantine is not None else max(0, (number - 3) // 2)
        keep = self.keep if self.keep is not None else number - f
        kept = updates if number < 3 or keep >= number else self._closest(updates, f, keep)
        return server, state.add(model, state.weighted_mean((self.sent(update), self.weight(update)) for update in kept))

    def _closest(self, updates: Sequence[ClientUpdate], f: int, keep: int) -> list[ClientUpdate]:
        # By client number, so that neither ties nor rounding depend on the order in which updates came.
        updates = sorted(updates, key=lambda update: update.client_id)
        gram = state.gram([self.sent(update) for update in updates])
        squared_norms = np.diag(gram)
        squares = squared_norms[:, None] + squared_norms - (gram + gram.T)
        np.fill_diagonal(squares, np.inf)  # nobody is a neighbour of itself
        scores = np.sort(squares, axis=1)[:, : len(updates) - f - 2].sum(axis=1)
        return [updates[position] for position in np.argsort(scores, kind="stable")[:keep]]

    def _check_enough(self, number: int, what: str) -> None:
        if self.byzantine is not None and number < (least := 2 * self.byzantine + 3):
            raise ConfigError(
                f"Expected at least {least} {what} for aggregator.byzantine={self.byzantine}, but got {number}: raise "
                "federation.cohort_size, or lower aggregator.byzantine."
            )


@dataclass(eq=False, kw_only=True)
class NormBound(Aggregator):
    r"""Scale updates down to an l2 norm, then average them.

    .. math:: w \leftarrow w + \frac{\sum_k p_k \Delta_k \min(1, M / \lVert \Delta_k \rVert_2)}{\sum_k p_k}

    So no client moves the model further than :math:`M p_k / \sum_i p_i`. ``transforms=clip`` does the same to the delta at the
    client, which a bad client leaves undone; here it is the server that does it, to everybody.

    Source: Sun et al., Can You Really Backdoor Federated Learning?, arXiv:1911.07963, section 3, norm thresholding of updates.

    Deviations: the noise that the paper may add besides is left out. The default of ``bound`` is ours; what suits depends on
    the model and on how long clients train.

    Args:
        bound: M, larger than 0, over everything together that is averaged: trainable parameters and, unless they are kept,
            floating-point buffers; infinity is FedAvg, bit for bit.
    """

    bound: Annotated[float, Number("larger than 0")] = 10.0

    def aggregate(self, server: ServerState, model: State, updates: Iterable[ClientUpdate]) -> tuple[ServerState, State]:
        """Return nothing to remember, and the averaged model."""
        moved = state.weighted_mean((self._bounded(self.sent(update)), self.weight(update)) for update in updates)
        return server, state.add(model, moved)

    def _bounded(self, sent: State) -> State:
        norm = state.norm(sent)
        return state.scaled(sent, self.bound / norm) if norm > self.bound else sent


_ROUNDING = 1e-9
"""Of the weight that is kept: what is left of a client by a smaller share is left by rounding."""


@dataclass(eq=False, kw_only=True)
class TrimmedMean(Aggregator):
    r"""Average every entry without the share of the weight that has the largest values and the share that has the smallest.

    .. math:: w_j \leftarrow w_j + \frac{\sum_k \kappa_{kj} (\Delta_k)_j}{\sum_k \kappa_{kj}}

    Clients stand in the order of their values of entry j, each as broad as its weight :math:`p_k` is of the sum of all.
    :math:`\kappa_{kj}` is how much of client k lies in :math:`[\beta, 1 - \beta]`. As long as bad clients have no more than the
    share beta of the weight, no entry leaves the range of what honest clients sent.

    Source: Yin et al., Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates, ICML 2018, arXiv:1803.01498,
    definition 2 and algorithm 1, option II.

    Deviations: the paper's workers send gradients, and count alike, which is ``weighting=equal``. Where beta times the number
    of clients is not whole, the two clients at the edges count in part; others round it down. With ``weighting=samples`` a
    client that claims many samples has much weight.

    Args:
        trim: beta in [0, 0.5); 0 is FedAvg, bit for bit.
        buffers: ``"average"`` takes floating-point buffers as it takes parameters, by their trimmed mean, or a bad client's
            would get in; ``"keep"`` leaves the server's untouched.
    """

    trim: Annotated[float, Within("[0, 0.5)")] = 0.2

    def aggregate(self, server: ServerState, model: State, updates: Iterable[ClientUpdate]) -> tuple[ServerState, State]:
        """Return nothing to remember, and the model moved by the trimmed mean."""
        if not self.trim:
            return server, state.add(model, state.weighted_mean((self.sent(one), self.weight(one)) for one in updates))
        updates = list(updates)
        weights = torch.tensor([self.weight(update) for update in updates], dtype=torch.float64)

        def mean(values: Tensor) -> Tensor:
            ascending, order = values.sort(dim=1)
            ordered = weights[order]
            ends = ordered.cumsum(dim=1)
            low, high = self.trim * ends[:, -1:], (1 - self.trim) * ends[:, -1:]
            kept = torch.minimum(ends, high) - torch.maximum(ends - ordered, low)
            # 0.29 of 100 clients is a hair less than 29 in floating point, and a hair of a bad client may be anything.
            kept = kept.where(kept > _ROUNDING * (high - low), 0)
            means = (ascending.double() * (kept / kept.sum(dim=1, keepdim=True))).sum(dim=1)
            return means.where(ascending[:, 0] < ascending[:, -1], ascending[:, 0])  # the mean of equal values, unrounded

        return server, state.add(model, state.by_entry([self.sent(update) for update in updates], mean))
