"""CIFAR-10, on real images where they are at hand and on generated ones of the same layout."""

import pickle
import shutil

import numpy as np
import pytest
import torch
import torchvision

from fedfacet.data.augmentation import CropAndFlip
from fedfacet.data.cifar10 import CIFAR10
from fedfacet.errors import DatasetCorruptError, DatasetNotFoundError


@pytest.fixture(scope="module")
def generated(tmp_path_factory):
    root = tmp_path_factory.mktemp("cifar10")
    CIFAR10(root=str(root)).generate(None)
    return root


@pytest.fixture(scope="module")
def real(cifar10_root):
    return CIFAR10(root=str(cifar10_root)).load()


class Unchecked(torchvision.datasets.CIFAR10):
    """torchvision's own reader, which does not hold these files to the official digests."""

    train_list = [[f"data_batch_{number}", None] for number in range(1, 6)]  # noqa: RUF012
    test_list = [["test_batch", None]]  # noqa: RUF012
    meta = {"filename": "batches.meta", "key": "label_names", "md5": None}  # noqa: RUF012

    def _check_integrity(self):
        return True

    def _load_meta(self):
        self.classes = ["from the file"]


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


@pytest.mark.parametrize("train", [True, False])
def test_files_are_read_as_torchvision_reads_them(generated, train):
    ours, official = CIFAR10(root=str(generated)).load(), Unchecked(str(generated), train=train)
    positions = np.sort(np.concatenate([ours.train, ours.val])) if train else ours.test
    assert (ours.inputs.fetch(positions).permute(0, 2, 3, 1).numpy() == official.data).all()
    assert ours.y[positions].tolist() == official.targets


def test_only_training_is_augmented(generated):
    dataset = CIFAR10(root=str(generated)).load()
    assert dataset.augmentation == CropAndFlip(padding=4)
    plain, again = (dataset.batch(dataset.val[:8]).x for _ in range(2))
    assert torch.equal(plain, again)
    assert CIFAR10(root=str(generated), augment=False).load().augmentation is None


def test_a_missing_file_is_named_with_a_remedy(tmp_path):
    with pytest.raises(
        DatasetNotFoundError, match=r"CIFAR-10's file 'batches.meta'.*170 MB.*dataset\.download=true.*digits_gsc"
    ):
        CIFAR10(root=str(tmp_path)).load()
    (tmp_path / "classes.csv").touch()
    with pytest.raises(DatasetNotFoundError, match=rf"cifar_sheets\.py {tmp_path} DIR.*dataset\.root=DIR"):
        CIFAR10(root=str(tmp_path)).load()


def damaged(generated, tmp_path, part, content):
    shutil.copytree(generated, tmp_path, dirs_exist_ok=True)
    (tmp_path / "cifar-10-batches-py" / part).write_bytes(content)
    return CIFAR10(root=str(tmp_path))


@pytest.mark.parametrize("part", ["data_batch_3", "test_batch", "batches.meta"])
def test_a_truncated_file_is_named(generated, tmp_path, part):
    content = (generated / "cifar-10-batches-py" / part).read_bytes()
    with pytest.raises(DatasetCorruptError, match=rf"cifar-10-batches-py/{part} to be a whole file.*fetch it again"):
        damaged(generated, tmp_path, part, content[: len(content) // 2]).load()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: c | {"data": c["data"][:-1]}, r"images of shape \(39, 3072\) and 40 labels"),
        (lambda c: c | {"labels": [9 if label == 3 else label for label in c["labels"]]}, "10 classes"),
        (lambda c: c | {"labels": [10, *c["labels"][1:]]}, "10 classes"),
        (lambda c: {"data": c["data"]}, "KeyError: 'labels'"),
    ],
)
def test_other_content_is_refused(generated, tmp_path, change, said):
    content = pickle.loads((generated / "cifar-10-batches-py" / "data_batch_2").read_bytes())
    with pytest.raises(DatasetCorruptError, match=said):
        damaged(generated, tmp_path, "data_batch_2", pickle.dumps(change(content))).load()
