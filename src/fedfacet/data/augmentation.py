"""Random changes of training images: a batch at a time, on its device, from a named generator.

The result depends neither on workers nor on earlier draws. Validation and test images are never augmented.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

_ATTEMPTS = 10  # at drawing a box that fits into an image, as torchvision's RandomResizedCrop


class Augmentation(Protocol):
    """Changes images at random."""

    def __call__(self, pixels: Tensor, generator: np.random.Generator) -> Tensor:
        """Return changed copies of ``pixels``, uint8 of shape (B, C, H, W), drawing from ``generator`` alone."""


@dataclass(frozen=True, slots=True)
class CropAndFlip:
    """Shift an image by up to ``padding`` pixels either way, black beyond its edges, and mirror every second one.

    What torchvision's ``RandomCrop(size, padding)`` and ``RandomHorizontalFlip()`` do one image at a time.

    Args:
        padding: 0 or larger.
    """

    padding: int = 4

    def __call__(self, pixels: Tensor, generator: np.random.Generator) -> Tensor:
        """Return the changed images."""
        count, _, height, width = pixels.shape
        tops, lefts = generator.integers(2 * self.padding + 1, size=(2, count))
        rows_BH = tops[:, None] + np.arange(height)
        columns_BW = lefts[:, None] + np.arange(width)
        flipped = generator.random(count) < 0.5
        columns_BW[flipped] = columns_BW[flipped, ::-1]
        padded = functional.pad(pixels, [self.padding] * 4).permute(0, 2, 3, 1)
        picked = padded[
            torch.arange(count, device=pixels.device)[:, None, None],
            torch.from_numpy(rows_BH).to(pixels.device)[:, :, None],
            torch.from_numpy(columns_BW).to(pixels.device)[:, None, :],
        ]
        return picked.permute(0, 3, 1, 2)


@dataclass(frozen=True, slots=True)
class ZoomTurnAndFlip:
    r"""Cut a random box out of an image and enlarge it to the image's size, turn it, and mirror every second one.

    What torchvision's ``RandomResizedCrop(size, scale)``, ``RandomRotation(degrees)`` and ``RandomHorizontalFlip()`` do one
    after another; here one map of coordinates, so that pixels are interpolated (bilinear) once. Beyond the box it is black.

    Args:
        smallest: the box's smallest part of the image's area, larger than 0.
        largest: its largest part. Boxes that do not fit are drawn again: above 1 only the share of large boxes grows.
        degrees: the largest angle either way, 0 or larger.
    """

    smallest: float
    largest: float = 1.0
    degrees: float = 10.0

    def __call__(self, pixels: Tensor, generator: np.random.Generator) -> Tensor:
        """Return the changed images."""
        count, _, height, width = pixels.shape
        boxes = self._boxes(count, height, width, generator)
        angles = np.deg2rad(generator.uniform(-self.degrees, self.degrees, size=count))
        mirror = np.where(generator.random(count) < 0.5, -1.0, 1.0)
        # From where a pixel ends up, x to the right and y down in [-1, 1], back to where in the box it comes from; the sides'
        # ratio keeps a turn a turn where images are not square.
        ratio = width / height
        turn = np.zeros((count, 2, 3), dtype=np.float32)
        turn[:, 0, 0], turn[:, 0, 1] = mirror * np.cos(angles), -np.sin(angles) / ratio
        turn[:, 1, 0], turn[:, 1, 1] = mirror * np.sin(angles) * ratio, np.cos(angles)
        grid = functional.affine_grid(torch.from_numpy(turn).to(pixels.device), list(pixels.shape), align_corners=False)
        inside = (grid.abs() <= 1).all(dim=3)
        shift, stretch = torch.from_numpy(boxes.astype(np.float32)).to(pixels.device).view(count, 2, 1, 1, 2).unbind(dim=1)
        sampled = functional.grid_sample(
            pixels.float(), grid * stretch + shift, mode="bilinear", padding_mode="border", align_corners=False
        )
        return (sampled * inside[:, None]).round().to(torch.uint8)

    def _boxes(self, count: int, height: int, width: int, generator: np.random.Generator) -> NDArray[np.float64]:
        """Return per image the centre (x, y) of its box and half its sides, in units in which the image is [-1, 1]."""
        shape = (count, _ATTEMPTS)
        area = height * width * generator.uniform(self.smallest, self.largest, size=shape)
        sides = np.exp(generator.uniform(np.log(3 / 4), np.log(4 / 3), size=shape))
        widths, heights = np.rint(np.sqrt(area * sides)), np.rint(np.sqrt(area / sides))
        fits = (widths >= 1) & (heights >= 1) & (widths <= width) & (heights <= height)
        first = np.arange(count), fits.argmax(axis=1)
        found = fits.any(axis=1)
        w, h = np.where(found, widths[first], width), np.where(found, heights[first], height)
        places = generator.random((2, count))
        left, top = np.floor(places[0] * (width - w + 1)), np.floor(places[1] * (height - h + 1))
        centre = np.stack([(2 * left + w) / width - 1, (2 * top + h) / height - 1], axis=1)
        return np.concatenate([centre, np.stack([w / width, h / height], axis=1)], axis=1)
