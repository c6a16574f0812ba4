"""What every data set keeps to, on generated files where it reads some."""

import numpy as np
import pytest
import torch

from fedfacet import build, config

WITHOUT_ATTRIBUTE = {
    "cifar100": ["partition=iid"],
    "pneumonia_mnist": ["partition=iid"],
    "retina": ["partition=natural", "partition.label=client"],
    "covid_fl": ["partition=natural", "partition.label=client"],
    "shakespeare": ["partition=natural", "partition.label=role"],
}
"""Data sets that the main job's federation of 2 classes x 2 attribute values does not fit, and one that does."""

TEXT = {"shakespeare"}
"""Data sets of characters, some of which are so rare that nobody may say them."""


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    """Return a function: option -> its data for a smoke run, loaded once."""
    known = {}

    def load(option, *, anew=False):
        if option not in known or anew:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("tempfile.tempdir", str(tmp_path_factory.mktemp(option)))
                partition = WITHOUT_ATTRIBUTE.get(option, ["partition=gsc"])
                job, _ = config.compose_job("train", [f"dataset={option}", *partition, "debug=smoke"])
                build._load_data.cache_clear()
                known[option] = build.load_data(job)
        return known[option]

    return load


@pytest.fixture
def data(dataset_option, load):
    return load(dataset_option)


def test_splits_clients_and_validation_are_disjoint_and_sorted(data):
    dataset = data.dataset
    assert len(dataset.inputs) == len(dataset.y) == len(dataset.a)
    for split in (dataset.train, dataset.test, data.val):
        assert len(split) > 0
        assert (np.diff(split) > 0).all()
    clients = np.concatenate(data.partition.indices)
    assert set(clients) <= set(dataset.train)
    assert not set(dataset.train) & set(dataset.test)
    assert not set(data.val) & (set(clients) | set(dataset.test)), "validation is neither anybody's nor the test's"


def test_validation_is_official_or_has_equally_many_of_every_group(data):
    if data.dataset.val is not None:
        assert np.array_equal(data.val, data.dataset.val)
        return
    cells = np.bincount(data.dataset.y[data.val] * data.dataset.num_attributes + data.dataset.a[data.val])
    assert len(cells) == data.dataset.num_classes * data.dataset.num_attributes
    assert len(set(cells)) == 1
    assert cells[0] > 0


def test_labels_are_in_range_and_every_group_is_tested(data, dataset_option):
    dataset = data.dataset
    assert dataset.y.dtype == dataset.a.dtype == np.int64
    if dataset_option in TEXT:
        assert set(dataset.y) <= set(range(dataset.num_classes))
        return
    assert set(dataset.y) == set(range(dataset.num_classes))
    assert set(dataset.a) == set(range(dataset.num_attributes))
    groups = dataset.y[dataset.test] * dataset.num_attributes + dataset.a[dataset.test]
    assert set(groups) == set(range(dataset.num_classes * dataset.num_attributes))


def test_images_are_kept_as_bytes_and_handed_out_normalised(data, dataset_option):
    dataset = data.dataset
    pixels = dataset.inputs.fetch(dataset.test[:3])
    assert pixels.dtype == torch.uint8
    batch = dataset.batch(dataset.test[:3])
    if dataset_option in TEXT:
        assert dataset.mean is dataset.std is None
        assert torch.equal(batch.x, pixels)
        assert int(pixels.max()) < dataset.num_classes
        return
    assert batch.x.dtype == torch.float32
    assert batch.x.shape == pixels.shape
    assert len(dataset.mean) == len(dataset.std) == pixels.shape[1]
    expected = (pixels / 255 - torch.tensor(dataset.mean).view(-1, 1, 1)) / torch.tensor(dataset.std).view(-1, 1, 1)
    torch.testing.assert_close(batch.x, expected, rtol=1e-4, atol=1e-5)
    assert batch.y.tolist() == dataset.y[dataset.test[:3]].tolist()
    assert batch.a.tolist() == dataset.a[dataset.test[:3]].tolist()


def test_fetching_does_not_hand_out_the_store_itself(data):
    batch = data.dataset.batch(data.dataset.test[:2])
    before = batch.x.clone()
    batch.x.zero_()
    assert torch.equal(data.dataset.batch(data.dataset.test[:2]).x, before)


def test_loading_again_gives_the_same(data, dataset_option, load):
    again = load(dataset_option, anew=True)
    assert again is not data
    assert again.partition.digest == data.partition.digest
    assert np.array_equal(again.val, data.val)
    assert torch.equal(again.dataset.batch(data.val).x, data.dataset.batch(data.val).x)
