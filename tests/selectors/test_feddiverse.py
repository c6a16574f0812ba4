import functools
import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedfacet.aggregators.fedavg import FedAvg
from fedfacet.aggregators.fedavgm import FedAvgM
from fedfacet.clients.queries.true_heterogeneity import TrueHeterogeneity
from fedfacet.heterogeneity import InteractionMatrix
from fedfacet.methods.feddiverse import FedDiverseSelector, diverse_order
from fedfacet.methods.scaffold import Scaffold, ScaffoldCorrection
from fedfacet.state import digest

PURE = np.repeat(np.eye(3), 3, axis=0)
"""Three clients of class imbalance, three of attribute imbalance, three of spurious correlation."""

TRIPLETS = st.integers(1, 12).flatmap(
    lambda num_clients: arrays(
        np.float64, (num_clients, 3), elements=st.one_of(st.sampled_from([0.0, 1e-300, 0.5, 1.0]), st.floats(0, 1))
    )
)


def feddiverse(**options):
    return FedDiverseSelector(heterogeneity=TrueHeterogeneity(), **{"pretraining_rounds": 0} | options)


def order(triplets, size, *, leading=(2, 1, 0), seed=0, **options):
    return diverse_order(
        np.array(triplets, dtype=np.float64), size, itertools.cycle(leading), np.random.default_rng(seed), **options
    )


# The paper's figures 5 to 9


@pytest.fixture(scope="module")
def selections(paper, server):
    """Return a function: 700 rounds on one of the paper's federations with known triplets -> choices (R, K), types (K,)."""

    @functools.cache
    def simulate(name, *, rounds=700, cohort_size=9, **options):
        triplets = [InteractionMatrix(matrix).triplet for count, matrix, _ in paper[name]["clients"] for _ in range(count)]
        run = server(feddiverse(**options), len(triplets), cohort_size, triplets=triplets)
        chosen = np.zeros((rounds, len(triplets)), dtype=bool)
        for round in range(rounds):
            chosen[round, list(run.round(round + 1))] = True
        return chosen, np.array([triplet.type for triplet in triplets])

    return simulate


def percent(chosen, types):
    return [100 * chosen[:, types == kind].sum() / chosen.sum() for kind in ("CI", "AI", "SC")]


@pytest.mark.parametrize(("name", "cohort_size"), [("gsc", 9), ("gci", 9), ("spawrious4", 9), ("gci_100", 12)])
def test_a_third_of_each_type_where_three_pure_types_exist(selections, name, cohort_size):
    """FedDiverse, appendix F: close to 33.3 % of each type."""
    chosen, types = selections(name, cohort_size=cohort_size)
    assert percent(chosen, types) == pytest.approx([100 / 3] * 3, abs=0.5)
    assert (chosen.sum(axis=1) == cohort_size).all()


def test_waterbirds(selections):
    """FedDiverse, appendix F: all three clients of class imbalance in every round; only two are of attribute imbalance."""
    chosen, types = selections("waterbirds_dist")
    assert percent(chosen, types) == pytest.approx([100 * 3 / 9, 100 * 2 / 9, 100 * 4 / 9], abs=0.5)
    assert chosen[:, types == "CI"].all()


def test_gai(selections):
    """No pure types, and four clients tie exactly: a regression value from an independent simulation of 4000 rounds."""
    chosen, types = selections("gai")
    assert percent(chosen, types) == pytest.approx([24, 54, 22], abs=1.5)


@pytest.mark.parametrize(
    ("name", "expected"), [("gsc", [30, 26, 44]), ("gci", [44, 30, 26]), ("waterbirds_dist", [24, 22, 54])]
)
def test_the_rule_as_printed_gives_other_shares(selections, name, expected):
    """With the projection's sign the appendix' figures do not come out, which is why ``absolute`` is the default."""
    chosen, types = selections(name, orthogonal="signed", rotation="round")
    assert percent(chosen, types) == pytest.approx(expected, abs=2)
    if name == "waterbirds_dist":
        assert chosen[:, types == "CI"].all(axis=1).mean() < 0.3


def test_the_released_codes_rule_gives_other_shares(selections):
    chosen, types = selections("gsc", orthogonal="signed", rotation="random", normalisation="l1_then_l2")
    assert percent(chosen, types) == pytest.approx([28, 28, 45], abs=2)


def test_clients_of_one_type_are_chosen_equally_often(selections):
    chosen, types = selections("gsc")
    for kind, expected in (("CI", 0.75), ("AI", 0.75), ("SC", 3 / 16)):
        np.testing.assert_allclose(chosen[:, types == kind].mean(axis=0), expected, atol=0.05)


# One triple, step by step


def test_a_triple_is_one_client_of_each_pure_type():
    for seed in range(20):
        picks = order(PURE, 9, seed=seed)
        assert sorted(picks) == list(range(9))
        for triple in (picks[:3], picks[3:6], picks[6:]):
            assert sorted(pick // 3 for pick in triple) == [0, 1, 2]
        assert [pick // 3 for pick in picks[::3]] == [2, 1, 0], (
            "spurious correlation leads the first triple, then attribute, class"
        )


def test_the_first_is_drawn_by_the_leading_measure():
    triplets = [[0.1, 0.0, 0.1], [0.1, 0.0, 0.3], [0.1, 0.9, 0.0]]
    firsts = Counter(order(triplets, 1, seed=seed)[0] for seed in range(2000))
    assert firsts[2] == 0, "no spurious correlation at all"
    assert firsts[1] / 2000 == pytest.approx(0.75, abs=0.03)


def test_the_second_is_the_least_similar():
    triplets = [[0.0, 0.0, 1.0], [0.0, 0.5, 0.5], [0.0, 0.9, 0.1], [0.0, 0.4, 0.6]]
    pairs = {tuple(order(triplets, 2, seed=seed)) for seed in range(60)}
    assert {second for first, second in pairs if first == 0} == {2}
    assert {second for first, second in pairs if first == 2} == {0}


def test_the_third_is_the_one_most_along_the_cross_product_whatever_its_sign():
    """First e_SC, then e_AI: their cross product points along -e_CI, where no triplet can lie."""
    triplets = [[0, 0, 1], [0, 1, 0], [1, 0, 0], [0.1, 0.6, 0.3]]
    seed = next(seed for seed in itertools.count() if order(triplets, 2, seed=seed) == [0, 1])
    assert order(triplets, 3, seed=seed)[2] == 2
    assert order(triplets, 3, seed=seed, orthogonal="signed")[2] == 3


def test_a_collinear_pair_is_completed_by_the_client_least_similar_to_both():
    """No spurious correlation anywhere, so that the first is drawn uniformly; a zero vector is collinear with every other."""
    triplets = [[0, 0, 0], [1, 0, 0], [0.5, 0, 0], [0, 1, 0]]
    thirds = Counter()
    for seed in range(200):
        first, second, third = order(triplets, 3, leading=[2], seed=seed)
        if (first, second) in ((0, 1), (0, 2)):
            thirds[third] += 1
    assert set(thirds) == {3}


def test_clients_that_are_all_alike_are_drawn_uniformly():
    counts = np.zeros(6)
    for seed in range(1500):
        counts[order(np.tile([0.278, 0.278, 0.871], (6, 1)), 3, seed=seed)] += 1
    np.testing.assert_allclose(counts / 1500, 0.5, atol=0.06)


@pytest.mark.parametrize("normalisation", ["l1", "l1_then_l2"])
@pytest.mark.parametrize("orthogonal", ["absolute", "signed"])
def test_clients_without_any_heterogeneity_are_drawn_uniformly(normalisation, orthogonal):
    """Every dimension is without mass, every vector zero, every score a tie."""
    counts = np.zeros(8)
    for seed in range(1000):
        counts[order(np.zeros((8, 3)), 4, seed=seed, normalisation=normalisation, orthogonal=orthogonal)] += 1
    np.testing.assert_allclose(counts / 1000, 0.5, atol=0.05)


def test_a_dimension_without_mass_is_led_uniformly():
    firsts = Counter(order([[0.1, 0, 0], [0.9, 0, 0], [0.5, 0.5, 0]], 1, seed=seed)[0] for seed in range(1500))
    assert [firsts[client] / 1500 for client in range(3)] == pytest.approx([1 / 3] * 3, abs=0.05)


def test_a_dimension_that_only_chosen_clients_have_is_led_uniformly():
    """The one client with spurious correlation leads the first triple; the second has none left to draw by."""
    triplets = np.zeros((6, 3))
    triplets[0, 2] = 1
    assert {order(triplets, 4, leading=[2], seed=seed)[0] for seed in range(10)} == {0}
    assert len({order(triplets, 4, leading=[2], seed=seed)[3] for seed in range(50)}) == 5


def test_ties_are_broken_by_the_generator():
    seconds = Counter(order(PURE, 2, seed=seed)[1] for seed in range(1200))
    assert set(seconds) == {0, 1, 2, 3, 4, 5}
    assert min(seconds.values()) > 130
    assert order(PURE, 9, seed=5) == order(PURE, 9, seed=5)


def test_scores_equal_but_for_rounding_are_ties():
    triplets = np.array([[0, 0, 1], [1, 0, 0], [1, 1e-9, 0], [0.3, 0, 0]])
    seconds = {order(triplets, 2, seed=seed)[1] for seed in range(100) if order(triplets, 2, seed=seed)[0] == 0}
    assert seconds == {1, 2, 3}


@given(TRIPLETS, st.data(), st.sampled_from(["l1", "l1_then_l2"]), st.sampled_from(["absolute", "signed"]))
def test_any_triplets_give_distinct_clients(triplets, data, normalisation, orthogonal):
    size = data.draw(st.integers(1, len(triplets)))
    leading = data.draw(st.permutations([0, 1, 2]))
    picks = order(triplets, size, leading=leading, normalisation=normalisation, orthogonal=orthogonal)
    assert len(picks) == len(set(picks)) == size
    assert set(picks) <= set(range(len(triplets)))
    assert picks[: size // 2] == order(triplets, size // 2, leading=leading, normalisation=normalisation, orthogonal=orthogonal)


# The selector around it


@pytest.mark.parametrize(
    ("rotation", "rounds"), [("triple", ["SC AI CI", "AI CI SC", "CI SC AI"]), ("round", ["SC SC SC", "AI AI AI", "CI CI CI"])]
)
def test_the_leading_dimension_moves_on(server, rotation, rounds):
    run = server(feddiverse(rotation=rotation, pretraining_rounds=1), 9, 9, triplets=PURE)
    run.round(1)
    for round, expected in enumerate(rounds * 2, 2):
        led = [("CI", "AI", "SC")[client // 3] for client in run.round(round)[::3]]
        # Once all three clients of a type are taken by other roles, a dimension has no mass left.
        assert led[0] == expected.split()[0]
        if rotation == "triple":
            assert led == expected.split()


def test_random_rotation_starts_with_any_dimension(server):
    run = server(feddiverse(rotation="random"), 9, 3, triplets=PURE)
    leaders = Counter(run.round(round)[0] // 3 for round in range(1, 301))
    assert all(70 < leaders[kind] < 130 for kind in range(3))


def test_everybody_takes_part_while_pre_training(server):
    run = server(feddiverse(pretraining_rounds=3), 9, 4, triplets=PURE)
    assert [len(run.round(round)) for round in range(1, 6)] == [9, 9, 9, 4, 4]
    assert run.round(2, available=[1, 5]) == (1, 5)


@pytest.mark.parametrize(
    ("pretraining", "pretraining_rounds", "asked_in"),
    [("fedavg", 0, 1), ("fedavg", 1, 2), ("fedavg", 3, 4), ("ordinary", 0, 1), ("ordinary", 1, 1), ("ordinary", 3, 3)],
)
def test_triplets_are_asked_once_after_pretraining(server, pretraining, pretraining_rounds, asked_in):
    """On the model that T0 rounds have led to; in the released code in round T0 before it, so for T0 = 1 on the initial one."""
    run = server(feddiverse(pretraining_rounds=pretraining_rounds, pretraining=pretraining), 9, 3, triplets=PURE)
    for round in range(1, 8):
        run.round(round)
    assert run.asked == [(asked_in, list(range(9)))]


def test_clients_that_appear_later_are_asked_when_they_do(server):
    run = server(feddiverse(pretraining_rounds=1), 9, 3, triplets=PURE)
    run.round(1, available=[0, 2, 3])
    run.round(2, available=[0, 3, 4, 8])
    run.round(3, available=[0, 4, 8])
    run.round(4)
    assert run.asked == [(2, [0, 3, 4, 8]), (4, [1, 2, 5, 6, 7])]


def test_positions_are_turned_into_client_ids(server):
    """With clients 3, 6 and 8 alone available, one of each type, nobody else may be named."""
    run = server(feddiverse(), 9, 3, triplets=PURE)
    assert set(run.round(1, available=[0, 4, 8])) == {0, 4, 8}
    assert set(run.round(2, available=[2, 5, 7])) == {2, 5, 7}


def test_answers_are_matched_to_clients_whatever_their_order(server):
    run = server(feddiverse(), 9, 1, triplets=PURE)
    run.round(1, available=[8])
    run.round(2, available=[0])
    firsts = {run.round(round, available=[0, 4, 8])[0] for round in range(4, 40, 3)}
    assert firsts == {8}, "in every third round spurious correlation leads, which only client 8 has"


@pytest.mark.parametrize("rotation", ["triple", "round", "random"])
def test_every_cohort_size(server, rotation):
    for cohort_size in range(1, 10):
        run = server(feddiverse(rotation=rotation), 9, cohort_size, triplets=PURE)
        for round in range(1, 6):
            cohort = run.round(round)
            assert len(set(cohort)) == len(cohort) == cohort_size


def test_the_seed_decides(server):
    def cohorts(seed):
        run = server(feddiverse(), 9, 3, triplets=PURE, seed=seed)
        return [run.round(round) for round in range(1, 6)]

    assert cohorts(0) == cohorts(0)
    assert cohorts(0) != cohorts(1)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("pretraining_rounds", -1),
        ("pretraining", "fedavgm"),
        ("orthogonal", "abs"),
        ("normalisation", "l2"),
        ("rotation", "triples"),
    ],
)
def test_impossible_arguments_are_refused(option, value):
    with pytest.raises(ValueError, match=f"Expected `{option}` to be .*, but got {value!r}"):
        feddiverse(**{option: value})


@pytest.mark.parametrize("rounds", [1, 2])
def test_pretraining_is_fedavg_whatever_the_aggregator(tiny_federation, rounds):
    """Algorithm 6; the server's momentum starts after it. In the released code the aggregator acts from the first round on."""

    def federation(aggregator, **options):
        selector = FedDiverseSelector(heterogeneity=TrueHeterogeneity(), pretraining_rounds=rounds, **options)
        return tiny_federation(selector=selector, aggregator=aggregator, rounds=rounds + 1)

    averaged, printed = federation(FedAvg()), federation(FedAvgM())
    released = federation(FedAvgM(), pretraining="ordinary")
    for _ in range(rounds):
        for each in (averaged, printed, released):
            each.run_round()
    assert digest(printed.state.model) == digest(averaged.state.model) != digest(released.state.model)
    assert printed.state.aggregator == {"velocity": {}}
    for each in (averaged, printed):
        each.run_round()
    assert printed.state.aggregator["velocity"]
    assert digest(printed.state.model) != digest(averaged.state.model)


def test_an_aggregator_that_reads_more_than_models_pretrains_itself(tiny_federation):
    """SCAFFOLD's control variates would fall behind those of its clients."""
    selector = FedDiverseSelector(heterogeneity=TrueHeterogeneity(), pretraining_rounds=1)
    federation = tiny_federation(selector=selector, aggregator=Scaffold(), correction=ScaffoldCorrection(), rounds=1)
    federation.run_round()
    assert any(tensor.any() for tensor in federation.state.aggregator["control"].values())


def test_in_a_federation_the_questions_cost_three_floats_a_client_and_no_broadcast(tiny_federation):
    """FedDiverse, table 2; here clients read the truth off their attributes, for which nobody needs the model."""
    federation = tiny_federation(selector=FedDiverseSelector(heterogeneity=TrueHeterogeneity()), rounds=3)
    ledgers = [federation.run_round().ledger for _ in range(3)]
    assert [ledger.query_floats_up for ledger in ledgers] == [0, 3 * 4, 0]
    assert [ledger.query_floats_down for ledger in ledgers] == [0, 0, 0]
    assert set(federation.state.disclosures["heterogeneity"]) == {0, 1, 2, 3}
    assert federation.state.participation_counts.tolist() != [3] * 4
