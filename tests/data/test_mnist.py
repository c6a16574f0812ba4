"""MNIST and its writers, on the real files where they are at hand and on generated ones of the same layout."""

import gzip
import shutil

import numpy as np
import pytest

from fedfacet.data.mnist import MNIST
from fedfacet.errors import DatasetCorruptError, DatasetNotFoundError


@pytest.fixture(scope="module")
def generated(tmp_path_factory):
    root = tmp_path_factory.mktemp("mnist")
    MNIST(root=str(root)).generate(None)
    return root


def test_real_mnist_has_the_published_counts_and_writers(data_dir):
    dataset = MNIST(root=str(data_dir / "mnist")).load()
    assert np.bincount(dataset.y[dataset.train]).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert np.bincount(dataset.y[dataset.test]).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert np.bincount(dataset.a[dataset.train]).tolist() == [30_950, 29_050]
    writer = dataset.columns["writer"]
    sizes = np.unique(writer[dataset.train], return_counts=True)[1]
    assert (len(sizes), sizes.min(), sizes.max()) == (539, 19, 131)
    others = set(writer[dataset.test].tolist())
    assert len(others) == 297
    assert not others & set(writer[dataset.train].tolist()), "nobody both trains and tests"
    # A person is of one series alone.
    assert len(np.unique(np.stack([writer, dataset.a]), axis=1).T) == len(np.unique(writer))
    assert dataset.inputs.fetch(dataset.train[:6000]).float().mean().item() / 255 == pytest.approx(0.1307, abs=2e-3)


def test_labels_writers_and_series_come_from_the_files(generated):
    dataset = MNIST(root=str(generated)).load()
    numbers = np.concatenate([np.arange(480), np.arange(200)])
    assert dataset.y.tolist() == (numbers % 10).tolist()
    assert dataset.columns["writer"].tolist() == (numbers // 10 % 8).tolist()
    assert dataset.a.tolist() == (numbers // 10 % 8 % 2).tolist()
    assert dataset.inputs.fetch(dataset.test[:2]).shape == (2, 1, 28, 28)


def test_a_missing_file_is_named_with_a_remedy(generated, tmp_path):
    shutil.copytree(generated, tmp_path, dirs_exist_ok=True)
    (tmp_path / "QMNIST" / "raw" / "qmnist-test-labels-idx2-int.gz").unlink()
    with pytest.raises(DatasetNotFoundError, match=r"QMNIST's qmnist-test-labels-idx2-int.*dataset\.download=true"):
        MNIST(root=str(tmp_path)).load()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda content: content[: len(content) // 2], "to hold 15372 bytes, as its header says, but it holds"),
        (lambda content: content[:12] + content[44:] + content[12:44], "to have MNIST's digits, row by row"),
        (lambda content: content[:16] + (7).to_bytes(4, "big") + content[20:], "and the series 0 and 4"),
        (lambda content: content[:4] + (100).to_bytes(4, "big") + content[8:3212], "to have MNIST's digits, row by row"),
    ],
)
def test_labels_of_other_images_are_refused(generated, tmp_path, change, sentence):
    shutil.copytree(generated, tmp_path, dirs_exist_ok=True)
    file = tmp_path / "QMNIST" / "raw" / "qmnist-train-labels-idx2-int.gz"
    file.write_bytes(gzip.compress(change(gzip.decompress(file.read_bytes()))))
    with pytest.raises(DatasetCorruptError, match=sentence):
        MNIST(root=str(tmp_path)).load()
