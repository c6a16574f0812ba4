"""COVID-FL: chest X-rays of twelve hospitals and archives."""

import numpy as np
from numpy.typing import NDArray

from fedfacet.data.augmentation import ZoomTurnAndFlip
from fedfacet.data.dataset import Dataset
from fedfacet.data.images import IMAGENET_MEAN, IMAGENET_STD, ImageFiles
from fedfacet.data.ssl_fl import MedicalImages, how_to_get, read_tables, write_tables

CLASSES = ("normal", "pneumonia", "COVID-19")
CLIENTS = (
    *("bimcv", "cohen", "eurorad", "gz", "ml-workgroup", "ricord_c"),
    *("rsna-0", "rsna-1", "rsna-2", "rsna-3", "rsna-4", "sirm"),
)
SPLIT = "12_clients/split_real"


class CovidFL(MedicalImages):
    """SSL-FL's COVID-FL: y = normal, pneumonia or COVID-19, no attribute, natural clients in the label column ``client``.

    From ``<root>/``: ``labels.csv``, ``test.csv``, ``train/``, ``test/`` (images) and ``12_clients/split_real/``, whose tables
    say which institution owns which image; some have images of one class only. ``partition=natural partition.label=client``
    makes these the clients. All are tested on one common set, and there is no official validation set.

    Source: Yan et al., Label-Efficient Self-Supervised Federated Learning, IEEE TMI 2023, arXiv:2205.08576; training transform
    (a box of 80 to 120 % of the area, 10 degrees, mirrored) and ImageNet's statistics as in FedLD.

    Deviation: validation takes images of every class before the clients get theirs, as in ``Retina``. An image is resized to a
    square as a whole; FedLD resizes its shorter side and cuts the middle out.

    The arguments are those of ``MedicalImages``.
    """

    def generate(self, demand: NDArray[np.int64] | None) -> None:
        """Write noise in COVID-FL's layout; see ``DatasetSource.generate``."""
        write_tables(self.folder, [SPLIT], CLIENTS, len(CLASSES), ".png")

    def load(self, demand: NDArray[np.int64] | None = None) -> Dataset:
        """Read the tables and check the images; see ``DatasetSource.load``."""
        remedy = how_to_get("COVID-FL")
        tables = read_tables(self.folder, SPLIT, CLASSES, remedy)
        images = ImageFiles(tables.paths, self.image_size, remedy=remedy, max_memory_gb=self.max_memory_gb)
        images.check()
        augmentation = ZoomTurnAndFlip(0.8, 1.2, 10.0) if self.augment else None
        return tables.dataset(images, CLASSES, mean=IMAGENET_MEAN, std=IMAGENET_STD, augmentation=augmentation)
