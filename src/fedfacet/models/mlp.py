"""A multilayer perceptron for inputs of any shape."""

import math
from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from fedfacet.arguments import check_whole
from fedfacet.models.base import Network


class MLP(Network):
    """Flattened inputs, hidden layers with ReLU, and a linear head.

    Args:
        num_classes: Y.
        input_shape: of one input: (D,) for feature vectors, (C, H, W) for images, or any other shape.
        hidden: widths of the hidden layers, each 1 or larger; none makes it logistic regression.

    Example:
        >>> import torch
        >>> model = MLP(2, (30,), hidden=[16, 8])
        >>> model.features(torch.zeros(5, 30)).shape, model(torch.zeros(5, 30)).shape
        (torch.Size([5, 8]), torch.Size([5, 2]))
    """

    def __init__(self, num_classes: int, input_shape: Sequence[int], *, hidden: Sequence[int] = (64,)) -> None:
        super().__init__()
        for width in hidden:
            check_whole("model.hidden", width)
        widths = [math.prod(input_shape), *hidden]
        layers = [layer for sizes in pairwise(widths) for layer in (nn.Linear(*sizes), nn.ReLU())]
        self.backbone = nn.Sequential(nn.Flatten(), *layers)
        self.head = nn.Linear(widths[-1], num_classes)
