"""Averaging under the constraint that no group of samples has more than a given loss."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

import torch

from fedfacet import state
from fedfacet.aggregators.base import GROUPINGS, Aggregator, GroupReports, of_cells, of_groups
from fedfacet.arguments import Choice, Number
from fedfacet.types import GROUP_WEIGHTS, Broadcast, ClientUpdate, Facts, Query, ServerState, State


@dataclass(eq=False, kw_only=True)
class BoundedGroupLoss(Aggregator):
    r"""Train under the constraint that the mean loss :math:`r_g` of every group g is at most :math:`\zeta`.

    The Lagrangian is :math:`F(w) + \sum_g \lambda_g (r_g(w) - \zeta)`. Clients weight their samples by
    :math:`1 + \lambda_g / \rho_g` (``objective=group_weighted``), with :math:`\rho_g` the part of samples that are in the
    group, and report their losses of the model that the server sent. The server averages, and

    .. math::
        \theta_g \leftarrow \theta_g + \gamma (r_g(w) - \zeta), \quad
        \lambda_g = B \frac{e^{\theta_g}}{1 + \sum_h e^{\theta_h}}, \quad \theta = 0 \text{ at first}

    Source: Hu et al., Fair Federated Learning via Bounded Group Loss (PFFL), arXiv:2203.10190, algorithm 1; neither the
    rule nor the defaults were checked against the paper.

    Deviations: a round is a client's whole local training; :math:`r_g` is over the clients whose update arrived, and
    :math:`\rho_g` over all that arrived so far; clients weight their samples from the second round on, when the server knows
    :math:`\rho`; the result is the last model, not the average of all. A group without
    samples in a round keeps its :math:`\theta_g`, and the log names it.

    Args:
        group_losses: what clients are asked for.
        groups: ``"a"``, one group for each attribute value, or ``"ya"``, for each class and attribute value.
        bound: B, the largest sum of all multipliers, 0 or larger; 0 is FedAvg.
        zeta: the largest loss that a group may have.
        step: gamma, larger than 0.
    """

    provides = frozenset({GROUP_WEIGHTS})

    group_losses: Query
    groups: Annotated[str, Choice(*GROUPINGS)] = "a"
    bound: Annotated[float, Number("a number, 0.0 or larger, and finite")] = 1.0
    zeta: Annotated[float, Number("a finite number")] = 0.5
    step: Annotated[float, Number("a number, 0.0 or larger, and finite")] = 0.1

    def report(self) -> Query | None:
        """Return the question for the losses; nothing for a bound of 0."""
        return self.group_losses if self.bound else None

    def init(self, facts: Facts) -> ServerState:
        """Return exponents and counts that nobody knows yet."""
        return {"theta": torch.zeros(0, dtype=torch.float64), "counts": torch.zeros(0, 0, dtype=torch.float64)}

    def broadcast(self, server: ServerState, model: State, client_id: int) -> Broadcast:
        """Return the model and the weights of groups; the model alone before the first update."""
        counts = server["counts"]
        if not counts.numel():
            return Broadcast(model)
        shares = of_groups(counts, self.groups) / counts.sum()
        # The exponent 0 stands for the 1 of the denominator, so that a large theta does not overflow.
        multipliers = self.bound * torch.cat([server["theta"], torch.zeros(1, dtype=torch.float64)]).softmax(dim=0)[:-1]
        weights = torch.where(shares > 0, 1 + multipliers / shares, 1.0)
        return Broadcast(model, {GROUP_WEIGHTS: of_cells(weights, counts.shape)})

    def aggregate(self, server: ServerState, model: State, updates: Iterable[ClientUpdate]) -> tuple[ServerState, State]:
        """Return the next exponents and the averaged model."""
        reports = GroupReports()
        delta, buffers = self.average(reports.noted(updates) if self.bound else updates)
        model = state.add(model, {**delta, **buffers})
        if not self.bound:
            return server, model
        sums, counts = (of_groups(table, self.groups) for table in (reports.sums_YA, reports.counts_YA))
        ascent = torch.where(reports.present(self.groups), self.step * (sums / counts.clamp(min=1) - self.zeta), 0.0)
        first = not server["counts"].numel()
        known = reports.counts_YA if first else server["counts"] + reports.counts_YA
        return {"theta": ascent if first else server["theta"] + ascent, "counts": known}, model
