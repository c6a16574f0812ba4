"""How the global model does on each group of a client's samples, or of what it holds out."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fedfacet.answer_form import AnswerForm
from fedfacet.clients.client_data import ClientData
from fedfacet.clients.queries.base import Query, QueryContext
from fedfacet.errors import ConfigError, DisclosureError
from fedfacet.types import Answer


class GroupLosses(Query):
    """Ask for the sum of the cross entropies over a client's samples of each class and attribute value, and their number.

    The answer is nested lists of shape (2, Y, A): sums, in double precision and in eval mode, then counts. 2 Y A numbers leave
    the client; n_k samples pass through the broadcast model. Sums and counts of all clients add up to those of the federation.
    """

    name = "group_losses"
    kind = "group_performance"
    form = AnswerForm(shape=(2, "Y", "A"), low=0, finite=False, counts=1, least=1)
    reads = frozenset({"x", "y", "a"})
    needs_model = True

    def answer(self, context: QueryContext) -> Answer:
        """Return sums and counts."""
        return group_sums(context, context.data, lambda logits, y: functional.cross_entropy(logits, y, reduction="none"))


class GroupHits(Query):
    """Ask how many of a client's samples of each class and attribute value the broadcast model classifies right.

    As ``GroupLosses``, with hits for sums.
    """

    name = "group_hits"
    kind = "group_performance"
    form = AnswerForm(shape=(2, "Y", "A"), low=0, counts=1, least=1, parts=True)
    reads = frozenset({"x", "y", "a"})
    needs_model = True

    def answer(self, context: QueryContext) -> Answer:
        """Return hits and counts."""
        return group_sums(context, context.data, is_right)


class GroupScores(Query):
    """Ask for the sum of the probabilities that the broadcast model gives a class over the samples of each group.

    As ``GroupLosses``, with probabilities for losses.

    Args:
        positive_class: whose probability it is.
    """

    name = "group_scores"
    kind = "group_performance"
    form = AnswerForm(shape=(2, "Y", "A"), low=0, finite=False, counts=1, least=1, parts=True)
    reads = frozenset({"x", "y", "a"})
    needs_model = True

    def __init__(self, *, positive_class: int = 1) -> None:
        if not isinstance(positive_class, int) or positive_class < 0:
            raise ValueError(f"Expected `positive_class` to be a class, 0 or larger, but got {positive_class!r}.")
        self.positive_class = positive_class

    def answer(self, context: QueryContext) -> Answer:
        """Return sums and counts.

        Raises:
            ConfigError: if there is no such class.
        """
        if self.positive_class >= (number := context.data.dataset.num_classes):
            raise ConfigError(
                f"Expected `positive_class` to be one of the {number} classes, from 0, but got {self.positive_class}: choose a "
                "smaller one."
            )
        return group_sums(context, context.data, lambda logits, y: logits.softmax(dim=1)[:, self.positive_class])


class HoldoutCounts(Query):
    """Ask how many samples a client holds out of each class and attribute value, and how many the broadcast model has right.

    The answer is nested lists of shape (2, Y, A): the right ones, in eval mode and with the layers that are the client's own,
    then all. 2 Y A numbers leave the client. They add up to those of the federation; zeros where nothing is held out.
    """

    name = "holdout_counts"
    kind = "group_performance"
    form = AnswerForm(shape=(2, "Y", "A"), low=0, counts=..., parts=True)
    reads = frozenset({"x", "y", "a"})
    needs_model = True

    def answer(self, context: QueryContext) -> Answer:
        """Return both counts, whole numbers."""
        answer = group_sums(context, replace(context.data, indices=context.held_out), is_right)
        return answer._replace(value=np.array(answer.value, np.int64).tolist())


def is_right(logits: Tensor, y: Tensor) -> Tensor:
    """Tell which samples are classified right, shape (B,)."""
    return logits.argmax(dim=1) == y


def group_sums(context: QueryContext, samples: ClientData, values: Callable[[Tensor, Tensor], Tensor]) -> Answer:
    """Return what (logits, classes) -> values of shape (B,) add up to in each group, and how many samples are in it.

    Raises:
        DisclosureError: if the client does not know the attributes of its samples.
    """
    dataset = samples.dataset
    if (dataset.a[context.data.indices] < 0).any():
        raise DisclosureError(
            "Expected clients that know the attributes of their samples, but under this `disclosure` nobody does: choose "
            "another method, or a disclosure whose clients know them."
        )
    shape = dataset.num_classes, dataset.num_attributes
    totals = np.zeros((2, shape[0] * shape[1]))
    context.model.eval()
    with torch.inference_mode():
        for batch in samples.batches():
            groups = (batch.y * shape[1] + batch.a).cpu().numpy()
            found = values(context.model(batch.x).float(), batch.y).double().cpu().numpy()
            for total, weights in zip(totals, (found, None), strict=True):
                total += np.bincount(groups, weights, minlength=len(total))
    return Answer(totals.reshape(2, *shape).tolist(), floats_up=totals.size, samples=len(samples))
