"""Coloured handwritten digits that need no download."""

import numpy as np
import torch
from numpy.typing import NDArray

from fedfacet import rng
from fedfacet.arguments import check_within
from fedfacet.data.colours import COLOURS, colour
from fedfacet.data.dataset import Dataset, InMemoryInputs
from fedfacet.data.source import DatasetSource
from fedfacet.errors import InfeasiblePartitionError


class Digits(DatasetSource):
    """scikit-learn's handwritten digits in red or green: y = digit >= 5, attribute = colour, 3 x 8 x 8 pixels.

    1,797 real digits of 43 writers (Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI 1998, CC BY 4.0),
    shipped with scikit-learn. A seeded permutation of each class gives the colours, so that the training cells are exactly
    those that a partition demands. The rest of each class becomes validation and test cells, all of one size.

    Args:
        seed: of the permutations; it does not follow the run's seed.
        held_out_fraction: the part of every class that is kept for validation and test where the partition demands no
            particular cells (iid, Dirichlet), in (0, 1).

    Raises:
        ValueError: if ``held_out_fraction`` is out of range.
    """

    def __init__(self, *, seed: int = 0, held_out_fraction: float = 0.4) -> None:
        check_within("held_out_fraction", held_out_fraction, "(0, 1)")
        self.seed = seed
        self.held_out_fraction = held_out_fraction

    def load(self, demand: NDArray[np.int64] | None = None) -> Dataset:
        """Read the digits and colour them; see ``DatasetSource.load``."""
        from sklearn.datasets import load_digits  # imports scipy.io and more, needed here only

        bunch = load_digits()
        y = (bunch.target >= 5).astype(np.int64)
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
        short = [label for label in range(2) if demand[label].sum() + 4 > class_sizes[label]]
        if short:
            raise InfeasiblePartitionError(
                f"Expected at most {class_sizes[short[0]] - 4} training samples of class {short[0]} (both colours together), "
                f"which leaves some for validation and test, but the partition asks for {demand[short[0]].sum()}: lower "
                "`partition.scale` (0.2 suits the gsc and gci federations)."
            )
        held_out = int(((class_sizes - demand.sum(axis=1)) // 4).min())
        splits: dict[str, list[NDArray[np.int64]]] = {"train": [], "val": [], "test": []}
        for label in range(2):
            samples = rng.stream(self.seed, "digits", label).permutation(np.flatnonzero(y == label))
            sizes = [("train", demand[label, 0]), ("train", demand[label, 1])]
            sizes += [(split, held_out) for split in ("val", "test") for _ in COLOURS]
            for position, (split, size) in enumerate(sizes):
                part, samples = samples[:size], samples[size:]
                a[part] = position % 2
                splits[split].append(part)
        grey = torch.from_numpy(np.rint(bunch.images * (255 / 16)).astype(np.uint8))
        return Dataset(
            inputs=InMemoryInputs(colour(grey, torch.from_numpy(a))),
            y=y,
            a=a,
            train=np.sort(np.concatenate(splits["train"])),
            test=np.sort(np.concatenate(splits["test"])),
            val=np.sort(np.concatenate(splits["val"])),
            class_names=("digit<5", "digit>=5"),
            attribute_names=COLOURS,
            # Of the grey digits, for every channel, as Coloured MNIST takes MNIST's.
            mean=(0.3053,) * 3,
            std=(0.3760,) * 3,
        )
