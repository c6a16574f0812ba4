"""A small convolutional network for small images."""

from collections.abc import Sequence

from torch import nn

from fedfacet.models.base import Network


class SmallCNN(Network):
    """Two 3x3 convolutions with ReLU and 2x2 max-pooling, one hidden layer, a linear head.

    Args:
        num_classes: Y.
        input_shape: (C, H, W), H and W at least 4.
        width: channels of the first convolution, 1 or larger; the second has twice as many.
        hidden: width of the hidden layer, which is what ``features`` returns, 1 or larger.
    """

    def __init__(self, num_classes: int, input_shape: Sequence[int], *, width: int = 16, hidden: int = 64) -> None:
        super().__init__()
        if min(width, hidden) < 1 or len(input_shape) != 3 or min(input_shape[1:]) < 4:
            raise ValueError(
                "Expected `model.width` and `model.hidden` to be 1 or larger, and images (C, H, W) of 4x4 pixels or more, but "
                f"got {width}, {hidden} and inputs of shape {tuple(input_shape)}: choose another `model` or `dataset`."
            )
        channels, height, breadth = input_shape
        # Pooling first changes no bit, neither forward nor backward, and leaves a quarter of the numbers to ReLU.
        self.backbone = nn.Sequential(
            *(nn.Conv2d(channels, width, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()),
            *(nn.Conv2d(width, 2 * width, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten()),
            *(nn.Linear(2 * width * (height // 4) * (breadth // 4), hidden), nn.ReLU()),
        )
        self.head = nn.Linear(hidden, num_classes)
