"""The data folder's lossless contact sheets of CIFAR-100, or of a part of CIFAR-10, written in the binary version's layout.

    python tests/data/cifar_sheets.py SHEETS ROOT

writes ``ROOT/cifar-100-binary/`` (about 180 MB), for ``dataset=cifar100 dataset.root=ROOT``, or ``ROOT/cifar-10-batches-bin/``,
for ``dataset=cifar10 dataset.root=ROOT``. Each class of each split is one sheet of 32 x 32 images, 20 in a row; ``classes.csv``
has the official label numbers and names.
"""

import contextlib
import csv
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image


def load(sheets, split):
    """Return the images of one split, uint8 of shape (N, 32, 32, 3), sorted by class, and their labels."""
    images, labels = [], []
    for label, name, *_ in (row.values() for row in classes(sheets)):
        sheet = np.asarray(Image.open(Path(sheets) / split / f"{name}.webp").convert("RGB"))
        height, width, _ = sheet.shape
        tiles = sheet.reshape(height // 32, 32, width // 32, 32, 3).swapaxes(1, 2).reshape(-1, 32, 32, 3)
        images.append(tiles)
        labels += [int(label)] * len(tiles)
    return np.concatenate(images), np.array(labels)


def classes(sheets):
    with open(Path(sheets) / "classes.csv", newline="") as file:
        return list(csv.DictReader(file))


def to_binary(sheets, root):
    """Write ``<root>/cifar-100-binary`` or ``<root>/cifar-10-batches-bin``, whole or not at all."""
    rows = classes(sheets)
    folder, contents = cifar100(sheets, rows) if "fine_label" in rows[0] else cifar10(sheets, rows)
    root = Path(root)
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root) as drafts:
        draft = Path(drafts) / folder
        draft.mkdir()
        for name, content in contents.items():
            (draft / name).write_bytes(content)
        with contextlib.suppress(OSError):  # another process was faster
            os.rename(draft, root / folder)


def cifar100(sheets, rows):
    """Return the folder's name, and what its files hold."""
    coarse_of = np.array([int(row["coarse_label"]) for row in rows])
    contents = {}
    for split in ("train", "test"):
        images, labels = load(sheets, split)
        contents[f"{split}.bin"] = records(images, coarse_of[labels], labels)
    coarse = sorted({(int(row["coarse_label"]), row["coarse_name"]) for row in rows})
    contents["fine_label_names.txt"] = lines(row["fine_name"] for row in rows)
    contents["coarse_label_names.txt"] = lines(name for _, name in coarse)
    return "cifar-100-binary", contents


def cifar10(sheets, rows):
    """Return the folder's name, and what its files hold: each batch every fifth image, so that it has every class."""
    contents = {"batches.meta.txt": lines(row["name"] for row in rows)}
    for split, parts in (("train", [f"data_batch_{number}" for number in range(1, 6)]), ("test", ["test_batch"])):
        images, labels = load(sheets, split)
        for first, part in enumerate(parts):
            own = slice(first, None, len(parts))
            contents[f"{part}.bin"] = records(images[own], labels[own])
    return "cifar-10-batches-bin", contents


def records(images, *columns):
    """Each image's labels, then its red, green and blue values."""
    flat = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    return np.concatenate([np.stack(columns, axis=1).astype(np.uint8), flat], axis=1).tobytes()


def lines(names):
    return "".join(f"{name}\n" for name in [*names, ""]).encode("ascii")


if __name__ == "__main__":
    to_binary(sys.argv[1], sys.argv[2])
