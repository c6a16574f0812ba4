"""FedPAC: features of all clients are aligned, and every client gets the combination of heads that suits it best."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import solve_triangular
from scipy.optimize import nnls
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from torch.optim import Optimizer

from fedfacet import state
from fedfacet.aggregators.base import Aggregator
from fedfacet.arguments import Number, check_within
from fedfacet.corrections import Correction
from fedfacet.errors import ConfigError
from fedfacet.objectives.classification import ClassificationObjective, OptimizerFactory, cross_entropy
from fedfacet.types import Batch, Broadcast, ClientEnd, ClientStart, ClientUpdate, Facts, ServerState, State

MEANS, VARIANCE, COUNTS = "fedpac/means", "fedpac/variance", "fedpac/counts"
"""Sent up: what head combinations are found by; p(k) times the mean feature of class k, V, and samples per class."""

CENTROIDS, KNOWN = "fedpac/centroids", "fedpac/known"
"""Mean features per class, a client's after training on the way up, all clients' on the way down; which classes have one."""

_RIDGE = 1e-12
"""Times the mean of the diagonal: so much is added to it, for the problem to have one solution."""


class FedPACObjective(ClassificationObjective):
    r"""Train the head on the features as they are, then the body under the head as it is, with aligned features.

    The body's loss has the additional term

    .. math:: \lambda \, \frac{1}{B D} \sum_b \lVert f(x_b) - c_{y_b} \rVert_2^2

    with f the features, D wide, and :math:`c_k` the mean feature of class k over all clients, which ``aggregator=fedpac``
    broadcasts (for a class that it has none of, the client's own before the round; in a round without any, no term).

    Before its steps a client sums up its features with the body it was sent, afterwards with its own, in eval mode: two more
    passes over its samples. Besides the update it sends the means and the variance by which heads are combined, and every
    class's mean feature and number of samples.

    Source: FedPAC (Xu, Tong and Huang, ICLR 2023, arXiv:2306.11867), algorithm 1, with the mean over the
    features' width of the authors' code.

    Args:
        model: as in ``ClassificationObjective``, with ``features(x)`` of shape (B, D) and a linear ``head``. What it does
            between them in training (dropout) is left out.
        loss: as in ``ClassificationObjective``.
        correction: as in ``ClassificationObjective``; it restrains what is being trained.
        optimizer: as in ``ClassificationObjective``; of head and body each.
        alignment: lambda, 0 or larger.
        head_share: the part in (0, 1) of a client's steps, rounded down, that trains the head. The paper trains it for one
            epoch and the body for five: ``local.amount=6`` and a sixth.
        head_lr: the head's learning rate; ``None`` for the body's. The paper's code has 0.1.

    Raises:
        ValueError: if a number is out of range, or if the model has no features and linear head.

    Note:
        Under a plain ``L.Trainer``, where there are no rounds, head and body are trained together.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        loss: Callable[[Tensor, Batch], Tensor] = cross_entropy,
        correction: Correction | None = None,
        optimizer: OptimizerFactory | None = None,
        alignment: float = 1.0,
        head_share: float = 0.5,
        head_lr: float | None = None,
    ) -> None:
        super().__init__(model, loss=loss, correction=correction, optimizer=optimizer)
        Number("0 or larger").check("objective.alignment", alignment)
        check_within("objective.head_share", head_share, "(0, 1)")
        if head_lr is not None and not head_lr > 0:
            raise ValueError(f"Expected `objective.head_lr` to be larger than 0 or null, but got {head_lr}.")
        if not isinstance(getattr(model, "head", None), nn.Linear) or not callable(getattr(model, "features", None)):
            raise ValueError(
                f"Expected a model with `features` and a linear `head` for objective=fedpac, but {type(model).__name__} has "
                "none: choose another model."
            )
        self.alignment = alignment
        self.head_share = head_share
        self.head_lr = head_lr
        self._head_steps: int | None = None
        self._targets: Tensor | None = None
        self._sent: State = {}

    discloses: ClassVar[Mapping[str, str]] = {
        MEANS: "class_means",
        VARIANCE: "class_means",
        COUNTS: "label_counts",
        CENTROIDS: "class_means",
    }

    @property
    def provides(self) -> frozenset[str]:
        """The statistics, beside what the correction gives."""
        return super().provides | {MEANS, VARIANCE, COUNTS, CENTROIDS}

    @property
    def requires(self) -> frozenset[str]:
        """All clients' mean features, beside what the correction needs."""
        return super().requires | {CENTROIDS}

    def training_step(self, batch: Batch | Sequence[Tensor], batch_idx: int) -> Tensor:
        """Return the loss of one batch of (x, y, a), with gradients of the head or of the body."""
        if self._head_steps is None:
            return super().training_step(batch, batch_idx)
        batch = Batch(*batch)
        of_head = batch_idx < self._head_steps
        head: Any = self.model.head
        with torch.set_grad_enabled(not of_head):
            features: Tensor = self.model.features(batch.x)  # type: ignore[operator]
        if of_head:
            loss: Tensor = self.loss(head(features), batch)
        else:
            frozen = {name: parameter.detach() for name, parameter in head.named_parameters()}
            loss = self.loss(functional_call(head, frozen, (features,)), batch)
            if self._targets is not None:
                loss = loss + self.alignment * functional.mse_loss(features, self._targets[batch.y])
        trained = {
            name: parameter if name.startswith("head.") == of_head else parameter.detach()
            for name, parameter in self.trainable.items()
        }
        return loss if self.correction is None else loss + self.correction(trained)

    def configure_optimizers(self) -> Optimizer:
        """Return a fresh optimizer of the trainable parameters, the head's apart where it has a learning rate of its own."""
        if self.head_lr is None:
            return super().configure_optimizers()
        body = [parameter for name, parameter in self.trainable.items() if not name.startswith("head.")]
        head = [parameter for name, parameter in self.trainable.items() if name.startswith("head.")]
        groups: Any = [{"params": body}, {"params": head, "lr": self.head_lr}]
        return self._optimizer(groups)

    def on_client_start(self, start: ClientStart) -> None:
        """Take note of all clients' mean features."""
        super().on_client_start(start)
        self._targets = None
        if KNOWN in start.broadcast.extras:
            known = start.broadcast.extras[KNOWN].to(self.device) > 0
            self._targets = torch.where(known[:, None], start.broadcast.extras[CENTROIDS].to(self.device), torch.nan)

    def before_steps(self, batches: Iterable[Batch], num_steps: int) -> None:
        """Sum up the features that the client starts from."""
        # 1e-8 so that 0.29 * 100 = 28.999999999999996 counts as integral; a single step, or the last one, is the body's.
        self._head_steps = min(int(self.head_share * num_steps + 1e-8), num_steps - 1)
        counts, means, squares = self._sums(batches)
        shares = counts / counts.sum()
        weighted = shares[:, None] * means
        variance = (squares.sum() / counts.sum() - weighted.square().sum()) / counts.sum()
        if self._targets is not None:
            self._targets = torch.where(self._targets.isnan(), means.to(self._targets), self._targets)
        self._sent = {MEANS: weighted.float(), VARIANCE: variance.float(), COUNTS: counts.float()}

    def after_steps(self, batches: Iterable[Batch]) -> None:
        """Sum up the features that the client ends with."""
        _, means, _ = self._sums(batches)
        self._sent[CENTROIDS] = means.float()

    def on_client_end(self, end: ClientEnd) -> tuple[State, State]:
        """Return the statistics beside what the correction sends and keeps."""
        extras, memory = super().on_client_end(end)
        sent, self._sent, self._targets = self._sent, {}, None
        return extras | sent, memory

    def _sums(self, batches: Iterable[Batch]) -> tuple[Tensor, Tensor, Tensor]:
        """Return per class, in float64 on the CPU: samples, mean feature (zero without samples), sum of squared features."""
        head: Any = self.model.head
        counts = torch.zeros(head.out_features, dtype=torch.float64)
        sums = torch.zeros(head.out_features, head.in_features, dtype=torch.float64)
        squares = torch.zeros_like(counts)
        for batch in batches:
            features, y = self.model.features(batch.x).double().cpu(), batch.y.cpu()  # type: ignore[operator]
            counts += torch.bincount(y, minlength=len(counts))
            sums.index_add_(0, y, features)
            squares.index_add_(0, y, features.square().sum(dim=1))
        return counts, sums / counts.clamp(min=1)[:, None], squares


class FedPAC(Aggregator):
    r"""Average the body; combine the heads anew for every client of the round; average the features of every class.

    Client i's next head is :math:`\sum_j \alpha_{ij} \varphi_j` over the heads of the round, with weights that minimise an
    estimate of the loss it will have on i's data, a variance and a squared bias:

    .. math::
        \min_{\alpha_i} \sum_j \alpha_{ij}^2 V_j + \Big\lVert h_i - \sum_j \alpha_{ij} h_j \Big\rVert_F^2
        \quad \text{where} \quad \alpha_{ij} \ge 0, \; \sum_j \alpha_{ij} = 1.

    Row k of :math:`h_j` is p_j(k) times the mean feature of class k, and :math:`V_j = (\sum_k p_j(k) \, E_j[\lVert f \rVert^2
    \mid k] - \lVert h_j \rVert_F^2) / n_j`; both come from ``objective=fedpac``, as do the classes' mean features after
    training, whose average over the clients (by their samples of the class) is broadcast with the next model.

    A client's head stays its own until it takes part again. A client that has not taken part yet uses the global head, the
    weighted mean of the round's heads. All updates of a round are held at once.

    Source: FedPAC (Xu, Tong and Huang, Personalized Federated Learning with Feature Alignment and Classifier Collaboration,
    ICLR 2023, arXiv:2306.11867), algorithm 1.

    Deviation: the released code drops eigenvalues of the quadratic form below 0.01 and weights below 0.001; here the problem is
    solved as it is. A class that no client of a round holds keeps its mean feature. In the released code, a client that was
    never selected keeps its initial head.

    Args:
        weighting: of body and global head, ``"samples"`` (the paper) or ``"equal"``.
    """

    provides = frozenset({CENTROIDS})
    requires = frozenset({MEANS, VARIANCE, COUNTS, CENTROIDS})

    def __init__(self, *, weighting: str = "samples", buffers: str = "average") -> None:
        super().__init__(weighting=weighting, buffers=buffers)

    def init(self, facts: Facts) -> ServerState:
        """Return the clients' heads and the classes' mean features: none so far.

        Raises:
            ConfigError: if the heads do not leave the clients.
        """
        if any(name in facts.personal for name in _head_names(facts.model)):
            raise ConfigError(
                "Expected clients that send their heads to aggregator=fedpac, but they keep them: choose personal=none or "
                "norm_layers, or another aggregator."
            )
        return {"heads": {}, "centroids": {}}

    def extras(self, facts: Facts) -> State:
        """Return tensors like the statistics that clients send."""
        weights = [facts.model[name] for name in _head_names(facts.model) if facts.model[name].dim() == 2]
        if not weights:
            return {}
        per_class = torch.zeros_like(weights[0])
        return {MEANS: per_class, VARIANCE: per_class[0, 0], COUNTS: per_class[:, 0], CENTROIDS: per_class}

    def broadcast(self, server: ServerState, model: State, client_id: int) -> Broadcast:
        """Return the model with the client's own head, and the classes' mean features."""
        head = server["heads"].get(client_id)
        return Broadcast(model | head if head else model, server["centroids"])

    def aggregate(self, server: ServerState, model: State, updates: Iterable[ClientUpdate]) -> tuple[ServerState, State]:
        """Return the averaged model, and the state with a head for every client of the round."""
        updates = list(updates)
        names = _head_names(model)
        body = (replace(u, delta={n: t for n, t in u.delta.items() if n not in names}) for u in updates)
        delta, buffers = self.average(body)
        after = state.add(model, delta | buffers)
        if not names:
            return server, after
        starts = [server["heads"].get(update.client_id) or model for update in updates]
        heads = [{n: start[n] + u.delta[n] for n in names} for start, u in zip(starts, updates, strict=True)]
        mean_head = state.weighted_mean((head, self.weight(u)) for head, u in zip(heads, updates, strict=True))
        combined = [state.combination(heads, weights) for weights in _collaboration(updates)]
        own = {update.client_id: head for update, head in zip(updates, combined, strict=True)}
        return {"heads": server["heads"] | own, "centroids": _next_centroids(server["centroids"], updates)}, after | mean_head


def _head_names(model: State) -> list[str]:
    return [name for name in model if name.startswith(("head.", "model.head."))]


def _next_centroids(before: State, updates: Sequence[ClientUpdate]) -> State:
    """Return every class's mean feature over the clients, and whether there is one."""
    counts = torch.stack([update.extras[COUNTS] for update in updates]).clamp(min=0)
    features = torch.stack([update.extras[CENTROIDS] for update in updates])
    total = counts.sum(dim=0)
    means = (counts[:, :, None] * features).sum(dim=0) / total.clamp(min=1)[:, None]
    known = total > 0
    if before:
        means = torch.where(known[:, None], means, before[CENTROIDS])
        known = known | (before[KNOWN] > 0)
    return {CENTROIDS: means, KNOWN: known.to(means)}


def _collaboration(updates: Sequence[ClientUpdate]) -> NDArray[np.float64]:
    """Return the weights of the heads: row i has those for the i-th client of the round."""
    variances = np.clip([float(update.extras[VARIANCE]) for update in updates], 0.0, 1e150)
    inner = state.gram([{"means": update.extras[MEANS]} for update in updates])
    own = np.diag(inner)
    # Entry j, k: <h_i - h_j, h_i - h_k>.
    biases = (own[i] - inner[i][None, :] - inner[i][:, None] + inner for i in range(len(updates)))
    return np.stack([_smallest_on_simplex(np.diag(variances) + bias) for bias in biases])


def _smallest_on_simplex(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    r"""Return the :math:`\alpha \ge 0` with sum 1 that minimises :math:`\alpha^\top P \alpha`.

    The problem is homogeneous: with x the minimiser of :math:`x^\top P x - 2 \cdot 1^\top x` over :math:`x \ge 0`, a
    non-negative least-squares problem in the Cholesky factor of P, :math:`\alpha = x / \sum x` satisfies the
    Karush-Kuhn-Tucker conditions.

    Args:
        matrix: P, symmetric and positive semi-definite, shape (m, m).
    """
    scale = np.trace(matrix) / len(matrix)
    if not scale > 0:
        return np.full(len(matrix), 1 / len(matrix))
    lower = np.linalg.cholesky(matrix / scale + _RIDGE * np.eye(len(matrix)))
    solution, _ = nnls(lower.T, solve_triangular(lower, np.ones(len(matrix)), lower=True))
    weights: NDArray[np.float64] = solution / solution.sum()
    return weights
