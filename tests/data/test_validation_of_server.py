"""Samples of the server's belong to nobody else, and cost clients nothing where it can be helped."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedfacet.data.digits import Digits
from fedfacet.data.federated import deal
from fedfacet.data.validation_of_server import ValidationOfServer
from fedfacet.errors import InfeasiblePartitionError
from fedfacet.partitioners.interaction_matrix import InteractionMatrixPartitioner
from fedfacet.partitioners.natural import NaturalPartitioner
from fedfacet.partitioners.synthetic import DirichletPartitioner, IIDPartitioner


def matrices(count, each):
    return InteractionMatrixPartitioner([{"count": count, "matrix": [[each, each], [each, each]]}])


def cells(dataset, indices):
    return np.bincount(2 * dataset.y[indices] + dataset.a[indices], minlength=4).tolist()


@pytest.fixture(scope="module")
def official():
    """The digits as they are: training samples of exactly the cells that are asked for, and a validation set."""
    return Digits().load(np.array([[352, 128], [128, 352]]))


@pytest.fixture(scope="module")
def dataset(official):
    """The digits with their validation samples given back to training."""
    return replace(official, train=np.sort(np.concatenate([official.train, official.val])), val=None)


@given(
    partitioner=st.one_of(
        st.builds(matrices, st.integers(1, 4), st.integers(1, 52)),
        st.builds(IIDPartitioner, num_clients=st.integers(1, 8), seed=st.integers(0, 3)),
        st.builds(DirichletPartitioner, num_clients=st.integers(1, 8), alpha=st.sampled_from([0.3, 10.0])),
        st.builds(NaturalPartitioner, label=st.sampled_from(["y", "a"])),
    ),
    per_cell=st.integers(1, 20),
    holdout=st.sampled_from([0.0, 0.3]),
    has_val=st.booleans(),
    seed=st.integers(0, 2),
)
def test_they_are_nobody_elses(dataset, official, partitioner, per_cell, holdout, has_val, seed):
    """Over partitions: of neither clients, what these hold out, validation nor test; equally many of every cell."""
    data = official if has_val else dataset
    server = ValidationOfServer(samples_per_cell=per_cell)
    try:
        dealt = deal(data, partitioner, local_holdout=holdout, seed=seed, server=server)
    except InfeasiblePartitionError:  # matrices ask for more than the training samples have
        assert partitioner.demand is not None
        with pytest.raises(InfeasiblePartitionError):
            deal(data, partitioner, seed=seed)
        return
    own = dealt.server.samples
    assert cells(data, own) == [per_cell] * 4
    assert (np.diff(own) > 0).all()
    everybody = [own, dealt.val, data.test, *dealt.partition.indices, *dealt.local_holdout]
    assert len(np.unique(np.concatenate(everybody))) == sum(map(len, everybody))
    assert all(cells(data, dealt.val))


@pytest.mark.parametrize("partitioner", [matrices(2, 10), IIDPartitioner(num_clients=5)])
def test_nothing_changes_without_them(dataset, partitioner):
    """Nor for partitions that leave samples over, with them."""
    plain, none = deal(dataset, partitioner), deal(dataset, partitioner, server=None)
    assert plain.partition.digest == none.partition.digest
    assert (plain.val == none.val).all()
    assert none.server is None


def test_what_is_left_over_after_validation_comes_first(toy_dataset):
    """Validation has 300 of the 330 that are left of each cell."""
    dataset = toy_dataset(((340, 340), (340, 340)))
    plain, with_server = (deal(dataset, matrices(1, 10), server=own) for own in (None, ValidationOfServer(samples_per_cell=30)))
    assert with_server.partition.digest == plain.partition.digest
    assert (with_server.val == plain.val).all()
    assert cells(dataset, plain.val) == [300] * 4


@pytest.mark.parametrize("has_val", [False, True])
def test_where_all_is_dealt_they_are_set_aside_after_validation(dataset, official, has_val):
    data = official if has_val else dataset
    plain, with_server = (deal(data, IIDPartitioner(num_clients=5), server=own) for own in (None, ValidationOfServer()))
    assert (with_server.val == plain.val).all()
    sizes = [sum(map(len, dealt.partition.indices)) for dealt in (plain, with_server)]
    assert sizes[0] - sizes[1] == 80


def test_where_nothing_is_left_validation_gives_up_its_own_and_clients_stay(official, caplog):
    partitioner = InteractionMatrixPartitioner([{"count": 1, "matrix": [[352, 128], [128, 352]]}])
    plain, with_server = (deal(official, partitioner, server=own) for own in (None, ValidationOfServer()))
    assert with_server.partition.digest == plain.partition.digest
    assert cells(official, plain.val) == [104] * 4
    assert cells(official, with_server.val) == [84] * 4
    assert (np.sort(np.concatenate([with_server.val, with_server.server.samples])) == plain.val).all()
    assert "the server gets 80 of validation's" in caplog.text
    with pytest.raises(InfeasiblePartitionError, match=r"Expected 104 samples .* for the server, but only 103 can be spared"):
        deal(official, partitioner, server=ValidationOfServer(samples_per_cell=104))


def test_too_few_are_refused(dataset):
    with pytest.raises(InfeasiblePartitionError, match="Expected 500 samples of every class and attribute value"):
        deal(dataset, IIDPartitioner(num_clients=5), server=ValidationOfServer(samples_per_cell=500))


def test_the_same_are_drawn_where_the_server_does_not_know_attributes(dataset):
    servers = [deal(dataset, matrices(2, 10), server=ValidationOfServer(attributes=own)).server for own in (True, False)]
    assert [server.attributes for server in servers] == [True, False]
    assert (servers[0].samples == servers[1].samples).all()


def test_the_seed_of_the_data_set_draws_them(dataset):
    drawn = [deal(dataset, matrices(2, 10), seed=seed, server=ValidationOfServer()).server.samples for seed in (0, 0, 1)]
    assert (drawn[0] == drawn[1]).all()
    assert (drawn[0] != drawn[2]).any()


@pytest.mark.parametrize("bad", [0, -1, 2.5, True])
def test_values_out_of_range_are_refused(bad):
    with pytest.raises(ValueError, match=r"Expected `server_data\.samples_per_cell` to be a whole number"):
        ValidationOfServer(samples_per_cell=bad)
