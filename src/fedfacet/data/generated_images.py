"""Small generated image files in the layout of CIFAR-100, MedMNIST and SSL-FL, so that their real loaders can run anywhere."""

import io
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedfacet import rng
from fedfacet.data.generated import write_whole


def write_cifar100(root: Path, *, train_per_class: int, test_per_class: int, seed: int = 0) -> None:
    """Write noise to ``<root>/cifar-100-python/``, brighter for higher classes, in the order of a shuffled deck.

    Equal arguments write equal files, as in all functions here; numbers that are too small raise ``ValueError``.
    """
    if min(train_per_class, test_per_class) < 1:
        raise ValueError(
            f"Expected `train_per_class` and `test_per_class` to be 1 or larger, but got {train_per_class} and "
            f"{test_per_class}."
        )
    folder = Path(root) / "cifar-100-python"
    folder.mkdir(parents=True, exist_ok=True)
    for split, per_class in (("train", train_per_class), ("test", test_per_class)):
        draw = rng.stream(seed, f"generated-cifar100-{split}")
        labels = draw.permutation(np.repeat(np.arange(100), per_class))
        content = {
            "data": _noise(labels, (3 * 32 * 32,), draw, num_classes=100),
            "fine_labels": labels.tolist(),
            "coarse_labels": (labels // 5).tolist(),
            "filenames": [f"image_{number:05d}.png" for number in range(len(labels))],
        }
        write_whole(folder / split, pickle.dumps(content))
    fine, coarse = [f"class_{label:02d}" for label in range(100)], [f"superclass_{label:02d}" for label in range(20)]
    names = {"fine_label_names": fine, "coarse_label_names": coarse}
    write_whole(folder / "meta", pickle.dumps(names))


def write_pneumonia_mnist(root: Path, *, per_class: int, seed: int = 0) -> None:
    """Write noise to ``<root>/pneumoniamnist.npz`` in MedMNIST's layout, brighter where there is a pneumonia.

    ``per_class`` images train, 2 or larger; validation and test have half as many.
    """
    if per_class < 2:
        raise ValueError(f"Expected `per_class` to be 2 or larger, but got {per_class}.")
    arrays: dict[str, Any] = {}
    for split, count in (("train", per_class), ("val", per_class // 2), ("test", per_class // 2)):
        draw = rng.stream(seed, f"generated-pneumonia-{split}")
        labels = draw.permutation(np.repeat(np.arange(2), count))
        arrays[f"{split}_images"] = _noise(labels, (28, 28), draw, num_classes=2)
        arrays[f"{split}_labels"] = labels.astype(np.uint8)[:, None]
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)
    Path(root).mkdir(parents=True, exist_ok=True)
    write_whole(Path(root) / "pneumoniamnist.npz", content.getvalue())


def write_ssl_fl(
    root: Path,
    *,
    splits: Sequence[str],
    clients: Sequence[str],
    num_classes: int,
    suffix: str,
    per_class: int = 3,
    image_size: int = 16,
    seed: int = 0,
) -> None:
    """Write noise and tables in the layout of SSL-FL.

    Args:
        root: as given to ``Retina`` or ``CovidFL``.
        splits: folders of clients' tables, such as ``5_clients/split_1``; in each, clients hold other images.
        clients: names of the tables.
        num_classes: how many classes there are.
        suffix: of the images: ``.npy`` for arrays of fractions, or what Pillow can write.
        per_class: images of each class per client, and of each class in the test set, 1 or larger.
        image_size: height and width in pixels, 1 or larger.
        seed: of the noise, 0 or larger.
    """
    if per_class < 1:
        raise ValueError(f"Expected `per_class` to be 1 or larger, but got {per_class}.")
    root = Path(root)
    labels: dict[str, int] = {}
    for part, count in (("train", per_class * len(clients)), ("test", per_class)):
        draw = rng.stream(seed, f"generated-ssl-fl-{part}")
        classes = draw.permutation(np.repeat(np.arange(num_classes), count))
        images = _noise(classes, (image_size, image_size, 3), draw, num_classes=num_classes)
        (root / part).mkdir(parents=True, exist_ok=True)
        names = [f"{part}_{number:04d}{suffix}" for number in range(len(classes))]
        for name, image in zip(names, images, strict=True):
            content = io.BytesIO()
            if suffix == ".npy":
                np.save(content, image / 255)
            else:
                Image.fromarray(image).save(content, format=suffix.removeprefix("."))
            write_whole(root / part / name, content.getvalue())
        labels |= dict(zip(names, classes.tolist(), strict=True))
        if part == "train":
            for split in splits:
                (root / split).mkdir(parents=True, exist_ok=True)
                for client, share in zip(clients, np.array_split(draw.permutation(names), len(clients)), strict=True):
                    write_whole(root / split / f"{client}.csv", "".join(f"{name}\n" for name in share).encode())
        write_whole(root / f"{part}.csv", "".join(f"{name}\n" for name in names).encode())
    write_whole(root / "labels.csv", "".join(f"{name},{float(label)}\n" for name, label in labels.items()).encode())


def _noise(
    labels: NDArray[np.int64], shape: tuple[int, ...], draw: np.random.Generator, *, num_classes: int
) -> NDArray[np.uint8]:
    noise = draw.integers(128, size=(len(labels), *shape))
    return (noise + (labels * 127 // (num_classes - 1)).reshape(-1, *[1] * len(shape))).astype(np.uint8)
