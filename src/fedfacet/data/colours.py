"""Grey images made red or green: the attribute of the coloured digits."""

import torch
from torch import Tensor

COLOURS = ("red", "green")


def colour(grey: Tensor, attribute: Tensor) -> Tensor:
    """Return RGB images, (N, 3, H, W), of grey ones, uint8 (N, H, W): red ink for the attribute 0, green for 1."""
    images = torch.zeros(len(grey), 3, *grey.shape[1:], dtype=torch.uint8)
    images[torch.arange(len(grey)), attribute] = grey
    return images
