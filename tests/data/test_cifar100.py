"""CIFAR-100, on the real images where they are at hand and on generated ones of the same layout."""

import runpy
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from fedfacet.data.cifar import CIFAR100
from fedfacet.errors import DatasetCorruptError


@pytest.fixture(scope="module")
def generated(tmp_path_factory):
    root = tmp_path_factory.mktemp("cifar100")
    CIFAR100(root=str(root)).generate(None)
    return root


@pytest.fixture(scope="module")
def real(cifar100_root):
    return CIFAR100(root=str(cifar100_root)).load()


def test_real_images_are_split_450_50_and_100_a_class(real):
    assert [len(split) for split in (real.train, real.val, real.test)] == [45_000, 5_000, 10_000]
    for split, per_class in ((real.train, 450), (real.val, 50), (real.test, 100)):
        assert np.bincount(real.y[split]).tolist() == [per_class] * 100
    assert not set(real.train) & set(real.val)
    assert (np.sort(np.concatenate([real.train, real.val])) == np.arange(50_000)).all()
    assert (real.class_names[19], real.class_names[49]) == ("cattle", "mountain")
    assert {real.columns["coarse"][position] for position in np.flatnonzero(real.y == 19)} == {11}, "large omnivores"


def test_real_images_have_the_published_statistics(real):
    """Mean and deviation of the training images' channels to eight digits, computed in whole numbers."""
    counts = torch.zeros(3, 256, dtype=torch.int64)
    for start in range(0, 50_000, 5_000):
        pixels = real.inputs.fetch(np.arange(start, start + 5_000)).transpose(0, 1).flatten(1)
        counts += torch.stack([torch.bincount(channel, minlength=256) for channel in pixels.int()])
    levels = np.arange(256) / 255
    shares = counts.numpy() / (50_000 * 1024)
    mean = shares @ levels
    deviation = np.sqrt(shares @ levels**2 - mean**2)
    assert mean == pytest.approx([0.50707516, 0.48654887, 0.44091784], abs=5e-9)
    assert deviation == pytest.approx([0.26733429, 0.25643846, 0.27615047], abs=5e-9)
    assert real.mean == pytest.approx(mean, abs=2e-4), "as the released code rounds them"
    assert real.std == pytest.approx(deviation, abs=2e-4)


def test_real_images_are_those_of_the_contact_sheets(real, data_dir):
    sheets = data_dir / "cifar100"
    if not (sheets / "classes.csv").is_file():
        pytest.skip("no contact sheets to compare with")
    converter = runpy.run_path(str(Path(__file__).with_name("cifar_sheets.py")))
    images, labels = converter["load"](sheets, "test")
    assert [row["fine_name"] for row in converter["classes"](sheets)] == list(real.class_names)
    positions = np.array([0, 4_321, 9_999])
    fetched = real.inputs.fetch(50_000 + positions).permute(0, 2, 3, 1).numpy()
    assert (fetched == images[positions]).all()
    assert (real.y[50_000:] == labels).all()


def test_the_split_hangs_on_the_seed_alone(generated):
    splits = [CIFAR100(root=str(generated), seed=seed).load().val.tolist() for seed in (0, 0, 1)]
    assert splits[0] == splits[1] != splits[2]
    assert CIFAR100(root=str(generated), labels="coarse").load().val.tolist() == splits[0]


def test_superclasses_may_be_the_classes(generated):
    fine, coarse = (CIFAR100(root=str(generated), labels=labels).load() for labels in ("fine", "coarse"))
    assert (fine.num_classes, coarse.num_classes) == (100, 20)
    assert (coarse.y == fine.columns["coarse"]).all()
    assert (coarse.columns["fine"] == fine.y).all()
    assert coarse.class_names == tuple(f"coarse_{number:02d}" for number in range(20))
    with pytest.raises(ValueError, match=r"Expected `dataset\.labels` to be 'fine' or 'coarse', but got 'both'"):
        CIFAR100(root=str(generated), labels="both")


@pytest.mark.parametrize("part", ["train.bin", "test.bin", "fine_label_names.txt", "coarse_label_names.txt"])
@pytest.mark.parametrize("change", [lambda whole: whole[: len(whole) // 2 - 5], lambda whole: bytes([20]) + whole[1:]])
def test_a_damaged_file_is_named(generated, tmp_path, part, change):
    """The first byte of a record is its superclass, of which there are 20; that of a text is a letter."""
    root = shutil.copytree(generated, tmp_path / "root")
    file = root / CIFAR100.FOLDER / part
    changed = change(file.read_bytes())
    file.write_bytes(changed.replace(b"fine_01", b"fine_02").replace(b"coarse_01", b"coarse_02"))
    with pytest.raises(DatasetCorruptError, match=rf"{CIFAR100.FOLDER}/{part} to be .*cannot be read.*fetch it again"):
        CIFAR100(root=str(root)).load()
