"""Who is told apart from whom."""

import numpy as np
import pytest

from fedfacet.data.arrays import dataset_from_arrays
from fedfacet.data.audit_set import Members
from fedfacet.data.federated import deal
from fedfacet.errors import FedFacetError
from fedfacet.metrics.audited_epsilon import audited_of
from fedfacet.partitioners.synthetic import IIDPartitioner


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


@pytest.mark.parametrize("others", ["holdout", "test"])
def test_references_are_all_others_that_are_not_drawn(data, others):
    """Of any client that holds out, too; ``most`` of them at most."""
    drawn = Members(others=others, most=20).of_client(data, 1)
    everything = np.concatenate(data.local_holdout) if others == "holdout" else data.dataset.test
    assert len(drawn.references) == min(20, len(everything) - 20) == 20
    assert set(drawn.references.tolist()) <= set(everything.tolist()) - set(drawn.samples.tolist())
    if others == "holdout":
        whole = Members(others=others).of_client(data, 1)
        other_clients = np.concatenate([own for client, own in enumerate(data.local_holdout) if client != 1])
        assert np.array_equal(whole.references, np.sort(other_clients))


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


def test_pairs_are_of_one_class_and_client_scored_and_disjoint(data):
    owner = {}
    for owned in (data.partition.indices, data.local_holdout):
        owner |= {sample: client_id for client_id, own in enumerate(owned) for sample in own.tolist()}
    for drawn in (Members(min_known=5).of_client(data, 1), Members(min_known=5).of_server(data, [0, 2])):
        assert len(drawn.pairs) > 10
        members, others = drawn.pairs.T
        assert drawn.is_member[members].all()
        assert not drawn.is_member[others].any()
        assert not drawn.is_known[drawn.pairs].any()
        assert len(set(drawn.pairs.ravel().tolist())) == drawn.pairs.size
        for member, other in drawn.samples[drawn.pairs].tolist():
            assert owner[member] == owner[other]
            assert data.dataset.y[member] == data.dataset.y[other]
    assert {owner[sample] for sample in drawn.samples[drawn.pairs].ravel().tolist()} == {0, 2}


def test_with_the_test_set_there_are_no_pairs(data):
    assert Members(others="test").of_client(data, 0).pairs.shape == (0, 2)
    assert Members(others="test").of_server(data, [0]).pairs.shape == (0, 2)


@pytest.mark.parametrize("share", [0.5, 0.2])
@pytest.mark.parametrize("whose", ["client", "server"])
def test_fair_coins_have_chosen_the_members_of_pairs(whose, share):
    """Over 200 draws of what clients hold out, against guesses that depend on samples alone: positions, classes and luck.

    Right guesses are binomial: mean, variance, and the chance of the unlikely; also where classes are unequal.
    """
    draw = np.random.default_rng(0)
    y = (draw.random(240) < 0.2).astype(np.int64)
    dataset = dataset_from_arrays(draw.normal(size=(240, 2)), y)
    partitioner, guesses = IIDPartitioner(num_clients=3), {"position": np.arange(240.0), "luck": draw.normal(size=240)}
    z, claims = {name: [] for name in guesses}, dict.fromkeys(guesses, 0)
    for seed in range(200):
        data = deal(dataset, partitioner, local_holdout=share, holdout_seed=seed)
        members = Members(others="holdout", min_known=1, most=30)
        drawn = members.of_client(data, 0) if whose == "client" else members.of_server(data, [0, 1, 2])
        for name, scores in guesses.items():
            own = scores[drawn.samples]
            gaps = own[drawn.pairs[:, 0]] - own[drawn.pairs[:, 1]]
            z[name].append(((gaps > 0).sum() - len(gaps) / 2) / np.sqrt(len(gaps) / 4))
            claims[name] += audited_of(gaps, 0.0) > 0
    for name in guesses:
        assert abs(np.mean(z[name])) < 4 / np.sqrt(200), name
        assert abs(np.var(z[name]) - 1) < 4 * np.sqrt(2 / 200), name
        assert claims[name] <= 10 + 4 * np.sqrt(200 * 0.05 * 0.95), name
