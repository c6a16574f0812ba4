"""What sample files hold where nothing was downloaded: noise, so that the real loaders can run anywhere."""

import io
import os
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedfacet import rng


def noise(name: str, labels: NDArray[np.int64], shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return an array of noise for each of the ``labels``, which are 0 or larger: the larger, the brighter.

    A name always gives the same noise.
    """
    pixels: NDArray[np.uint8] = rng.stream(0, f"generated-{name}").integers(128, size=(len(labels), *shape), dtype=np.uint8)
    brightness = (127 * labels // max(1, labels.max())).astype(np.uint8)
    pixels += brightness.reshape(-1, *[1] * len(shape))
    return pixels


def shuffled(draw: np.random.Generator, per_group: int, *labels: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Return every combination of labels ``per_group`` times, in random order."""
    groups = list(product(*labels))
    return [groups[position // per_group] for position in draw.permutation(len(groups) * per_group).tolist()]


def enough(demand: NDArray[np.int64] | None, test_fraction: float) -> tuple[int, int, int]:
    """Return classes, attribute values, and samples of each group, of which a partition's demand is left to train on.

    Example:
        >>> enough(None, 0.2), enough(np.array([[4, 8, 0], [2, 2, 2]]), 0.5)
        ((2, 2, 58), (2, 3, 44))
    """
    classes, values = (2, 2) if demand is None else demand.shape
    return classes, values, 20 + int(np.ceil(1.5 * (20 if demand is None else demand.max()) / (1 - test_fraction)))


def write_image(path: Path, pixels: NDArray[np.uint8]) -> None:
    """Write an image as ``write_whole`` does: ``.jpg``, ``.png``, or ``.npy`` for an array of fractions."""
    content = io.BytesIO()
    if path.suffix == ".npy":
        np.save(content, pixels / 255)
    else:
        Image.fromarray(pixels).save(content, Image.registered_extensions()[path.suffix.lower()])
    write_whole(path, content.getvalue())


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write lines of text as ``write_whole`` does."""
    write_whole(path, "".join(f"{line}\n" for line in lines).encode("ascii"))


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that nobody sees it half-written: runs side by side may generate the same ones."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_bytes(content)
    draft.replace(path)
