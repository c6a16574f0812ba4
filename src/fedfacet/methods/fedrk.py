"""FedRK: clients drawn so that the samples they bring are balanced over classes and attributes."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize

from fedfacet.arguments import Choice, Whole, Within
from fedfacet.mechanism import Mechanism
from fedfacet.methods.fedavg_first import FedAvgFirst
from fedfacet.selectors.base import ClientSelector, Taxonomy
from fedfacet.types import Query, SelectionContext, ServerState

# What the squared length of the weights costs, as a part of the largest squared deviation of a client's counts.
_RIDGE = 1e-6


@dataclass(eq=False, kw_only=True)
class FedRKSelector(ClientSelector):
    r"""Draw the cohort by the client weights under which the sum of all interaction matrices is most even.

    With the clients' interaction matrices :math:`N^k`, counts over classes and attributes, the weights are

    .. math::
        w = \arg\min_w \operatorname{Var}_{y, a} \Big( \sum_k w_k N^k_{ya} \Big)
        \quad \text{subject to} \quad \sum_k w_k = 1, \; w_k \ge \epsilon / K,

    and the cohort is drawn without replacement with :math:`p_k = w_k`. The weights are found anew for those who are available;
    K is their number.

    Source: FedDiverse (arXiv:2504.11216), section 5.7, "sharing N^k"; thesis, section 5.6 and table 17 (FedRK), where the
    matrices are called R^k.

    Deviation: the sources ask for no more than :math:`w_k \ge 0`. Their exact optimum on WaterBirds gives weight to three
    clients (0.642, 0.197 and 0.161), so that nine cannot be drawn; the released code draws them from what its interior-point
    solver leaves on the others. The floor says how much that is. Where the optimum is not unique (the variance can be zero on
    GSC, GCI and Spawrious4) the evenest one is taken, the one with the smallest :math:`\lVert w \rVert_2`, so that clients with
    equal matrices have equal weights.

    Args:
        interaction_matrix: what is asked of each client, once: after pre-training; of a client that is away then, when it first
            comes back.
        floor: epsilon, the smallest weight of a client as a part of the uniform weight 1 / K, in (0, 1]; 1 draws uniformly.
        pretraining_rounds: T_0, the number of first rounds in which every client takes part.
        pretraining: ``"fedavg"`` or ``"ordinary"``, as for ``FedDiverseSelector``.
    """

    taxonomy = Taxonomy(
        "group fairness", "DSRT", ("θ", "interaction matrix"), "quadratic programme", "probability", "fixed rounds"
    )

    interaction_matrix: Query
    floor: Annotated[float, Within("(0, 1]")] = 1e-3
    pretraining_rounds: Annotated[int, Whole(0)] = 1
    pretraining: Annotated[str, Choice("fedavg", "ordinary")] = "fedavg"

    def mechanisms(self) -> list[Mechanism]:
        """Return what puts FedAvg in the aggregator's place while pre-training."""
        return [FedAvgFirst(self.pretraining_rounds)] if self.pretraining_rounds and self.pretraining == "fedavg" else []

    def select(self, server: ServerState, context: SelectionContext) -> list[int]:
        """Return a cohort drawn by the balancing weights; all available clients while pre-training."""
        if context.round < self.pretraining_rounds + (self.pretraining == "fedavg"):
            return list(context.available)
        matrices = context.ask_once(self.interaction_matrix, context.available)
        if context.round <= self.pretraining_rounds:
            return list(context.available)
        weights_K = balancing_weights(list(matrices.values()), self.floor)
        return [int(k) for k in context.rng.choice(context.available, size=context.num_slots, replace=False, p=weights_K)]


def balancing_weights(matrices_KYA: ArrayLike, floor: float) -> NDArray[np.float64]:
    r"""Return the weights under which the weighted sum of some matrices varies least from entry to entry.

    With the deviations :math:`x_k` of a matrix' entries from their mean, and :math:`w = \epsilon / K + (1 - \epsilon) v`, the
    point of smallest norm is sought in the convex hull of :math:`q_k = (1 - \epsilon) x_k + \epsilon \bar x`. It solves

    .. math::
        \min_{u \ge 0} \Big\lVert \sum_k u_k q_k \Big\rVert^2 + \Big( \sum_k u_k - 1 \Big)^2 + \rho \lVert u \rVert^2,

    with v being u divided by its sum, and the ridge :math:`\rho` choosing among equals. SciPy's trust-region method solves the
    dual up to rounding: it has no constraints, is smooth and convex, and has one unknown more than a matrix has entries,
    however many clients there are. On the paper's federations the ridge changes no weight by more than 1e-4.

    The ridge is relative to the client whose counts deviate most. Beside one that deviates hundreds of times as much as others
    it is no longer small against those: their weights come out evener than the optimum's. Of ``[[9, 1]]`` and ``[[4, 6]]``,
    which balance at 0.2 and 0.8, it makes 0.204 and 0.796 beside ``[[900, 100]]``, and 0.37 and 0.63 beside ``[[9000, 1000]]``.

    ``matrices_KYA``, shape (K, ...), are finite, and ``floor``, the smallest weight as a part of 1 / K, is in (0, 1]. Weights
    have the shape (K,) and the sum 1.

    Example:
        >>> balancing_weights([[[9, 1]], [[1, 9]], [[5, 3]]], floor=0.01).round(3).tolist()
        [0.296, 0.378, 0.327]
    """
    counts = np.asarray(matrices_KYA, dtype=np.float64)
    counts_KG = counts.reshape(len(counts), -1)
    deviations_KG = counts_KG - counts_KG.mean(axis=1, keepdims=True)
    points_KG = (1 - floor) * deviations_KG + floor * deviations_KG.mean(axis=0)
    largest = np.sqrt((points_KG**2).sum(axis=1).max())
    # The last column stands for the sum of the weights, which is to be 1.
    columns_KH = np.column_stack([points_KG / (largest or 1.0), np.ones(len(points_KG))])
    target_H = np.append(np.zeros(points_KG.shape[1]), 1.0)

    def dual(y_H: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        u_K = np.maximum(columns_KH @ y_H, 0.0)
        value = 0.5 * (_RIDGE * y_H @ y_H + u_K @ u_K) - y_H @ target_H
        return float(value), _RIDGE * y_H + u_K @ columns_KH - target_H

    def curvature(y_H: NDArray[np.float64]) -> NDArray[np.float64]:
        active_AH = columns_KH[columns_KH @ y_H > 0]
        return _RIDGE * np.eye(len(y_H)) + active_AH.T @ active_AH  # type: ignore[no-any-return]

    # Where the variance cannot be zero the solution lies about as far out as one over the ridge.
    options = {"gtol": 1e-8, "initial_trust_radius": 1 / _RIDGE, "max_trust_radius": 1e15}
    found = minimize(dual, target_H / len(points_KG), jac=True, hess=curvature, method="trust-exact", options=options)
    u_K = np.maximum(columns_KH @ found.x, 0.0)
    weights_K: NDArray[np.float64] = floor / len(u_K) + (1 - floor) * u_K / u_K.sum()
    return weights_K
