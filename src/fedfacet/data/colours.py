"""Grey images made red or green: the attribute of the coloured digits."""

import torch
from torch import Tensor

COLOURS = ("red", "green")


def colour(grey: Tensor, attribute: Tensor) -> Tensor:
    """Return RGB images whose ink is in one channel: red for attribute 0, green for 1.

    Args:
        grey: uint8, shape (N, H, W).
        attribute: int64, shape (N,).

    Returns:
        uint8, shape (N, 3, H, W).
    """
    images = torch.zeros(len(grey), 3, *grey.shape[1:], dtype=torch.uint8)
    images[torch.arange(len(grey)), attribute] = grey
    return images
