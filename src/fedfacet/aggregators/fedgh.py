"""Gradient harmonisation: what conflicts with another client's update is taken out of it."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedfacet import state
from fedfacet.aggregators.base import Aggregator
from fedfacet.arguments import Choice
from fedfacet.types import ClientUpdate, ServerState, State


@dataclass(eq=False, kw_only=True)
class FedGH(Aggregator):
    r"""Project each update on the orthogonal planes of those that it conflicts with, then average.

    For every pair of clients, by ascending client number:

    .. math:: g_i \leftarrow g_i - \frac{\langle g_i, \tilde g_j \rangle}{\lVert \tilde g_j \rVert^2} \tilde g_j
        \quad \text{where} \quad \langle g_i, \tilde g_j \rangle < 0, \qquad \text{and likewise with i and j exchanged};

    then the model moves by :math:`\sum_i p_i g_i / \sum_i p_i`. All updates of a round are held at once; what is computed are
    their m x m inner products.

    The published rule has two readings, which differ from three updates on. ``against="arrived"`` takes for :math:`\tilde g`
    the updates as they arrived. ``against="current"`` takes them as earlier pairs have left them, both copied before the pair's
    two projections.

    Source: Zhang, Sun and Chen, Tackling the Non-IID Issue in Heterogeneous Federated Learning by Gradient Harmonization, IEEE
    Signal Processing Letters 31, 2024, arXiv:2309.06692. It was not compared with the paper's algorithm, so the reading stays
    open. (Another method of the same short name learns a global header.)

    Deviations: the pairs are gone through by ascending client number, so that the order of selection does not matter. FedLD's
    released code, which has FedGH as a rival, joins pairs hierarchically instead, against a running mean of past updates. An
    update that projections have shortened to a millionth of its length counts as 0, since its direction is rounding.

    Args:
        weighting: ``"samples"`` (p_i = n_i, the paper) or ``"equal"`` (p_i = 1).
        against: ``"arrived"`` or ``"current"``, the updates on whose orthogonal planes others are projected.
    """

    weighting: Annotated[str, Choice("equal", "samples")] = "samples"
    against: Annotated[str, Choice("arrived", "current")] = "arrived"

    def aggregate(self, server: ServerState, model: State, updates: Iterable[ClientUpdate]) -> tuple[ServerState, State]:
        """Return the model moved by the mean of the harmonised updates."""
        updates = sorted(updates, key=lambda update: update.client_id)
        deltas = [update.delta for update in updates]
        weights = np.array([self.weight(update) for update in updates])
        harmonized = (_against_arrived if self.against == "arrived" else _against_current)(state.gram(deltas))
        _, buffers = self.average(replace(update, delta={}) for update in updates)
        return server, state.add(model, state.combination(deltas, weights / weights.sum() @ harmonized) | buffers)


def _against_arrived(gram: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the harmonised updates as combinations of the updates: row i has the coefficients of client i's."""
    coefficients = np.eye(len(gram))
    for i, row in enumerate(coefficients):
        for j, squared_length in enumerate(np.diag(gram)):
            if i != j and (inner := row @ gram[:, j]) < 0:
                row[j] -= inner / squared_length
    return coefficients


def _against_current(gram: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the same where each pair is projected as earlier pairs have left it."""
    coefficients = np.eye(len(gram))
    for pair in combinations(range(len(gram)), 2):
        before = coefficients[list(pair)]
        inner = before @ gram @ before.T
        vanished = np.diag(inner) <= 1e-12 * np.diag(gram)[list(pair)]
        if inner[0, 1] < 0 and not vanished.any():
            coefficients[list(pair)] -= inner[0, 1] / np.diag(inner)[::-1, None] * before[::-1]
    return coefficients
