"""Retina: fundus photographs of eyes with and without diabetic retinopathy, of five clients."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedfacet.arguments import check_choice
from fedfacet.data.augmentation import ZoomTurnAndFlip
from fedfacet.data.dataset import Dataset
from fedfacet.data.images import ImageFiles
from fedfacet.data.reading import reading
from fedfacet.data.ssl_fl import MedicalImages, how_to_get, read_tables, write_tables
from fedfacet.errors import DatasetCorruptError

CLASSES = ("normal", "diseased")
NUM_CLIENTS = 5


@dataclass(eq=False, kw_only=True)
class Retina(MedicalImages):
    """SSL-FL's Retina: y = diabetic retinopathy, no attribute, natural clients in the label column ``client``.

    From ``<root>/``: ``labels.csv``, ``test.csv``, ``train/``, ``test/`` (images as ``.npy`` arrays) and
    ``5_clients/split_{1,2,3}/``, whose tables say who owns which image. ``partition=natural partition.label=client`` makes
    these the clients. All are tested on one common set, and there is no official validation set.

    Source: Yan et al., Label-Efficient Self-Supervised Federated Learning, IEEE TMI 2023, arXiv:2205.08576; training transform
    (a box of 60 to 100 % of the area, 10 degrees, mirrored) and statistics as in FedLD.

    Note: sources differ on how skewed the splits are. The script that made them draws from Dirichlet distributions with alpha =
    100, 1 and 0.5. FedLD's text says 100, 0.1 and 0.5, and calls split 2 moderate and split 3 severe, which only the script's
    values are.

    Deviation: validation takes as many images of either class as a tenth of the smaller one, at most 300, before the clients
    get theirs (``partition_and_hold_out``), and clients train on fewer images than SSL-FL's tables name. Arrays are brought to
    ``image_size`` in one step (FedLD: to 256 pixels, then to 384). An array of fractions in [0, 1] is scaled to bytes; SSL-FL's
    code would cut it off to zeros.

    The other arguments are those of ``MedicalImages``.

    Args:
        split: 1, 2 or 3.
    """

    split: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("dataset.split", self.split, (1, 2, 3))

    def generate(self, demand: NDArray[np.int64] | None) -> None:
        """Write noise in Retina's layout; see ``DatasetSource.generate``."""
        clients = [f"client_{number}" for number in range(1, NUM_CLIENTS + 1)]
        splits = [f"{NUM_CLIENTS}_clients/split_{split}" for split in (1, 2, 3)]
        write_tables(self.folder, splits, clients, len(CLASSES), ".npy")

    def load(self, demand: NDArray[np.int64] | None = None) -> Dataset:
        """Read the tables; see ``DatasetSource.load``."""
        remedy = how_to_get("Retina", "fedld_pneumonia" if self.split == 2 else f"fedld_pneumonia_split{self.split}")
        tables = read_tables(self.folder, f"{NUM_CLIENTS}_clients/split_{self.split}", CLASSES, remedy)
        images = _Arrays(tables.paths, self.image_size, remedy=remedy, max_memory_gb=self.max_memory_gb)
        mean, std = (0.5007, 0.5010, 0.5019), (0.0342, 0.0535, 0.0484)
        augmentation = ZoomTurnAndFlip(0.6, 1.0, 10.0) if self.augment else None
        return tables.dataset(images, CLASSES, mean=mean, std=std, augmentation=augmentation)


class _Arrays(ImageFiles):
    """Images in ``.npy`` files: grey or colour, as bytes, as fractions, or as numbers up to 255."""

    def make(self, index: int) -> NDArray[np.uint8]:
        path = self.paths[index]
        with reading(path, "an array", self.remedy):
            return self._pixels(path, np.load(path, mmap_mode="r", allow_pickle=False))  # never more memory than the file takes

    def _pixels(self, path: Path, array: NDArray[Any]) -> NDArray[np.uint8]:
        if array.ndim == 2:
            array = np.stack([array] * 3, axis=2)
        if array.ndim != 3 or array.shape[2] not in (1, 3, 4) or array.dtype.kind not in "uif" or not np.isfinite(array).all():
            raise DatasetCorruptError(
                f"Expected an image of shape (H, W) or (H, W, 1, 3 or 4) and finite numbers, but got {path} of shape "
                f"{array.shape} and type {array.dtype}: {self.remedy}."
            )
        if array.dtype.kind == "f" and array.max() <= 1:
            array = array * 255
        colours = array[:, :, :3] if array.shape[2] > 1 else array.repeat(3, axis=2)
        image = Image.fromarray(np.rint(colours).clip(0, 255).astype(np.uint8))
        return np.asarray(image.resize((self.image_size, self.image_size), Image.Resampling.BILINEAR))
