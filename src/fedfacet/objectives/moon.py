"""MOON: a client's features are drawn to the global model's and away from those of its own last model."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedfacet import state
from fedfacet.arguments import Number
from fedfacet.corrections import Correction
from fedfacet.objectives.classification import ClassificationObjective, OptimizerFactory, cross_entropy
from fedfacet.types import Batch, ClientEnd, ClientStart, State

_PREVIOUS = "moon/"
"""Before a tensor's name in a client's memory."""


class MoonObjective(ClassificationObjective):
    r"""Add a contrastive term to the loss, with z the features, z_g the global model's and z_p the client's last model's.

    .. math:: \mu \, \ell_{con}, \qquad \ell_{con} = -\log \frac{e^{\mathrm{sim}(z, z_g) / \tau}}
        {e^{\mathrm{sim}(z, z_g) / \tau} + e^{\mathrm{sim}(z, z_p) / \tau}}

    The global model is the one that the client starts from, the last model the one with which it ended its last round, which it
    keeps in its memory; both are in eval mode and do not learn. sim is the cosine. In a client's first round there is no term.

    Source: Li, He and Song, Model-Contrastive Federated Learning, CVPR 2021, arXiv:2103.16257, equations 3 and 4.

    Deviation: z is what ``features(x)`` returns; the paper puts a projection head of two layers there. Its released code takes
    a random network of the client's own for the last model in the first round.

    Arguments not listed are those of ``ClassificationObjective``.

    Args:
        model: as in ``ClassificationObjective``, with ``features(x)`` of shape (B, D).
        mu: weight of the term, 0 or larger; 0 is the classification alone. The paper takes 1, 5 and 10.
        temperature: tau, larger than 0; the paper takes 0.5.

    Raises:
        ValueError: if a number is out of range, or if the model has no features.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        loss: Callable[[Tensor, Batch], Tensor] = cross_entropy,
        correction: Correction | None = None,
        optimizer: OptimizerFactory | None = None,
        mu: float = 1.0,
        temperature: float = 0.5,
    ) -> None:
        super().__init__(model, loss=loss, correction=correction, optimizer=optimizer)
        Number("0 or larger").check("objective.mu", mu)
        Number("larger than 0").check("objective.temperature", temperature)
        if not callable(getattr(model, "features", None)):
            raise ValueError(
                f"Expected a model with `features` for objective=moon, but {type(model).__name__} has none: choose another "
                "model."
            )
        self.mu = mu
        self.temperature = temperature
        self._fixed: tuple[nn.Module, ...] = ()  # the global and the last model; in a tuple, so that they are not federated
        self._has_previous = False

    def training_step(self, batch: Batch | Sequence[Tensor], batch_idx: int) -> Tensor:
        """Return the loss of one batch of (x, y, a)."""
        if not self._has_previous:
            return super().training_step(batch, batch_idx)
        batch = Batch(*batch)
        model: Any = self.model
        features = model.features(batch.x)
        with torch.no_grad():
            fixed: list[Tensor] = [other.features(batch.x) for other in self._fixed]  # type: ignore[operator]
        similarities = torch.stack([functional.cosine_similarity(features, other) for other in fixed], dim=1)
        contrast = functional.cross_entropy(similarities / self.temperature, torch.zeros_like(batch.y))
        loss = self.loss(model.head(features), batch) + self.mu * contrast
        return loss if self.correction is None else loss + self.correction(self.trainable)

    def on_client_start(self, start: ClientStart) -> None:
        """Take note of the global model and of the client's last one."""
        super().on_client_start(start)
        previous = {name.removeprefix(_PREVIOUS): t for name, t in start.memory.items() if name.startswith(_PREVIOUS)}
        self._has_previous = bool(previous) and self.mu > 0
        if self._has_previous:
            # Anew for every client, or buffers in no state dict would stay those of the last one.
            self._fixed = copy.deepcopy(self.model).eval(), copy.deepcopy(self.model).eval()
            self._fixed[1].load_state_dict(self.model.state_dict() | previous)

    def on_client_end(self, end: ClientEnd) -> tuple[State, State]:
        """Return what the correction sends and keeps, and keep the model as it is now."""
        extras, memory = super().on_client_end(end)
        if self.mu > 0:
            own = state.clone(state.travelling(self.model))
            memory = memory | {_PREVIOUS + name: tensor.contiguous() for name, tensor in own.items()}
        return extras, memory
