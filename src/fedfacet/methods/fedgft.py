"""FedGFT: a penalty on the global model's unfairness, which clients share out among their samples.

Source: Wang, Payani, Lee and Kompella, Mitigating Group Bias in Federated Learning: Beyond Local Fairness, arXiv:2305.09931.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

import torch
from torch import Tensor

from fedfacet import state
from fedfacet.aggregators.base import Aggregator
from fedfacet.arguments import Choice, Number
from fedfacet.objectives.classification import ClassificationObjective
from fedfacet.types import Batch, Broadcast, ClientStart, ClientUpdate, Facts, Query, ServerState, State

SLOPES, POSITIVE = "fedgft/slopes", "fedgft/positive_class"
"""Sent down: the factor of a sample's probability by class and attribute value, float32 of shape (Y, A); of which class."""


class FedGFTObjective(ClassificationObjective):
    r"""Add each sample's probability of the positive class to the loss, times a factor of its class and attribute value.

    .. math:: \ell + \frac{1}{B} \sum_b c_{y_b a_b} \, p(x_b)

    with :math:`\ell` the batch's loss. The server sends the factors, which are positive for a group whose rate is larger than
    the others' and negative for one whose rate is smaller (``aggregator=fedgft``). Where it sends none, or all are 0, there is
    no term.

    Arguments are those of ``ClassificationObjective``.
    """

    reads_attributes = True
    """Whether clients must know the attributes of their samples."""

    _slopes_YA: Tensor | None = None
    _positive_class = 0

    @property
    def requires(self) -> frozenset[str]:
        """The factors, and what the correction needs."""
        return super().requires | {SLOPES, POSITIVE}

    def on_client_start(self, start: ClientStart) -> None:
        """Take note of the factors."""
        super().on_client_start(start)
        slopes = start.broadcast.extras.get(SLOPES)
        self._slopes_YA = None if slopes is None or not slopes.any() else slopes
        self._positive_class = int(start.broadcast.extras.get(POSITIVE, 0))

    def training_loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the loss of a batch and its part of the penalty."""
        loss = super().training_loss(logits, batch)
        if self._slopes_YA is None:
            return loss
        scores = logits.softmax(dim=1)[:, self._positive_class]
        return loss + (self._slopes_YA.to(scores)[batch.y, batch.a] * scores).mean()


class _Scores(Query, Protocol):
    """A question for sums of probabilities, ``clients.queries.group_performance.GroupScores``."""

    positive_class: int


@dataclass(eq=False, kw_only=True)
class FedGFT(Aggregator):
    r"""Train for the mean loss plus :math:`\lambda J`, a penalty on how far the rates of the federation's groups are apart.

    .. math:: J = 2 \sum_a (r_a - \bar r)^2

    with :math:`r_a` the mean probability that the model gives the positive class, over the samples of all clients that count
    for attribute value a, and :math:`\bar r` the mean of these rates. For two values J is the paper's :math:`F^2` with
    :math:`F = r_1 - r_0`. J is no mean over clients, but at the model that the server sends, its gradient is one: of

    .. math:: c_{ya} \, p, \qquad
        c_{ya} = \frac{\lambda}{\rho_a} \frac{\partial J}{\partial r_a} = \frac{4 \lambda (r_a - \bar r)}{\rho_a}

    over all samples, with :math:`\rho_a` the part of all samples that count for a, and :math:`c_{ya} = 0` for samples that do
    not. So each member of the cohort reports sums of probabilities and numbers of samples before it trains, the server finds
    :math:`r` and :math:`\rho` of the cohort, and the clients train with these factors (``objective=fedgft``). A value of which
    the cohort has no sample that counts is left out; with fewer than two there is no penalty.

    Rule and defaults are those of the authors' code (KeyWgh/FedGFT, the class ``FedGFT`` with ``reg="l2"``), not checked
    against the paper. The code has :math:`\gamma F^2 / 2`, with a gamma of 20 on Adult and COMPAS and 10 on CelebA.

    Deviations: the cohort stands for all clients, who in the paper all take part. More than two attribute values are this
    package's. The paper's other penalty, :math:`|F|`, and its third metric, calibration, are left out. With
    ``weighting="equal"`` clients of few samples count more in loss and penalty than the formula says.

    Args:
        group_scores: what clients are asked for; its ``positive_class`` is that of the rates.
        strength: lambda, 0 or larger; 0 is FedAvg. It is half the code's gamma.
        rate: which samples count: ``"tpr"``, those of the positive class (equal opportunity), or ``"selection"``, all of them
            (demographic parity).
        weighting: ``"samples"`` (the paper) or ``"equal"``.
    """

    provides = frozenset({SLOPES, POSITIVE})

    group_scores: _Scores
    strength: Annotated[float, Number("0 or larger, and finite")] = 10.0
    rate: Annotated[str, Choice("tpr", "selection")] = "tpr"
    weighting: str = "samples"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._positive_class = torch.tensor(self.group_scores.positive_class)

    def report(self) -> Query | None:
        """Return the question for scores; nothing for a strength of 0."""
        return self.group_scores if self.strength else None

    def init(self, facts: Facts) -> ServerState:
        """Return factors that nobody knows yet."""
        return {"slopes": torch.zeros(0, 0)}

    def prepare(self, server: ServerState, reports: Mapping[int, Any]) -> ServerState:
        """Return the factors after what the cohort has reported."""
        if not reports:
            return server
        sums_YA, counts_YA = torch.tensor(list(reports.values()), dtype=torch.float64).sum(dim=0)
        count_for = torch.ones_like(counts_YA)
        if self.rate == "tpr":
            count_for[torch.arange(len(count_for)) != self.group_scores.positive_class] = 0
        sums, counts = ((table * count_for).sum(dim=0) for table in (sums_YA, counts_YA))
        known, rates, shares = counts > 0, sums / counts, counts / counts_YA.sum()
        slopes = torch.where(known, 4 * self.strength * (rates - rates[known].mean()) / shares, 0.0)
        return {"slopes": (count_for * slopes).float()}

    def broadcast(self, server: ServerState, model: State, client_id: int) -> Broadcast:
        """Return the model and the factors; the model alone before anybody has reported."""
        if not server["slopes"].numel():
            return Broadcast(model)
        return Broadcast(model, {SLOPES: server["slopes"], POSITIVE: self._positive_class})

    def aggregate(self, server: ServerState, model: State, updates: Iterable[ClientUpdate]) -> tuple[ServerState, State]:
        """Return the factors as they are, and the averaged model."""
        delta, buffers = self.average(updates)
        return server, state.add(model, {**delta, **buffers})
