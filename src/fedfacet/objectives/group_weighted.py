"""Samples weighted by their group, as the server says."""

from torch import Tensor
from torch.nn import functional

from fedfacet.objectives.classification import ClassificationObjective
from fedfacet.types import GROUP_WEIGHTS, Batch, ClientStart


class GroupWeightedObjective(ClassificationObjective):
    r"""Multiply each sample's cross entropy by the weight :math:`w_{ya}` of its class and attribute value.

    The server sends the weights along with the model (``aggregator=global_reweighing``, ``fedminmax`` or
    ``bounded_group_loss``). Where it sends none, or all are 1, the loss is the plain cross entropy, bit for bit.

    Arguments are those of ``ClassificationObjective``.
    """

    reads_attributes = True
    """Whether clients must know the attributes of their samples."""
    changes_cross_entropy = "group_weighted"

    _weights_YA: Tensor | None = None

    @property
    def needs(self) -> frozenset[str]:
        """The weights, and what the correction needs."""
        return super().needs | {GROUP_WEIGHTS}

    def on_client_start(self, start: ClientStart) -> None:
        """Take note of the weights."""
        super().on_client_start(start)
        weights = start.broadcast.extras.get(GROUP_WEIGHTS)
        self._weights_YA = None if weights is None or bool((weights == 1).all()) else weights

    def training_loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the mean of the weighted cross entropies."""
        if self._weights_YA is None:
            return super().training_loss(logits, batch)
        return weighted_cross_entropy(logits, batch, self._weights_YA)


def weighted_cross_entropy(logits: Tensor, batch: Batch, weights_YA: Tensor) -> Tensor:
    """Return the mean over a batch of each sample's cross entropy times the weight of its class and attribute value."""
    losses = functional.cross_entropy(logits, batch.y, reduction="none")
    return (losses * weights_YA.to(losses.device)[batch.y, batch.a]).mean()
