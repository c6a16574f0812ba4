"""What every data set keeps to, on generated files where it reads some; also the data set that CONTRIBUTING.md writes."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from fedfacet import build, config
from fedfacet.clients.prediction import predict
from fedfacet.errors import InfeasiblePartitionError

ROOT = Path(__file__).parents[2]

OWN = "breast_cancer"
"""A stranger's: feature vectors, and two files outside the package."""

OPTIONS = [*sorted(file.stem for file in (ROOT / "conf" / "dataset").glob("*.yaml")), OWN]

CLIENTS_OF_A_COLUMN = {
    "retina": "client", "covid_fl": "client", "shakespeare": "role", "mnist": "writer", "femnist": "writer",
    "adult": "occupation", "acs_employment": "state", "sent140": "user", "reddit": "user", "london_low_carbon": "household",
}  # fmt: skip
"""Data sets that know who owns a sample, and the column that says it."""

SPARSE = {"shakespeare", "reddit"}
"""Data sets with classes so rare that no sample may have them."""


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """Write the two files as they are printed; return the override that has Hydra find them."""
    folder = tmp_path_factory.mktemp("own")
    printed = (ROOT / "CONTRIBUTING.md").read_text()
    for name, content in re.findall(rf"```(?:python|yaml)\n# (\S*{OWN}\S*)\n(.*?)```", printed, re.DOTALL):
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield f"hydra.searchpath=['file://{folder / 'my_conf'}']"


@pytest.fixture(scope="module")
def load(tmp_path_factory, own):
    """Return a function: option -> its data for a smoke run, loaded once.

    It is dealt by the main job's federation of 2 classes x 2 attribute values where that fits.
    """
    known, jobs = {}, {}

    def load_smoke(option, *partition):
        beside = [own] if option == OWN else []  # a search path takes Hydra longer
        job = jobs.get(option) or config.compose_job("train", [*beside, f"dataset={option}", *partition, "debug=smoke"])[0]
        build._load_data.cache_clear()
        data = build.load_data(job)
        jobs[option] = job
        return data

    def load(option, *, anew=False):
        if option not in known or anew:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("tempfile.tempdir", str(tmp_path_factory.mktemp(option)))
                if option in CLIENTS_OF_A_COLUMN:
                    known[option] = load_smoke(option, "partition=natural", f"partition.label={CLIENTS_OF_A_COLUMN[option]}")
                else:
                    try:
                        known[option] = load_smoke(option, "partition=gsc")
                    except InfeasiblePartitionError:
                        known[option] = load_smoke(option, "partition=iid")
        return known[option]

    return load


@pytest.fixture(params=OPTIONS)
def option(request):
    return request.param


@pytest.fixture
def data(option, load):
    return load(option)


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


def test_labels_are_in_range_and_every_group_is_tested(data, option):
    dataset = data.dataset
    assert dataset.y.dtype == dataset.a.dtype == np.int64
    if option in SPARSE:
        assert set(dataset.y) <= set(range(dataset.num_classes))
        return
    assert set(dataset.y) == set(range(dataset.num_classes))
    assert set(dataset.a) == set(range(dataset.num_attributes))
    groups = dataset.y[dataset.test] * dataset.num_attributes + dataset.a[dataset.test]
    assert set(groups) == set(range(dataset.num_classes * dataset.num_attributes))


def test_images_are_kept_as_bytes_and_normalised_and_other_inputs_stay_as_they_are(data):
    dataset = data.dataset
    kept = dataset.inputs.fetch(dataset.test[:3])
    batch = dataset.batch(dataset.test[:3])
    assert kept.shape == batch.x.shape == (3, *dataset.input_shape)
    if dataset.mean is None:
        assert dataset.std is dataset.augmentation is None
        assert torch.equal(batch.x, kept)
        assert (kept.dtype == torch.float32 and kept.isfinite().all()) or kept.dtype in (torch.uint8, torch.int64)
    else:
        assert kept.dtype == torch.uint8
        assert batch.x.dtype == torch.float32
        assert len(dataset.mean) == len(dataset.std) == kept.shape[1]
        expected = (kept / 255 - torch.tensor(dataset.mean).view(-1, 1, 1)) / torch.tensor(dataset.std).view(-1, 1, 1)
        torch.testing.assert_close(batch.x, expected, rtol=1e-4, atol=1e-5)
    labels = dataset.y if dataset.targets is None else dataset.targets
    assert batch.y.tolist() == labels[dataset.test[:3]].tolist()
    assert batch.a.tolist() == dataset.a[dataset.test[:3]].tolist()


def test_fetching_does_not_hand_out_the_store_itself(data):
    batch = data.dataset.batch(data.dataset.test[:2])
    before = batch.x.clone()
    batch.x.zero_()
    assert torch.equal(data.dataset.batch(data.dataset.test[:2]).x, before)


def test_loading_again_gives_the_same(data, option, load):
    again = load(option, anew=True)
    assert again is not data
    assert again.partition.digest == data.partition.digest
    assert np.array_equal(again.val, data.val)
    some = data.val[:: max(1, len(data.val) // 10)]
    assert torch.equal(again.dataset.batch(some).x, data.dataset.batch(some).x)


@pytest.mark.parametrize("hidden", ["[16]", "[]"])
def test_a_data_set_of_ones_own_trains(own, tmp_path, hidden):
    """Two rounds on vectors, one client after another and side by side."""
    overrides = [own, f"dataset={OWN}", "model=mlp", f"model.hidden={hidden}", "partition=dirichlet", "partition.num_clients=6"]
    overrides += ["federation.rounds=2", "federation.cohort_size=6", "selector=uniform", "logger=[]", "callbacks=[evaluate]"]
    overrides += ["aggregator=fedavg", "optimizer.lr=0.1", "local.amount=5"]
    models = []
    for engine in ("sequential", "vectorized"):
        federation = build.build(
            config.compose_job("train", [*overrides, f"engine={engine}", "engine.device=cpu"])[0], tmp_path
        )
        federation.fit()
        models.append(federation.state.model)
        assert getattr(federation.engine, "fallback_reason", None) is None
        dataset = federation.engine.clients.dataset
        said = predict(federation.engine.clients, federation.state.model, [dataset.test]).labels
        assert (said == dataset.y[dataset.test]).mean() > 0.85
    for name, tensor in models[0].items():
        torch.testing.assert_close(models[1][name], tensor)
