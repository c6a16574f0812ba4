"""The convolutional network of which weak clients train a part, in HeteroFL and in the thesis."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from torch import Tensor, nn

from fedfacet.arguments import check_choice, check_whole
from fedfacet.models.base import Network, StaticBatchNorm2d
from fedfacet.types import ChannelPlan


class ScalerCNN(Network):
    """Four 3x3 convolutions with u, 2u, 4u and 8u channels, and a linear head on the features' mean over the pixels.

    Each convolution is followed by a scaler, a norm, 2x2 max-pooling (not the last) and ReLU. On 3x32x32 images of 10
    classes it has 25,418 parameters with u = 8, 99,210 with 16, 391,946 with 32 and 1,558,026 with 64.

    Source: Diao et al., HeteroFL, ICLR 2021, arXiv:2010.01264 (its network "Conv"); the thesis, section 4.7.2, equation 15, and
    its released code, whose batch norm uses the batch's statistics in evaluation too, so that a sample's logits depend on its
    batch: ``norm="batch"`` here. The scaler acts in training only, as in both codes; equation 15 has no such limit.

    In front of such a norm neither bias nor scaler changes what the network computes, but for the norm's epsilon,
    BN_eps(x / r) = BN_(eps r^2)(x). Both stay, for the printed numbers of parameters and for the other norms.

    Args:
        num_classes: Y.
        input_shape: (C, H, W), H and W at least 8.
        width: u, 1 or larger, or the numbers of channels of the four convolutions.
        norm: ``"group"`` normalises groups of at most 8 channels, ``"batch"`` normalises by the batch's statistics always,
            ``"running"`` by running ones in evaluation, ``"none"`` nothing. ``"static"`` takes in evaluation those that
            ``mechanisms=static_norm`` gathers.
        scaler: whether activations are scaled.
        bias: whether convolutions have one.

    Example:
        >>> import torch
        >>> model = ScalerCNN(10, (3, 32, 32), width=16)
        >>> sum(p.numel() for p in model.parameters()), model(torch.zeros(2, 3, 32, 32)).shape
        (99210, torch.Size([2, 10]))
    """

    def __init__(
        self,
        num_classes: int,
        input_shape: Sequence[int],
        *,
        width: int | Sequence[int] = 16,
        norm: str = "group",
        scaler: bool = True,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.widths = [width, 2 * width, 4 * width, 8 * width] if isinstance(width, int) else list(width)
        for number in self.widths:
            check_whole("model.width", number)
        check_choice("model.norm", norm, ("batch", "running", "static", "group", "none"))
        if len(self.widths) != 4 or len(input_shape) != 3 or min(input_shape[1:]) < 8:
            raise ValueError(
                "Expected one `model.width` or four, and images (C, H, W) of 8x8 pixels or more, but got "
                f"{len(self.widths)} and inputs of shape {tuple(input_shape)}: choose another `model` or `dataset`."
            )
        self.settings = {"norm": norm, "scaler": scaler, "bias": bias}
        self.shapes = num_classes, tuple(input_shape)
        self.sees_batch = norm == "batch"
        layers: list[nn.Module] = []
        for number, (before, after) in enumerate(pairwise([input_shape[0], *self.widths])):
            layers += [nn.Conv2d(before, after, 3, padding=1, bias=bias), _Scaler(), _norm(norm, after)]
            # Pooling first changes no bit, and leaves a quarter of the numbers to ReLU.
            layers += [nn.MaxPool2d(2), nn.ReLU()] if number < 3 else [nn.ReLU()]
        self.backbone = nn.Sequential(*layers)
        self.head = nn.Linear(self.widths[-1], num_classes)

    @property
    def channel_plan(self) -> ChannelPlan:
        """Which of its channels a client may lack: those of every convolution."""
        sizes = {f"conv{number}": size for number, size in enumerate(self.widths, 1)}
        axes: dict[str, tuple[str | None, ...]] = {"head.weight": (None, "conv4")}
        for before, group, place in zip([None, *sizes], sizes, (0, 5, 10, 15), strict=False):
            axes[f"backbone.{place}.weight"] = (group, before)
            axes |= dict.fromkeys((f"backbone.{place}.bias", *_names_of_norm(place + 2)), (group,))
        return ChannelPlan(sizes, {name: axes[name] for name in self.state_dict() if name in axes})

    def narrowed(self, sizes: Mapping[str, int]) -> "ScalerCNN":
        """Return a new model like this one with other numbers of channels, each of at most this one's."""
        part = ScalerCNN(*self.shapes, width=list(sizes.values()), **self.settings)  # type: ignore[arg-type]
        if part.settings["scaler"]:
            scalers = [layer for layer in part.modules() if isinstance(layer, _Scaler)]
            for scaler, narrow, wide in zip(scalers, part.widths, self.widths, strict=True):
                scaler.rate = narrow / wide
        return part


class _Scaler(nn.Module):
    """Divides by the rate while training, so that a narrow model's activations are as large as a wide one's."""

    rate = 1.0

    def forward(self, x: Tensor) -> Tensor:
        """Return x / rate in training, and x in evaluation."""
        return x / self.rate if self.training and self.rate != 1 else x


def _norm(kind: str, channels: int) -> nn.Module:
    if kind == "group":
        groups = next(number for number in range(-(-channels // 8), channels + 1) if channels % number == 0)
        return nn.GroupNorm(groups, channels)
    if kind == "static":
        return StaticBatchNorm2d(channels)
    return nn.Identity() if kind == "none" else nn.BatchNorm2d(channels, track_running_stats=kind == "running")


def _names_of_norm(place: int) -> list[str]:
    return [f"backbone.{place}.{name}" for name in ("weight", "bias", "running_mean", "running_var")]
