"""Corrupt data, read by every reader: each file is named in one sentence, or what can be read is."""

import os
import shutil

import numpy as np
import pytest

from fedfacet.data.acs_employment import ACSEmployment
from fedfacet.data.adult import Adult
from fedfacet.data.cifar import CIFAR10, CIFAR100
from fedfacet.data.compas import Compas
from fedfacet.data.faces import CelebA, FairFace, UTKFace
from fedfacet.data.femnist import FEMNIST
from fedfacet.data.medical import CovidFL, Retina
from fedfacet.data.mnist import MNIST, ColouredMNIST
from fedfacet.data.pneumonia_mnist import PneumoniaMNIST
from fedfacet.data.shakespeare import Shakespeare
from fedfacet.data.spawrious import Spawrious
from fedfacet.data.tiny_imagenet import TinyImageNet
from fedfacet.data.waterbirds import WaterBirds

pytestmark = pytest.mark.slow

TRIALS = 90
SOURCES = {
    "acs_employment": lambda root: ACSEmployment(root=root),
    "adult": lambda root: Adult(root=root, verify_counts=False),
    "celeba": lambda root: CelebA(root=root, image_size=16),
    "cifar10": lambda root: CIFAR10(root=root),
    "cifar100": lambda root: CIFAR100(root=root),
    "cmnist": lambda root: ColouredMNIST(root=root),
    "compas": lambda root: Compas(root=root, verify_counts=False),
    "covid_fl": lambda root: CovidFL(root=root),
    "fairface": lambda root: FairFace(root=root, image_size=16),
    "femnist": lambda root: FEMNIST(root=root),
    "mnist": lambda root: MNIST(root=root),
    "pneumonia_mnist": lambda root: PneumoniaMNIST(root=root),
    "retina": lambda root: Retina(root=root),
    "shakespeare": lambda root: Shakespeare(root=root, num_roles=2, min_samples=10),
    "spawrious": lambda root: Spawrious(root, classes=["corgi", "bulldog"], attributes=["dirt"], image_size=16),
    "tiny_imagenet": lambda root: TinyImageNet(root=root, image_size=16),
    "utkface": lambda root: UTKFace(root=root, image_size=16),
    "waterbirds": lambda root: WaterBirds(root, image_size=16, verify_counts=False),
}


def spoil(draw, file, others):
    """Do something to a file, and return what."""
    content = bytearray(file.read_bytes())
    at = draw.randrange(len(content) or 1)
    kind = draw.choice(["bit", "bit", "head", "cut", "empty", "garbage", "swapped", "text", "pipe", "folder", "loop", "gone",
                        "twice", "digits", "unreadable text", "far away"])  # fmt: skip
    if kind == "bit" and content:
        content[at] ^= 1 << draw.randrange(8)
    elif kind == "head":
        content[: min(len(content), 16)] = draw.randbytes(min(len(content), 16))
    elif kind == "cut":
        del content[at:]
    elif kind == "empty":
        content.clear()
    elif kind == "garbage":
        content = bytearray(draw.randbytes(draw.choice([1, 100, 10_000])))
    elif kind == "swapped":
        content = bytearray(draw.choice(others).read_bytes())
    elif kind == "text":
        content = bytearray(b"\xef\xbb\xbfa,b\n1,nan\n\n,,,\n" * draw.randrange(1, 20))
    elif kind == "twice":
        content *= 2
    elif kind == "digits":
        content[at : at + 4] = b"9999"
    elif kind == "unreadable text":
        content[at : at + 2] = b"\x00\xff"
    if kind in ("pipe", "folder", "loop", "gone", "far away"):
        file.unlink()
        if kind == "pipe":
            os.mkfifo(file)
        elif kind == "folder":
            file.mkdir()
        elif kind == "loop":
            file.symlink_to(file)
        elif kind == "far away":
            file.symlink_to("/dev/zero")
    else:
        file.write_bytes(content)
    return f"{kind} at {at} of {file.name}"


@pytest.mark.parametrize("name", SOURCES)
def test_corrupt_data(name, draw, attack, tmp_path):
    whole, spoilt = tmp_path / "whole", tmp_path / "spoilt"
    SOURCES[name](str(whole)).generate(np.full((2, 2), 3) if name not in ("spawrious",) else np.full((2, 1), 3))
    for _ in range(TRIALS):
        shutil.copytree(whole, spoilt)
        files = sorted(path for path in spoilt.rglob("*") if path.is_file())
        kinds = {}
        for file in files:
            kinds.setdefault((file.suffix, file.parent), []).append(file)  # a table as often as one of many images
        file = draw.choice(kinds[draw.choice(sorted(kinds))])
        told = spoil(draw, file, files)
        with attack(told) as came:
            dataset = SOURCES[name](str(spoilt)).load(None)
            for start in range(0, len(dataset.inputs), 512):
                dataset.batch(np.arange(start, min(start + 512, len(dataset.inputs))))
            came("read")
        shutil.rmtree(spoilt)
