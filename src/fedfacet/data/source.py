"""Where data sets come from: the contract of what ``dataset=NAME`` names."""

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from fedfacet.data.dataset import Dataset


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
