"""PneumoniaMNIST, on the real file where it is at hand and on generated ones of the same layout."""

import numpy as np
import pytest

from fedfacet.data.pneumonia_mnist import FILE, PneumoniaMNIST
from fedfacet.errors import DatasetCorruptError, DatasetNotFoundError


@pytest.fixture
def generated(tmp_path):
    PneumoniaMNIST(root=str(tmp_path)).generate(None)
    return tmp_path


def test_the_real_file_has_the_official_counts(data_dir):
    if not (data_dir / "pneumoniamnist" / FILE).is_file():
        pytest.skip(f"no {FILE} in {data_dir}: point FEDFACET_DATA at a folder that holds pneumoniamnist/")
    dataset = PneumoniaMNIST(root=str(data_dir / "pneumoniamnist")).load()
    counts = [np.bincount(dataset.y[split]).tolist() for split in (dataset.train, dataset.val, dataset.test)]
    assert counts == [[1_214, 3_494], [135, 389], [234, 390]]
    assert dataset.input_shape == (1, 28, 28)
    assert sorted(np.concatenate([dataset.train, dataset.val, dataset.test])) == list(range(5_856))
    with np.load(data_dir / "pneumoniamnist" / FILE) as official:
        assert (dataset.inputs.fetch(dataset.test[:5])[:, 0].numpy() == official["test_images"][:5]).all()


def test_a_missing_file_is_named_with_a_remedy(tmp_path):
    with pytest.raises(DatasetNotFoundError, match=r"pneumoniamnist\.npz.*4\.2 MB.*dataset\.download=true.*digits_gsc"):
        PneumoniaMNIST(root=str(tmp_path)).load()


def test_a_truncated_file_is_named(generated):
    content = (generated / FILE).read_bytes()
    for kept in (0, 10, len(content) // 2):
        (generated / FILE).write_bytes(content[:kept])
        with pytest.raises(DatasetCorruptError, match=r"pneumoniamnist\.npz .*delete it and fetch it again"):
            PneumoniaMNIST(root=str(generated)).load()


@pytest.mark.parametrize(
    ("name", "changed", "said"),
    [
        ("val_images", np.zeros((6, 28, 28, 3), np.uint8), r"val images .* got \(6, 28, 28, 3\)"),
        ("train_labels", np.arange(12, dtype=np.uint8)[:, None], "train images"),
        ("test_labels", np.zeros(6, np.uint8), r"and \(6,\)"),
        ("test_images", np.array([print]), "cannot be read .*allow_pickle"),
    ],
)
def test_other_content_is_refused(generated, name, changed, said):
    with np.load(generated / FILE) as opened:
        arrays = dict(opened)
    np.savez(generated / FILE, **(arrays | {name: changed}))
    with pytest.raises(DatasetCorruptError, match=said):
        PneumoniaMNIST(root=str(generated)).load()
