"""Coloured MNIST, on the real files where they are at hand and on generated ones of the same layout."""

import gzip
import shutil

import numpy as np
import pytest

from fedfacet.data.mnist import ColouredMNIST
from fedfacet.errors import DatasetCorruptError, DatasetNotFoundError


@pytest.fixture(scope="module")
def generated(tmp_path_factory):
    root = tmp_path_factory.mktemp("mnist")
    ColouredMNIST(root=str(root)).generate(None)
    return root


def test_real_mnist_has_the_published_counts(data_dir):
    dataset = ColouredMNIST(root=str(data_dir / "mnist")).load()
    assert np.bincount(dataset.y[dataset.train]).tolist() == [30_596, 29_404]
    assert np.bincount(dataset.y[dataset.test]).tolist() == [5_139, 4_861]
    # Bernoulli(0.5) on 60,000 samples: within five standard deviations of a half.
    assert abs(dataset.a[dataset.train].mean() - 0.5) < 5 * 0.5 / np.sqrt(60_000)
    # MNIST's mean grey value over the training images, all of it in one channel.
    pixels = 3 * dataset.inputs.fetch(dataset.train).numpy().mean() / 255
    assert pixels == pytest.approx(0.1307, abs=5e-5)


def test_ink_is_in_the_channel_of_the_attribute(generated):
    dataset = ColouredMNIST(root=str(generated)).load()
    ink = dataset.inputs.fetch(np.arange(len(dataset.y))).float().sum(dim=(2, 3)).numpy()
    assert (ink.argmax(axis=1) == dataset.a).all()
    assert ((ink > 0).sum(axis=1) == 1).all()


def test_files_may_be_uncompressed(generated, tmp_path):
    folder = tmp_path / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for file in (generated / "MNIST" / "raw").glob("*.gz"):
        (folder / file.stem).write_bytes(gzip.decompress(file.read_bytes()))
    packed, unpacked = (ColouredMNIST(root=str(root)).load() for root in (generated, tmp_path))
    assert (packed.y == unpacked.y).all()
    assert (packed.inputs.fetch(packed.test) == unpacked.inputs.fetch(unpacked.test)).all()


def test_a_missing_file_is_named_with_a_remedy(tmp_path):
    with pytest.raises(DatasetNotFoundError, match=r"train-images-idx3-ubyte.*12 MB.*dataset\.download=true.*digits_gsc"):
        ColouredMNIST(root=str(tmp_path)).load()


@pytest.mark.parametrize("unpacked", [False, True])
def test_a_truncated_file_is_named(generated, tmp_path, unpacked):
    shutil.copytree(generated, tmp_path, dirs_exist_ok=True)
    file = tmp_path / "MNIST" / "raw" / "t10k-images-idx3-ubyte.gz"
    content = file.read_bytes()
    if unpacked:
        file.unlink()
        file, content = file.with_suffix(""), gzip.decompress(content)
    file.write_bytes(content[: len(content) // 2])
    with pytest.raises(DatasetCorruptError, match=r"t10k-images-idx3-ubyte.*delete it"):
        ColouredMNIST(root=str(tmp_path)).load()


@pytest.mark.parametrize("kept", ["t10k", None])
def test_labels_of_others_are_refused(generated, tmp_path, kept):
    folder = tmp_path / "MNIST" / "raw"
    shutil.copytree(generated / "MNIST" / "raw", folder)
    labels = folder / "train-labels-idx1-ubyte.gz"
    if kept is not None:
        shutil.copy(folder / f"{kept}-labels-idx1-ubyte.gz", labels)
    else:
        content = bytearray(gzip.decompress(labels.read_bytes()))
        content[-1] = 10
        labels.write_bytes(gzip.compress(content))
    with pytest.raises(DatasetCorruptError, match=r"MNIST's train files in .* as many images as digits from 0 to 9, but got"):
        ColouredMNIST(root=str(tmp_path)).load()
