"""A linear head that learns an attribute on top of a frozen backbone."""

from collections.abc import Sequence
from functools import partial

import lightning as L
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

from fedfacet.objectives.classification import OptimizerFactory
from fedfacet.types import Batch


class AttributeHeadObjective(L.LightningModule):
    """Train a linear classifier of the attribute ``a`` on features that stay as they are.

    Source: FedDiverse (arXiv:2504.11216), algorithm 3; thesis, section 5.4.1, step 3.

    Args:
        num_features: D, the width of the features.
        num_attributes: A, how many attribute values there are.
        backbone: maps inputs (B, C, H, W) to features (B, D); run in eval mode without gradients and kept out of the
            ``state_dict``. ``None`` where batches carry features already (cached once, as the client's estimate does).
        optimizer: makes the head's optimizer; SGD with lr 0.01 by default.
    """

    def __init__(
        self,
        num_features: int,
        *,
        num_attributes: int = 2,
        backbone: nn.Module | None = None,
        optimizer: OptimizerFactory | None = None,
    ) -> None:
        super().__init__()
        self.model = nn.Linear(num_features, num_attributes)
        self._backbone = (backbone,)  # in a tuple, so that it is neither trained nor saved
        self._optimizer: OptimizerFactory = optimizer or partial(torch.optim.SGD, lr=0.01)

    def forward(self, x: Tensor) -> Tensor:
        """Return the attribute logits, shape (B, A)."""
        backbone = self._backbone[0]
        if backbone is not None:
            backbone.to(x.device).eval()
            with torch.no_grad():
                x = backbone(x)
        return self.model(x)  # type: ignore[no-any-return]

    def training_step(self, batch: Batch | Sequence[Tensor], batch_idx: int) -> Tensor:
        """Return the cross entropy of one batch of (x, y, a) against ``a``."""
        batch = Batch(*batch)
        loss = functional.cross_entropy(self(batch.x), batch.a)
        if self._trainer is not None:
            self.log("train/loss", loss, batch_size=len(batch.a), sync_dist=True)
        return loss

    def configure_optimizers(self) -> Optimizer:
        """Return a fresh optimizer of the head."""
        return self._optimizer(list(self.model.parameters()))
