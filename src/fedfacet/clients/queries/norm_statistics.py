"""What a model's layers of static batch norm see of a client's samples."""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.compiler import set_stance

from fedfacet.answer_form import AnswerForm
from fedfacet.clients.queries.base import Query, QueryContext
from fedfacet.errors import ConfigError
from fedfacet.models.base import static_norms
from fedfacet.types import Answer


class NormStatistics(Query):
    r"""Ask for sums over what each layer of static batch norm of the broadcast model is given.

    .. math:: M, \quad \sum_m x_{mc}, \quad \sum_m x_{mc}^2 \qquad (c = 1, \ldots, C)

    with m over samples and pixels, M their number, and c the layer's channels. The answer has these 1 + 2 C numbers of one
    layer after the other. The client's samples pass once, in an order drawn for the round, in equal batches of at most its
    batch size. Layers of static batch norm normalise by the batch, all others work as in evaluation. Sums are taken in double
    precision. A client without samples answers zeros.

    Source: HeteroFL (arXiv:2010.01264) and the function ``stats`` of the authors' code.
    """

    name = "norm_statistics"
    kind = "norm_statistics"
    form = AnswerForm(shape=("S",))
    reads = frozenset({"x"})
    needs_model = True

    def check(self, model: nn.Module) -> None:
        """Refuse a model without such layers."""
        if not static_norms(model):
            raise ConfigError(
                f"{type(model).__name__} has no layer of static batch norm, whose statistics mechanisms=static_norm gathers: "
                "choose model=scaler_cnn model.norm=static, or leave the mechanism out."
            )

    def answer(self, context: QueryContext) -> Answer:
        """Return the sums, as a list."""
        layers = list(static_norms(context.model).values())
        sums = [torch.zeros(1 + 2 * layer.num_features, dtype=torch.float64) for layer in layers]
        context.model.eval()
        notes = [layer.train().register_forward_pre_hook(_adding_to(total)) for layer, total in zip(layers, sums, strict=True)]
        number = len(context.data)
        order = context.stream("norm-statistics").permutation(number)
        try:
            with torch.inference_mode(), set_stance("force_eager"):  # a compiled model would not see the hooks
                for positions in np.array_split(order, max(1, math.ceil(number / context.batch_size))) if number else ():
                    context.model(context.data.batch(positions).x)
        finally:
            for note in notes:
                note.remove()
        answer = [number for total in sums for number in total.tolist()]
        return Answer(answer, floats_up=len(answer), samples=number)


def _adding_to(total: Tensor) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
    """Return a hook that adds the sums over a layer's input to a total."""

    def note(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        of_channels = inputs[0].detach().double().movedim(1, 0).flatten(1)
        number = of_channels.new_full((1,), of_channels.shape[1])
        total.add_(torch.cat([number, of_channels.sum(dim=1), of_channels.square().sum(dim=1)]).cpu())

    return note
