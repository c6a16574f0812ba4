"""Coloured handwritten digits that need no download."""

import gzip
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedfacet import rng
from fedfacet.arguments import Within
from fedfacet.data.dataset import Dataset, InMemoryInputs
from fedfacet.data.source import DatasetSource
from fedfacet.errors import InfeasiblePartitionError

COLOURS = ("red", "green")


@dataclass(eq=False, kw_only=True)
class Digits(DatasetSource):
    """scikit-learn's handwritten digits in red or green: y = digit >= 5, attribute = colour, 3 x 8 x 8 pixels.

    1,797 real digits of 43 writers (Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI 1998, CC BY 4.0).
    Colours are ours to give: a seeded permutation of each class deals them to exactly the training cells that a partition
    demands. What is left of each class is cut into validation and test cells, all of one size.

    Args:
        seed: of the permutations; it does not follow the run's seed.
        held_out_fraction: the part of every class that is kept for validation and test where the partition demands no
            particular cells (iid, Dirichlet), in (0, 1).
    """

    seed: int = 0
    held_out_fraction: Annotated[float, Within("(0, 1)")] = 0.4

    def load(self, demand: NDArray[np.int64] | None = None) -> Dataset:
        """Read the digits and colour them; see ``DatasetSource.load``."""
        grey, digits = _read()
        y = (digits >= 5).astype(np.int64)
        a = np.zeros_like(y)
        class_sizes = np.bincount(y, minlength=2)
        if demand is None:
            half = ((1 - self.held_out_fraction) * class_sizes / 2).astype(np.int64)
            demand = np.stack([half, half], axis=1)
        if demand.shape != (2, 2):
            raise InfeasiblePartitionError(
                f"Expected a partition of 2 classes and 2 attribute values for the coloured digits, but got {demand.shape[0]} "
                f"and {demand.shape[1]}: choose another partition or dataset."
            )
        for label in range(2):
            if demand[label].sum() + 4 > class_sizes[label]:
                raise InfeasiblePartitionError(
                    f"Expected at most {class_sizes[label] - 4} training samples of class {label} (both colours together), "
                    f"which leaves some for validation and test, but the partition asks for {demand[label].sum()}: lower "
                    "`partition.scale` (0.2 suits the gsc and gci federations)."
                )
        held_out = int(((class_sizes - demand.sum(axis=1)) // 4).min())
        splits: list[list[NDArray[np.int64]]] = [[], [], []]
        for label in range(2):
            samples = rng.stream(self.seed, "digits", label).permutation(np.flatnonzero(y == label))
            cuts = np.cumsum([*demand[label], *[held_out] * 4])
            for position, part in enumerate(np.split(samples, cuts)[:-1]):
                a[part] = position % 2
                splits[position // 2].append(part)
        train, val, test = (np.sort(np.concatenate(parts)) for parts in splits)
        images = colour(torch.from_numpy(np.rint(grey * (255 / 16)).astype(np.uint8)), torch.from_numpy(a))
        names = ("digit<5", "digit>=5")
        # Mean and deviation of the grey digits, for every channel, as Coloured MNIST takes MNIST's.
        return Dataset(InMemoryInputs(images), y, a, train, test, val, names, COLOURS, (0.3053,) * 3, (0.3760,) * 3)


def _read() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the images and which digits they show, as ``sklearn.datasets.load_digits`` does.

    They come from the file that scikit-learn ships: to import it takes longer than to train a round.
    """
    sklearn = importlib.util.find_spec("sklearn")
    for folder in (sklearn and sklearn.submodule_search_locations) or ():
        if (file := Path(folder) / "datasets" / "data" / "digits.csv.gz").is_file():
            with gzip.open(file, "rt") as lines:
                table = np.loadtxt(lines, delimiter=",")
            return table[:, :-1].reshape(-1, 8, 8), table[:, -1].astype(np.int64)
    from sklearn.datasets import load_digits  # it lies elsewhere in this release

    bunch = load_digits()
    return bunch.images, bunch.target


def colour(grey: Tensor, attribute: Tensor) -> Tensor:
    """Return RGB images, (N, 3, H, W), of grey ones, uint8 (N, H, W): red ink for the attribute 0, green for 1."""
    images = torch.zeros(len(grey), 3, *grey.shape[1:], dtype=torch.uint8)
    images[torch.arange(len(grey)), attribute] = grey
    return images
