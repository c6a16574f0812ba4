"""Ordered dropout (FjORD): every step trains a drawn number of the model's first channels."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from fedfacet import rng
from fedfacet.arguments import check_within
from fedfacet.corrections import Correction
from fedfacet.errors import ConfigError
from fedfacet.objectives.classification import ClassificationObjective, OptimizerFactory, cross_entropy
from fedfacet.submodels.base import kept
from fedfacet.types import Batch, ChannelPlan


class OrderedDropoutObjective(ClassificationObjective):
    r"""Train in every step the first ceil(p N) of each layer's N channels, with p drawn uniformly from some widths.

    .. math:: \ell(f_p(x), y), \qquad p \sim U(P \cap (0, p_{\max}])

    with :math:`p_{\max}` the rate of the client's part (``capacity``, with ``submodel=heterofl``). This width is always in P.

    With self distillation (``distill``) a step's loss is

    .. math:: \ell(f_{p_{\max}}(x), y) - \sum_c q_c \log \mathrm{softmax}_c f_p(x), \qquad
        q = \mathrm{softmax} f_{p_{\max}}(x)

    and no gradient flows into q. The model that leaves the client has all channels of the part.
    Widths are drawn from the client's own generator of torch, as dropout is.

    ``engine=vectorized`` trains such clients one after another.

    Source: Horvath et al., FjORD, NeurIPS 2021, arXiv:2102.13451, section 3. Compared with the authors' baseline in Flower. The
    server averages each entry over its holders, by their samples there (``aggregator.weighting=samples``).

    Deviations: The code keeps a batch norm's running statistics per width. Here models normalise by the batch or by groups.
    With ``distill`` its measured loss is the second term only.

    Arguments not listed are those of ``ClassificationObjective``.

    Args:
        widths: P, each in (0, 1]; the paper takes five, 0.2 to 1.
        distill: whether the widest model also teaches.
        whole: the model of a client that holds everything; ``None`` for ``model``.
    """

    takes_parts = True

    def __init__(
        self,
        model: nn.Module,
        *,
        loss: Callable[[Tensor, Batch], Tensor] = cross_entropy,
        correction: Correction | None = None,
        optimizer: OptimizerFactory | None = None,
        widths: Sequence[float] = (0.2, 0.4, 0.6, 0.8, 1.0),
        distill: bool = False,
        whole: nn.Module | None = None,
    ) -> None:
        super().__init__(model, loss=loss, correction=correction, optimizer=optimizer)
        for width in widths:
            check_within("objective.widths", width, "(0, 1]")
        self.distill = distill
        largest: Any = model if whole is None else whole
        plans = [getattr(one, "channel_plan", None) for one in (model, largest)]
        if not all(isinstance(plan, ChannelPlan) for plan in plans):
            raise ConfigError(
                f"{type(model).__name__} has no `channel_plan`, whose channels objective=ordered_dropout orders: choose "
                "model=scaler_cnn, small_cnn or resnet8, or another objective."
            )
        own, of_all = (plan.sizes for plan in plans)  # type: ignore[union-attr]
        sizes = [{group: kept(width, size) for group, size in of_all.items()} for width in sorted(set(widths))]
        narrower = [one for one in sizes if all(one[group] < size for group, size in own.items())]
        with torch.device("meta"):  # these have no weights of their own, and draw none; a list is no submodule
            self.narrow = [(largest.narrowed(one), _first(model, plans[0], one)) for one in narrower]

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits, shape (B, Y): in training by the first channels of a width that is drawn."""
        if not self.training:
            return super().forward(x)
        return self._logits(rng.drawn_below(len(self.narrow) + 1, x.device), x)

    def training_loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the loss of the drawn width's logits; with ``distill`` also that of the client's whole part."""
        if not self.distill:
            return super().training_loss(logits, batch)
        z: Tensor = self.model(batch.x)
        return super().training_loss(z, batch) + functional.cross_entropy(logits, z.detach().softmax(dim=1))

    def _logits(self, number: int, x: Tensor) -> Tensor:
        """Return the logits of the narrow model of a number, or of the client's whole part."""
        if number == len(self.narrow):
            logits: Tensor = self.model(x)
            return logits
        network, first = self.narrow[number]
        tensors = dict(self.model.named_parameters()) | dict(self.model.named_buffers())
        part = {name: tensor[first[name]] if name in first else tensor for name, tensor in tensors.items()}
        return functional_call(network.train(self.training), part, (x,))  # type: ignore[no-any-return]


def _first(model: nn.Module, plan: Any, sizes: Mapping[str, int]) -> dict[str, tuple[slice, ...]]:
    """Return for each tensor with channels the first entries along its axes."""
    tensors = model.state_dict()
    return {
        name: tuple(
            slice(None) if group is None else slice(length // plan.sizes[group] * sizes[group])
            for group, length in zip(axes, tensors[name].shape, strict=False)
        )
        for name, axes in plan.axes.items()
    }
