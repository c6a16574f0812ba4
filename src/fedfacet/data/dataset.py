"""What every data set becomes once it is loaded, and the contract of those that load it."""

import functools
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedfacet.types import Batch


class ImageStore(Protocol):
    """Images by position, as they are kept: uint8, in memory where they fit."""

    def __len__(self) -> int:
        """Return how many images there are."""

    def fetch(self, indices: NDArray[np.int64]) -> Tensor:
        """Return images as uint8 of shape (B, C, H, W)."""


@dataclass(frozen=True, slots=True, eq=False)
class InMemoryImages:
    """All images in one uint8 tensor of shape (N, C, H, W)."""

    tensor: Tensor

    def __len__(self) -> int:
        """Return N."""
        return len(self.tensor)

    def fetch(self, indices: NDArray[np.int64]) -> Tensor:
        """Return the images at ``indices``."""
        return self.tensor[torch.from_numpy(indices)]


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """Labelled images with a spurious attribute, and which of them may train and which test.

    Attributes:
        images: N images.
        y: classes, shape (N,), int64.
        a: attribute values, shape (N,), int64.
        train: sorted positions that may be dealt to clients (and, where ``val`` is ``None``, be held out for validation).
        test: sorted positions of the test set, disjoint from ``train``.
        val: sorted positions of an official validation set, or ``None`` where there is none.
        class_names: Y names.
        attribute_names: A names.
        mean: per channel, of pixels scaled to [0, 1].
        std: per channel.
    """

    images: ImageStore
    y: NDArray[np.int64]
    a: NDArray[np.int64]
    train: NDArray[np.int64]
    test: NDArray[np.int64]
    val: NDArray[np.int64] | None
    class_names: tuple[str, ...]
    attribute_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def num_classes(self) -> int:
        """Y."""
        return len(self.class_names)

    @property
    def num_attributes(self) -> int:
        """A."""
        return len(self.attribute_names)

    def batch(self, indices: NDArray[np.int64], device: torch.device | str = "cpu") -> Batch:
        """Return samples normalised to zero mean and unit variance, on ``device``; uint8 is what travels there."""
        pixels = self.images.fetch(indices).to(device)
        mean, std = _channel_constants(self.mean, self.std, torch.device(device))
        x = pixels.to(torch.float32).sub_(mean).div_(std)
        return Batch(x, torch.from_numpy(self.y[indices]).to(device), torch.from_numpy(self.a[indices]).to(device))


@functools.lru_cache(maxsize=16)
def _channel_constants(mean: tuple[float, ...], std: tuple[float, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation on the scale of uint8 pixels, shape (C, 1, 1)."""
    constants = torch.tensor([mean, std], dtype=torch.float32) * 255
    return constants[0].view(-1, 1, 1).to(device), constants[1].view(-1, 1, 1).to(device)


class DatasetSource(ABC):
    """Knows where a data set comes from; constructing one costs nothing and reads nothing."""

    def generate(self, demand: NDArray[np.int64] | None) -> None:
        """Write small generated files where ``load`` reads, in the real layout, enough for ``demand``; for ``debug=smoke``.

        Nothing to do for a data set that reads no files.
        """

    @abstractmethod
    def load(self, demand: NDArray[np.int64] | None = None) -> Dataset:
        """Read (or draw) the data set.

        Args:
            demand: training samples per (class, attribute) cell that the partition asks for, shape (Y, A), or ``None`` where it
                takes what there is. Only data sets that give their samples an attribute themselves look at it.

        Raises:
            DatasetNotFoundError: if files are missing; the message names the folder, the size of the download, the command
                that fetches it, and experiments that need none.
            DatasetCorruptError: if a file is truncated or unreadable; the message names it.
        """
