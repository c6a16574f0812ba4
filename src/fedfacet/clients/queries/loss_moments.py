"""How large a client's losses are, and how they vary."""

import torch
from torch.nn import functional

from fedfacet.answer_form import AnswerForm
from fedfacet.clients.queries.base import Query, QueryContext
from fedfacet.types import Answer


class LossMoments(Query):
    r"""Ask for the number of a client's samples, the sum of their cross entropies and the sum of these squared, in eval mode.

    .. math::
        n_k, \quad \sum_{(x, y) \in D_k} \ell(x, y), \quad \sum_{(x, y) \in D_k} \ell(x, y)^2, \qquad
        \ell(x, y) = -\log p_y(x; \theta)

    with :math:`\theta` the broadcast model. Sums are taken in double precision. Three floats leave the client; n_k samples pass
    through the model. A client without samples answers zeros.

    Source: Lai et al., Oort: Efficient Federated Learning via Guided Participant Selection, OSDI 2021, arXiv:2010.06081,
    section 4.2, where clients send the root of the mean of squared losses.

    Deviations: Oort takes the losses that training meets, which costs nothing and lies lower the longer a client trains; these
    are of the model as it is sent and cost a forward pass. It is the cross entropy whatever ``loss`` the clients train on.
    """

    name = "loss_moments"
    kind = "loss"
    form = AnswerForm(shape=(3,), low=0, high=1e100, finite=False, counts=0)
    reads = frozenset({"x", "y"})
    needs_model = True

    def answer(self, context: QueryContext) -> Answer:
        """Return n_k and the two sums, as a list."""
        context.model.eval()
        first, second, number = 0.0, 0.0, len(context.data)
        with torch.inference_mode():
            for batch in context.data.batches():
                losses = functional.cross_entropy(context.model(batch.x).float(), batch.y, reduction="none").double()
                first += losses.sum().item()
                second += losses.square().sum().item()
        return Answer([float(number), first, second], floats_up=3, samples=number)
