"""Averaging for the worst mixture of groups of samples, wherever they are."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

import torch

from fedfacet import state
from fedfacet.aggregators.base import GROUPINGS, Aggregator, GroupReports, of_cells, of_groups
from fedfacet.arguments import Choice, Number
from fedfacet.simplex import ascended
from fedfacet.types import GROUP_WEIGHTS, Broadcast, ClientUpdate, Facts, Query, ServerState, State


@dataclass(eq=False, kw_only=True)
class FedMinMax(Aggregator):
    r"""Train for the mixture of groups on which the model does worst.

    The aim is :math:`\min_w \max_{\mu \in \Delta} \sum_g \mu_g r_g(w)` with :math:`r_g` the mean loss of group g over all
    clients. Clients weight their samples by :math:`\mu_g / \rho_g` (``objective=group_weighted``), with :math:`\rho_g` the
    part of samples that are in the group, and report their losses of the model that the server sent. The server averages, and

    .. math:: \mu \leftarrow \Pi_\Delta(\mu + \gamma \, r(w)), \quad \mu = \rho \text{ at first}

    Source: Papadaki et al., Minimax Demographic Group Fairness in Federated Learning, FAccT 2022, arXiv:2201.08304,
    algorithm 1; neither the rule nor the default of ``step`` was checked against the paper.

    Deviations: a round is a client's whole local training; :math:`r_g` is over the clients whose update arrived, and
    :math:`\rho_g` over all that arrived so far. A group without samples in a round has no :math:`r_g`: its ascent is 0, that of
    the others is their loss less the mean of theirs (``simplex.ascended``), and the log names it.

    Args:
        group_losses: what clients are asked for.
        groups: ``"a"``, one group for each attribute value, or ``"ya"``, for each class and attribute value.
        step: gamma, 0 or larger; 0 is FedAvg.
    """

    provides = frozenset({GROUP_WEIGHTS})

    group_losses: Query
    groups: Annotated[str, Choice(*GROUPINGS)] = "a"
    step: Annotated[float, Number("0 or larger, and finite")] = 0.05

    def report(self) -> Query | None:
        """Return the question for the losses; nothing for a step of 0."""
        return self.group_losses if self.step else None

    def init(self, facts: Facts) -> ServerState:
        """Return a mixture and counts that nobody knows yet."""
        return {"mixture": torch.zeros(0, dtype=torch.float64), "counts": torch.zeros(0, 0, dtype=torch.float64)}

    def broadcast(self, server: ServerState, model: State, client_id: int) -> Broadcast:
        """Return the model and the weights of groups; the model alone before the first update."""
        counts = server["counts"]
        if not counts.numel():
            return Broadcast(model)
        shares = of_groups(counts, self.groups) / counts.sum()
        weights = torch.where(shares > 0, server["mixture"] / shares, 1.0)
        return Broadcast(model, {GROUP_WEIGHTS: of_cells(weights, counts.shape)})

    def aggregate(self, server: ServerState, model: State, updates: Iterable[ClientUpdate]) -> tuple[ServerState, State]:
        """Return the next mixture and the averaged model."""
        reports = GroupReports()
        delta, buffers = self.average(reports.noted(updates) if self.step else updates)
        model = state.add(model, {**delta, **buffers})
        if not self.step:
            return server, model
        first = not server["counts"].numel()
        counts = reports.counts_YA if first else server["counts"] + reports.counts_YA
        mixture = of_groups(counts, self.groups) / counts.sum() if first else server["mixture"]
        risks = of_groups(reports.sums_YA, self.groups) / of_groups(reports.counts_YA, self.groups).clamp(min=1)
        return {"mixture": ascended(mixture, self.step, risks, reports.present(self.groups)), "counts": counts}, model
