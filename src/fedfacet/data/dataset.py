"""What every data set becomes once it is loaded, and the contract of those that load it."""

import functools
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedfacet.data.augmentation import Augmentation
from fedfacet.errors import InfeasiblePartitionError
from fedfacet.types import Batch


class InputStore(Protocol):
    """Inputs by position, as they are kept: images as uint8 of shape (C, H, W), in memory where they fit, or anything else."""

    def __len__(self) -> int:
        """Return how many there are."""

    def fetch(self, indices: NDArray[np.int64]) -> Tensor:
        """Return those at ``indices``, shape (B, ...)."""


@dataclass(frozen=True, slots=True, eq=False)
class InMemoryInputs:
    """All inputs in one tensor: images as uint8 of shape (N, C, H, W), feature vectors as float32 of shape (N, D), ..."""

    tensor: Tensor

    def __post_init__(self) -> None:
        """Have the channels of images lie last in memory, as convolutions on a CPU like them."""
        if self.tensor.dim() == 4:
            object.__setattr__(self, "tensor", self.tensor.contiguous(memory_format=torch.channels_last))

    def __len__(self) -> int:
        """Return N."""
        return len(self.tensor)

    def fetch(self, indices: NDArray[np.int64]) -> Tensor:
        """Return the inputs at ``indices``."""
        positions = torch.from_numpy(indices)
        if self.tensor.dim() == 4:
            return self.tensor.permute(0, 2, 3, 1).index_select(0, positions).permute(0, 3, 1, 2)
        return self.tensor.index_select(0, positions)


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """Labelled inputs with a spurious attribute, and which of them may train and which test.

    Attributes:
        inputs: N images (uint8), or anything else where ``mean`` is ``None``: feature vectors (float32), rows of tokens.
        y: classes, shape (N,), int64.
        a: attribute values, shape (N,), int64.
        train: sorted positions that may be dealt to clients (and, where ``val`` is ``None``, be held out for validation).
        test: sorted positions of the test set, disjoint from ``train``.
        val: sorted positions of an official validation set, or ``None`` where there is none.
        class_names: Y names.
        attribute_names: A names.
        mean: per channel, of pixels scaled to [0, 1]; ``None`` for inputs that are no images and go into a model as they are.
        std: per channel; ``None`` along with ``mean``.
        columns: further labels of the samples by name (a writer, a role, a superclass), each of shape (N,), integers; a
            partitioner's ``label`` may name one. They are never trained on.
        augmentation: what happens to images before a training step, and never otherwise; ``None`` for nothing.
    """

    inputs: InputStore
    y: NDArray[np.int64]
    a: NDArray[np.int64]
    train: NDArray[np.int64]
    test: NDArray[np.int64]
    val: NDArray[np.int64] | None
    class_names: tuple[str, ...]
    attribute_names: tuple[str, ...]
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    columns: Mapping[str, NDArray[np.integer[Any]]] = field(default_factory=dict)
    augmentation: Augmentation | None = None

    @property
    def num_classes(self) -> int:
        """Y."""
        return len(self.class_names)

    @property
    def num_attributes(self) -> int:
        """A."""
        return len(self.attribute_names)

    def column(self, name: str) -> NDArray[np.integer[Any]]:
        """Return the labels called ``name``, shape (N,): the classes for ``"y"``, the attribute values for ``"a"``.

        Raises:
            InfeasiblePartitionError: if there are none of this name.
        """
        if name in ("y", "a"):
            return self.y if name == "y" else self.a
        if name not in self.columns:
            raise InfeasiblePartitionError(
                f"Expected `partition.label` to be one of {', '.join(['y', 'a', *self.columns])}, which is what this data set "
                f"knows of its samples, but got {name!r}: choose one of them or another `dataset`."
            )
        return self.columns[name]

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input, (C, H, W) for images."""
        return tuple(self.inputs.fetch(self.test[:1]).shape[1:])

    def batch(
        self,
        indices: NDArray[np.int64],
        device: torch.device | str = "cpu",
        memory_format: torch.memory_format = torch.contiguous_format,
        generator: np.random.Generator | None = None,
    ) -> Batch:
        """Return samples, images normalised to zero mean and unit variance, on ``device``; uint8 is what travels there.

        Args:
            indices: positions of the samples.
            device: where they go.
            memory_format: of images.
            generator: of the augmentation; ``None`` for images as they are.
        """
        x = _sent(self.inputs.fetch(indices), device)
        if self.augmentation is not None and generator is not None:
            x = self.augmentation(x, generator)
        if self.mean is not None and self.std is not None:
            mean, std = _constants(self.mean, self.std, x.shape[1:], x.device, memory_format)
            x = x.to(torch.float32, memory_format=memory_format).sub_(mean).div_(std)
        return Batch(x, _sent(torch.from_numpy(self.y[indices]), device), _sent(torch.from_numpy(self.a[indices]), device))


def _sent(tensor: Tensor, device: torch.device | str) -> Tensor:
    """Return a tensor on a device; to a GPU from pinned memory, so that the CPU can prepare the next step meanwhile."""
    if torch.device(device).type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


@functools.lru_cache(maxsize=16)
def _constants(
    mean: tuple[float, ...],
    std: tuple[float, ...],
    shape: torch.Size,
    device: torch.device,
    memory_format: torch.memory_format,
) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation on the scale of uint8 pixels, each of shape (1, C, H, W).

    As large as an image: with the channels last, arithmetic with a constant per channel takes seven times as long.
    """
    constants = torch.tensor([mean, std], dtype=torch.float32) * 255
    whole = constants.view(2, -1, 1, 1).expand(2, *shape).contiguous(memory_format=memory_format).to(device)
    return whole[:1], whole[1:]


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
