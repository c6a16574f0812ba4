"""Coloured MNIST."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torchvision.datasets import MNIST

from fedfacet import rng
from fedfacet.data.dataset import Dataset, InMemoryInputs
from fedfacet.data.digits import COLOURS, colour
from fedfacet.data.generated import noise
from fedfacet.data.mnist_files import IMAGES, LABELS, PARTS, images_and_digits, mnist_files
from fedfacet.data.source import DatasetSource, located


@dataclass(eq=False, kw_only=True)
class ColouredMNIST(DatasetSource):
    """MNIST in red or green: y = digit >= 5, attribute = colour drawn Bernoulli(0.5), no label noise.

    Coloured MNIST as FedDiverse makes it (arXiv:2504.11216, section 5.1), after Arjovsky et al., arXiv:1907.02893, who also
    flip labels. Training samples come from MNIST's training files, test samples are MNIST's 10,000 test images, whose four
    groups are therefore only approximately equal. MNIST: LeCun, Cortes and Burges, CC BY-SA 3.0.

    Args:
        root: folder that holds ``MNIST/raw`` in torchvision's layout, files compressed or not.
        seed: of the colours; it does not follow the run's seed.
        download: fetch the files (12 MB) into ``root`` with torchvision where they are missing.
    """

    root: str
    seed: int = 0
    download: bool = False

    def __post_init__(self) -> None:
        self._files = mnist_files(located(self.root))

    def generate(self, demand: NDArray[np.int64] | None) -> None:
        """Write noise in MNIST's layout; see ``DatasetSource.generate``."""
        # Colours are drawn at random, so twice what the fullest cell asks for, and some for validation.
        per_cell = 20 + 2 * int(20 if demand is None else demand.max())
        for part, count in zip(PARTS, (4 * per_cell, 200), strict=True):
            digits = np.arange(count) % 10
            self._files.write(f"{part}-{IMAGES}", noise(f"mnist-{part}", digits, (28, 28)))
            self._files.write(f"{part}-{LABELS}", digits.astype(np.uint8))

    def load(self, demand: NDArray[np.int64] | None = None) -> Dataset:
        """Read MNIST and colour it; see ``DatasetSource.load``."""
        if self.download and not all(self._files.find(f"{part}-{kind}") for part in PARTS for kind in (IMAGES, LABELS)):
            MNIST(str(located(self.root)), train=True, download=True)
        pixels, digits = zip(*(images_and_digits(self._files, part) for part in PARTS), strict=True)
        y = (np.concatenate(digits) >= 5).astype(np.int64)
        draws = [rng.stream(self.seed, f"colour-{part}") for part in PARTS]
        a = np.concatenate([draw.integers(2, size=len(part)) for draw, part in zip(draws, digits, strict=True)])
        images = InMemoryInputs(colour(torch.from_numpy(np.concatenate(pixels)), torch.from_numpy(a)))
        train, test = np.split(np.arange(len(y)), [len(digits[0])])
        names = ("digit<5", "digit>=5")
        return Dataset(images, y, a, train, test, None, names, COLOURS, mean=(0.1307,) * 3, std=(0.3081,) * 3)
