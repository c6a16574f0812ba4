"""A small convolutional network for small images."""

from collections.abc import Mapping, Sequence

from torch import nn

from fedfacet.models.base import Network
from fedfacet.types import ChannelPlan


class SmallCNN(Network):
    """Two 3x3 convolutions with ReLU and 2x2 max-pooling, one hidden layer, a linear head.

    Args:
        num_classes: Y.
        input_shape: (C, H, W), H and W at least 4.
        width: channels of the first convolution, 1 or larger; the second has twice as many. Two numbers are those of both.
        hidden: width of the hidden layer, which is what ``features`` returns, 1 or larger.
    """

    def __init__(
        self, num_classes: int, input_shape: Sequence[int], *, width: int | Sequence[int] = 16, hidden: int = 64
    ) -> None:
        super().__init__()
        widths = [width, 2 * width] if isinstance(width, int) else list(width)
        if len(widths) != 2 or min(*widths, hidden) < 1 or len(input_shape) != 3 or min(input_shape[1:]) < 4:
            raise ValueError(
                "Expected `model.width` and `model.hidden` to be 1 or larger, and images (C, H, W) of 4x4 pixels or more, but "
                f"got {width}, {hidden} and inputs of shape {tuple(input_shape)}: choose another `model` or `dataset`."
            )
        (first, second), (channels, height, breadth) = widths, input_shape
        # Pooling first changes no bit, neither forward nor backward, and leaves a quarter of the numbers to ReLU.
        self.backbone = nn.Sequential(
            *(nn.Conv2d(channels, first, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()),
            *(nn.Conv2d(first, second, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten()),
            *(nn.Linear(second * (height // 4) * (breadth // 4), hidden), nn.ReLU()),
        )
        self.head = nn.Linear(hidden, num_classes)
        self.shapes = num_classes, tuple(input_shape)
        self.widths = {"conv1": first, "conv2": second, "hidden": hidden}

    @property
    def channel_plan(self) -> ChannelPlan:
        """Which of its channels a client may lack: those of both convolutions and of the hidden layer."""
        axes: dict[str, tuple[str | None, ...]] = {"head.weight": (None, "hidden")}
        for before, group, place in zip([None, *self.widths], self.widths, (0, 3, 7), strict=False):
            axes |= {f"backbone.{place}.weight": (group, before), f"backbone.{place}.bias": (group,)}
        return ChannelPlan(self.widths, axes)

    def narrowed(self, sizes: Mapping[str, int]) -> "SmallCNN":
        """Return a new model like this one with other numbers of channels."""
        return SmallCNN(*self.shapes, width=(sizes["conv1"], sizes["conv2"]), hidden=sizes["hidden"])
