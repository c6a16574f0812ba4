"""FedRS: the softmax is restricted for classes that a client does not hold."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from fedfacet.arguments import check_within
from fedfacet.corrections import Correction
from fedfacet.objectives.classification import OptimizerFactory, cross_entropy
from fedfacet.objectives.counting import CountingObjective, class_counts, for_all_classes
from fedfacet.types import Batch


class FedRSObjective(CountingObjective):
    r"""Take the cross entropy of logits z of which those of absent classes are scaled down.

    .. math:: -\log \frac{e^{z_y}}{\sum_c e^{\alpha_c z_c}}, \qquad
        \alpha_c = \begin{cases} 1 & \text{if the client holds samples of class } c \\ \alpha & \text{else} \end{cases}

    A client has nothing to learn about a class that it does not hold but to push its logit down. The gradient of that logit is
    :math:`\alpha` times what it was, so that the head forgets other clients' classes more slowly. A client that holds every
    class trains as ever. The model that leaves the client, and whoever measures it, has the logits z.

    Before its steps a client goes through its samples once and counts. No model is asked, and nothing is sent. Validation
    and test have the plain cross entropy.

    Source: the restricted softmax of FedRS (Li and Zhan, FedRS: Federated Learning with Restricted Softmax for Label
    Distribution Non-IID Data, KDD 2021, doi:10.1145/3447548.3467254); not checked against the paper. The authors' released code
    tries 0.9, 0.5 and 0.1 for alpha.

    Deviations: the released code takes :math:`\alpha_c = \alpha + (1 - \alpha) n_c / \max_j n_j`, with :math:`n_c` the client's
    samples of class c, which scales rare classes down too. Its head has no bias; here a bias is scaled with the rest of z.

    Arguments not listed are those of ``ClassificationObjective``.

    Args:
        alpha: in [0, 1]; 1 is the plain cross entropy, and with 0 nothing is learnt about the logits of absent classes.

    Raises:
        ValueError: if ``alpha`` is out of range, or for another ``loss`` than the cross entropy, which alone is restricted.
    """

    changes_cross_entropy = "fedrs"

    def __init__(
        self,
        model: nn.Module,
        *,
        loss: Callable[[Tensor, Batch], Tensor] = cross_entropy,
        correction: Correction | None = None,
        optimizer: OptimizerFactory | None = None,
        alpha: float = 0.5,
    ) -> None:
        super().__init__(model, loss=loss, correction=correction, optimizer=optimizer)
        check_within("objective.alpha", alpha, "[0, 1]")
        self.alpha = alpha
        self._scale: Tensor | None = None  # of the classes up to the largest one that the client holds

    def count(self, batches: Iterable[Batch]) -> None:
        """Find out which classes the client holds."""
        self._scale = torch.where(class_counts(batches) > 0, 1.0, self.alpha)

    def training_loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the mean cross entropy of the restricted softmax."""
        if self._scale is not None:
            logits = logits * for_all_classes(self._scale.to(logits.device), logits, absent=self.alpha)
        return super().training_loss(logits, batch)
