"""FedPAC's clients: first the head, then the body, whose features are drawn towards those of all clients."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from torch.optim import Optimizer

from fedfacet.arguments import check_within
from fedfacet.corrections.base import Correction
from fedfacet.losses.cross_entropy import cross_entropy
from fedfacet.objectives.classification import ClassificationObjective, OptimizerFactory
from fedfacet.types import Batch, Broadcast, State


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
        if not alignment >= 0:
            raise ValueError(f"Expected `objective.alignment` to be 0 or larger, but got {alignment}.")
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
        restrained: Tensor = loss + self.correction(trained)
        return restrained

    def configure_optimizers(self) -> Optimizer:
        """Return a fresh optimizer of the trainable parameters, the head's apart where it has a learning rate of its own."""
        if self.head_lr is None:
            return super().configure_optimizers()
        body = [parameter for name, parameter in self.trainable.items() if not name.startswith("head.")]
        head = [parameter for name, parameter in self.trainable.items() if name.startswith("head.")]
        groups: Any = [{"params": body}, {"params": head, "lr": self.head_lr}]
        return self._optimizer(groups) if self._optimizer is not None else torch.optim.SGD(groups, lr=0.01)

    def on_client_start(self, broadcast: Broadcast, memory: State) -> None:
        """Take note of all clients' mean features."""
        super().on_client_start(broadcast, memory)
        self._targets = None
        if "fedpac|known" in broadcast.extras:
            device = self.device
            known = broadcast.extras["fedpac|known"].to(device) > 0
            self._targets = torch.where(known[:, None], broadcast.extras["fedpac|centroids"].to(device), torch.nan)

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
        self._sent = {"fedpac|means": weighted.float(), "fedpac|variance": variance.float(), "fedpac|counts": counts.float()}

    def after_steps(self, batches: Iterable[Batch]) -> None:
        """Sum up the features that the client ends with."""
        _, means, _ = self._sums(batches)
        self._sent["fedpac|centroids"] = means.float()

    def on_client_end(self, delta: State, num_steps: int) -> tuple[State, State]:
        """Return the statistics beside what the correction sends and keeps."""
        extras, memory = super().on_client_end(delta, num_steps)
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
