"""The LeNet-like network of federated CIFAR experiments."""

from collections.abc import Sequence

from torch import nn

from fedfacet.models.base import Network


class LeNet(Network):
    """Two 5x5 convolutions of 64 channels, each with ReLU and 2x2 max-pooling, hidden layers of 384 and 192, a linear head.

    1,773,796 parameters on CIFAR-100. There is no normalisation and no dropout; ``features`` returns 192 numbers.

    Source: De Cesare et al., Federated Learning Beyond Uniform Participation, section 2, with the sizes of its released code,
    which are those of the tutorial network that McMahan et al., arXiv:1602.05629, section 3, train on CIFAR-10.

    Args:
        num_classes: Y.
        input_shape: (C, H, W), H and W at least 4.
    """

    def __init__(self, num_classes: int, input_shape: Sequence[int]) -> None:
        super().__init__()
        if len(input_shape) != 3 or min(input_shape[1:]) < 4:
            raise ValueError(
                f"Expected images (C, H, W) of 4x4 pixels or more, but got inputs of shape {tuple(input_shape)}: choose "
                "another `model` or `dataset`."
            )
        channels, height, width = input_shape
        # Pooling first changes no bit, neither forward nor backward, and leaves a quarter of the numbers to ReLU.
        self.backbone = nn.Sequential(
            *(nn.Conv2d(channels, 64, 5, padding=2), nn.MaxPool2d(2), nn.ReLU()),
            *(nn.Conv2d(64, 64, 5, padding=2), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten()),
            *(nn.Linear(64 * (height // 4) * (width // 4), 384), nn.ReLU(), nn.Linear(384, 192), nn.ReLU()),
        )
        self.head = nn.Linear(192, num_classes)
