import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from fedfacet.errors import InfeasiblePartitionError
from fedfacet.heterogeneity import InteractionMatrix, measure_federation
from fedfacet.partitioners.interaction_matrix import InteractionMatrixPartitioner

OF_THE_PAPER = ["gsc", "gci", "gai", "waterbirds_dist", "spawrious4", "gci_100"]
PRINTED = 0.005 + 1e-12  # two decimals


@pytest.fixture
def preset(checkout):
    def make(name, **changed):
        settings = OmegaConf.to_object(OmegaConf.load(checkout / "conf" / "partition" / f"{name}.yaml"))
        del settings["_target_"]
        return InteractionMatrixPartitioner(**settings | changed)

    return make


def pool(demand, spare=0):
    """Samples of every cell, sorted by class and attribute."""
    groups = np.repeat(np.arange(demand.size), demand.ravel() + spare)
    return np.divmod(groups, demand.shape[1])


def counts_of(partition, y, a, shape):
    return [InteractionMatrix.from_labels(y[client], a[client], *shape).counts.tolist() for client in partition.indices]


@pytest.mark.parametrize("name", OF_THE_PAPER)
def test_dealt_samples_are_table_6_and_table_5(preset, paper, name):
    partitioner = preset(name)
    y, a = pool(partitioner.demand, spare=3)
    partition = partitioner.partition(y, a)
    dealt = counts_of(partition, y, a, partitioner.demand.shape)
    expected = [(matrix, triplet) for count, matrix, triplet in paper[name]["clients"] for _ in range(count)]
    assert dealt == [matrix for matrix, _ in expected]
    measured = measure_federation([InteractionMatrix(counts) for counts in dealt])
    for client, (_, triplet) in zip(measured.clients, expected, strict=True):
        assert client == pytest.approx(triplet, abs=PRINTED)
    if name != "gci_100":
        assert partitioner.demand.tolist() == paper[name]["pooled"]
        assert measured.global_triplet == pytest.approx(paper[name]["pooled_triplet"], abs=PRINTED)


@pytest.mark.parametrize(
    ("name", "num_clients"),
    [("gsc", 24), ("gci", 24), ("gai", 25), ("waterbirds_dist", 30), ("spawrious4", 25), ("gci_100", 100)],
)
def test_numbers_of_clients(preset, name, num_clients):
    """Thesis, footnote 9."""
    assert len(preset(name).matrices) == num_clients


@pytest.mark.parametrize("name", ["gsc", "gci"])
def test_a_fifth_keeps_every_triplet_exactly(preset, name):
    full, small = preset(name, tolerance=0.0), preset(name, scale=0.2, tolerance=0.0)
    assert [matrix.counts.tolist() for matrix in small.matrices] == [
        (matrix.counts / 5).tolist() for matrix in full.matrices
    ], "18 and 2 a cell"
    assert [matrix.triplet for matrix in small.matrices] == [
        pytest.approx(matrix.triplet, abs=1e-15) for matrix in full.matrices
    ]


def test_the_offline_main_jobs_cells(preset):
    """Issue text: 352 / 128 training samples per cell."""
    assert preset("gsc", scale=0.2).demand.tolist() == [[352, 128], [128, 352]]


def test_a_scale_that_bends_a_triplet_is_refused(preset):
    with pytest.raises(ValueError, match=r"scale=0.03` to keep every client's heterogeneity triplet within 0.02") as refusal:
        preset("gsc", scale=0.03)
    assert "[[90, 90], [10, 10]] would become [[3, 3], [0, 0]] and move by 0.469: use `partition.scale=" in str(refusal.value)


@pytest.fixture(scope="module")
def groups_of(checkout):
    """Return a function: a preset's name -> its groups of clients."""
    return functools.cache(
        lambda name: OmegaConf.to_object(OmegaConf.load(checkout / "conf/partition" / f"{name}.yaml"))["clients"]
    )


@pytest.mark.parametrize("name", OF_THE_PAPER)
@given(percent=st.integers(1, 100))
@settings(max_examples=25)
def test_an_accepted_scale_moves_no_triplet_beyond_the_tolerance(groups_of, name, percent):
    groups = groups_of(name)
    full = [InteractionMatrix(group["matrix"]) for group in groups for _ in range(group["count"])]
    try:
        scaled = InteractionMatrixPartitioner(groups, scale=percent / 100)
    except ValueError as refusal:
        suggested = float(str(refusal).split("use `partition.scale=")[1].split("`")[0])
        assert suggested > percent / 100
        InteractionMatrixPartitioner(groups, scale=suggested)
        return
    for before, after in zip(full, scaled.matrices, strict=True):
        assert after.total == pytest.approx(before.total * percent / 100, abs=0.5 + 1e-9), "round(scale * n_k) samples"
        assert np.abs(after.counts - before.counts * percent / 100).max() < 1, "largest remainder moves no cell by a whole one"
        assert np.abs(np.subtract(after.triplet, before.triplet)).max() <= 0.02


def test_largest_remainders_get_what_is_missing():
    partitioner = InteractionMatrixPartitioner([{"count": 1, "matrix": [[7, 5], [9, 3]]}], scale=0.5, tolerance=1.0)
    # 3.5 2.5 4.5 1.5: all remainders equal, 12 - 10 samples are missing, the first cells get them.
    assert partitioner.matrices[0].counts.tolist() == [[4, 3], [4, 1]]
    partitioner = InteractionMatrixPartitioner([{"count": 1, "matrix": [[7, 6], [9, 3]]}], scale=0.3, tolerance=1.0)
    # 2.1 1.8 2.7 0.9: 7.5 rounds to the even 8, so three are missing.
    assert partitioner.matrices[0].counts.tolist() == [[2, 2], [3, 1]]


def test_a_short_cell_is_named_with_what_was_wanted_and_what_there_is(preset):
    partitioner = preset("gsc")
    y, a = pool(partitioner.demand)
    keep = np.flatnonzero(~((y == 1) & (a == 0)))
    y, a = np.concatenate([y[keep], np.full(639, 1)]), np.concatenate([a[keep], np.full(639, 0)])
    with pytest.raises(
        InfeasiblePartitionError, match="640 samples in the cell class 1, attribute 0, but the data set has 639"
    ):
        partitioner.partition(y, a)


def test_exactly_enough_samples_are_enough(preset):
    partitioner = preset("gai")
    y, a = pool(partitioner.demand)
    dealt = partitioner.partition(y, a)
    assert np.array_equal(np.sort(np.concatenate(dealt.indices)), np.arange(len(y)))


def test_a_data_set_of_another_shape_is_refused(preset):
    partitioner = preset("gsc")
    with pytest.raises(
        InfeasiblePartitionError, match=r"attribute 1, but the data set has none: choose .* partition=dirichlet"
    ):
        partitioner.partition(np.arange(6000) % 2, np.zeros(6000, dtype=np.int64))
    with pytest.raises(InfeasiblePartitionError, match=r"2 classes and 2 attribute values.* the data set has 4 and 2"):
        partitioner.partition(*pool(preset("spawrious4").demand))


def test_samples_that_nobody_asks_for_stay_out(preset):
    partitioner = preset("gsc", scale=0.2)
    y, a = pool(partitioner.demand, spare=7)
    assert sum(map(len, partitioner.partition(y, a).indices)) == len(y) - 4 * 7


def test_which_samples_a_client_gets_is_drawn(preset):
    """The first client of a cell does not simply get the first samples of the list."""
    partitioner = preset("gsc")
    y, a = pool(partitioner.demand, spare=100)
    first = partitioner.partition(y, a).indices[0]
    of_cell = first[(y[first] == 0) & (a[first] == 0)]
    assert len(of_cell) == 90
    assert 700 < of_cell.mean() < 1160, "about the middle of 1860"


def test_a_cells_draw_does_not_depend_on_the_other_cells(preset):
    partitioner = preset("gsc")
    y, a = pool(partitioner.demand, spare=10)
    more_y, more_a = np.concatenate([y, np.ones(50, int)]), np.concatenate([a, np.ones(50, int)])
    for before, after in zip(partitioner.partition(y, a).indices, partitioner.partition(more_y, more_a).indices, strict=True):
        cells = (y[before] == 0) | (a[before] == 0)
        assert set(before[cells]) <= set(after)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"scale": 0.0}, r"`partition\.scale` in \(0, 1e9\]"),
        ({"scale": -1.0}, r"`partition\.scale` in"),
        ({"scale": float("nan")}, r"`partition\.scale` in"),
        ({"scale": 1e308}, r"`partition\.scale` in"),
        ({"scale": 1e-9}, "at least one sample"),
        ({"tolerance": float("nan")}, r"`partition\.tolerance` in"),
        ({"clients": []}, "at least one group of clients"),
        ({"clients": [3]}, "a `count` and a `matrix`, but got 3"),
        ({"clients": [{"matrix": [[1, 1]]}]}, "a `count` and a `matrix`"),
        ({"clients": [{"count": 1, "matrix": [[1, 1]], "typo": 1}]}, "a `count` and a `matrix`"),
        *(({"clients": [{"count": count, "matrix": [[1, 1]]}]}, "Expected `count` to be") for count in (0, -2, 1.5, True, "2")),
        *(({"clients": [{"count": count, "matrix": [[1, 1]]}]}, "at most 1,000,000,000") for count in (10**9, 10**400)),
        *(
            ({"clients": [{"count": 1, "matrix": matrix}]}, r"rows \(classes\) of equally many whole numbers")
            for matrix in (
                [[1, -1]],
                [[0.5, 1]],
                [[float("nan"), 1]],
                [1, 1],
                [[1, 2], [1]],
                [],
                [[]],
                [["a"]],
                None,
                [[1e300]],
            )
        ),
        ({"clients": [{"count": 1, "matrix": [[1, 1]]}, {"count": 1, "matrix": [[1], [1]]}]}, "one shape"),
        ({"seed": -1}, "Expected `seed` to be 0 or larger"),
    ],
    ids=str,
)
def test_impossible_arguments_are_refused(changed, message):
    with pytest.raises(ValueError, match=message):
        InteractionMatrixPartitioner(**{"clients": [{"count": 1, "matrix": [[1, 1]]}]} | changed).partition(
            *pool(np.ones((1, 2), int))
        )


def test_a_client_that_would_hold_nothing_is_refused():
    """Before any training, which would wait for its first batch forever."""
    clients = [{"count": 2, "matrix": [[9, 9], [9, 9]]}, {"count": 1, "matrix": [[1, 0], [0, 0]]}]
    with pytest.raises(ValueError, match=r"least one sample, but the matrix \[\[1, 0\], \[0, 0\]\] would become \[\[0, 0\], "):
        InteractionMatrixPartitioner(clients, scale=0.3, tolerance=1.0)


def test_a_hundred_million_clients_are_refused_before_anything_is_made_for_them():
    y, a = pool(np.ones((1, 2), int))
    partitioner = InteractionMatrixPartitioner([{"count": 10**8, "matrix": [[1, 1]]}])
    with pytest.raises(InfeasiblePartitionError, match="at least 100000000 samples in the cell class 0, attribute 0"):
        partitioner.partition(y, a)
