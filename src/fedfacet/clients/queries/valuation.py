"""How much there is to learn from a client's samples."""

import math

import torch
from torch.nn import functional

from fedfacet.answer_form import AnswerForm
from fedfacet.clients.queries.base import Query, QueryContext
from fedfacet.types import Answer


class Valuation(Query):
    r"""Ask for the sum of the cross entropies of a client's samples over the root of their number, in eval mode.

    .. math::
        v_k = \frac{1}{\sqrt{n_k}} \sum_{(x, y) \in D_k} -\log p_y(x; \theta) = \sqrt{n_k} \, F_k(\theta)

    with :math:`\theta` the broadcast model and :math:`F_k` the mean that ``LocalLoss`` asks for. The sum is taken in double
    precision. One float leaves the client; n_k samples pass through the model. A client without samples answers NaN.

    Source: Goetz et al., Active Federated Learning, arXiv:1909.12641, section 3. The formula is as two public ports of the
    method have it; it was not checked against the paper.

    Deviation: it is the cross entropy whatever ``loss`` the clients train on.
    """

    name = "valuation"
    kind = "loss"
    form = AnswerForm(low=0, high=1e100, finite=False)
    reads = frozenset({"x", "y"})
    needs_model = True

    def answer(self, context: QueryContext) -> Answer:
        """Return v_k of the broadcast model."""
        context.model.eval()
        total, number = 0.0, len(context.data)
        with torch.inference_mode():
            for batch in context.data.batches():
                losses = functional.cross_entropy(context.model(batch.x).float(), batch.y, reduction="none")
                total += losses.double().sum().item()
        return Answer(total / math.sqrt(number) if number else math.nan, floats_up=1, samples=number)
