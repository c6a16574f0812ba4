"""How badly the global model does on a client's own samples."""

import math

import torch
from torch.nn import functional

from fedfacet.answer_form import AnswerForm
from fedfacet.clients.queries.base import Query, QueryContext
from fedfacet.types import Answer


class LocalLoss(Query):
    r"""Ask for the mean cross entropy of the broadcast model over all of a client's samples, in eval mode.

    .. math::
        F_k(\theta) = \frac{1}{n_k} \sum_{(x, y) \in D_k} -\log p_y(x; \theta)

    Every sample counts once and the sum is taken in double precision. One float leaves the client; n_k samples pass through the
    model. A client without samples has no loss and answers NaN.

    Source: power-of-choice (Cho et al., AISTATS 2022), section 3; thesis, section 5.5.4.

    Deviation: it is the cross entropy whatever ``loss`` the clients train on. The code released with FedDiverse adds up batch
    means over samples drawn with replacement and divides by n_k, which makes a client's value depend on its batch size.
    """

    name = "local_loss"
    kind = "loss"
    form = AnswerForm(low=0, finite=False)
    reads = frozenset({"x", "y"})
    needs_model = True

    def answer(self, context: QueryContext) -> Answer:
        """Return F_k of the broadcast model."""
        context.model.eval()
        with torch.inference_mode():
            losses = [
                functional.cross_entropy(context.model(batch.x).float(), batch.y, reduction="none")
                for batch in context.data.batches()
            ]
        mean = torch.cat(losses).double().mean().item() if losses else math.nan
        return Answer(mean, floats_up=1, samples=len(context.data))
