"""Your own arrays."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from fedfacet.arguments import Within
from fedfacet.data.arrays import dataset_from_arrays
from fedfacet.data.dataset import Dataset
from fedfacet.data.entries import shown, visible
from fedfacet.data.generated import enough, noise
from fedfacet.data.labels import owners_of
from fedfacet.data.reading import reading
from fedfacet.data.source import DatasetSource, located_inside
from fedfacet.errors import DatasetCorruptError, DatasetNotFoundError, first_line

_NAMES = ("class_names", "attribute_names")
_TEST = ("x_test", "y_test", "a_test")


@dataclass(eq=False, kw_only=True)
class Npz(DatasetSource):
    """Arrays of one file, as ``numpy.savez`` writes it.

    ``x`` of shape (N, ...) has the inputs (uint8 of shape (N, C, H, W) is images), ``y`` the classes from 0, and ``a``, if it
    is there, the attribute. ``x_test``, ``y_test`` and ``a_test`` are the test set; without them ``test_fraction`` of every
    (class, attribute) group tests. ``class_names`` and ``attribute_names`` are texts. Every other array of whole numbers
    or words, one for each sample, the test's after the others, is a column that clients may be made of: ``partition=natural
    partition.label=hospital``. A word for a missing value, as in ``dataset=csv``, means that a sample belongs to no client.
    What inputs may be, ``dataset_from_arrays`` says. Pickled objects are refused.

    Args:
        root: the folder that holds the file.
        file: its name.
        test_fraction: in (0, 1).
        seed: of the draw of the test set; it does not follow the run's seed.
    """

    root: str | Path
    file: str = "arrays.npz"
    test_fraction: Annotated[float, Within("(0, 1)")] = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.path = located_inside(self.root, self.file, "file")

    def generate(self, demand: NDArray[np.int64] | None) -> None:
        """Write images of noise; see ``DatasetSource.generate``."""
        classes, values, per_group = enough(demand, self.test_fraction)
        groups = np.repeat(np.arange(classes * values), per_group)
        y, a = np.divmod(groups, values)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("wb") as file:
            np.savez(file, x=noise("npz", groups, (3, 28, 28)), y=y, a=a, site=np.arange(len(y)) % 4)

    def load(self, demand: NDArray[np.int64] | None = None) -> Dataset:
        """Read the arrays; see ``DatasetSource.load``."""
        if not self.path.exists():
            raise DatasetNotFoundError(
                f"Expected arrays at {self.path}, but there is no such file: write them with `numpy.savez`, give "
                "`dataset.root=DIR dataset.file=NAME`, or point FEDFACET_DATA at the folder that holds it."
            )
        remedy = "write it with `numpy.savez`, arrays of numbers and texts only"
        with reading(self.path, "arrays", remedy), np.load(self.path, allow_pickle=False) as file:
            arrays: dict[str, NDArray[Any]] = dict(file)
            if other := [name for name, array in arrays.items() if not isinstance(array, np.ndarray)]:
                raise ValueError(f"{shown(other[0])} is no array")
        if lacking := [name for name in ("x", "y") if name not in arrays]:
            raise DatasetCorruptError(
                f"Expected the arrays x and y in {self.path}, but {lacking[0]} is not among "
                f"{', '.join(map(visible, arrays)) or 'none'}: "
                "name them so."
            )
        x, y, a = arrays.pop("x"), arrays.pop("y"), arrays.pop("a", None)
        wanted = [f"{name}_test" for name in ("xy" if a is None else "xya")]
        given = [name for name in _TEST if name in arrays]
        if given not in ([], wanted):
            raise DatasetCorruptError(
                f"Expected {' and '.join(wanted)} in {self.path}, or none of them, but it has {', '.join(given)}: a test set "
                "has what the other samples have."
            )
        held_out = tuple(arrays.pop(name) for name in given)
        names: dict[str, Any] = {name: _texts(name, arrays.pop(name), self.path) for name in _NAMES if name in arrays}
        columns, value_names = {}, {}
        for name, column in arrays.items():
            columns[name] = column
            if column.dtype.kind == "U" and column.ndim == 1:
                columns[name], value_names[name] = owners_of(name, column.tolist(), self._place)
        try:
            dataset = dataset_from_arrays(
                *(x, y, a), test=held_out or self.test_fraction, columns=columns, seed=self.seed, **names
            )
            return replace(dataset, value_names=value_names)
        except ValueError as error:
            raise DatasetCorruptError(f"In {self.path}: {first_line(error)}") from None

    def _place(self, row: int) -> str:
        return f"sample {row + 1} of {self.path}"


def _texts(name: str, array: NDArray[Any], path: Path) -> list[str]:
    if array.ndim != 1 or array.dtype.kind not in "Uiu":
        raise DatasetCorruptError(
            f"Expected the array {name} of {path} to have texts in one row, but got {array.dtype} of {array.shape}: write "
            "these."
        )
    return list(map(str, array.tolist()))
