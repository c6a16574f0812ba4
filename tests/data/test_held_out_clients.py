"""Whole clients that are held out of a federation: who they are, and that everything else stays as it is."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedfacet.build import load_data
from fedfacet.config import compose_job
from fedfacet.data.federated import deal
from fedfacet.data.held_out_clients import drawn_clients
from fedfacet.data.validation_of_server import ValidationOfServer
from fedfacet.errors import ConfigError
from fedfacet.partitioners.synthetic import DirichletPartitioner, IIDPartitioner


@given(st.integers(2, 60), st.data(), st.integers(0, 5))
def test_a_number_of_clients_is_drawn_and_a_smaller_one_is_among_them(num_clients, data, seed):
    number = data.draw(st.integers(0, num_clients - 1))
    drawn = drawn_clients(num_clients, number, seed=seed)
    assert len(drawn) == number
    assert list(drawn) == sorted(set(drawn))
    assert set(drawn) <= set(range(num_clients))
    assert all(type(client_id) is int for client_id in drawn)
    assert set(drawn_clients(num_clients, number // 2, seed=seed)) <= set(drawn)


@pytest.mark.parametrize(
    ("num_clients", "share", "number"), [(24, 0.2, 5), (10, 0.25, 3), (10, 0.01, 1), (10, 0.9, 9), (7, 0.0, 0), (3, 0.5, 2)]
)
def test_a_share_is_rounded_and_is_one_client_at_least(num_clients, share, number):
    assert drawn_clients(num_clients, share) == drawn_clients(num_clients, number)
    assert len(drawn_clients(num_clients, share)) == number


def test_every_client_is_drawn_as_often_as_any_other():
    counts = np.bincount([k for seed in range(4000) for k in drawn_clients(8, 2, seed=seed)], minlength=8)
    np.testing.assert_allclose(counts / 4000, 0.25, atol=0.03)


def test_clients_may_be_named():
    assert drawn_clients(5, [4, 0]) == (0, 4)
    assert drawn_clients(5, []) == ()


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (1.0, r"in \[0, 1\), but got 1\.0"),
        (-0.1, r"in \[0, 1\), but got -0\.1"),
        (float("nan"), r"in \[0, 1\), but got nan"),
        (3.0, r"in \[0, 1\), but got 3\.0"),
        (-1, "whole number, 0 or larger, but got -1"),
        (True, "whole number, 0 or larger, but got True"),
        (4, "leave some of the partition's 4 clients to take part, but got 4: hold out fewer"),
        (9, "leave some of the partition's 4 clients"),
        (0.9, "leave some of the partition's 4 clients"),
        ([0, 1, 2, 3], "leave some of the partition's 4 clients"),
        ([1, 1], r"different ones of the partition's 4 clients, from 0, but got \[1, 1\]"),
        ([4], r"different ones of the partition's 4 clients, from 0, but got \[4\]"),
        ([-1], "whole number, 0 or larger, but got -1"),
    ],
)
def test_what_cannot_be_is_refused(wanted, said):
    with pytest.raises(ValueError, match=f"`partition.held_out_clients`.*{said}"):
        drawn_clients(4, wanted)


@given(
    wanted=st.one_of(st.integers(0, 5), st.floats(0, 0.8), st.sets(st.integers(0, 5), max_size=5).map(list)),
    holdout=st.sampled_from([0.0, 0.3]),
    seed=st.integers(0, 3),
    iid=st.booleans(),
)
def test_who_owns_what_is_the_same_with_and_without(toy_dataset, wanted, holdout, seed, iid):
    partitioner = IIDPartitioner(num_clients=6) if iid else DirichletPartitioner(num_clients=6, alpha=1.0)
    settings = {"local_holdout": holdout, "holdout_seed": seed, "server": ValidationOfServer()}
    whole = deal(toy_dataset([[60, 50], [50, 60]]), partitioner, **settings)
    data = deal(toy_dataset([[60, 50], [50, 60]]), partitioner, held_out_clients=wanted, **settings)
    numbers = drawn_clients(6, wanted, seed=seed)
    assert np.array_equal(data.val, whole.val)
    assert np.array_equal(data.server.samples, whole.server.samples)
    never = data.held_out_clients
    assert (never is None) == (not numbers)
    if never is None:
        assert data.partition.digest == whole.partition.digest
        return
    assert never.numbers == numbers
    others = [k for k in range(6) if k not in numbers]
    for number, client, held in (
        *zip(others, data.partition.indices, data.local_holdout, strict=True),
        *zip(numbers, never.partition.indices, never.local_holdout, strict=True),
    ):
        assert np.array_equal(client, whole.partition.indices[number])
        assert np.array_equal(held, whole.local_holdout[number])
    assert len(data.matrices) == len(others)
    assert sum(data.group_weights) == sum(len(whole.partition.indices[k]) for k in others), "of those that train"
    (pool,) = data.pooled.partition.indices
    assert not np.isin(np.concatenate([*never.partition.indices, *never.local_holdout]), pool).any(), "nor a central server"
    assert data.pooled.held_out_clients is never


# --- in a run --------------------------------------------------------------------------------------------------------------


def job(*overrides):
    return compose_job("train", ["experiment=digits_gsc", *overrides])[0]


def test_a_share_of_0_is_what_there_was_before():
    plain, none = load_data(job()), load_data(job("partition.held_out_clients=0"))
    assert none.held_out_clients is None
    assert none.partition.digest == plain.partition.digest
    assert load_data(job("partition.held_out_clients=0.0")).held_out_clients is None
    assert load_data(job("partition.held_out_clients=[]")).held_out_clients is None


def test_the_draw_hangs_on_the_seed_of_the_partition_unless_it_has_its_own():
    def numbers(*overrides):
        return load_data(job("partition.held_out_clients=0.25", *overrides)).held_out_clients.numbers

    assert len(numbers()) == 6
    assert numbers("seed=1") == numbers()
    assert numbers("partition.seed=1") != numbers()
    assert numbers("partition.holdout_seed=1") == numbers("partition.seed=1")
    assert numbers("partition=dirichlet") == numbers()


def test_clients_of_a_command_line_may_be_named():
    assert load_data(job("partition.held_out_clients=[3, 1]")).held_out_clients.numbers == (1, 3)


def test_a_smoke_test_holds_out_one():
    assert len(load_data(job("partition.held_out_clients=9", "debug=smoke")).held_out_clients.numbers) == 1
    assert len(load_data(job("partition.held_out_clients=[20]", "debug=smoke")).held_out_clients.numbers) == 1
    assert len(load_data(job("partition.held_out_clients=0.5", "debug=smoke")).held_out_clients.numbers) == 3


@pytest.mark.parametrize("value", ["many", "null", "true", "[a]"])
def test_what_is_no_number_costs_one_sentence(value):
    with pytest.raises(ConfigError, match=r"Expected `partition\.held_out_clients` to be a finite number or a whole number"):
        job(f"partition.held_out_clients={value}")
