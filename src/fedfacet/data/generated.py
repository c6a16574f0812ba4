"""Small generated files in the layout of real data sets, so that the real loaders can run where nothing was downloaded."""

import csv
import gzip
import io
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedfacet import rng
from fedfacet.data import waterbirds
from fedfacet.data.drawn_dogs import draw_dog
from fedfacet.data.spawrious import FOLDER, PARTS

_DIGIT_SIZE, _MNIST_SIZE, _LARGEST_SHIFT = 20, 28, 2  # pixels


def write_spawrious(
    root: Path, *, classes: Sequence[str], attributes: Sequence[str], per_cell: int, image_size: int, seed: int = 0
) -> None:
    """Write drawn dogs as JPEG files to ``<root>/spawrious224/{0,1}/<place>/<breed>/``.

    ``per_cell`` images, 2 or larger, of each (breed, place) cell, one half for each of the folders 0 and 1; they are squares of
    8 pixels or more. Equal arguments write equal files, as in all functions here; numbers that are too small raise
    ``ValueError``.
    """
    if per_cell < len(PARTS):
        raise ValueError(f"Expected `per_cell` to be {len(PARTS)} or larger, but got {per_cell}.")
    for label, breed in enumerate(classes):
        for attribute, location in enumerate(attributes):
            for number in range(per_cell):
                folder = Path(root) / FOLDER / PARTS[number % len(PARTS)] / location / breed
                folder.mkdir(parents=True, exist_ok=True)
                draw = rng.stream(seed, "generated-spawrious", label, attribute, number)
                content = _jpeg(Image.fromarray(draw_dog(breed, location, image_size, draw)))
                write_whole(folder / f"{breed}_{location}_{number:05d}.jpg", content)


def write_waterbirds(root: Path, *, train_per_cell: int, held_out_per_cell: int, image_size: int, seed: int = 0) -> None:
    """Write drawn animals as JPEG files, wider than high, and their table to ``<root>/waterbird_complete95_forest2water2/``.

    Labradors stand in for landbirds, dachshunds for waterbirds, a jungle for land and a beach for water. The lines of the table
    are in a random order, as the splits of the real one are mixed.

    Numbers are per (class, background) cell, for validation and test alike, 1 or larger. ``image_size`` is the height, 8 pixels
    or more; images are a third wider.
    """
    if min(train_per_cell, held_out_per_cell) < 1:
        raise ValueError(
            f"Expected `train_per_cell` and `held_out_per_cell` to be 1 or larger, but got {train_per_cell} and "
            f"{held_out_per_cell}."
        )
    folder = Path(root) / waterbirds.FOLDER
    rows = []
    for label, (species, animal) in enumerate((("001.Landbird", "labrador"), ("002.Waterbird", "dachshund"))):
        (folder / species).mkdir(parents=True, exist_ok=True)
        for background, place in enumerate(("jungle", "beach")):
            splits = np.repeat(np.arange(3), (train_per_cell, held_out_per_cell, held_out_per_cell))
            for number, split in enumerate(splits.tolist()):
                draw = rng.stream(seed, "generated-waterbirds", label, background, number)
                image = Image.fromarray(draw_dog(animal, place, image_size, draw)).resize((image_size * 4 // 3, image_size))
                name = f"{species}/{place}_{number:05d}.jpg"
                write_whole(folder / name, _jpeg(image))
                rows.append([name, label, split, background, f"/{place[0]}/{place}/{number:08d}.jpg"])
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(["img_id", "img_filename", "y", "split", "place", "place_filename"])
    order = rng.stream(seed, "generated-waterbirds-order").permutation(len(rows))
    writer.writerows([line, *rows[row]] for line, row in enumerate(order.tolist(), start=1))
    write_whole(folder / waterbirds.TABLE, table.getvalue().encode())


def write_mnist(root: Path, *, num_train: int, num_test: int, seed: int = 0) -> None:
    """Write handwritten digits as compressed idx files to ``<root>/MNIST/raw/``.

    The digits are scikit-learn's bundled ones (1797 of 8 x 8 pixels), enlarged and set into 28 x 28 pixels with a random shift
    of up to two. No original serves both training and test; each is used again where more are asked for than there are.

    Numbers are 1 or larger.
    """
    from sklearn.datasets import load_digits  # imports scipy.io and more, needed here only

    if min(num_train, num_test) < 1:
        raise ValueError(f"Expected `num_train` and `num_test` to be 1 or larger, but got {num_train} and {num_test}.")
    digits, labels = load_digits(return_X_y=True)
    draw = rng.stream(seed, "generated-mnist")
    order = draw.permutation(len(labels))
    cut = int(np.clip(round(len(order) * num_test / (num_train + num_test)), 1, len(order) - 1))
    folder = Path(root) / "MNIST" / "raw"
    folder.mkdir(parents=True, exist_ok=True)
    for name, count, pool in (("t10k", num_test, order[:cut]), ("train", num_train, order[cut:])):
        chosen = np.resize(pool, count)
        images = np.zeros((count, _MNIST_SIZE, _MNIST_SIZE), dtype=np.uint8)
        corners = (_MNIST_SIZE - _DIGIT_SIZE) // 2 + draw.integers(-_LARGEST_SHIFT, _LARGEST_SHIFT + 1, size=(count, 2))
        for image, index, (top, left) in zip(images, chosen, corners, strict=True):
            small = Image.fromarray((digits[index].reshape(8, 8) * (255 / 16)).astype(np.uint8))
            large = small.resize((_DIGIT_SIZE, _DIGIT_SIZE), Image.Resampling.BICUBIC)
            image[top : top + _DIGIT_SIZE, left : left + _DIGIT_SIZE] = np.asarray(large)
        _write_idx(folder / f"{name}-images-idx3-ubyte.gz", images)
        _write_idx(folder / f"{name}-labels-idx1-ubyte.gz", labels[chosen].astype(np.uint8))


def _jpeg(image: Image.Image) -> bytes:
    content = io.BytesIO()
    image.save(content, "JPEG", quality=90)
    return content.getvalue()


def _write_idx(path: Path, values: NDArray[np.uint8]) -> None:
    """Write bytes in the idx format: two zeros, type 8 (unsigned byte), number of axes, then the axes as big-endian int32."""
    header = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, dtype=">i4").tobytes()
    write_whole(path, gzip.compress(header + values.tobytes(), mtime=0))


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that nobody sees it half-written: runs side by side may generate the same ones."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_bytes(content)
    draft.replace(path)
