"""CIFAR-10, on real images where they are at hand and on generated ones of the same layout."""

import os
import pickle
import shutil
import tarfile

import numpy as np
import pytest
import torch

from fedfacet.data.augmentation import CropAndFlip
from fedfacet.data.cifar import CIFAR10
from fedfacet.errors import DatasetCorruptError, DatasetNotFoundError


@pytest.fixture(scope="module")
def generated(tmp_path_factory):
    root = tmp_path_factory.mktemp("cifar10")
    CIFAR10(root=str(root)).generate(None)
    return root


@pytest.fixture(scope="module")
def real(cifar10_root):
    return CIFAR10(root=str(cifar10_root)).load()


def test_real_images_are_split_by_class(real):
    assert [len(split) for split in (real.train, real.val, real.test)] == [9_000, 1_000, 5_000]
    for split, per_class in ((real.train, 900), (real.val, 100), (real.test, 500)):
        assert np.bincount(real.y[split]).tolist() == [per_class] * 10
    assert not set(real.train) & set(real.val)
    assert real.class_names[0] == "airplane"
    assert real.num_attributes == 1


def test_real_images_have_nearly_the_published_statistics(real):
    """Those of a fifth of the training images, so that they agree within some sampling error."""
    pixels = real.inputs.fetch(np.arange(10_000)).double() / 255
    assert pixels.mean(dim=(0, 2, 3)).tolist() == pytest.approx(real.mean, abs=3e-3)
    assert pixels.std(dim=(0, 2, 3)).tolist() == pytest.approx(real.std, abs=3e-3)


def test_records_are_read_as_the_authors_describe_them(generated):
    """A label, then 1,024 bytes each of red, green and blue, row by row: pixel by pixel, without numpy."""
    dataset = CIFAR10(root=str(generated)).load()
    content = (generated / CIFAR10.FOLDER / "data_batch_2.bin").read_bytes()
    for number in (0, 7, 39):
        record = content[3073 * number : 3073 * (number + 1)]
        assert dataset.y[40 + number] == record[0]
        image = dataset.inputs.fetch(np.array([40 + number]))[0]
        for channel, row, column in ((0, 0, 0), (1, 3, 31), (2, 31, 5)):
            assert image[channel, row, column] == record[1 + 1024 * channel + 32 * row + column]


def test_only_training_is_augmented(generated):
    dataset = CIFAR10(root=str(generated)).load()
    assert dataset.augmentation == CropAndFlip(padding=4)
    plain, again = (dataset.batch(dataset.val[:8]).x for _ in range(2))
    assert torch.equal(plain, again)
    assert not torch.equal(dataset.batch(dataset.val[:8], generator=np.random.default_rng(0)).x, plain)
    assert CIFAR10(root=str(generated), augment=False).load().augmentation is None


def test_a_missing_folder_is_named_with_a_remedy(tmp_path):
    with pytest.raises(DatasetNotFoundError, match=rf"in .*{CIFAR10.FOLDER}.*170 MB.*dataset\.download=true.*digits_gsc"):
        CIFAR10(root=str(tmp_path)).load()
    (tmp_path / "cifar-10-batches-py").mkdir()
    with pytest.raises(DatasetNotFoundError, match=r"cifar-10-batches-py is there, but it is pickled.*the binary version"):
        CIFAR10(root=str(tmp_path)).load()
    (tmp_path / "classes.csv").touch()
    with pytest.raises(DatasetNotFoundError, match=rf"cifar_sheets\.py {tmp_path} DIR.*dataset\.root=DIR"):
        CIFAR10(root=str(tmp_path)).load()


def test_the_archive_is_fetched_and_unpacked(generated, tmp_path, serve):
    archive = tmp_path / "served" / "cifar-10-binary.tar.gz"
    archive.parent.mkdir()
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(generated / CIFAR10.FOLDER, CIFAR10.FOLDER)
    source = CIFAR10(root=str(tmp_path / "root"), download=True, url=f"{serve(archive.parent)}/{archive.name}")
    assert source.load().y.tolist() == CIFAR10(root=str(generated)).load().y.tolist()
    assert CIFAR10(root=str(tmp_path / "root")).load(), "and it is there for the next run"


@pytest.mark.parametrize("part", ["data_batch_3.bin", "test_batch.bin", "batches.meta.txt"])
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (lambda whole: whole[: len(whole) // 2 - 5], "cannot be read"),
        (lambda whole: b"", "cannot be read"),
        (lambda whole: whole + b"\0", "cannot be read"),
        (lambda whole: bytes([255]) + whole[1:], "cannot be read"),
        (lambda whole: pickle.dumps(Pointers()), "cannot be read"),
        (lambda whole: range(700_000_000), "which is more than"),
    ],
    ids=["half", "empty", "longer", "unknown", "pickle", "huge"],
)
def test_a_damaged_file_is_named(generated, tmp_path, part, content, said):
    root = shutil.copytree(generated, tmp_path / "root")
    file = root / CIFAR10.FOLDER / part
    whole = content(file.read_bytes())
    if len(whole) > 1_000_000:
        file.write_bytes(b"")
        os.truncate(file, len(whole))  # a file with a hole takes no room
    else:
        file.write_bytes(whole)
    with pytest.raises(DatasetCorruptError, match=rf"{CIFAR10.FOLDER}/{part} to be .*{said}.*fetch it again"):
        CIFAR10(root=str(root)).load()


def test_a_missing_file_is_named(generated, tmp_path):
    root = shutil.copytree(generated, tmp_path / "root")
    (root / CIFAR10.FOLDER / "data_batch_5.bin").unlink()
    with pytest.raises(DatasetNotFoundError, match=r"CIFAR-10's file 'data_batch_5\.bin'.*fetch it again"):
        CIFAR10(root=str(root)).load()


class Pointers:
    """A pickle that makes an array of objects at addresses of its author's choice."""

    def __reduce__(self):
        return np.ndarray, ((10,), np.dtype("O"), b"A" * 80)
