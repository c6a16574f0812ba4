"""FedLC: a client's logits are calibrated by how many samples of each class it holds."""

from collections.abc import Callable, Iterable

from torch import Tensor, nn

from fedfacet.arguments import Number
from fedfacet.corrections import Correction
from fedfacet.objectives.classification import OptimizerFactory, cross_entropy
from fedfacet.objectives.counting import CountingObjective, class_counts, for_all_classes
from fedfacet.types import Batch


class FedLCObjective(CountingObjective):
    r"""Take the cross entropy of logits z that are lowered for classes of which a client holds few samples.

    .. math:: -\log \frac{e^{z_y - \tau n_y^{-1/4}}}{\sum_c e^{z_c - \tau n_c^{-1/4}}}

    with :math:`n_c` how many samples of class c the client holds. To bear the lower logit of a rare class, training has to
    raise its z by a margin. A class that the client does not hold has :math:`n_c \to 0`: it leaves the sum, and nothing is
    learnt about its logit. The model that leaves the client, and whoever measures it, has the logits z.

    Before its steps a client goes through its samples once and counts. No model is asked, and nothing is sent. Validation
    and test have the plain cross entropy.

    Source: FedLC (Zhang et al., Federated Learning with Label Distribution Skew via Logits Calibration, ICML 2022,
    arXiv:2209.00189), its calibrated loss with the pairwise margin :math:`\tau (n_y^{-1/4} - n_c^{-1/4})`. The formula and the
    default are those of others' code; they were not checked against the paper.

    Deviation: others take a count of 1e-8 for a class that is absent, which lowers its logit by :math:`100 \tau`.

    Arguments not listed are those of ``ClassificationObjective``.

    Args:
        tau: 0 or larger, and finite; 0 is the plain cross entropy, absent classes included.

    Raises:
        ValueError: if ``tau`` is out of range, or for another ``loss`` than the cross entropy, which alone is calibrated.
    """

    changes_cross_entropy = "fedlc"

    def __init__(
        self,
        model: nn.Module,
        *,
        loss: Callable[[Tensor, Batch], Tensor] = cross_entropy,
        correction: Correction | None = None,
        optimizer: OptimizerFactory | None = None,
        tau: float = 1.0,
    ) -> None:
        super().__init__(model, loss=loss, correction=correction, optimizer=optimizer)
        Number("0 or larger, and finite").check("objective.tau", tau)
        self.tau = tau
        self._shift: Tensor | None = None  # of the classes up to the largest one that the client holds

    def count(self, batches: Iterable[Batch]) -> None:
        """Count the client's samples of each class."""
        self._shift = self.tau * class_counts(batches).pow(-1 / 4) if self.tau else None

    def training_loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the mean cross entropy of the calibrated logits."""
        if self._shift is not None:
            logits = logits - for_all_classes(self._shift.to(logits.device), logits, absent=float("inf"))
        return super().training_loss(logits, batch)
