"""How the global model does on each group of what a client holds out."""

from dataclasses import replace

import numpy as np

from fedfacet.answer_form import AnswerForm
from fedfacet.clients.queries.base import Query, QueryContext
from fedfacet.clients.queries.group_performance import group_sums, is_right
from fedfacet.types import Answer


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
