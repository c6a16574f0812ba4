"""Where data sets come from: the contract of what ``dataset=NAME`` names."""

from abc import ABC, abstractmethod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedfacet.arguments import Declared
from fedfacet.data.dataset import Dataset
from fedfacet.errors import ConfigError


class DatasetSource(Declared, ABC):
    """Knows where a data set comes from; constructing one reads nothing.

    Arguments that are out of range raise ``ValueError``. A ``root`` is only read, unless it is to be filled with
    ``download=True``. A ``seed`` does not follow the run's seed.
    """

    option_group = "dataset."

    def generate(self, demand: NDArray[np.int64] | None) -> None:
        """Write small files where ``load`` reads, in the real layout, enough for ``demand``; for ``debug=smoke``.

        A data set that reads no files has nothing to do.
        """

    @abstractmethod
    def load(self, demand: NDArray[np.int64] | None = None) -> Dataset:
        """Read (or draw) the data set.

        Args:
            demand: training samples per (class, attribute) cell that the partition asks for, shape (Y, A); ``None`` where it
                takes what there is. Only data sets that deal their attribute themselves look at it.

        Raises:
            DatasetNotFoundError: if files are missing; the message names the folder, the download's size and command, and
                experiments that need none.
            DatasetCorruptError: if a file is truncated or unreadable; the message names it.
        """


def located(root: str | Path) -> Path:
    """Return a folder as an absolute path, ``~`` expanded."""
    return Path(root).expanduser().absolute()


def located_inside(root: str | Path, name: str, setting: str) -> Path:
    """Return a file or folder of a root as an absolute path.

    The name counts in a run's identity; where the root lies does not.

    Raises:
        ConfigError: if the name is none of something inside the root.
    """
    path = Path(name).expanduser()
    if path.is_absolute() or ".." in path.parts or not name:
        folder, last = (path.parent, path.name) if path.name else (path, ".")
        raise ConfigError(
            f"Expected `dataset.{setting}` to be a name inside `dataset.root`, but got {name!r}: give `dataset.root={folder} "
            f"dataset.{setting}={last}`."
        )
    return located(root) / path
