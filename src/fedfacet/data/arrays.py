"""Data sets from arrays, and from any ``torch.utils.data.Dataset``."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fedfacet.data.dataset import Dataset, InMemoryInputs
from fedfacet.data.entries import holds_controls, too_many
from fedfacet.data.labels import fault_of_classes, split_groups, warn_of_attributes

Labels = NDArray[np.int64]

_LEAST_STD = 1e-6


def dataset_from_arrays(  # noqa: PLR0913  # the keywords of a public constructor
    x: ArrayLike | Tensor,
    y: ArrayLike | Tensor,
    a: ArrayLike | Tensor | None = None,
    *,
    test: float | Sequence[Any] = 0.2,
    class_names: Sequence[str] | None = None,
    attribute_names: Sequence[str] | None = None,
    columns: Mapping[str, ArrayLike | Tensor] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    seed: int = 0,
) -> Dataset:
    """Return a data set of copied arrays, numpy's or torch's.

    Args:
        x: inputs, shape (N, ...). uint8 of shape (N, C, H, W) is images, which are normalised. All other whole numbers are
            tokens and become int64; all other numbers become float32 (float64, too) and go into a model as they are.
        y: classes, whole numbers from 0, shape (N,). Fractions, or several numbers a sample, become ``Dataset.targets``.
            A LightningModule that measures itself trains on these, and groups are attribute values.
        a: attribute values, whole numbers from 0, shape (N,); ``None`` for a data set without an attribute.
        test: the part of every (class, attribute) group that is the test set, in (0, 1), rounded, at least one sample of each;
            or the test set's own arrays, ``(x, y)`` or ``(x, y, a)``, which come after the others.
        class_names: Y names; by default ``"0"``, ``"1"``, ...
        attribute_names: A names; by default ``"0"``, ``"1"``, ..., or ``"none"`` without an attribute.
        columns: further labels by name, whole numbers of shape (N,), test samples included; a partition may be made by them.
        mean: of the images' channels, in pixels scaled to [0, 1]; by default that of the training images.
        std: standard deviation of the images' channels, likewise.
        seed: of the draw of the test set; 0 or larger.

    Raises:
        ValueError: if arrays are empty, of different lengths, no numbers or not finite, if labels are no whole numbers from 0
            or have too few names, or if a group has only one sample to split.

    Example:
        >>> from sklearn.datasets import load_breast_cancer
        >>> x, y = load_breast_cancer(return_X_y=True)
        >>> dataset = dataset_from_arrays(x, y, class_names=["malignant", "benign"])
        >>> len(dataset.train), len(dataset.test), dataset.input_shape, dataset.batch(dataset.test).x.dtype
        (456, 113, (30,), torch.float32)
    """
    targets = None
    if (numbers := _targets(y)) is not None:
        y = np.zeros(len(numbers), np.int64)
        class_names = class_names or ("all",)
        targets = [numbers]
        if isinstance(test, tuple | list) and len(test) > 1:
            targets.append(_array("y", test[1]).astype(np.float32))
            test = (test[0], np.zeros(len(targets[1]), np.int64), *test[2:])
    parts = [_part(x, y, a)]
    if not isinstance(test, int | float):
        parts.append(_held_out(test, parts[0][0], with_attribute=a is not None))
    inputs = torch.cat([part[0] for part in parts])
    labels, attributes = (np.concatenate([part[position] for part in parts]) for position in (1, 2))
    classes = _names("class_names", class_names, labels)
    values = ("none",) if a is None and attribute_names is None else _names("attribute_names", attribute_names, attributes)
    if isinstance(test, int | float):
        train, tested = split_groups(labels * len(values) + attributes, test, seed)
    else:
        train, tested = np.split(np.arange(len(labels)), [len(parts[0][1])])
        if (fault := fault_of_classes(labels[train], labels[tested], classes)) is not None:
            raise ValueError(fault)
        warn_of_attributes(attributes[train], attributes[tested], values)
    if too_many(np.unique(labels).astype(str).tolist(), len(labels)):
        raise ValueError(
            f"Expected `y` to have a few classes that many samples share, but it has {len(np.unique(labels))} in {len(labels)} "
            "samples: give classes, or put ranges in place of numbers."
        )
    if inputs.dtype == torch.uint8 and mean is None and std is None:
        mean, std = _moments(inputs, train)
    for name, given in (("mean", mean), ("std", std)):
        wanted = inputs.shape[1] if inputs.dtype == torch.uint8 else 0
        numbers = np.asarray(() if given is None else given, dtype=np.float32)
        if numbers.shape != (wanted,) or not np.isfinite(numbers).all() or (name == "std" and (numbers <= _LEAST_STD).any()):
            raise ValueError(
                f"Expected `mean` and `std` of images alone, a number for each channel (here {wanted}) and a `std` larger than "
                f"0 ({_LEAST_STD}), but got {name} = {given}: leave out both."
            )
    if shadowed := {"y", "a"} & set(columns or ()):
        raise ValueError(f"Expected `columns` of other names than y and a, but got {shadowed.pop()!r}: choose another name.")
    return Dataset(
        *(InMemoryInputs(inputs), labels, attributes, train, tested, None, classes, values),
        mean=None if mean is None else tuple(map(float, mean)),
        std=None if std is None else tuple(map(float, std)),
        columns={name: _labels(f"columns[{name!r}]", column, len(labels)) for name, column in (columns or {}).items()},
        targets=None if targets is None else np.concatenate(targets),
    )


def dataset_from_torch(dataset: Any, *, test: Any = 0.2, **settings: Any) -> Dataset:
    """Return a data set of any map-style ``torch.utils.data.Dataset`` that yields ``(x, y)`` or ``(x, y, a)``.

    It is read once and kept in memory: random transforms are drawn only once. ``test`` is as in ``dataset_from_arrays``, or
    another such data set; ``settings`` are its other arguments.

    Raises:
        ValueError: as in ``dataset_from_arrays``, or if samples have different shapes.

    Example:
        >>> numbers = torch.utils.data.TensorDataset(torch.randn(20, 3), torch.arange(20) % 2)
        >>> dataset = dataset_from_torch(numbers, test=0.5)
        >>> len(dataset.train), len(dataset.test), dataset.num_classes, dataset.num_attributes
        (10, 10, 2, 1)
    """
    held_out = test if isinstance(test, int | float | tuple | list) else _read(test)
    return dataset_from_arrays(*_read(dataset), test=held_out, **settings)


def _read(dataset: Any) -> tuple[Any, ...]:
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise ValueError(
            f"Expected a map-style data set, with a length and numbered samples, but got {type(dataset).__name__}: read it "
            "into arrays and call `dataset_from_arrays`."
        )
    samples = [dataset[position] for position in range(len(dataset))]
    sizes = {len(sample) if isinstance(sample, tuple | list) else 1 for sample in samples}
    if len(sizes) != 1 or not sizes <= {2, 3}:
        raise ValueError(
            f"Expected one or more samples, all (x, y) or all (x, y, a), but got {len(samples)} samples with "
            f"{' or '.join(map(str, sorted(sizes))) or 'no'} values each: have the data set return these."
        )
    try:
        return tuple(
            np.stack([_array(name, value) for value in values])
            for name, values in zip("xya", zip(*samples, strict=True), strict=False)
        )
    except ValueError as error:
        raise ValueError(f"Expected samples of one shape that hold numbers, but they do not ({error}).") from None


def _part(x: Any, y: Any, a: Any = None) -> tuple[Tensor, Labels, Labels]:
    inputs = inputs_of(_array("x", x))
    labels = _labels("y", y, len(inputs), least=0)
    return inputs, labels, np.zeros_like(labels) if a is None else _labels("a", a, len(inputs), least=0)


def _targets(y: Any) -> NDArray[np.float32] | None:
    """Return the numbers to predict, shape (N, ...); ``None`` where ``y`` may be classes."""
    array = _array("y", y)
    if array.ndim < 1 or not array.size:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        if array.size == len(array) and (array % 1 == 0).all():
            return None
        numbers = array.astype(np.float32)
    finite = np.isfinite(numbers.reshape(len(numbers), -1)).all(axis=1)
    if array.ndim == 1 and np.isnan(array).any():
        return None  # labels of which some are missing
    if not finite.all():
        row = int(finite.argmin())
        raise ValueError(
            f"Expected `y` to be finite in float32, but y[{row}] holds NaN or infinity: fill or drop such samples."
        )
    return numbers


def _held_out(test: Any, others: Tensor, *, with_attribute: bool) -> tuple[Tensor, Labels, Labels]:
    wanted = "(x, y, a)" if with_attribute else "(x, y)"
    if not isinstance(test, tuple | list) or len(test) != 2 + with_attribute:
        raise ValueError(f"Expected `test` to be a number in (0, 1) or arrays {wanted}, but got {type(test).__name__}.")
    part = _part(*test)
    if part[0].shape[1:] != others.shape[1:] or part[0].dtype != others.dtype:
        raise ValueError(
            f"Expected test inputs of the others' shape and type, {tuple(others.shape[1:])} and {others.dtype}, but got "
            f"{tuple(part[0].shape[1:])} and {part[0].dtype}: bring them to the same."
        )
    return part


def _array(name: str, values: Any) -> NDArray[Any]:
    try:
        array = np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values)
    except ValueError:  # numpy's, for rows of different lengths
        array = np.empty(0, dtype=object)
    if array.dtype.kind not in "biuf":
        raise ValueError(
            f"Expected `{name}` to hold numbers in rows of one length, but got an array of type {array.dtype}: turn words into "
            "numbers, as `numpy.unique(words, return_inverse=True)` does."
        )
    return array


def inputs_of(array: NDArray[Any]) -> Tensor:
    """Return inputs as a model is given them, copied; ``ValueError`` if they are none. See ``dataset_from_arrays``."""
    if array.ndim < 2 or not array.size:
        raise ValueError(f"Expected `x` to have the shape (N, ...), with at least one number a sample, but got {array.shape}.")
    if array.dtype == np.uint8:
        if array.ndim != 4 or (array.shape[1] > 4 >= array.shape[3]):
            raise ValueError(
                f"Expected inputs of type uint8 to be images of shape (N, C, H, W), but got {array.shape}: put the channels "
                "there, as `x[:, None]` or `numpy.moveaxis(x, -1, 1)` does, or convert vectors to float32 and tokens to int64."
            )
        return torch.tensor(array)
    if array.dtype.kind in "iu":
        if array.max() > np.iinfo(np.int64).max:
            raise ValueError(f"Expected whole numbers that int64 can hold, but `x` has {array.max()}: convert it to float32.")
        return torch.tensor(array.astype(np.int64))
    with np.errstate(over="ignore"):
        vectors = torch.tensor(array.astype(np.float32))
    if not vectors.isfinite().all():
        row = int(vectors.isfinite().flatten(1).all(dim=1).int().argmin())
        raise ValueError(
            f"Expected `x` to be finite in float32, but x[{row}] holds NaN or infinity: fill or drop such samples."
        )
    return vectors


def _labels(name: str, values: Any, length: int, least: int | None = None) -> Labels:
    array = _array(name, values)
    if array.shape != (length,):
        each = "one label a sample" if least is not None else "one label a sample, the test's after the others"
        raise ValueError(f"Expected `{name}` to have the shape ({length},), {each}, but got {array.shape}.")
    wrong = array[~np.isfinite(array) | (array % 1 != 0) | (np.abs(array.astype(np.float64)) >= 2**53)]
    if least is not None and not len(wrong):
        wrong = array[array < least]
    if len(wrong):
        kind = "whole numbers" if least is None else f"whole numbers, {least} or larger"
        raise ValueError(f"Expected `{name}` to be {kind}, but got {wrong[0]}: number the labels from 0.")
    return array.astype(np.int64)


def _names(setting: str, names: Sequence[str] | None, labels: Labels) -> tuple[str, ...]:
    """Return the names of the labels; without given names each label must have some samples."""
    largest = int(labels.max())
    if names is None:
        if len(present := np.unique(labels)) <= largest:
            lacking = int(np.argmax(present != np.arange(len(present))))
            raise ValueError(
                f"Expected samples of every label from 0 to {largest}, but label {lacking} has none: number the labels from 0 "
                f"without gaps, or give `{setting}`."
            )
        return tuple(map(str, range(largest + 1)))
    if isinstance(names, str) or len(names) <= largest:
        found = repr(names) if isinstance(names, str) else len(names)
        raise ValueError(f"Expected `{setting}` to have a name for each label from 0 to {largest}, but got {found}.")
    texts = tuple(map(str, names))
    if len(set(texts)) < len(texts) or any(map(holds_controls, texts)):
        raise ValueError(f"Expected `{setting}` to be different names without control characters, but got {texts!r:.200}.")
    return texts


def _moments(pixels: Tensor, train: Labels) -> tuple[list[float], list[float]]:
    """Return mean and standard deviation of each channel of the training images, scaled to [0, 1]; 1 where there is none."""
    means, stds, values = [], [], np.arange(256)
    for channel in range(pixels.shape[1]):
        counts = np.bincount(pixels[torch.from_numpy(train), channel].numpy().ravel(), minlength=256)
        mean = np.average(values, weights=counts)
        means.append(float(mean) / 255)
        stds.append(float(np.sqrt(np.average((values - mean) ** 2, weights=counts))) / 255 or 1.0)
    return means, stds
