"""FashionMNIST and EMNIST, on generated files of MNIST's layout."""

import gzip

import numpy as np
import pytest

from fedfacet.data.mnist_like import EMNIST, SPLITS, FashionMNIST
from fedfacet.errors import DatasetCorruptError, DatasetNotFoundError


def test_fashion_mnist(tmp_path):
    source = FashionMNIST(str(tmp_path))
    with pytest.raises(DatasetNotFoundError, match=r"FashionMNIST's train-images-idx3-ubyte\(\.gz\).*dataset\.root=ROOT"):
        source.load()
    source.generate(None)
    dataset = source.load()
    assert (dataset.num_classes, dataset.class_names[0], dataset.input_shape) == (10, "T-shirt/top", (1, 28, 28))
    assert (len(dataset.train), len(dataset.test)) == (200, 40)
    file = tmp_path / "FashionMNIST" / "raw" / "train-images-idx3-ubyte.gz"
    pixels = np.frombuffer(gzip.decompress(file.read_bytes()), np.uint8, offset=16).reshape(-1, 28, 28)
    assert np.array_equal(dataset.inputs.fetch(dataset.train[:3])[:, 0].numpy(), pixels[:3])
    source._files.write("t10k-labels-idx1-ubyte", np.full(40, 10, dtype=np.uint8))
    with pytest.raises(DatasetCorruptError, match="labels from 10 to 10, not 0 to 9: fetch them again"):
        source.load()


@pytest.mark.parametrize(("split", "classes"), [("byclass", 62), ("bymerge", 47), ("balanced", 47), ("letters", 26)])
def test_emnist_stands_upright_and_counts_from_zero(split, classes, tmp_path):
    source = EMNIST(str(tmp_path), split=split)
    source.generate(None)
    dataset = source.load()
    assert dataset.num_classes == classes == len(set(SPLITS[split]))
    assert set(dataset.y) == set(range(classes))
    file = tmp_path / "EMNIST" / "raw" / f"emnist-{split}-train-images-idx3-ubyte.gz"
    pixels = np.frombuffer(gzip.decompress(file.read_bytes()), np.uint8, offset=16).reshape(-1, 28, 28)
    assert np.array_equal(dataset.inputs.fetch(dataset.train[:1])[0, 0].numpy(), pixels[0].T)
