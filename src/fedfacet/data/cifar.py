"""What CIFAR-10 and CIFAR-100 share: images of 3 x 32 x 32 bytes in pickled mappings, torchvision's layout."""

import contextlib
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfacet.data.reading import reading
from fedfacet.errors import DatasetCorruptError, DatasetNotFoundError

BYTES = 3 * 32 * 32


@dataclass(frozen=True, slots=True)
class CifarFiles:
    """The files of CIFAR-10 or CIFAR-100; ``name`` says which, and ``how_to_get`` how to get them."""

    name: str
    folder: Path
    how_to_get: Callable[[], str]

    def read(self, part: str, keys: Mapping[str, int | None]) -> dict[str, Any]:
        """Return a pickled mapping that has ``keys``, each of the given length where one is given.

        Raises:
            DatasetNotFoundError: if there is no such file.
            DatasetCorruptError: if it is not such a mapping.
        """
        file = self.folder / part
        if not file.is_file():
            raise DatasetNotFoundError(
                f"Expected {self.name}'s file {part!r} in {self.folder}, but it is not there: {self.how_to_get()}."
            )
        with self._reading(file), file.open("rb") as opened:
            content = dict(_NumpyUnpickler(opened, encoding="latin1").load())
            lengths = {key: len(content[key]) for key in keys}
        if wrong := [key for key, length in keys.items() if length is not None and lengths[key] != length]:
            raise DatasetCorruptError(
                f"Expected {keys[wrong[0]]} entries under {wrong[0]!r} of {file}, but got {lengths[wrong[0]]}: delete the "
                "folder and fetch it again."
            )
        return content

    def images(self, part: str, content: Mapping[str, Any], labels: Mapping[str, int]) -> NDArray[np.uint8]:
        """Return the images of a file, shape (N, 3, 32, 32), whose label columns are held to their numbers of classes.

        Raises:
            DatasetCorruptError: if there are other images, or other labels: the first column has every class.
        """
        with self._reading(self.folder / part):
            data = content["data"]
            shape = getattr(data, "shape", None)
            columns = [np.asarray(content[key]) for key in labels]
            whole = isinstance(data, np.ndarray) and data.dtype == np.uint8 and shape == (len(columns[0]), BYTES)
            known = all(
                column.shape == (len(columns[0]),) and set(column.tolist()) <= set(range(number))
                for column, number in zip(columns, labels.values(), strict=True)
            )
            most = next(iter(labels.values()))
            if not whole or not known or len(set(columns[0].tolist())) != most:
                raise DatasetCorruptError(
                    f"Expected {self.folder / part} to hold images of {BYTES} bytes and as many labels of {most} classes, but "
                    f"got images of shape {shape} and {len(columns[0])} labels: delete the folder and fetch it again."
                )
            images: NDArray[np.uint8] = data.reshape(-1, 3, 32, 32)
            return images

    def _reading(self, file: Path) -> contextlib.AbstractContextManager[None]:
        return reading(file, f"a whole file of {self.name} in its Python version", "delete the folder and fetch it again")


class _NumpyUnpickler(pickle.Unpickler):
    """Reads arrays and plain data, and runs nothing else that a file may ask for."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("_codecs", "encode"):
            return super().find_class(module, name)
        if module in ("numpy", "numpy.core.multiarray", "numpy._core.multiarray", "numpy._core.numeric"):
            if name == "dtype":
                return _dtype
            if name in ("ndarray", "_reconstruct", "_frombuffer"):
                return super().find_class(module.replace("numpy.core", "numpy._core"), name)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


def _dtype(code: str, align: Any = False, copy: Any = False) -> np.dtype[Any]:
    """Return a dtype; the official files say 0 and 1 where numpy now wants False and True."""
    return np.dtype(code, bool(align), bool(copy))
