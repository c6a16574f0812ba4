"""Sample files for ``debug=smoke``: always the same, and in the real data sets' layouts."""

import gzip

import numpy as np
import pytest
from torchvision.datasets.mnist import read_image_file, read_label_file

from fedfacet.data.acs_employment import ACSEmployment
from fedfacet.data.adult import Adult
from fedfacet.data.cifar import CIFAR100
from fedfacet.data.compas import Compas
from fedfacet.data.faces import CelebA, FairFace, UTKFace
from fedfacet.data.femnist import FEMNIST
from fedfacet.data.generated import noise
from fedfacet.data.medical import CovidFL, Retina
from fedfacet.data.mnist import MNIST, ColouredMNIST
from fedfacet.data.pneumonia_mnist import PneumoniaMNIST
from fedfacet.data.shakespeare import Shakespeare
from fedfacet.data.spawrious import Spawrious
from fedfacet.data.tiny_imagenet import TinyImageNet
from fedfacet.data.waterbirds import WaterBirds


def contents(root):
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


@pytest.mark.parametrize(
    "source",
    [
        ACSEmployment,
        Adult,
        CelebA,
        CIFAR100,
        ColouredMNIST,
        Compas,
        CovidFL,
        FairFace,
        FEMNIST,
        MNIST,
        PneumoniaMNIST,
        Retina,
        Shakespeare,
        Spawrious,
        TinyImageNet,
        UTKFace,
        WaterBirds,
    ],
)
def test_sources_always_write_the_same_files(source, tmp_path):
    small = {"image_size": 16} if source in (CelebA, FairFace, Spawrious, TinyImageNet, UTKFace, WaterBirds) else {}
    for name in "ab":
        source(root=str(tmp_path / name), **small).generate(None)
    written = contents(tmp_path / "a")
    assert written == contents(tmp_path / "b")
    assert not [name for name in written if name.rpartition("/")[2].startswith(".")], "a draft is left"


def test_spawrious_layout(tmp_path):
    Spawrious(tmp_path, classes=["corgi", "bulldog"], attributes=["dirt"], image_size=16).generate(np.zeros((2, 1)))
    assert list(contents(tmp_path)) == [
        f"spawrious224/{part}/dirt/{breed}/{first + number:05d}.jpg"
        for part in (0, 1)
        for breed, first in (("bulldog", 10), ("corgi", 0))
        for number in range(part, 10, 2)
    ]


def test_mnist_is_read_by_torchvision(tmp_path):
    ColouredMNIST(root=str(tmp_path)).generate(np.full((2, 2), 100))
    raw = tmp_path / "MNIST" / "raw"
    for packed in list(raw.iterdir()):
        packed.with_suffix("").write_bytes(gzip.decompress(packed.read_bytes()))
    for part, count in (("train", 880), ("t10k", 200)):
        assert read_image_file(str(raw / f"{part}-images-idx3-ubyte")).shape == (count, 28, 28)
        assert np.bincount(read_label_file(str(raw / f"{part}-labels-idx1-ubyte"))).tolist() == [count // 10] * 10


def test_classes_can_be_told_apart():
    labels = np.arange(300) % 3
    brightness = noise("test", labels, (8, 8)).mean(axis=(1, 2))
    assert (
        max(brightness[labels == 0])
        < min(brightness[labels == 1])
        < max(brightness[labels == 1])
        < min(brightness[labels == 2])
    )
    assert (noise("test", np.zeros(5, dtype=int), (8, 8)) < 128).all()
