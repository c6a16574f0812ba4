"""Which channels a client holds: the thesis' nine ways, FedRolex's window, and what they promise of every entry."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from fedfacet.submodels.base import Holder, kept
from fedfacet.submodels.channel_sets import ChannelSets

SIZES = {"a": 12, "b": 24, "c": 48}


def sets(grouping, dynamics, policy, **more):
    return ChannelSets(grouping=grouping, dynamics=dynamics, policy=policy, **more)


def held(submodel, *, client_id=0, round=1, rates=(0.5,) * 10, sizes=SIZES, seed=3):
    return submodel.channels(Holder(client_id, round, seed, np.array(rates)), sizes)


def same(left, right):
    return all(np.array_equal(left[group], right[group]) for group in left)


@given(
    rate=st.floats(0.01, 1),
    size=st.integers(1, 70),
    round=st.integers(1, 50),
    client_id=st.integers(0, 9),
    kind=st.sampled_from(
        [("one", "fixed", "blocks"), ("one", "every_round", "blocks"), ("groups", "fixed", "blocks"),
         ("each", "fixed", "random"), ("groups", "every_round", "random"), ("one", "every_round", "rolling")]
    ),
)  # fmt: skip
def test_a_client_holds_as_many_channels_as_its_rate_says(rate, size, round, client_id, kind):
    channels = held(sets(*kind), client_id=client_id, round=round, rates=[rate] * 10, sizes={"a": size, "b": 7})["a"]
    assert len(channels) == kept(rate, size)
    assert set(channels.tolist()) <= set(range(size))
    assert (np.diff(channels) > 0).all()


@pytest.mark.parametrize("q", [2, 3, 4])
def test_blocks_tile_every_matrix(q):
    """Over q^2 rounds every entry between two layers is held once, every channel of a layer q times; so by OSM's turn."""
    osm = sets("one", "every_round", "blocks")
    between = {pair: np.zeros([SIZES[group] for group in pair], int) for pair in itertools.pairwise(SIZES)}
    single = {group: np.zeros(size, int) for group, size in SIZES.items()}
    for round in range(1, q**2 + 1):
        channels = held(osm, round=round, rates=[1 / q] * 10)
        for (left, right), counts in between.items():
            counts[np.ix_(channels[left], channels[right])] += 1
        for group, counts in single.items():
            counts[channels[group]] += 1
    assert all((counts == 1).all() for counts in between.values())
    assert all((counts == q).all() for counts in single.values())
    assert same(held(osm, round=1, rates=[1 / q] * 10), held(osm, round=q**2 + 1, rates=[1 / q] * 10))


def test_heterofl_holds_the_first_channels_for_ever():
    for round, client_id in ((1, 0), (7, 4)):
        channels = held(sets("one", "fixed", "blocks"), round=round, client_id=client_id)
        assert {group: positions.tolist() for group, positions in channels.items()} == {
            group: list(range(size // 2)) for group, size in SIZES.items()
        }


def test_a_rolling_window_holds_every_channel_equally_often():
    """FedRolex: over N rounds each of N channels n times."""
    for step, size in ((1, 12), (5, 12)):
        counts = np.zeros(size, int)
        for round in range(1, size + 1):
            counts[held(sets("one", "every_round", "rolling", step=step), round=round, sizes={"a": size})["a"]] += 1
        assert (counts == size // 2).all()
    third = held(sets("one", "every_round", "rolling"), round=9, sizes={"a": 12})["a"]
    assert third.tolist() == [0, 1, 8, 9, 10, 11]


def test_who_shares_a_set():
    clients = range(10)
    for grouping, dynamics, policy, number in (
        *(("one", dynamics, "random", 1) for dynamics in ("fixed", "every_round")),
        *(("groups", dynamics, "random", 4) for dynamics in ("fixed", "every_round")),
        ("groups", "fixed", "blocks", 4),
        *(("each", dynamics, "random", 10) for dynamics in ("fixed", "every_round")),
    ):
        submodel = sets(grouping, dynamics, policy)
        distinct = {tuple(held(submodel, client_id=k, round=3)["c"]) for k in clients}
        if policy == "blocks":  # both layers tell four blocks apart, one alone two
            distinct = {tuple(map(tuple, held(submodel, client_id=k, round=3).values())) for k in clients}
        assert len(distinct) == number, (grouping, dynamics, policy)


def test_fixed_sets_stay_and_change_hands():
    """In every round the same sets, dealt anew; with `membership=fixed` everybody keeps theirs."""
    for policy in ("random", "blocks"):
        drawn = [
            [tuple(map(tuple, held(sets("groups", "fixed", policy), client_id=k, round=t).values())) for k in range(10)]
            for t in (1, 2, 3)
        ]
        assert len({frozenset(of_round) for of_round in drawn}) == 1
        assert drawn[0] != drawn[1]
        stays = sets("groups", "fixed", policy, membership="fixed")
        assert all(same(held(stays, client_id=k, round=1), held(stays, client_id=k, round=9)) for k in range(10))
    changing = sets("groups", "every_round", "random")
    assert not same(held(changing, round=1), held(changing, round=2))


def test_balanced_groups_count_weak_clients_alone():
    rates = [1, 0.5, 0.5, 1, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5]  # eight are weak: two to each of four groups
    weak = [k for k, rate in enumerate(rates) if rate < 1]
    for round in range(1, 6):
        balanced = sets("groups", "fixed", "random", balanced=True)
        groups = [tuple(held(balanced, client_id=k, round=round, rates=rates)["c"]) for k in weak]
        assert sorted(map(groups.count, set(groups))) == [2, 2, 2, 2]


def test_sets_of_several_rates_are_nested():
    for kind in (("each", "every_round", "random"), ("one", "fixed", "random"), ("one", "fixed", "blocks")):
        small, large = (held(sets(*kind), client_id=1, round=4, rates=[rate] * 10) for rate in (0.25, 0.5))
        assert all(set(small[group]) <= set(large[group]) for group in SIZES)


def test_random_sets_are_uniform_and_layers_independent():
    """Chi-squared over 2,000 rounds: every channel equally often, and pairs across layers as often as chance has it."""
    submodel, counts, pairs = sets("each", "every_round", "random"), np.zeros(8), np.zeros((8, 8))
    for round in range(1, 2001):
        channels = held(submodel, client_id=2, round=round, sizes={"a": 8, "b": 8})
        counts[channels["a"]] += 1
        pairs[np.ix_(channels["a"], channels["b"])] += 1
    assert counts.sum() == 8000
    assert chisquare(counts).pvalue > 1e-3
    assert abs(pairs / 2000 - 0.25).max() < 5 * np.sqrt(0.25 * 0.75 / 2000)


def test_uncoupled_inputs_are_drawn_on_their_own():
    channels = held(sets("each", "every_round", "random", coupled=False), sizes={"a": 12, "a in": 12})
    assert channels["a"].tolist() != channels["a in"].tolist()


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("each", "fixed", "blocks"), "gfm"),
        (("groups", "every_round", "blocks"), "gfm"),
        (("each", "every_round", "blocks"), "gfm"),
        (("groups", "every_round", "rolling"), "fedrolex"),
        (("some", "fixed", "random"), "submodel.grouping"),
        (("one", "never", "random"), "submodel.dynamics"),
        (("one", "fixed", "largest"), "submodel.policy"),
    ],
)
def test_refuses(arguments, part):
    with pytest.raises(ValueError, match=part):
        sets(*arguments)
    with pytest.raises(ValueError, match="coupled"):
        sets("one", "fixed", "blocks", coupled=False)
    with pytest.raises(ValueError, match="num_groups"):
        sets("groups", "fixed", "random", num_groups=0)


@pytest.mark.parametrize(
    ("kind", "code", "again", "share"),
    [
        (("one", "fixed", "blocks"), "OFM", "every", 1),
        (("one", "fixed", "random"), "OFR", "every", 1),
        (("one", "every_round", "blocks"), "OSM", "1 in q^2, 4 at rate 1/2", 1 / 4),
        (("one", "every_round", "random"), "OSR", "never, but by chance", 0),
        (("groups", "fixed", "blocks"), "GFM", "about 1 in 4", 1 / 4),
        (("groups", "fixed", "random"), "GFR", "about 1 in 4", 1 / 4),
        (("groups", "every_round", "random"), "GSR", "never, but by chance", 0),
        (("each", "fixed", "random"), "UFR", "1 in K, the clients", 1 / 10),
        (("each", "every_round", "random"), "USR", "never, but by chance", 0),
        (("one", "every_round", "rolling"), "-", "1 in N, the channels", 1 / 48),
    ],
)
def test_the_same_set_comes_again_as_often_as_the_taxonomy_says(kind, code, again, share):
    """In how many of 960 rounds, 20 turns of the window in the widest layer, four clients hold the first one's set."""
    submodel, rounds = sets(*kind), 960
    assert (submodel.taxonomy.code, submodel.taxonomy.again) == (code, again)
    equal = []
    for client_id in range(4):
        first = held(submodel, client_id=client_id)
        equal += [same(first, held(submodel, client_id=client_id, round=round)) for round in range(2, rounds + 1)]
    assert np.mean(equal) == pytest.approx(share, abs=0.06 if kind[0] == "groups" else 0.02 if share < 1 else 0)


def test_the_taxonomy_follows_the_settings():
    assert sets("groups", "fixed", "blocks", membership="fixed").taxonomy.again == "every"
    assert sets("groups", "fixed", "random", num_groups=3).taxonomy.grouping == "3 groups"
    assert sets("one", "fixed", "random", coupled=False).taxonomy.policy == "random, inputs on their own"
    assert sets("one", "every_round", "rolling", step=6).taxonomy.again == "1 in N / gcd(N, 6), N channels"
    assert sets("one", "fixed", "blocks").taxonomy.known_as.startswith("HeteroFL")
