"""What a client optimises: model x loss x correction."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import ClassVar

import lightning as L
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Optimizer

from fedfacet.corrections import Correction
from fedfacet.types import SUMMED_GRADIENTS, Batch, ClientEnd, ClientStart, State

OptimizerFactory = Callable[[Iterable[nn.Parameter]], Optimizer]


def cross_entropy(logits: Tensor, batch: Batch) -> Tensor:
    """Return the mean cross entropy of a batch, the usual loss of a classifier; the others are in ``losses.py``."""
    return functional.cross_entropy(logits, batch.y)


def sums_gradients(optimizer: Optimizer) -> bool:
    """Tell whether an optimizer adds up gradients with weights that ``ClientUpdate.step_weight`` knows, as plain SGD does."""
    if not isinstance(optimizer, SGD):
        return False
    groups = optimizer.param_groups
    kinds = {(group["lr"], group["momentum"], bool(group["nesterov"] or group["dampening"])) for group in groups}
    return len(kinds) == 1 and not kinds.pop()[-1]


def step_weight_of(optimizer: Optimizer, objective: L.LightningModule, num_steps: int) -> float:
    """Return ||a_k||_1, the sum of the absolute weights that a client's gradients have in its update, per learning rate.

    Source: FedNova (Wang et al., NeurIPS 2020, arXiv:2007.07481), section 4. SGD with momentum rho and a correction of constant
    curvature mu (a proximal term, say) is linear in its gradients. The weight of a gradient is how far it moves the weights by
    the last step if all others are 0. It may be negative (an oscillation, where lr mu > (1 - sqrt(rho))^2). Other optimizers
    count their steps, and a velocity that a client kept from former rounds counts for nothing.
    """
    group = optimizer.param_groups[0]
    if not sums_gradients(optimizer):
        return float(num_steps)
    mu = getattr(objective, "curvature", 0.0)
    velocity = walked = total = 0.0
    for step in range(num_steps):
        if mu == 0:  # no weight is negative: their sum is where gradients of 1 lead
            velocity = group["momentum"] * velocity + 1
            walked = total = walked + velocity
        else:
            velocity = group["momentum"] * velocity + (step == 0) - group["lr"] * mu * walked
            walked += velocity
            total += abs(walked)
    return total


def take_loss(output: object) -> Tensor:
    """Return the loss out of what a ``training_step`` returned: a tensor, or a mapping with the key ``loss``."""
    loss = output.get("loss") if not isinstance(output, Tensor) and isinstance(output, Mapping) else output
    if isinstance(loss, Tensor) and loss.numel() == 1:
        return loss if loss.ndim == 0 else loss.reshape(())
    came = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
    raise ValueError(f"Expected `training_step` to return a loss, which is one number, but got {came}: return a mean.")


class ClassificationObjective(L.LightningModule):
    """A classifier's local training, for a federation or for a plain ``L.Trainer``.

    ``load_from_checkpoint(path, model=...)`` takes the model and the other arguments again: checkpoints hold weights only.

    Args:
        model: maps inputs (B, C, H, W) to logits (B, Y).
        loss: maps (logits, batch) to a scalar; the mean over the batch.
        correction: what restrains client drift; ``None`` for nothing.
        optimizer: makes the optimizer of the trainable parameters; SGD with lr 0.01 by default.

    Example:
        >>> objective = ClassificationObjective(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 2)))
        >>> batch = (torch.rand(4, 3, 2, 2), torch.tensor([0, 1, 0, 1]), torch.zeros(4, dtype=torch.int64))
        >>> objective.training_step(batch, 0).shape
        torch.Size([])
    """

    changes_cross_entropy: ClassVar[str] = ""
    """The name of its option if it changes the cross entropy, so that it refuses any other loss."""

    takes_parts: ClassVar[bool] = True
    """Whether clients may hold parts of the model: it keeps nothing of the model's shape. A class must say so itself."""

    trainable: dict[str, Tensor]
    """The trainable parameters as the correction sees them; whoever takes a step on other tensors puts those in their place."""

    def __init__(
        self,
        model: nn.Module,
        *,
        loss: Callable[[Tensor, Batch], Tensor] = cross_entropy,
        correction: Correction | None = None,
        optimizer: OptimizerFactory | None = None,
    ) -> None:
        super().__init__()
        # A configuration hands over a partial of the loss.
        if self.changes_cross_entropy and getattr(loss, "func", loss) is not cross_entropy:
            option = f"objective={self.changes_cross_entropy}"
            raise ValueError(f"Expected `loss=cross_entropy` with {option}, which changes it, but got another.")
        self.model = model
        self.loss = loss
        self.correction = correction
        self._optimizer: OptimizerFactory = optimizer or partial(torch.optim.SGD, lr=0.01)
        self.trainable = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}

    @property
    def optimizer_is_fixed(self) -> bool:
        """Whether ``configure_optimizers`` makes the same optimizer at every call, so that resetting one does instead."""
        return type(self).configure_optimizers is ClassificationObjective.configure_optimizers

    @property
    def divisible(self) -> bool:
        """Whether a client's steps may be divided between processes: nothing changes with them but what is carried along."""
        return self.correction is None or self.correction.divisible

    @property
    def client_hooks(self) -> frozenset[str]:
        """Which of ``on_client_start`` and ``on_client_end`` do anything: a subclass's own, and those of the correction."""
        parts = ((self, ClassificationObjective), (self.correction, Correction))
        return frozenset(
            hook
            for part, plain in parts
            for hook in ("on_client_start", "on_client_end")
            if part is not None and getattr(type(part), hook) is not getattr(plain, hook)
        )

    @property
    def provides(self) -> frozenset[str]:
        """Names of what clients send along, and ``SUMMED_GRADIENTS`` where their updates are that."""
        provided = self.correction.provides if self.correction is not None else frozenset[str]()
        return provided | {SUMMED_GRADIENTS} if sums_gradients(self.configure_optimizers()) else provided

    @property
    def requires(self) -> frozenset[str]:
        """Names of what the server must send along with the model."""
        return self.correction.requires if self.correction is not None else frozenset()

    @property
    def curvature(self) -> float:
        """The second derivative that the correction adds to the loss in every direction."""
        return self.correction.curvature if self.correction is not None else 0.0

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits, shape (B, Y)."""
        logits: Tensor = self.model(x)
        return logits

    def training_step(self, batch: Batch | Sequence[Tensor], batch_idx: int) -> Tensor:
        """Return the loss of one batch of (x, y, a)."""
        batch = batch if isinstance(batch, Batch) else Batch(*batch)
        loss = self.training_loss(self(batch.x), batch)
        if self.correction is not None:
            restraint = self.correction(self.trainable)
            if isinstance(restraint, Tensor) or restraint:  # adding nothing would cost a node of the graph
                loss = loss + restraint
        if self._trainer is not None:  # outside a Trainer there is nobody to log to, and asking costs a warning
            self.log("train/loss", loss, batch_size=len(batch.y), sync_dist=True)
        return loss

    def training_loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the loss of a training batch, a scalar, without the correction."""
        loss: Tensor = self.loss(logits, batch)
        return loss

    def validation_step(self, batch: Batch | Sequence[Tensor], batch_idx: int) -> None:
        """Log loss and average accuracy of one batch of (x, y, a)."""
        self._log("val", Batch(*batch))

    def test_step(self, batch: Batch | Sequence[Tensor], batch_idx: int) -> None:
        """Log loss and average accuracy of one batch of (x, y, a)."""
        self._log("test", Batch(*batch))

    def predict_step(self, batch: Batch | Sequence[Tensor] | Tensor, batch_idx: int) -> Tensor:
        """Return the logits of a batch of inputs, which labels may follow; shape (B, Y)."""
        logits: Tensor = self(batch if isinstance(batch, Tensor) else batch[0])
        return logits

    def configure_optimizers(self) -> Optimizer:
        """Return a fresh optimizer of the trainable parameters."""
        parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        return self._optimizer(parameters)

    def _log(self, split: str, batch: Batch) -> None:
        logits = self(batch.x)
        self.log(f"{split}/loss", self.loss(logits, batch), batch_size=len(batch.y), sync_dist=True)
        self.log(f"{split}/acc", (logits.argmax(dim=1) == batch.y).float().mean(), batch_size=len(batch.y), sync_dist=True)

    def on_client_start(self, start: ClientStart) -> None:
        """Let the correction take note of the weights that a client starts from."""
        if self.correction is not None:
            self.correction.on_client_start(self.trainable, start)

    def on_client_end(self, end: ClientEnd) -> tuple[State, State]:
        """Return what the correction sends along and what the client keeps."""
        return self.correction.on_client_end(end) if self.correction is not None else ({}, {})
