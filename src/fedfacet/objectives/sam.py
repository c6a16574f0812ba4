"""SAM: sharpness-aware local training, as in FedSAM."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad

from fedfacet.arguments import Number
from fedfacet.corrections import Correction
from fedfacet.objectives.classification import ClassificationObjective, OptimizerFactory, cross_entropy
from fedfacet.types import Batch


class SAMObjective(ClassificationObjective):
    r"""Take each step's gradient at the weights to which a step of length rho uphill leads.

    .. math:: \epsilon = \rho \, \frac{\nabla \ell(w)}{\lVert \nabla \ell(w) \rVert_2}, \qquad
        g = \nabla \ell(w + \epsilon)

    with :math:`\ell` the loss of one batch and the norm over all trainable parameters together; where the gradient is 0, so is
    :math:`\epsilon`. Any optimizer then takes its step from w along g, plain SGD :math:`w - \eta g`. How :math:`\epsilon`
    changes with w is left out, as in the source.

    A step costs two forward and two backward passes: a client computes twice what FedAvg's does. Samples seen and steps are
    counted once, and the clock of ``devices`` counts them once too. The training loss that is logged is that at
    :math:`w + \epsilon`. Layers that draw random numbers draw in both passes, and running statistics are those of the second.
    A correction acts at w, and needs no second pass.

    Source: FedSAM (Qu et al., Generalized Federated Learning via Sharpness Aware Minimization, ICML 2022, arXiv:2206.02618;
    Caldarola, Caputo and Ciccone, Improving Generalization in Federated Learning by Seeking Flat Minima, ECCV 2022,
    arXiv:2203.11834) after SAM (Foret et al., ICLR 2021, arXiv:2010.01412). The steps are those of the second's released code.
    They were not compared with the papers' text.

    Deviations: the code adds 1e-16 to the norm, so that a gradient of 0 divides by nothing that is 0. It logs the loss at w. It
    has no default of ``rho``; its script for CIFAR-10 has 0.1, and 0.05 here is ours.

    Arguments not listed are those of ``ClassificationObjective``.

    Args:
        rho: 0 or larger, and finite; 0 is the plain step, bit for bit, in one pass.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        loss: Callable[[Tensor, Batch], Tensor] = cross_entropy,
        correction: Correction | None = None,
        optimizer: OptimizerFactory | None = None,
        rho: float = 0.05,
    ) -> None:
        super().__init__(model, loss=loss, correction=correction, optimizer=optimizer)
        Number("0 or larger, and finite").check("objective.rho", rho)
        self.rho = rho

    def training_step(self, batch: Batch | Sequence[Tensor], batch_idx: int) -> Tensor:
        """Return a loss of one batch of (x, y, a) whose gradient at w is g."""
        if self.rho == 0:
            return super().training_step(batch, batch_idx)
        batch = Batch(*batch)
        uphill = self._uphill(batch)
        # A sum whose second term does not depend on w: the gradient with respect to w is that at the sum.
        loss = self._loss_at({name: tensor + uphill[name] for name, tensor in self.trainable.items()}, batch)
        if self._trainer is not None:
            self.log("train/loss", loss, batch_size=len(batch.y), sync_dist=True)
        return loss if self.correction is None else loss + self.correction(self.trainable)

    def _loss_at(self, parameters: Mapping[str, Tensor], batch: Batch, buffers: Mapping[str, Tensor] | None = None) -> Tensor:
        logits: Tensor = functional_call(self.model, {**parameters, **(buffers or {})}, (batch.x,))
        return self.training_loss(logits, batch)

    def _uphill(self, batch: Batch) -> dict[str, Tensor]:
        """Return epsilon."""
        gradients = self._gradients(batch)
        norms = [torch.linalg.vector_norm(gradient) for gradient in gradients.values()]
        length = torch.linalg.vector_norm(torch.stack(norms))
        factor = torch.where(length > 0, self.rho / length, 0.0)
        return {name: factor * gradient for name, gradient in gradients.items()}

    def _gradients(self, batch: Batch) -> dict[str, Tensor]:
        """Return the gradients at w; of a parameter that is no part of the loss they are 0."""

        def loss_at(parameters: Mapping[str, Tensor]) -> Tensor:
            buffers = {name: buffer.clone() for name, buffer in self.model.named_buffers()}  # that the pass may change
            return self._loss_at(parameters, batch, buffers)

        if all(tensor.requires_grad for tensor in self.trainable.values()):
            tensors = list(self.trainable.values())
            found = torch.autograd.grad(loss_at(self.trainable), tensors, materialize_grads=True)
            return dict(zip(self.trainable, found, strict=True))
        # Side by side with other clients, inside `torch.vmap`, tensors do not say that they are being differentiated.
        gradients: dict[str, Tensor] = grad(loss_at)({name: tensor.detach() for name, tensor in self.trainable.items()})
        return gradients
