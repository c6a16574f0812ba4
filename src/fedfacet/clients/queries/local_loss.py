"""How badly the global model does on a client's own samples: the mean of their losses, their sum, and how they vary."""

import math

import torch
from torch import Tensor
from torch.nn import functional

from fedfacet.answer_form import AnswerForm
from fedfacet.clients.queries.base import Query, QueryContext
from fedfacet.types import Answer


def losses_of(context: QueryContext) -> list[Tensor]:
    """Return the cross entropies of a client's samples under the broadcast model, batch by batch, in eval mode."""
    context.model.eval()
    with torch.inference_mode():
        return [
            functional.cross_entropy(context.model(batch.x).float(), batch.y, reduction="none")
            for batch in context.data.batches()
        ]


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
        losses = losses_of(context)
        mean = torch.cat(losses).double().mean().item() if losses else math.nan
        return Answer(mean, floats_up=1, samples=len(context.data))


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
        first, second, number = 0.0, 0.0, len(context.data)
        for losses in losses_of(context):
            first += losses.double().sum().item()
            second += losses.double().square().sum().item()
        return Answer([float(number), first, second], floats_up=3, samples=number)


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
        total, number = 0.0, len(context.data)
        for losses in losses_of(context):
            total += losses.double().sum().item()
        return Answer(total / math.sqrt(number) if number else math.nan, floats_up=1, samples=number)
