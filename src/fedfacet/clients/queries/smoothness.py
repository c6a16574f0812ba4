"""How fast a client's gradient changes."""

import math

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedfacet.answer_form import AnswerForm
from fedfacet.arguments import check_whole
from fedfacet.clients.queries.base import Query, QueryContext
from fedfacet.errors import ConfigError
from fedfacet.types import Answer


class Smoothness(Query):
    r"""Ask for the spectral norm of the Hessian of a client's loss, by power iteration.

    .. math::
        L_k = \lVert \nabla^2 F_k(\theta) \rVert_2, \quad
        F_k(\theta) = \frac{1}{n_k} \sum_{(x, y) \in D_k} -\log p_y(x; \theta) + \frac{\lambda}{2} \lVert \theta \rVert^2

    at the broadcast model, in eval mode, over all trainable parameters, with :math:`\lambda` the optimizer's ``weight_decay``.
    From a vector drawn at random, :math:`v \leftarrow H v / \lVert H v \rVert`; the answer is the last
    :math:`\lVert H v \rVert`, which is L_k at most. One float leaves the client. Every iteration passes the n_k samples through
    the model; the second derivatives that it takes besides are not counted. A client without samples answers NaN, as does one
    with a Hessian that is not finite.

    It bounds the change of the gradient everywhere only where the loss curves nowhere more than here: for logistic regression,
    whose curvature is largest where all classes are equally likely, that holds near the weights of 0. Elsewhere it is an
    estimate.

    Source: Chen, Giannakis, Sun and Yin, LAG, NeurIPS 2018, arXiv:1805.09965, which takes the smoothness of a client's loss for
    known. It is the cross entropy whatever ``loss`` the clients train on.

    Args:
        iterations: 1 or larger.
    """

    name = "smoothness"
    kind = "norm"
    form = AnswerForm(low=0, high=1e100, finite=False)
    reads = frozenset({"x", "y"})
    needs_model = True

    def __init__(self, *, iterations: int = 30) -> None:
        check_whole("iterations", iterations)
        self.iterations = iterations

    def check(self, model: nn.Module) -> None:
        """Refuse a compiled model, of which torch takes no second derivatives."""
        if model._compiled_call_impl is not None:
            raise ConfigError(
                "Expected a model of which torch takes second derivatives for the query `smoothness`, but `compile` is set: "
                "leave it false, or give `selector.constants`."
            )

    def answer(self, context: QueryContext) -> Answer:
        """Return L_k."""
        context.model.eval()
        parameters = [parameter for parameter in context.model.parameters() if parameter.requires_grad]
        decay = context.make_optimizer(parameters).param_groups[0].get("weight_decay", 0.0)
        draws = context.stream("smoothness")
        vector = [
            torch.as_tensor(draws.standard_normal(tuple(part.shape)), dtype=part.dtype, device=part.device)
            for part in parameters
        ]
        largest = _norm(vector)
        for _ in range(self.iterations if len(context.data) else 0):
            if not 0 < largest < math.inf:
                break
            vector = _hessian_times(context, parameters, [part / largest for part in vector], decay)
            largest = _norm(vector)
        finite = math.isfinite(largest) and len(context.data) > 0
        return Answer(largest if finite else math.nan, floats_up=1, samples=self.iterations * len(context.data))


def _hessian_times(context: QueryContext, parameters: list[nn.Parameter], vector: list[Tensor], decay: float) -> list[Tensor]:
    """Return the Hessian of the client's loss times a vector."""
    product = [decay * part for part in vector]
    for batch in context.data.batches():
        with torch.enable_grad():
            loss = functional.cross_entropy(context.model(batch.x).float(), batch.y, reduction="sum") / len(context.data)
            gradients = torch.autograd.grad(loss, parameters, create_graph=True, materialize_grads=True)
            along = torch.stack([(gradient * part).sum() for gradient, part in zip(gradients, vector, strict=True)]).sum()
            parts = torch.autograd.grad(along, parameters, materialize_grads=True)
        for total, part in zip(product, parts, strict=True):
            total += part
    return product


def _norm(vector: list[Tensor]) -> float:
    return float(np.sqrt(sum(part.double().square().sum().item() for part in vector)))
