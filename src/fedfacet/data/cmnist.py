"""Coloured MNIST."""

import gzip
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torchvision.datasets import MNIST

from fedfacet import rng
from fedfacet.data.dataset import Dataset, InMemoryInputs
from fedfacet.data.digits import COLOURS, colour
from fedfacet.data.generated import noise, write_whole
from fedfacet.data.reading import reading, unpacked
from fedfacet.data.source import DatasetSource, located
from fedfacet.errors import DatasetCorruptError, DatasetNotFoundError

_PARTS = ("train", "t10k")
_KINDS = ("images-idx3-ubyte", "labels-idx1-ubyte")


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
        self.folder = located(self.root) / "MNIST" / "raw"

    def generate(self, demand: NDArray[np.int64] | None) -> None:
        """Write noise in MNIST's layout; see ``DatasetSource.generate``."""
        # Colours are drawn at random, so twice what the fullest cell asks for, and some for validation.
        per_cell = 20 + 2 * int(20 if demand is None else demand.max())
        for part, count in zip(_PARTS, (4 * per_cell, 200), strict=True):
            digits = np.arange(count) % 10
            for kind, values in zip(_KINDS, (noise(f"mnist-{part}", digits, (28, 28)), digits.astype(np.uint8)), strict=True):
                header = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, dtype=">i4").tobytes()
                write_whole(self.folder / f"{part}-{kind}.gz", gzip.compress(header + values.tobytes(), mtime=0))

    def load(self, demand: NDArray[np.int64] | None = None) -> Dataset:
        """Read MNIST and colour it; see ``DatasetSource.load``."""
        if self.download and not all(self._find(f"{part}-{kind}") for part in _PARTS for kind in _KINDS):
            MNIST(str(located(self.root)), train=True, download=True)
        pixels, digits = [], []
        for part in _PARTS:
            pixels.append(self._read(f"{part}-{_KINDS[0]}", 28 * 28, header=16).reshape(-1, 28, 28))
            digits.append(self._read(f"{part}-{_KINDS[1]}", 1, header=8))
            if len(pixels[-1]) != len(digits[-1]) or digits[-1].max() > 9:
                raise DatasetCorruptError(
                    f"Expected MNIST's {part} files in {self.folder} to hold as many images as digits from 0 to 9, but got "
                    f"{len(pixels[-1])} images and {len(digits[-1])} numbers up to {digits[-1].max()}: delete them and fetch "
                    "them again."
                )
        y = (np.concatenate(digits) >= 5).astype(np.int64)
        draws = [rng.stream(self.seed, f"colour-{part}") for part in _PARTS]
        a = np.concatenate([draw.integers(2, size=len(part)) for draw, part in zip(draws, digits, strict=True)])
        images = InMemoryInputs(colour(torch.from_numpy(np.concatenate(pixels)), torch.from_numpy(a)))
        train, test = np.split(np.arange(len(y)), [len(digits[0])])
        names = ("digit<5", "digit>=5")
        return Dataset(images, y, a, train, test, None, names, COLOURS, mean=(0.1307,) * 3, std=(0.3081,) * 3)

    def _find(self, name: str) -> Path | None:
        return next((file for file in (self.folder / name, self.folder / f"{name}.gz") if file.is_file()), None)

    def _read(self, name: str, width: int, *, header: int) -> NDArray[np.uint8]:
        file = self._find(name)
        if file is None:
            raise DatasetNotFoundError(
                f"Expected MNIST's {name}(.gz) in {self.folder}, but it is not there: fetch MNIST (12 MB) with "
                "`python src/train.py experiment=cmnist_gsc dataset.download=true`, point FEDFACET_DATA at a folder that holds "
                "mnist/MNIST/raw, or use `experiment=digits_gsc` instead, which needs no download."
            )
        with reading(file, "a whole file of MNIST", "delete it and fetch it again"):
            content = unpacked(file)
        count = int.from_bytes(content[4:8], "big")
        if len(content) != header + count * width or count == 0:
            raise DatasetCorruptError(
                f"Expected {file} to hold {header + count * width} bytes, as its header says, but it holds {len(content)}: "
                "delete it and fetch it again."
            )
        return np.frombuffer(content, np.uint8, offset=header)
