"""Images made when they are first asked for: the cache, and its use for image files."""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from fedfacet.arguments import Whole
from fedfacet.data.dataset import Dataset
from fedfacet.data.entries import visible
from fedfacet.data.generated import noise, write_image
from fedfacet.data.reading import reading
from fedfacet.data.source import DatasetSource, located
from fedfacet.errors import DatasetCorruptError, DatasetNotFoundError

CHANNELS = 3
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
"""What images may be, whatever their names; Pillow hands others, such as PostScript, to programs that run them."""

_MAX_THREADS = 8  # more only wait for each other: decoding shares the cores with the training


def in_rgb(image: Image.Image, where: str) -> Image.Image:
    """Return an image in red, green and blue, 8 bits each; ``where`` it was found, for the message.

    Raises:
        DatasetCorruptError: if it has more bits or floats, of which the conversion would make white or black.
    """
    if image.mode.startswith(("I", "F")):
        raise DatasetCorruptError(
            f"Expected images of 8 bits a channel, but {where} has {'floats' if image.mode == 'F' else 'more'} (Pillow's mode "
            f"{image.mode}): scale the pixels to 0 to 255 and save them again, or give numbers by dataset=npz."
        )
    return image.convert("RGB")


class LazyImages(ABC):
    """RGB images that are decoded or drawn when first asked for, and kept as uint8 where all of them fit in memory.

    What ``fetch`` returns depends on the positions alone. The cache takes memory only as it fills.

    Args:
        count: N, how many images there are.
        image_size: H and W in pixels, 1 or larger.
        max_memory_gb: the size in GB (10^9 bytes) up to which all N images are kept, 0 or larger; larger sets are made anew at
            every fetch.
    """

    def __init__(self, count: int, image_size: int, *, max_memory_gb: float = 8.0) -> None:
        if image_size < 1:
            raise ValueError(f"Expected `image_size` to be 1 or larger, but got {image_size}.")
        if not max_memory_gb >= 0:
            raise ValueError(f"Expected `max_memory_gb` to be 0 or larger, but got {max_memory_gb}.")
        self.image_size = image_size
        self._shape = (image_size, image_size, CHANNELS)  # as images are decoded, and as convolutions on a CPU like them
        self._count = count
        self._made = torch.zeros(count, dtype=torch.bool)  # a tensor, so that processes can share it along with the images
        fits = count * CHANNELS * image_size**2 <= max_memory_gb * 1e9
        self._kept = torch.empty((count, *self._shape), dtype=torch.uint8) if fits else None

    @abstractmethod
    def make(self, index: int) -> NDArray[np.uint8]:
        """Return the image at ``index``, shape (H, W, C); called from several threads."""

    def __len__(self) -> int:
        return self._count

    def fetch(self, indices: NDArray[np.int64]) -> Tensor:
        """Return the images at ``indices``, uint8 of shape (B, C, H, W)."""
        wanted, inverse = np.unique(indices, return_inverse=True)
        if self._kept is None:
            return torch.from_numpy(self._make_all(wanted)[inverse]).permute(0, 3, 1, 2)
        known = self._made.numpy()
        missing = wanted[~known[wanted]]
        self._kept.numpy()[missing] = self._make_all(missing)
        known[missing] = True
        return self._kept.index_select(0, torch.from_numpy(indices)).permute(0, 3, 1, 2)

    def _make_all(self, indices: NDArray[np.int64]) -> NDArray[np.uint8]:
        return np.array(_threaded(self.make, indices.tolist()), dtype=np.uint8).reshape(-1, *self._shape)


class ImageFiles(LazyImages):
    """Image files, decoded to RGB and resized (bilinear, antialiased, aspect ratio not kept) where they are of another size.

    Args:
        paths: one file per image, in an order that does not depend on the file system (sorted).
        image_size: as in ``LazyImages``, like ``max_memory_gb``.
        remedy: what the user should do about a damaged file, as the end of a sentence.
        resized: height and width in pixels to which images are resized before their centre is cut out, ``image_size`` or
            larger; ``None`` means ``image_size``, so that nothing is cut off.
        max_memory_gb: the largest cache.
    """

    def __init__(
        self, paths: Sequence[Path], image_size: int, *, remedy: str, resized: int | None = None, max_memory_gb: float = 8.0
    ) -> None:
        super().__init__(len(paths), image_size, max_memory_gb=max_memory_gb)
        self.paths = tuple(paths)
        self.remedy = remedy
        self.resized = image_size if resized is None else resized
        if self.resized < image_size:
            raise ValueError(f"Expected `resized` to be {image_size} (`image_size`) or larger, but got {resized}.")

    def make(self, index: int) -> NDArray[np.uint8]:
        """Decode one file; ``DatasetCorruptError`` if it is missing, truncated, no image, or one of more than 8 bits."""
        size, path = (self.resized, self.resized), self.paths[index]
        with reading(path, "an image", self.remedy), Image.open(path, formats=FORMATS) as file:
            image = in_rgb(file, visible(path))
            pixels = np.asarray(image if image.size == size else image.resize(size, Image.Resampling.BILINEAR))
        start = round((self.resized - self.image_size) / 2)  # as torchvision's CenterCrop rounds it
        return pixels[start : start + self.image_size, start : start + self.image_size]

    def check(self) -> None:
        """Raise ``DatasetCorruptError`` for the first file in order that is missing, truncated or no image.

        Only where the first and last bytes are not those of a complete PNG or JPEG is a file decoded; the others cost well
        under a millisecond each. Damage in the middle of a file shows when it is decoded.
        """

        def check_one(index: int) -> None:
            if not _looks_complete(self.paths[index]):
                self.make(index)

        _threaded(check_one, range(len(self)))


@dataclass(eq=False)
class ImageSource(DatasetSource):
    """Image files in a folder, resized to squares, their pixels normalised by ImageNet's statistics.

    Args:
        root: the folder that holds the data set.
        image_size: height and width in pixels, 1 or larger.
        max_memory_gb: as in ``LazyImages``.
    """

    root: str | Path
    _: KW_ONLY
    image_size: Annotated[int, Whole(words="1 or larger")] = 224
    max_memory_gb: float = 8.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.folder = located(self.root)

    def write_noise(self, name: str, labels: NDArray[np.int64], files: Iterable[str], *, width: int | None = None) -> None:
        """Write images of noise, one for each of the labels, as ``noise`` does, squares unless a ``width`` is given."""
        shape = (self.image_size, width or self.image_size, CHANNELS)
        for file, pixels in zip(files, noise(name, labels, shape), strict=True):
            write_image(self.folder / file, pixels)

    def dataset(
        self,
        paths: Sequence[Path],
        y: NDArray[np.int64],
        a: NDArray[np.int64] | None,
        *split: NDArray[np.int64],
        class_names: Sequence[str],
        remedy: str,
        resized: int | None = None,
        kind: type[ImageFiles] = ImageFiles,
        check: bool = True,
        **settings: Any,
    ) -> Dataset:
        """Return the data set of some files, which are checked.

        ``split`` has training and test samples, and those of an official validation set if there is one. Without ``a`` there
        is no attribute. ``remedy`` and ``resized`` are those of ``ImageFiles``, others of ``Dataset``.
        """
        images = kind(paths, self.image_size, remedy=remedy, resized=resized, max_memory_gb=self.max_memory_gb)
        if check:
            images.check()
        train, test, *val = split
        settings = {"mean": IMAGENET_MEAN, "std": IMAGENET_STD, "class_names": tuple(class_names)} | settings
        a = np.zeros_like(y) if a is None else a
        return Dataset(images, y, a, train, test, val[0] if val else None, **settings)


def refuse_missing(missing: Sequence[object], expected: str, remedy: str) -> None:
    """Raise ``DatasetNotFoundError`` if any of the ``expected`` images is missing."""
    if missing:
        raise DatasetNotFoundError(
            f"Expected {expected}, but {len(missing)} are missing, the first of them {visible(missing[0])}: {remedy}."
        )


def _looks_complete(path: Path) -> bool:
    if not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            head = file.read(8)
            file.seek(-8, os.SEEK_END)
            tail = file.read(8)
    except OSError:
        return False
    png = head == b"\x89PNG\r\n\x1a\n" and tail == b"IEND\xaeB`\x82"
    return png or (head.startswith(b"\xff\xd8\xff") and tail.endswith(b"\xff\xd9"))


def _threaded(work: Callable[[int], Any], indices: Sequence[int]) -> list[Any]:
    """Return what ``work`` makes of each index; the first error in their order is raised."""
    threads = max(1, min(_MAX_THREADS, os.cpu_count() or 1, len(indices)))
    # A pool per call, because a pool that outlives it would be dead in a forked worker.
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, indices))
