import io
import itertools
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedfacet import state
from fedfacet.participation import Dropouts
from fedfacet.selectors.hcsfed import HCSFedSelector, compress, neyman_slots
from fedfacet.types import ClientUpdate

TOY_MATRICES = ([[6, 2], [2, 6]], [[2, 6], [6, 2]], [[7, 7], [1, 1]], [[7, 1], [7, 1]])


def update(client_id, entries):
    """A client's update of a model of two tensors."""
    entries = torch.as_tensor(entries, dtype=torch.float32)
    return ClientUpdate(client_id, {"a": entries[:1], "b": entries[1:].view(1, -1)}, {}, 10, 1, 1.0, {})


def arriving(entries_of):
    """The updates of a round: client -> entries."""
    return [update(client_id, entries) for client_id, entries in entries_of.items()]


@pytest.fixture
def learnt(server):
    """Return a function: entries of the updates of a first round -> a server whose selector has seen them."""

    def make(entries_of, *, num_clients, cohort_size=1, **settings):
        run = server(HCSFedSelector(**settings), num_clients, cohort_size)
        run.observe(1, tuple(entries_of), arriving(entries_of))
        return run

    return make


def clusters(run):
    """The clusters as sets of clients."""
    pairs = list(zip(run.state["clients"].tolist(), run.state["clusters"].tolist(), strict=True))
    return {frozenset(k for k, h in pairs if h == label) for _, label in pairs}


def kinds(counts, *, spreads=(0.1, 0.2, 0.3), length=40, seed=0):
    """Entries of clients of three kinds, told apart by the scale of their updates: 1, 10, 100."""
    generator = np.random.default_rng(seed)
    shape = np.linspace(-1, 1, length)
    entries, client_id = {}, 0
    for scale, count, spread in zip((1.0, 10.0, 100.0), counts, spreads, strict=True):
        for _ in range(count):
            entries[client_id] = scale * generator.permutation(shape) * (1 + spread * generator.normal() / scale)
            client_id += 1
    return entries


# Compressed updates


@pytest.mark.parametrize(("num_entries", "size"), [(60, 22), (44, 22), (22, 22), (7, 3), (100, 1)])
def test_sorted_groups_of_equal_size_are_averaged(num_entries, size):
    entries = np.random.default_rng(0).normal(size=num_entries).astype(np.float32)
    made = compress({"a": torch.from_numpy(entries[:2]), "b": torch.from_numpy(entries[2:])}, size)
    assert made.shape == (size,)
    assert (np.diff(made) >= 0).all()
    if num_entries % size == 0:
        assert made == pytest.approx(np.sort(entries).reshape(size, -1).mean(axis=1), rel=1e-6)
        assert made.mean() == pytest.approx(entries.mean(), abs=1e-6)


def test_where_an_entry_stands_and_how_tensors_are_named_or_ordered_does_not_matter():
    """So that a position means the same for every client."""
    entries = torch.randn(50, generator=torch.Generator().manual_seed(0))
    expected = compress({"w": entries}, 9)
    shuffled = entries[torch.randperm(50, generator=torch.Generator().manual_seed(1))]
    assert compress({"x": shuffled[:20].view(4, 5), "y": shuffled[20:]}, 9).tolist() == expected.tolist()


def test_a_small_model_is_only_sorted():
    assert compress({"w": torch.tensor([3.0, 1.0, 2.0])}, 22).tolist() == [1.0, 2.0, 3.0]


def test_it_is_linear_in_the_scale_of_an_update():
    entries = torch.randn(50, generator=torch.Generator().manual_seed(0))
    assert compress({"w": 4 * entries}, 5).tolist() == (4 * compress({"w": entries}, 5)).tolist()


# Places


def brute_force(sizes, spreads, total):
    """The smallest Neyman variance over all whole allocations with a place for each."""
    weights = sizes * spreads
    options = itertools.product(*(range(1, size + 1) for size in sizes))
    return min((weights**2 / np.array(option)).sum() for option in options if sum(option) == total)


def test_places_have_the_smallest_variance_of_all_whole_numbers():
    for seed in range(40):
        generator = np.random.default_rng(seed)
        sizes = generator.integers(1, 9, size=3)
        spreads = generator.choice([0.0, 0.1, 1.0, 3.0], size=3) * generator.random(3)
        for total in range(3, sizes.sum() + 1):
            places = neyman_slots(sizes, spreads, total, generator)
            assert places.sum() == total, seed
            assert ((places >= 1) & (places <= sizes)).all(), seed
            variance = ((sizes * spreads) ** 2 / places).sum()
            assert variance == pytest.approx(brute_force(sizes, spreads, total), rel=1e-12), seed


def test_places_are_proportional_where_nothing_bounds_them():
    places = neyman_slots(np.array([300, 200, 500]), np.array([1.0, 3.0, 0.2]), 100, np.random.default_rng(0))
    assert places.tolist() == [30, 60, 10]


def test_without_any_spread_places_go_by_size():
    assert neyman_slots(np.array([20, 10, 30]), np.zeros(3), 12, np.random.default_rng(0)).tolist() == [4, 2, 6]


def test_a_stratum_without_spread_gets_one_place_until_the_others_are_full():
    sizes, spreads = np.array([5, 5, 2]), np.array([0.0, 1.0, 1.0])
    counts = [neyman_slots(sizes, spreads, total, np.random.default_rng(0)).tolist() for total in (3, 6, 8, 9, 12)]
    assert counts == [[1, 1, 1], [1, 4, 1], [1, 5, 2], [2, 5, 2], [5, 5, 2]]


def test_with_fewer_places_than_strata_they_are_drawn():
    sizes, spreads = np.array([10, 10, 0, 20]), np.array([1.0, 2.0, 9.0, 0.5])
    generator = np.random.default_rng(0)
    draws = np.array([neyman_slots(sizes, spreads, 1, generator) for _ in range(2000)])
    assert (draws.sum(axis=1) == 1).all()
    assert draws.mean(axis=0) == pytest.approx([0.25, 0.5, 0, 0.25], abs=0.04)
    draws = np.array([neyman_slots(sizes, spreads, 2, generator) for _ in range(50)])
    assert (draws.sum(axis=1) == 2).all()
    assert draws.max() == 1


@given(st.data())
def test_any_strata_share_any_number_of_places(data):
    sizes = np.array(data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=5)))
    spreads = data.draw(arrays(np.float64, len(sizes), elements=st.sampled_from([0.0, 1e-300, 1e-9, 1.0, 1e150])))
    total = data.draw(st.integers(0, int(sizes.sum())))
    places = neyman_slots(sizes, spreads, total, np.random.default_rng(0))
    assert places.sum() == total
    assert ((places >= 0) & (places <= sizes)).all()


# Clusters and draws


def test_clients_whose_updates_look_alike_share_a_cluster(learnt):
    run = learnt(kinds([5, 4, 6]), num_clients=15)
    assert clusters(run) == {frozenset(range(5)), frozenset(range(5, 9)), frozenset(range(9, 15))}
    assert run.state["vectors"].shape == (15, 22)


def test_clusters_are_a_function_of_the_updates_alone(learnt):
    """Not of the order of arrival, nor of what was drawn before."""
    entries = {k: np.random.default_rng(k).normal(size=30) for k in range(20)}
    first = learnt(entries, num_clients=20)
    np.random.default_rng().random(5)
    second = learnt(dict(reversed(entries.items())), num_clients=20)
    assert clusters(first) == clusters(second)
    assert torch.equal(first.state["clusters"], second.state["clusters"])


@pytest.mark.parametrize("within", ["norm", "uniform"])
def test_every_round_draws_from_every_cluster_by_size_and_spread(learnt, within):
    entries = kinds([8, 8, 8], spreads=(0.1, 0.4, 0.9))
    vectors = np.array([np.sort(entries[k]).reshape(20, 2).mean(axis=1) for k in range(24)])
    run = learnt(entries, num_clients=24, cohort_size=9, within=within, compressed_size=20)
    spreads = np.array([np.sqrt(np.trace(np.cov(kind.T))) for kind in np.split(vectors, 3)])
    ideal = 9 * spreads / spreads.sum()
    drawn = [np.bincount(np.array(run.round(round)) // 8, minlength=3) for round in range(2, 30)]
    assert len({tuple(counts) for counts in drawn}) == 1, "the places are not drawn"
    assert drawn[0].sum() == 9
    assert np.abs(drawn[0] - ideal).max() < 1
    assert len({run.round(round) for round in range(2, 30)}) > 20, "those who take them are"


@pytest.mark.parametrize(("within", "shares"), [("norm", [0.1, 0.2, 0.3, 0.4]), ("uniform", [0.25] * 4)])
def test_within_a_cluster_clients_are_drawn_by_norm_or_uniformly(learnt, within, shares):
    run = learnt({k: (k + 1) * np.linspace(-1, 1, 44) for k in range(4)}, num_clients=4, num_clusters=1, within=within)
    drawn = Counter(run.round(round)[0] for round in range(2, 1502))
    assert [drawn[k] / 1500 for k in range(4)] == pytest.approx(shares, abs=0.03)


def test_everybody_takes_part_in_the_first_round_alone(server):
    run = server(HCSFedSelector(), 8, 3)
    assert run.round(1) == tuple(range(8))
    assert run.round(1, available=[2, 5]) == (2, 5)
    assert len(run.round(2)) == 3
    assert run.asked == [], "it learns from updates alone"


# Clients that come and go


def test_those_who_are_away_give_their_places_to_others(learnt):
    run = learnt(kinds([5, 4, 6]), num_clients=15, cohort_size=6)
    for available in ([0, 1, 2, 9, 10, 11], [4, 5], list(range(5)), [0, 1, 2, 3, 4, 5, 9, 12]):
        for round in range(2, 12):
            cohort = run.round(round, available=available)
            assert len(set(cohort)) == min(6, len(available))
            assert set(cohort) <= set(available)
            assert len({(k >= 5) + (k >= 9) for k in cohort}) == len({(k >= 5) + (k >= 9) for k in available})


def test_a_client_not_seen_yet_has_a_stratum_of_its_own_until_its_update_arrives(learnt):
    entries = kinds([5, 4, 6])
    early = {k: v for k, v in entries.items() if k not in (3, 7)}
    run = learnt(early, num_clients=15, cohort_size=6)
    assert run.selector.needs_updates(run.state)
    assert set().union(*clusters(run)) == set(early)
    cohorts = [run.select(round) for round in range(2, 40)]
    assert all(set(cohort) & {3, 7} for cohort in cohorts), "at least one place"
    assert set().union(*cohorts) >= {3, 7}
    run.observe(2, (0, 3), arriving({0: 50 * entries[0], 3: entries[3]}))
    assert frozenset(range(5)) in clusters(run), "client 0 keeps its first update"
    assert run.selector.needs_updates(run.state)
    run.observe(3, (7,), arriving({7: entries[7]}))
    assert clusters(run) == {frozenset(range(5)), frozenset(range(5, 9)), frozenset(range(9, 15))}
    assert not run.selector.needs_updates(run.state), "so that updates are freed as they are aggregated from now on"


def test_if_no_update_arrives_selection_is_uniform(tiny_federation):
    federation = tiny_federation(selector=HCSFedSelector(), participation=Dropouts(dropout_probability=1.0), rounds=4)
    cohorts = [federation.run_round().cohort for _ in range(4)]
    assert [len(cohort) for cohort in cohorts] == [4, 2, 2, 2]
    assert federation.state.selector["unseen"] == 4


# Where there is little to cluster


@pytest.mark.parametrize("entries", [np.zeros(40), np.full(40, 0.1), np.linspace(-1, 1, 40)], ids=["zero", "constant", "same"])
@pytest.mark.parametrize("cohort_size", [1, 4, 6])
def test_updates_that_are_all_equal_make_one_cluster_drawn_uniformly(learnt, entries, cohort_size):
    run = learnt(dict.fromkeys(range(6), entries), num_clients=6, cohort_size=cohort_size)
    assert clusters(run) == {frozenset(range(6))}
    drawn = np.zeros(6)
    for round in range(2, 302):
        drawn[list(run.round(round))] += 1
    assert drawn / 300 == pytest.approx([cohort_size / 6] * 6, abs=0.08)


def test_updates_that_differ_by_rounding_are_no_reason_to_warn(learnt):
    run = learnt({k: np.linspace(-1, 1, 40) * (1 + 1e-7 * k) for k in range(6)}, num_clients=6, cohort_size=4)
    assert len(run.round(2)) == 4


@pytest.mark.parametrize("num_clients", [1, 2, 3, 9])
def test_small_federations(server, num_clients):
    run = server(HCSFedSelector(), num_clients, 1)
    assert run.round(1) == tuple(range(num_clients))
    run.observe(1, range(num_clients), arriving({k: np.full(40, 3.0 * k) for k in range(num_clients)}))
    assert len(clusters(run)) == min(3, num_clients)
    for cohort_size in range(1, num_clients + 1):
        run.cohort_size = cohort_size
        assert len(set(run.round(2))) == cohort_size
    assert set(run.round(3)) == set(range(num_clients))


def test_with_a_cohort_of_one_no_cluster_is_left_out_for_good(learnt):
    run = learnt(kinds([5, 4, 6]), num_clients=15)
    kinds_drawn = Counter(int(k >= 5) + int(k >= 9) for (k,) in (run.round(round) for round in range(2, 400)))
    assert set(kinds_drawn) == {0, 1, 2}


# In federations


def test_it_runs_on_100_clients(tiny_federation):
    federation = tiny_federation(selector=HCSFedSelector(), matrices=TOY_MATRICES * 25, cohort_size=12, rounds=3)
    ledgers = [federation.run_round().ledger for _ in range(3)]
    assert federation.state.participation_counts.sum() == 100 + 12 + 12
    assert federation.state.selector["unseen"] == 0
    assert not federation.selector.needs_updates(federation.state.selector)
    assert [ledger.floats_up // ledgers[1].floats_up for ledger in ledgers] == [100 // 12, 1, 1], "what the first round costs"
    assert sum(ledger.query_floats_up + ledger.query_samples for ledger in ledgers) == 0


@pytest.mark.parametrize("cut", [1, 2, 4])
def test_a_resumed_run_is_the_same_bit_for_bit(tiny_federation, cut):
    def federation():
        participation = Dropouts(dropout_probability=0.3)  # so that some clients are not seen in round 1
        return tiny_federation(
            selector=HCSFedSelector(), matrices=TOY_MATRICES * 2, cohort_size=3, rounds=6, participation=participation
        )

    whole = federation()
    cohorts = [whole.run_round().cohort for _ in range(6)]
    first, second = federation(), federation()
    for _ in range(cut):
        first.run_round()
    assert first.state.selector["unseen"] == 8 - len(first.state.selector["clients"])
    assert first.selector.needs_updates(first.state.selector) == bool(first.state.selector["unseen"])
    file = io.BytesIO()
    torch.save(first.state.selector, file)
    file.seek(0)
    second.restore(replace(first.state, selector=torch.load(file, weights_only=True)))
    assert [second.run_round().cohort for _ in range(6 - cut)] == cohorts[cut:]
    assert state.digest(second.state.model) == state.digest(whole.state.model)
    assert torch.equal(second.state.selector["vectors"], whole.state.selector["vectors"])
    assert torch.equal(second.state.selector["clusters"], whole.state.selector["clusters"])


@pytest.mark.parametrize(
    ("option", "value"), [("num_clusters", 0), ("num_clusters", 2.5), ("compressed_size", 0), ("within", "random")]
)
def test_impossible_arguments_are_refused(option, value):
    with pytest.raises(ValueError, match=f"Expected `{option}` to be .*, but got {value!r}"):
        HCSFedSelector(**{option: value})
