"""Images with an attribute that an estimator has to find by itself: pairs of a data set and an attribute, easy to hard.

Every pair has two classes and two attribute values. ``LOOKED_AT`` were looked at while ``heterogeneity=clustered`` and
``heterogeneity=shared`` were designed. ``UNSEEN`` were run once, when ``clustered`` was done; ``LATER`` when ``shared`` was.
"""

import csv
import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from scipy.ndimage import gaussian_filter, rotate

from fedfacet import rng
from fedfacet.data.arrays import dataset_from_arrays
from fedfacet.data.dataset import Dataset

Floats = NDArray[np.float32]
Labels = NDArray[np.int64]
Paint = Callable[[Floats, Labels, np.random.Generator], Floats]
"""Pixels in [0, 1] of shape (N, 3, H, W), and the attribute of each image -> pixels that show it."""


def _times(colours: Floats) -> Floats:
    return colours[:, :, None, None]


def _hues(hue: Floats) -> Floats:
    """Return the bright colours of some hues, one turn being 1, of shape (N, 3)."""
    turn = (hue[:, None] * 6 + np.array([0, 4, 2], dtype=np.float32)) % 6
    return np.clip(np.abs(turn - 3) - 1, 0, 1)


def tint(x: Floats, a: Labels, draw: np.random.Generator) -> Floats:
    """Red or green."""
    return x * _times(np.eye(3, dtype=np.float32)[a])


def hue(x: Floats, a: Labels, draw: np.random.Generator) -> Floats:
    """Reddish or bluish, by a hue that varies with a deviation of 0.08 turns around 0.0 or 0.5."""
    return x * _times(_hues((0.5 * a + 0.08 * draw.normal(size=len(a))).astype(np.float32) % 1))


def background(x: Floats, a: Labels, draw: np.random.Generator) -> Floats:
    """Black, or grey noise behind the ink."""
    noise = 0.5 * draw.random((len(x), 1, *x.shape[2:]), dtype=np.float32)
    return np.maximum(x, noise * (a == 1)[:, None, None, None])


def patch(x: Floats, a: Labels, draw: np.random.Generator) -> Floats:
    """A white square in the upper left corner or in the lower right one."""
    x = x.copy()
    x[a == 0, :, 1:5, 1:5] = 1
    x[a == 1, :, -5:-1, -5:-1] = 1
    return x


def grey(x: Floats, a: Labels, draw: np.random.Generator) -> Floats:
    """In colour or grey."""
    return np.where((a == 1)[:, None, None, None], x.mean(axis=1, keepdims=True), x)


def blur(x: Floats, a: Labels, draw: np.random.Generator) -> Floats:
    """Sharp, or blurred by a Gaussian of one pixel."""
    return np.where((a == 1)[:, None, None, None], gaussian_filter(x, (0, 0, 1, 1)), x)


def brightness(x: Floats, a: Labels, draw: np.random.Generator) -> Floats:
    """Bright or dark, by a factor of about 1 or about 0.5."""
    factors = np.where(a == 1, 0.5, 1.0) * draw.uniform(0.85, 1, size=len(a))
    return x * factors.astype(np.float32)[:, None, None, None]


def warmth(x: Floats, a: Labels, draw: np.random.Generator) -> Floats:
    """Photographs in warm or in cold light, of a strength that varies."""
    strength = (draw.uniform(0.1, 0.3, size=len(a)) * np.where(a == 1, -1, 1)).astype(np.float32)
    return np.clip(x * _times(np.stack([1 + strength, np.ones_like(strength), 1 - strength], axis=1)), 0, 1)


def stripes(x: Floats, a: Labels, draw: np.random.Generator) -> Floats:
    """Ink with stripes across or along it, two pixels wide, at an offset that varies."""
    places = np.arange(x.shape[2])[None] + draw.integers(4, size=(len(a), 1))
    wave = (places // 2 % 2).astype(np.float32) * 0.7 + 0.3
    return x * np.where((a == 1)[:, None, None, None], wave[:, None, None, :], wave[:, None, :, None])


def marker(x: Floats, a: Labels, draw: np.random.Generator) -> Floats:
    """A radiographer's marker, a small bright L near the upper left corner, or none."""
    x = x.copy()
    for image, (row, column) in zip(np.flatnonzero(a == 1), draw.integers(1, 4, size=((a == 1).sum(), 2)), strict=True):
        x[image, :, row : row + 6, column : column + 2] = 0.95
        x[image, :, row + 4 : row + 6, column : column + 5] = 0.95
    return x


def frame(x: Floats, a: Labels, draw: np.random.Generator) -> Floats:
    """A white frame of two pixels, or none."""
    x = x.copy()
    for edge in (np.s_[:, :, :2], np.s_[:, :, -2:], np.s_[:, :, :, :2], np.s_[:, :, :, -2:]):
        x[edge][a == 1] = 1
    return x


def noise(x: Floats, a: Labels, draw: np.random.Generator) -> Floats:
    """As it is, or with Gaussian noise of deviation 0.1."""
    grain = 0.1 * draw.standard_normal(x.shape, dtype=np.float32)
    return np.clip(x + grain * (a == 1)[:, None, None, None], 0, 1)


def rotation(x: Floats, a: Labels, draw: np.random.Generator) -> Floats:
    """Upright, or turned to the left by 60 degrees."""
    turned = rotate(x[a == 1], 60, axes=(2, 3), reshape=False, order=1)
    x = x.copy()
    x[a == 1] = np.clip(turned, 0, 1)
    return x


def as_it_is(x: Floats, a: Labels, draw: np.random.Generator) -> Floats:
    """With an attribute that the images have of themselves."""
    return x


def _unpacked(file: Path) -> bytes:
    return gzip.decompress(file.read_bytes())


def mnist(root: Path) -> tuple[Floats, Labels, Labels | None]:
    """Return 24,000 of MNIST's digits, whether they are 5 or larger."""
    folder, chosen = root / "mnist" / "MNIST" / "raw", slice(24_000)
    x = np.frombuffer(_unpacked(folder / "train-images-idx3-ubyte.gz"), "u1", offset=16).reshape(-1, 1, 28, 28)
    y = np.frombuffer(_unpacked(folder / "train-labels-idx1-ubyte.gz"), "u1", offset=8)
    return np.repeat(x[chosen], 3, axis=1).astype(np.float32) / 255, (y[chosen] >= 5).astype(np.int64), None


def mnist_writers(root: Path) -> tuple[Floats, Labels, Labels | None]:
    """Return 24,000 digits of both of NIST's series: of employees, and of students, which the order of MNIST keeps apart."""
    folder = root / "mnist" / "MNIST" / "raw"
    table = np.frombuffer(_unpacked(root / "mnist/QMNIST/raw/qmnist-train-labels-idx2-int.gz"), ">i4", offset=12)
    series = (table.reshape(-1, 8)[:, 1] == 4).astype(np.int64)
    chosen = np.sort(np.concatenate([np.flatnonzero(series == value)[:12_000] for value in range(2)]))
    x = np.frombuffer(_unpacked(folder / "train-images-idx3-ubyte.gz"), "u1", offset=16).reshape(-1, 1, 28, 28)
    y = np.frombuffer(_unpacked(folder / "train-labels-idx1-ubyte.gz"), "u1", offset=8)
    return np.repeat(x[chosen], 3, axis=1).astype(np.float32) / 255, (y[chosen] >= 5).astype(np.int64), series[chosen]


def cifar(root: Path) -> tuple[Floats, Labels, Labels | None]:
    """Return 20,000 of CIFAR-100's photographs, whether their superclass is one of the second ten."""
    x, y = [], []
    with open(root / "cifar100" / "classes.csv", newline="") as rows:
        for row in csv.DictReader(rows):
            sheet = np.asarray(Image.open(root / "cifar100" / "train" / f"{row['fine_name']}.webp").convert("RGB"))
            tiles = sheet.reshape(sheet.shape[0] // 32, 32, sheet.shape[1] // 32, 32, 3).swapaxes(1, 2).reshape(-1, 32, 32, 3)
            x.append(tiles[:200])
            y += [int(int(row["coarse_label"]) >= 10)] * len(x[-1])
    return np.concatenate(x).transpose(0, 3, 1, 2).astype(np.float32) / 255, np.array(y), None


def pneumonia(root: Path) -> tuple[Floats, Labels, Labels | None]:
    """Return PneumoniaMNIST's chest X-rays."""
    with np.load(root / "pneumoniamnist" / "pneumoniamnist.npz") as parts:
        x = np.concatenate([parts[f"{part}_images"] for part in ("train", "val", "test")])
        y = np.concatenate([parts[f"{part}_labels"] for part in ("train", "val", "test")])
    return np.repeat(x[:, None], 3, axis=1).astype(np.float32) / 255, y.reshape(-1).astype(np.int64), None


LOOKED_AT = {
    "digits, pure tint": (mnist, tint),
    "digits, hue that varies": (mnist, hue),
    "digits, noise behind": (mnist, background),
    "digits, patch": (mnist, patch),
    "digits, writer series": (mnist_writers, as_it_is),
    "photographs, grey": (cifar, grey),
    "photographs, blur": (cifar, blur),
    "photographs, brightness": (cifar, brightness),
}
UNSEEN = {
    "digits, stripes": (mnist, stripes),
    "photographs, warmth": (cifar, warmth),
    "X-rays, marker": (pneumonia, marker),
    "X-rays, brightness": (pneumonia, brightness),
}
LATER = {
    "X-rays, frame": (pneumonia, frame),
    "X-rays, blur": (pneumonia, blur),
    "photographs, noise": (cifar, noise),
    "digits, rotation": (mnist, rotation),
}
GROUPS = {"looked_at": LOOKED_AT, "unseen": UNSEEN, "later": LATER}
PAIRS = LOOKED_AT | UNSEEN | LATER


def load(pair: str, root: Path, seed: int = 0) -> Dataset:
    """Return the images of a pair; attributes that are painted are drawn with equal chances, whatever the class."""
    read, paint = PAIRS[pair]
    x, y, a = read(root)
    if a is None:
        a = rng.stream(seed, f"attribute-{pair}").integers(2, size=len(y))
    painted = paint(x, a, rng.stream(seed, f"paint-{pair}"))
    return dataset_from_arrays(torch.from_numpy(np.rint(255 * painted).astype(np.uint8)), y, a, test=0.1, seed=seed)
