"""Who is told apart from whom."""

import numpy as np
import pytest

from fedfacet.data.arrays import dataset_from_arrays
from fedfacet.data.audit_set import Members
from fedfacet.data.federated import deal
from fedfacet.errors import FedFacetError
from fedfacet.partitioners.iid import IIDPartitioner


@pytest.fixture(scope="module")
def data():
    draw = np.random.default_rng(0)
    dataset = dataset_from_arrays(draw.normal(size=(600, 3)), draw.integers(0, 2, size=600))
    return deal(dataset, IIDPartitioner(num_clients=4), local_holdout=0.25)


@pytest.mark.parametrize("others", ["holdout", "test"])
def test_members_are_the_clients_and_others_are_nobodys(data, others):
    members = Members(others=others, min_known=4)
    drawn = members.of_client(data, 2)
    size = min(len(data.partition.indices[2]), len(data.local_holdout[2] if others == "holdout" else data.dataset.test))
    assert len(drawn.samples) == 2 * size == 2 * drawn.is_member.sum()
    assert set(drawn.samples[drawn.is_member].tolist()) <= set(data.partition.indices[2].tolist())
    trained_on = np.concatenate(data.partition.indices)
    assert not set(drawn.samples[~drawn.is_member].tolist()) & set(trained_on.tolist())
    assert drawn.is_known[drawn.is_member].sum() == drawn.is_known[~drawn.is_member].sum() == 4


def test_samples_are_drawn_and_not_the_first(data):
    one, other = (Members(others="test", most=30, seed=seed).of_client(data, 0) for seed in (0, 1))
    assert len(one.samples) == 60
    assert set(one.samples.tolist()) != set(other.samples.tolist())
    assert one.samples[:30].tolist() != data.partition.indices[0][:30].tolist()
    again = Members(others="test", most=30).of_client(data, 0)
    assert np.array_equal(one.samples, again.samples)


def test_a_share_of_them_is_known(data):
    drawn = Members(known_share=0.2, min_known=3).of_server(data, range(4))
    assert drawn.is_known.sum() == 2 * round(0.2 * len(np.concatenate(data.local_holdout)))


def test_what_clients_hold_out_is_taken_where_all_do(data):
    assert Members().source(data) == "holdout"
    none = deal(data.dataset, IIDPartitioner(num_clients=4))
    assert Members().source(none) == "test"
    with pytest.raises(FedFacetError, match="none does"):
        Members(others="holdout").source(none)


@pytest.mark.parametrize("key", ["most", "known_share", "min_known", "seed", "others"])
def test_values_out_of_range_are_refused(key):
    with pytest.raises(ValueError, match=f"members.{key}"):
        Members(**{key: "all" if key == "others" else -1})
