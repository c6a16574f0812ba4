"""The gradients of DP-SGD: sample by sample, clipped, summed and noised."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap

from fedfacet.clients.federated_module import FederatedModule
from fedfacet.objectives.classification import ClassificationObjective
from fedfacet.privacy.dp_sgd import DPSGD
from fedfacet.types import Batch, State

_FLOATS_AT_ONCE = 2**26
"""Of samples' gradients, a quarter of a gigabyte; a fixed number, since the order of a sum decides its last bits."""


class PrivateGradients:
    """Takes the place of a backward pass; see ``DPSGD``.

    Args:
        program: whose objective is a ``ClassificationObjective`` itself, without a correction.
        privacy: how gradients are clipped and noised.
    """

    def __init__(self, program: FederatedModule, privacy: DPSGD) -> None:
        assert isinstance(program.objective, ClassificationObjective)
        self._objective, self._autocast, self._privacy = program.objective, program.autocast, privacy
        named = program.objective.model.named_parameters()  # tied ones under one name
        self._trained = {name: parameter for name, parameter in named if parameter.requires_grad}
        self._rows = max(1, _FLOATS_AT_ONCE // max(1, sum(parameter.numel() for parameter in self._trained.values())))
        # "different": samples that share a layer's draws (dropout's) would not be each for itself.
        self._of_samples = vmap(grad_and_value(self._loss), in_dims=(None, 0, 0, 0), randomness="different")

    def backward(self, batch: Batch | None, expected: float, draw: np.random.Generator) -> Tensor:
        """Leave the noised gradient at the parameters, and return the mean loss of the batch.

        Args:
            batch: ``None`` for one without samples, whose loss is 0.
            expected: how many samples a batch has on average.
            draw: of the noise.
        """
        sums, loss_sum = self.clipped_sum(batch)
        std = self._privacy.noise_multiplier * self._privacy.max_grad_norm
        for name, parameter in self._trained.items():
            if std:
                sums[name] += torch.as_tensor(std * draw.standard_normal(tuple(parameter.shape))).to(sums[name])
            # In the parameter's memory order, as a backward pass leaves it: fused optimizers go by places in memory.
            parameter.grad = torch.empty_like(parameter).copy_(sums[name] / expected)
        return loss_sum / max(1, 0 if batch is None else len(batch.y))

    def clipped_sum(self, batch: Batch | None) -> tuple[State, Tensor]:
        """Return the sum of the samples' clipped gradients, and that of their losses."""
        parameters = {name: parameter.detach() for name, parameter in self._trained.items()}
        sums = {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}
        loss_sum = torch.zeros((), device=next(iter(sums.values())).device)
        for start in range(0, 0 if batch is None else len(batch.y), self._rows):
            assert batch is not None
            x, y, a = (values[start : start + self._rows] for values in batch)
            with torch.autocast(x.device.type, torch.bfloat16, enabled=self._autocast):
                gradients, losses = self._of_samples(parameters, x, y, a)
            norms = [gradient.flatten(1).norm(dim=1) for gradient in gradients.values()]
            factors = self._privacy.max_grad_norm / torch.stack(norms).norm(dim=0).clamp(min=self._privacy.max_grad_norm)
            for name, gradient in gradients.items():
                sums[name] += torch.tensordot(factors, gradient, dims=1)
            loss_sum += losses.sum()
        return sums, loss_sum

    def _loss(self, parameters: Mapping[str, Tensor], x: Tensor, y: Tensor, a: Tensor) -> Tensor:
        """Return the loss of a batch of one sample."""
        logits: Tensor = functional_call(self._objective.model, dict(parameters), (x[None],))
        return self._objective.loss(logits, Batch(x[None], y[None], a[None]))
