import itertools
from collections import Counter
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest, chisquare

from fedfacet import rng, state
from fedfacet.clients.queries.counts import NumSamples
from fedfacet.selectors.size_weighted import SizeWeightedSelector, inclusion_probabilities, systematic_sample

DRAWS = 8_000
MATRICES = ([[6, 2], [2, 6]], [[1, 1], [1, 1]], [[3, 0], [0, 3]], [[9, 5], [5, 9]])


@pytest.fixture
def asked(server):
    """Return a function: sizes, cohort size -> a server whose clients have that many samples."""

    def make(sizes, cohort_size, *, scheme="systematic", seed=0):
        selector = SizeWeightedSelector(num_samples=NumSamples(), scheme=scheme)
        return server(selector, len(sizes), cohort_size, answers={"num_samples": list(sizes)}, seed=seed)

    return make


def frequencies(run, draws=DRAWS, available=None):
    counts = np.zeros(run.num_clients)
    for round in range(1, draws + 1):
        counts[list(run.select(round, available))] += 1
    return counts


def consistent(counts, probabilities, draws=DRAWS):
    """Whether each count is what a coin of that probability gives."""
    return all(
        count == draws * probability if probability in (0, 1) else binomtest(int(count), draws, probability).pvalue > 1e-5
        for count, probability in zip(counts, probabilities, strict=True)
    )


# Closed forms


@pytest.mark.parametrize(
    ("sizes", "places", "expected"),
    [
        ([1, 2, 3, 4], 1, [0.1, 0.2, 0.3, 0.4]),
        ([1, 2, 3, 4], 2, [0.2, 0.4, 0.6, 0.8]),
        ([1, 2, 3, 4], 3, [1 / 3, 2 / 3, 1, 1]),  # 4 is certain, 3 of the two places left is too
        ([10, 1, 2, 3], 2, [1, 1 / 6, 1 / 3, 1 / 2]),
        ([5, 5, 5, 5, 5], 2, [0.4] * 5),
        ([7, 0, 0, 0], 2, [1, 1 / 3, 1 / 3, 1 / 3]),
        ([0, 0, 0, 0], 3, [0.75] * 4),
        ([2, 1, 1], 2, [1, 0.5, 0.5]),  # 2 comes to exactly one
        ([3], 1, [1]),
    ],
)
def test_probabilities_have_a_closed_form(sizes, places, expected, asked):
    assert inclusion_probabilities(np.array(sizes, dtype=float), places) == pytest.approx(expected, abs=1e-12)
    assert consistent(frequencies(asked(sizes, places), 1500), expected, 1500)


def test_inclusion_frequencies_over_8000_draws(asked):
    sizes = [40, 3, 9, 0, 12, 7, 30, 1, 5, 6]
    probabilities = inclusion_probabilities(np.array(sizes, dtype=float), 4)
    assert probabilities[0] == probabilities[6] == 1
    assert probabilities[[1, 2, 4, 5, 7, 8, 9]] == pytest.approx(2 * np.array([3, 9, 12, 7, 1, 5, 6]) / 43)
    assert consistent(frequencies(asked(sizes, 4)), probabilities)


@settings(max_examples=50)
@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=30), st.data())
def test_probabilities_add_up_and_are_in_proportion(sizes, data):
    places = data.draw(st.integers(1, len(sizes)))
    probabilities = inclusion_probabilities(np.array(sizes, dtype=float), places)
    assert probabilities.sum() == pytest.approx(places)
    assert (probabilities >= 0).all()
    assert (probabilities <= 1).all()
    assert (np.diff(probabilities[np.argsort(sizes)]) >= -1e-12).all(), "who has more is never less likely"
    below = (probabilities < 1 - 1e-9) & (np.array(sizes) > 0)
    ratios = probabilities[below] / np.array(sizes)[below]
    assert ratios == pytest.approx(ratios[:1].repeat(len(ratios)))
    drawn = systematic_sample(probabilities, rng.stream(0, "test"))
    assert len(set(drawn.tolist())) == places
    assert (probabilities[drawn] > 0).all()


def test_equal_sizes_are_uniform_selection(asked):
    """Every set of clients is equally likely, as under ``selector=uniform``."""
    run = asked([6] * 5, 2)
    drawn = Counter(frozenset(run.select(round)) for round in range(1, 1501))
    assert len(drawn) == comb(5, 2)
    assert chisquare(list(drawn.values())).pvalue > 1e-4


def test_successive_draws_are_those_of_power_of_choice(asked):
    sizes = [10, 20, 30, 40]
    expected = Counter()
    for first, second in itertools.permutations(range(4), 2):
        expected[frozenset((first, second))] += sizes[first] / 100 * sizes[second] / (100 - sizes[first])
    run = asked(sizes, 2, scheme="successive")
    drawn = Counter(frozenset(run.select(round)) for round in range(1, 2501))
    assert chisquare([drawn[pair] for pair in expected], [2500 * p for p in expected.values()]).pvalue > 1e-4
    assert not consistent(frequencies(run, 2500), [0.2, 0.4, 0.6, 0.8], 2500), "large clients join less often"


def test_the_mean_of_a_cohort_is_that_of_all_samples(asked):
    """In expectation; scheme I of FedAvg's theory has this too."""
    sizes, values = np.array([4, 9, 6, 8, 5]), np.array([1.0, -2.0, 5.0, 0.5, 3.0])
    probabilities = inclusion_probabilities(sizes.astype(float), 3)
    assert probabilities.max() < 1
    assert probabilities @ values / 3 == pytest.approx(sizes @ values / sizes.sum())
    run = asked(sizes.tolist(), 3)
    means = [values[list(run.select(round))].mean() for round in range(1, DRAWS + 1)]
    assert abs(np.mean(means) - sizes @ values / sizes.sum()) < 4.5 * np.std(means) / np.sqrt(DRAWS)


# Who is asked, and who is away


def test_sizes_are_asked_once_of_whoever_is_there(asked):
    run = asked([1, 2, 3, 4, 5, 6], 2)
    run.round(1, available=[0, 1, 4])
    run.round(2, available=[0, 1, 4])
    run.round(3)
    assert run.asked == [(1, [0, 1, 4]), (3, [2, 3, 5])]
    assert set(run.disclosed) == {"num_samples"}


def test_probabilities_are_over_those_who_are_there(asked):
    counts = frequencies(asked([1, 2, 3, 4, 90], 2), 5000, available=[0, 1, 2, 3])
    assert consistent(counts, [0.2, 0.4, 0.6, 0.8, 0], 5000)


def test_clients_without_samples_join_only_where_others_lack(asked):
    run = asked([0, 3, 0, 2, 1], 3)
    assert {frozenset(run.select(round)) for round in range(1, 50)} == {frozenset([1, 3, 4])}
    joined = {frozenset(run.select(round, [0, 1, 2, 3])) for round in range(50, 150)}
    assert joined == {frozenset([0, 1, 3]), frozenset([1, 2, 3])}


def test_a_large_population(asked):
    sizes = np.random.default_rng(0).integers(0, 1000, 5000).tolist()
    cohort = asked(sizes, 400).round(1)
    assert len(set(cohort)) == 400
    assert all(sizes[k] for k in cohort)


def test_it_runs_and_costs_a_number_per_client(tiny_federation):
    def run(cut=0):
        federation = tiny_federation(
            selector=SizeWeightedSelector(num_samples=NumSamples()), matrices=MATRICES, cohort_size=2, rounds=5
        )
        results = [federation.run_round() for _ in range(5)]
        return federation, results

    federation, results = run()
    assert [result.ledger.query_floats_up for result in results] == [4, 0, 0, 0, 0]
    assert sum(result.ledger.query_samples for result in results) == 0
    assert federation.state.disclosures == {"num_samples": {0: 16, 1: 4, 2: 6, 3: 28}}
    assert all(3 in result.cohort for result in results), "it has more than half of all samples"
    assert state.digest(run()[0].state.model) == state.digest(federation.state.model)


def test_an_impossible_scheme_is_refused():
    with pytest.raises(ValueError, match="Expected `scheme` to be 'systematic' or 'successive', but got 'poisson'"):
        SizeWeightedSelector(num_samples=NumSamples(), scheme="poisson")
