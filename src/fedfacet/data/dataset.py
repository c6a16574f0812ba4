"""What every data set is once it is loaded: inputs, labels, and who may train and test on which."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedfacet.data.augmentation import Augmentation
from fedfacet.types import Batch

_RESIDENT_SHARE = 1 / 16  # of a GPU's memory, which workers may share


class InputStore(Protocol):
    """Inputs by position, in memory or made when they are asked for."""

    def __len__(self) -> int:
        """Return N."""

    def fetch(self, indices: NDArray[np.int64]) -> Tensor:
        """Return the inputs at ``indices``, shape (B, ...): uint8 (B, C, H, W) for images, copies that may be written to."""


@dataclass(frozen=True, slots=True, eq=False)
class InMemoryInputs:
    """All inputs in one tensor of shape (N, ...)."""

    tensor: Tensor

    def __post_init__(self) -> None:
        # Channels last in memory make convolutions on a CPU faster.
        if self.tensor.dim() == 4:
            object.__setattr__(self, "tensor", self.tensor.contiguous(memory_format=torch.channels_last))

    def __len__(self) -> int:
        return len(self.tensor)

    def fetch(self, indices: NDArray[np.int64]) -> Tensor:
        """Return copies of the inputs at ``indices``."""
        positions = torch.from_numpy(indices)
        if self.tensor.dim() == 4:
            return self.tensor.permute(0, 2, 3, 1).index_select(0, positions).permute(0, 3, 1, 2)
        return self.tensor.index_select(0, positions)


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """Labelled inputs with an attribute, and which samples may train and which test.

    Attributes:
        inputs: N images (uint8), which have a ``mean`` and a ``std``, or N inputs of any other kind, which have neither and go
            into a model as they are: feature vectors (float32), rows of tokens (integers).
        y: classes, shape (N,), int64; zeros where there are ``targets``.
        a: attribute values, shape (N,), int64; zeros where the data set has no attribute.
        train: sorted positions of the samples that clients may get.
        test: sorted positions of the test set, disjoint from ``train``.
        val: sorted positions of an official validation set; with ``None`` validation samples are taken from ``train``.
        class_names: Y names.
        attribute_names: A names.
        mean: of each channel of pixels scaled to [0, 1].
        std: of each channel.
        columns: further labels by name (a writer, a role, a superclass), integers of shape (N,). A partitioner's ``label`` may
            name one; no model is trained on them.
        augmentation: changes images before a training step, and at no other time.
        targets: what a batch has as y instead of classes, shape (N, ...), float32. They are the numbers of a regression, or the
            zeros and ones of several labels. ``None`` for classes.
        value_names: what the values of a column are called, by name of the column, where they have names.
        inputs_read: how each column of a table was read, in one line.
        fit: returns the inputs again, missing values replaced by what the samples at some positions have; ``None`` where no
            value was missing.

    Raises:
        ValueError: if only one of ``mean`` and ``std`` is given, or an augmentation for inputs that are no images.
    """

    inputs: InputStore
    y: NDArray[np.int64]
    a: NDArray[np.int64]
    train: NDArray[np.int64]
    test: NDArray[np.int64]
    val: NDArray[np.int64] | None
    class_names: tuple[str, ...]
    attribute_names: tuple[str, ...] = ("none",)
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    columns: Mapping[str, NDArray[np.integer[Any]]] = field(default_factory=dict)
    augmentation: Augmentation | None = None
    targets: NDArray[np.float32] | None = None
    value_names: Mapping[str, Sequence[str]] = field(default_factory=dict)
    inputs_read: str = ""
    fit: Callable[[NDArray[np.int64]], InputStore] | None = None

    def __post_init__(self) -> None:
        if (self.mean is None) != (self.std is None):
            raise ValueError("Expected both `mean` and `std` (of images) or neither, but got one: give or leave out both.")
        if self.mean is None and self.augmentation is not None:
            raise ValueError(
                f"Expected no augmentation of inputs that are no images, but got {self.augmentation}: leave it out, or give "
                "the images' `mean` and `std`."
            )

    def __repr__(self) -> str:
        """Return one line with counts."""
        val = "" if self.val is None else f"{len(self.val)} validation, "
        return (
            f"Dataset({len(self.train)} training, {val}{len(self.test)} test samples, {self.num_classes} classes, "
            f"{self.num_attributes} attribute values)"
        )

    @property
    def num_classes(self) -> int:
        """Y."""
        return len(self.class_names)

    @property
    def num_outputs(self) -> int:
        """How many numbers a model returns for a sample: a logit per class, or a number for each target."""
        return self.num_classes if self.targets is None else int(np.prod(self.targets.shape[1:]))

    @property
    def num_attributes(self) -> int:
        """A."""
        return len(self.attribute_names)

    @property
    def without_attributes(self) -> "Dataset":
        """The same samples with attribute -1 everywhere and no further columns; nothing of the inputs is copied."""
        return replace(self, a=np.full_like(self.a, -1), columns={})

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
        """Return samples on ``device``, augmented if there is a ``generator``.

        Images travel there as uint8 and are normalised there, in ``memory_format``; other inputs stay as they are.
        """
        device = torch.device(device)
        if device.type == "cuda":
            x, y, a = _on_gpu(self, indices, device)
        else:
            labels = self.y if self.targets is None else self.targets
            x, y, a = self.inputs.fetch(indices), torch.from_numpy(labels[indices]), torch.from_numpy(self.a[indices])
            if device.type != "cpu":
                x, y, a = x.to(device), y.to(device), a.to(device)
        return Batch(self._normalised(x, memory_format, generator), y, a)

    def is_resident(self, device: torch.device) -> bool:
        """Tell whether all inputs stay on a device, so that ``resident_batch`` finds them there."""
        return self.targets is None and isinstance(self.inputs, InMemoryInputs) and _resident(self.inputs, device) is not None

    def resident_batch(self, numbers: Tensor, memory_format: torch.memory_format = torch.contiguous_format) -> Batch:
        """Return what ``batch`` returns, of inputs that are on the device already.

        Args:
            numbers: positions, classes and attribute values, int64 of shape (3, B), on the device.
            memory_format: of images.
        """
        assert isinstance(self.inputs, InMemoryInputs)
        positions, y, a = numbers
        return Batch(self._normalised(_gathered(self.inputs, positions), memory_format, None), y, a)

    def numbers(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return positions, classes and attribute values of some samples, shape (3, B)."""
        return np.stack([indices, self.y[indices], self.a[indices]])

    def _normalised(self, x: Tensor, memory_format: torch.memory_format, generator: np.random.Generator | None) -> Tensor:
        if self.augmentation is not None and generator is not None:
            x = self.augmentation(x, generator)
        if self.mean is not None and self.std is not None:
            mean, std = _constants(self.mean, self.std, x.shape[1:], x.device, memory_format)
            x = x.to(torch.float32, memory_format=memory_format).sub_(mean).div_(std)
        return x


def _on_gpu(dataset: Dataset, indices: NDArray[np.int64], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Return inputs, classes and attribute values.

    They go from pinned memory, so that the CPU can prepare the next step meanwhile, and all whole numbers at once: what counts
    is how many transfers there are. Inputs that fit stay there.
    """
    positions, y, a = torch.from_numpy(dataset.numbers(indices)).pin_memory().to(device, non_blocking=True)
    if dataset.targets is not None:
        y = torch.from_numpy(dataset.targets[indices]).pin_memory().to(device, non_blocking=True)
    if not dataset.is_resident(device):
        return dataset.inputs.fetch(indices).pin_memory().to(device, non_blocking=True), y, a
    assert isinstance(dataset.inputs, InMemoryInputs)
    return _gathered(dataset.inputs, positions), y, a


def _gathered(inputs: InMemoryInputs, positions: Tensor) -> Tensor:
    resident = _resident(inputs, positions.device)
    assert resident is not None
    x = resident.index_select(0, positions)
    return x.permute(0, 3, 1, 2) if x.dim() == 4 else x


@functools.lru_cache(maxsize=2)
def _resident(inputs: InMemoryInputs, device: torch.device) -> Tensor | None:
    """Return all inputs on a device, images with their channels last; ``None`` where they take more than a part of a GPU."""
    on_gpu = device.type == "cuda"
    if on_gpu and inputs.tensor.nbytes > _RESIDENT_SHARE * torch.cuda.get_device_properties(device).total_memory:
        return None
    with torch.inference_mode(mode=False):  # whoever asks first, it serves training too
        tensor = inputs.tensor.permute(0, 2, 3, 1) if inputs.tensor.dim() == 4 else inputs.tensor
        return tensor.to(device)


@functools.lru_cache(maxsize=16)
def _constants(
    mean: tuple[float, ...], std: tuple[float, ...], shape: torch.Size, device: torch.device, memory_format: torch.memory_format
) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation on the scale of uint8 pixels, each of shape (1, C, H, W).

    They are as large as an image: with the channels last, arithmetic with one constant per channel takes seven times as long.
    """
    constants = torch.tensor([mean, std], dtype=torch.float32) * 255
    whole = constants.view(2, -1, 1, 1).expand(2, *shape).contiguous(memory_format=memory_format).to(device)
    return whole[:1], whole[1:]
