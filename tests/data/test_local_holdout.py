"""What clients hold out of their own samples."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.model_selection import StratifiedShuffleSplit

from fedfacet import build as build_module
from fedfacet import rng
from fedfacet.build import load_data
from fedfacet.config import compose_job
from fedfacet.data.federated import hold_out_locally
from fedfacet.errors import ConfigError
from fedfacet.types import Partition


@st.composite
def federations(draw):
    """Classes, and clients of any size who own some of the samples, in pieces that do not touch."""
    sizes = draw(st.lists(st.integers(1, 40), min_size=1, max_size=5))
    num_classes = draw(st.integers(1, 5))
    generator = rng.stream(draw(st.integers(0, 10**6)), "federation")
    y = generator.integers(num_classes, size=sum(sizes) + 10)
    owned = np.split(generator.permutation(len(y))[: sum(sizes)], np.cumsum(sizes)[:-1])
    return y, Partition(tuple(np.sort(client) for client in owned))


@given(federations(), st.floats(0, 0.999), st.integers(0, 3))
def test_every_sample_stays_with_its_client_and_something_is_left_to_train_on(federation, share, seed):
    y, partition = federation
    left, held_out = hold_out_locally(y, partition, share, seed=seed)
    for client, trained, held in zip(partition.indices, left.indices, held_out, strict=True):
        assert np.array_equal(np.sort(np.concatenate([trained, held])), client)  # cover, disjoint
        assert len(trained) >= 1
        assert (np.diff(held) > 0).all()
        assert (np.diff(trained) > 0).all()


@given(federations(), st.floats(0, 0.999))
def test_it_is_stratified(federation, share):
    """Each class gives its share, rounded up or down, and all together the client's share, rounded."""
    y, partition = federation
    _, held_out = hold_out_locally(y, partition, share)
    for client, held in zip(partition.indices, held_out, strict=True):
        if share:
            assert len(held) == min(int(share * len(client) + 0.5), len(client) - 1)
        for label in np.unique(y[client]):
            of_class, of_held = (y[client] == label).sum(), (y[held] == label).sum()
            assert np.floor(share * of_class - 1e-5) <= of_held <= np.ceil(share * of_class + 1e-5)


def test_class_counts_are_those_of_scikit_learn():
    """Where its splitter has no ties to break."""
    y = np.repeat([0, 1, 2], [50, 33, 17])
    _, (held,) = hold_out_locally(y, Partition((np.arange(100),)), 0.2)
    ((_, theirs),) = StratifiedShuffleSplit(1, test_size=0.2, random_state=0).split(y, y)
    assert np.bincount(y[held]).tolist() == np.bincount(y[theirs]).tolist()


def test_sorted_samples_are_drawn_from_everywhere():
    _, (held,) = hold_out_locally(np.zeros(1000, dtype=int), Partition((np.arange(1000),)), 0.3)
    assert held.min() < 50
    assert held.max() > 950
    assert not np.array_equal(held, np.arange(300))


def test_many_small_classes_give_something_too():
    y = np.repeat(np.arange(20), 2)
    _, (held,) = hold_out_locally(y, Partition((np.arange(40),)), 0.2)
    assert len(held) == 8
    assert (np.bincount(y[held], minlength=20) <= 1).all()


def test_the_draw_hangs_on_seed_and_client_alone():
    y = np.zeros(60, dtype=int)
    both = Partition((np.arange(30), np.arange(30, 60)))
    _, held = hold_out_locally(y, both, 0.5, seed=1)
    _, again = hold_out_locally(y, Partition((np.arange(30),)), 0.5, seed=1)
    _, other = hold_out_locally(y, both, 0.5, seed=2)
    assert np.array_equal(held[0], again[0])
    assert not np.array_equal(held[0], other[0])
    assert not np.array_equal(held[0], held[1] - 30)


def test_nothing_held_out_leaves_the_partition_as_it_is():
    partition = Partition((np.arange(3),))
    left, held_out = hold_out_locally(np.zeros(3, dtype=int), partition, 0.0)
    assert left is partition
    assert [len(held) for held in held_out] == [0]


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
def test_an_impossible_share_is_refused(share):
    with pytest.raises(ValueError, match=r"Expected `partition\.local_holdout` in \[0, 1\), but got"):
        hold_out_locally(np.zeros(3, dtype=int), Partition((np.arange(3),)), share)


# --- in a run --------------------------------------------------------------------------------------------------------------


def job(*overrides):
    return compose_job("train", ["experiment=digits_gsc", *overrides])[0]


def test_a_runs_clients_train_on_what_is_left():
    whole, held = load_data(job()), load_data(job("partition.local_holdout=0.25"))
    assert [len(client) for client in held.partition.indices] == [30] * 24
    for client, left, out in zip(whole.partition.indices, held.partition.indices, held.local_holdout, strict=True):
        assert np.array_equal(np.sort(np.concatenate([left, out])), client)
    assert held.partition.digest != whole.partition.digest
    assert np.array_equal(held.val, whole.val)
    assert all(len(out) == 0 for out in whole.local_holdout)


def test_no_step_is_taken_on_it(tmp_path, monkeypatch):
    config = job("partition.local_holdout=0.25", "selector=all", "logger=[]", "local.amount=2")
    config.callbacks = {}
    federation = build_module.build(config, tmp_path)
    dataset = federation.engine.clients.dataset
    seen = []
    fetch = type(dataset.inputs).fetch
    monkeypatch.setattr(
        type(dataset.inputs), "fetch", lambda self, indices: seen.extend(indices.tolist()) or fetch(self, indices)
    )
    tasks = []
    run = federation.engine.run
    monkeypatch.setattr(federation.engine, "run", lambda orders: tasks.extend(orders) or run(orders))
    federation.run_round()
    assert len(tasks) == 24
    data = load_data(config)
    assert set(seen) == set(np.concatenate(data.partition.indices).tolist())
    assert not set(seen) & set(np.concatenate(data.local_holdout).tolist())


@pytest.mark.parametrize("value", ["much", "null"])
def test_a_share_that_is_no_number_costs_one_sentence(value):
    with pytest.raises(ConfigError, match=r"Expected `partition\.local_holdout` to be a finite number or a list, .*, but got"):
        job(f"partition.local_holdout={value}")


@pytest.mark.parametrize("partition", ["gsc", "dirichlet", "iid"])
def test_every_partition_has_it(partition):
    data = load_data(job(f"partition={partition}", "partition.local_holdout=0.5"))
    assert all(map(len, data.local_holdout))


def test_clients_may_hold_out_parts_of_their_own():
    y, partition = np.repeat([0, 1], 30), Partition((np.arange(0, 20), np.arange(20, 40), np.arange(40, 60)))
    left, held_out = hold_out_locally(y, partition, [0.0, 0.5, 0.2], seed=3)
    assert list(map(len, held_out)) == [0, 10, 4]
    for share, client in ((0.5, 1), (0.2, 2)):
        assert np.array_equal(held_out[client], hold_out_locally(y, partition, share, seed=3)[1][client])
    assert np.array_equal(left.indices[0], partition.indices[0])
    with pytest.raises(ValueError, match=r"one number, or one for each of 3 clients, but got 2"):
        hold_out_locally(y, partition, [0.1, 0.2])
    with pytest.raises(ValueError, match=r"partition\.local_holdout"):
        hold_out_locally(y, partition, [0.1, 0.2, 1.0])
