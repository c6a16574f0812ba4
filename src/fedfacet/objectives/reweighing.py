"""Reweighing: a client's samples are weighted so that class and attribute look independent."""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import functional

from fedfacet.errors import DisclosureError
from fedfacet.heterogeneity import InteractionMatrix
from fedfacet.objectives.counting import CountingObjective
from fedfacet.objectives.group_weighted import weighted_cross_entropy
from fedfacet.types import Batch


class ReweighingObjective(CountingObjective):
    r"""Multiply each sample's cross entropy by :math:`w(y, a) = P(y) P(a) / P(y, a)`, from the client's own counts.

    The weighted counts factorise, :math:`w(y, a) P(y, a) = P(y) P(a)`, and over a client's samples the weights have the mean 1
    unless some pair does not occur. Where class and attribute are independent already, all weights are 1.

    Before its steps a client goes through its samples once and counts. No model is asked, and nothing is sent.

    Source: the local reweighing of Abay et al., Mitigating Bias in Federated Learning, arXiv:2012.02447, with the weights of
    Kamiran and Calders, Data preprocessing techniques for classification without discrimination, 2012. The thesis, section 6.3,
    warns that it may hurt the fairness of the whole federation.

    Arguments are those of ``ClassificationObjective``.

    Raises:
        ValueError: for another ``loss`` than the cross entropy, which alone is weighted sample by sample.
    """

    reads_attributes = True
    """Whether clients must know the attributes of their samples."""
    changes_cross_entropy = "reweighing"

    _weights_YA: Tensor | None = None

    def count(self, batches: Iterable[Batch]) -> None:
        """Count the client's samples of each class with each attribute value.

        Raises:
            DisclosureError: if clients do not know attributes.
        """
        y, a = (torch.cat(column) for column in zip(*((batch.y, batch.a) for batch in batches), strict=True))
        if (a < 0).any():
            raise DisclosureError(
                "Expected clients that know the attributes of their samples for objective=reweighing, but nobody does: choose "
                "another objective, or a disclosure whose clients know them."
            )
        num_attributes = int(a.max()) + 1
        counts = torch.bincount(y * num_attributes + a, minlength=(int(y.max()) + 1) * num_attributes)
        weights = InteractionMatrix(counts.view(-1, num_attributes).cpu().numpy()).independence_weights
        self._weights_YA = torch.from_numpy(weights).float()

    def training_loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the mean of the weighted cross entropies."""
        if self._weights_YA is None:
            return functional.cross_entropy(logits, batch.y, reduction="none").mean()
        return weighted_cross_entropy(logits, batch, self._weights_YA)
