"""Averaging that weighs clients by how fair the model is on their data."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from fedfacet import state
from fedfacet.aggregators.base import Aggregator
from fedfacet.arguments import Number, Whole
from fedfacet.types import ClientUpdate, Facts, Query, ServerState, State

_LEAST = 1e-6


@dataclass(eq=False, kw_only=True)
class FairFed(Aggregator):
    r"""Weigh those clients more on whose data the model is about as unfair as on everybody's.

    Every member of the cohort S reports how many of its samples of each class and attribute value the server's model
    classifies right. Let :math:`F_k` be how much larger the true positive rate of attribute value 1 is than that of 0 on the
    data of client k, and F the same on the data of all of S. Then

    .. math::
        \Delta_k = \lvert F_k - F \rvert, \quad
        s_k \leftarrow s_k - \beta \Bigl(\Delta_k - \frac{1}{|S|} \sum_{j \in S} \Delta_j\Bigr), \quad
        \omega_k = |S| \frac{p_k}{\sum_{j \in S} p_j} + s_k, \quad
        w \leftarrow w + \frac{\sum_k \omega_k \Delta w_k}{\sum_k \omega_k}

    with :math:`p_k` as ``weighting`` says and s = 0 at first. A weight is at least 1e-6. For a client that lacks positive
    samples of some group, :math:`\Delta_k` is the distance of its accuracy from that of all of S. With more than two attribute
    values, :math:`F_k` is the largest rate minus the smallest.

    Source: Ezzeldin et al., FairFed: Enabling Group Fairness in Federated Learning, AAAI 2023, arXiv:2110.00857, algorithm 1.
    It is not among the thesis' methods.

    Deviations: in the paper everybody takes part and the weights add up to 1. Here they have the mean 1 over the cohort, so
    that beta means the same whatever the size of the federation: it is the paper's, times |S|. With nine clients the default is
    a ninth of a paper's 1. The paper weights by samples, the default here is ``weighting=equal``. A client that is not selected
    keeps its shift.

    Args:
        group_hits: what clients are asked for.
        beta: 0 or larger; 0 is FedAvg.
        positive_class: whose rates count.
    """

    group_hits: Query
    beta: Annotated[float, Number("0 or larger, and finite")] = 1.0
    positive_class: Annotated[int, Whole(0, "a class, 0 or larger")] = 1

    def report(self) -> Query | None:
        """Return the question for hits; nothing for a beta of 0."""
        return self.group_hits if self.beta else None

    def init(self, facts: Facts) -> ServerState:
        """Return shifts and weights of all clients, before anybody has reported."""
        return {name: torch.zeros(facts.num_clients, dtype=torch.float64) for name in ("shift", "weight")}

    def prepare(self, server: ServerState, reports: Mapping[int, Any]) -> ServerState:
        """Return shifts and weights after what the cohort has reported."""
        if not reports:
            return server
        hits_KYA, counts_KYA = torch.tensor(list(reports.values()), dtype=torch.float64).unbind(dim=1)
        sizes = counts_KYA.sum(dim=(1, 2))
        gaps = torch.stack([self._gap(hits, counts) for hits, counts in zip(hits_KYA, counts_KYA, strict=True)])
        accuracies = hits_KYA.sum(dim=(1, 2)) / sizes
        apart = (gaps - self._gap(hits_KYA.sum(dim=0), counts_KYA.sum(dim=0))).abs()
        distances = torch.where(apart.isnan(), (accuracies - hits_KYA.sum() / sizes.sum()).abs(), apart)
        base = sizes if self.weighting == "samples" else torch.ones_like(sizes)
        shift, weight = server["shift"].clone(), server["weight"].clone()
        members = list(reports)
        shift[members] -= self.beta * (distances - distances.mean())
        weight[members] = (len(members) * base / base.sum() + shift[members]).clamp(min=_LEAST)
        return {"shift": shift, "weight": weight}

    def aggregate(self, server: ServerState, model: State, updates: Iterable[ClientUpdate]) -> tuple[ServerState, State]:
        """Return shifts and weights as they are, and the averaged model."""
        moved = state.weighted_mean(
            (self.sent(update), float(server["weight"][update.client_id]) if self.beta else self.weight(update))
            for update in updates
        )
        return server, state.add(model, moved)

    def _gap(self, hits_YA: Tensor, counts_YA: Tensor) -> Tensor:
        """Return the difference in true positive rates; NaN where a group has no positive sample."""
        rates = hits_YA[self.positive_class] / counts_YA[self.positive_class]
        return rates[1] - rates[0] if len(rates) == 2 else rates.max() - rates.min()
