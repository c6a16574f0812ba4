"""The lower bound on epsilon, against the code of the paper, brute force, and randomised response."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from fedfacet.metrics.audited_epsilon import audited_epsilon, audited_of


def of_the_paper(coins, guesses, right, delta, doubt):
    """Steinke et al. (2023), appendix D: the least epsilon that is not refused, by bisection."""

    def p_value(epsilon):
        q = 1 / (1 + math.exp(-epsilon))
        beta, alpha, total = binom.sf(right - 1, guesses, q), 0.0, 0.0
        for i in range(1, right + 1):
            total += binom.pmf(right - i, guesses, q)
            alpha = max(alpha, total / i)
        return min(1.0, beta + alpha * delta * 2 * coins)

    low, high = 0.0, 1.0
    if p_value(0.0) >= doubt:
        return 0.0
    while p_value(high) < doubt:
        high += 1
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if p_value(middle) < doubt else (low, middle)
    return low


COUNTS = st.integers(1, 120).flatmap(
    lambda coins: st.integers(0, coins).flatmap(
        lambda guesses: st.tuples(st.just(coins), st.just(guesses), st.integers(0, guesses))
    )
)


@settings(max_examples=30)  # the paper's code is slow
@given(counts=COUNTS, delta=st.sampled_from([0.0, 1e-6, 1e-3, 0.05, 0.9]), confidence=st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_it_is_that_of_the_papers_code(counts, delta, confidence):
    coins, guesses, right = counts
    expected = of_the_paper(coins, guesses, right, delta, 1 - confidence)
    found = audited_epsilon(right, guesses, coins, delta, confidence=confidence)
    assert found == pytest.approx(expected, abs=1e-6)
    assert found >= 0


@given(counts=COUNTS, delta=st.sampled_from([0.0, 1e-5, 0.01]))
def test_what_makes_it_larger_and_smaller(counts, delta):
    coins, guesses, right = counts
    bound = audited_epsilon(right, guesses, coins, delta)
    assert audited_epsilon(right, guesses, coins, delta, confidence=0.99) <= bound + 1e-8
    assert audited_epsilon(right, guesses, coins, min(0.99, 2 * delta + 0.001)) <= bound + 1e-8
    assert audited_epsilon(right, guesses, coins + 10, delta) <= bound + 1e-8
    if right < guesses:
        assert audited_epsilon(right + 1, guesses, coins, delta) >= bound - 1e-8
    apart = audited_epsilon(right, guesses, coins, delta, distance=2)
    assert apart <= bound / 2 + 1e-8
    if not delta:
        assert apart == pytest.approx(bound / 2, abs=1e-7)


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("coins", [60, 1000])
def test_randomised_response_is_never_called_less_private_than_it_is(epsilon, coins):
    """1,000 times: every coin is told with the chance e^epsilon / (1 + e^epsilon). The bound may fail in a twentieth."""
    draw = np.random.default_rng(0)
    right = draw.binomial(coins, 1 / (1 + math.exp(-epsilon)), size=1000)
    found = {int(v): audited_epsilon(int(v), coins, coins, 0.0) for v in np.unique(right)}
    failures = sum(found[int(v)] > epsilon for v in right)
    assert failures <= 50 + 4 * math.sqrt(1000 * 0.05 * 0.95)
    if epsilon == 0:  # an attack that knows nothing
        assert np.mean([found[int(v)] == 0 for v in right]) > 0.9


def test_it_fails_in_no_more_than_a_twentieth_by_summing_over_all_outcomes():
    """No simulation: the chance of every number of right guesses, with abstention, at both distances, and with delta."""
    for epsilon in (0.0, 0.3, 1.0, 2.5):
        for coins, guesses in ((40, 40), (200, 50)):
            for distance in (1, 2):
                chance = 1 / (1 + math.exp(-distance * epsilon))
                for delta in (0.0, 1e-4):
                    failing = [
                        v
                        for v in range(guesses + 1)
                        if audited_epsilon(v, guesses, coins, delta, distance=distance) > epsilon + 1e-8
                    ]
                    assert binom.pmf(failing, guesses, chance).sum() <= 0.05


def test_with_many_samples_it_comes_near_epsilon():
    for epsilon in (0.5, 3.0):
        coins = 100_000
        right = round(coins / (1 + math.exp(-epsilon)))
        assert epsilon - 0.06 < audited_epsilon(right, coins, coins, 0.0) < epsilon
        assert epsilon - 0.06 < audited_epsilon(right, coins, coins, 1e-9) < epsilon


def test_a_mechanism_that_gives_a_few_away_is_within_delta():
    """With the chance delta everything is published, else nothing: it is (0, delta)-private, and never called otherwise."""
    draw, delta, coins = np.random.default_rng(1), 0.01, 200
    wrong = 0
    for _ in range(500):
        right = coins if draw.random() < delta else draw.binomial(coins, 0.5)
        wrong += audited_epsilon(int(right), coins, coins, delta) > 0
    assert wrong <= 25 + 4 * math.sqrt(500 * 0.05 * 0.95)
    told = draw.binomial(coins, delta, size=500)  # or, sample by sample
    wrong = sum(audited_epsilon(int(k + draw.binomial(coins - k, 0.5)), coins, coins, delta) > 0 for k in told)
    assert wrong <= 25 + 4 * math.sqrt(500 * 0.05 * 0.95)


def test_pairs_of_scores():
    draw = np.random.default_rng(0)
    nothing = [audited_of(draw.normal(size=300), 1e-5) for _ in range(300)]
    assert sum(bound > 0 for bound in nothing) <= 15 + 4 * math.sqrt(300 * 0.05 * 0.95)
    everything = audited_of(np.ones(300), 0.0)
    assert everything == pytest.approx(audited_epsilon(300, 300, 300, 0.0, confidence=0.975, distance=2))
    few = np.where(np.arange(300) < 30, 5.0, draw.normal(size=300))  # a tenth learnt by heart
    assert audited_of(few, 0.0) == pytest.approx(audited_epsilon(30, 30, 300, 0.0, confidence=0.975, distance=2))
    assert audited_of(-np.ones(300), 0.0) == 0.0
    assert audited_of(np.zeros(300), 0.0) == 0.0  # equal scores are no right guesses
    assert math.isnan(audited_of([], 0.0))
    shuffled = draw.permutation(few)
    assert audited_of(shuffled, 1e-6) == audited_of(few, 1e-6) == audited_of(few**3, 1e-6)


def test_many_coins_are_counted_in_no_time_and_without_overflow():
    assert 0 < audited_epsilon(60_000, 100_000, 100_000, 1e-8) < 0.41
    assert audited_epsilon(100_000, 100_000, 100_000, 0.0) > 10
    assert audited_epsilon(0, 0, 5, 0.1) == 0.0


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"right": 11}, "`right` to be 10 or fewer"),
        ({"guesses": 21}, "`guesses` to be 20 or fewer"),
        ({"right": -1}, "`right`"),
        ({"coins": 0}, "`coins`"),
        ({"delta": 1.0}, "`delta`"),
        ({"delta": math.nan}, "`delta`"),
        ({"confidence": 1.0}, "`confidence`"),
        ({"distance": 3}, "`distance` to be 1 or 2"),
    ],
)
def test_values_out_of_range_are_refused(changed, sentence):
    with pytest.raises(ValueError, match=sentence):
        audited_epsilon(**{"right": 5, "guesses": 10, "coins": 20, "delta": 0.0, **changed})
