"""Statistics of pairs, against scipy and statsmodels."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestPower
from statsmodels.stats.weightstats import DescrStatsW

from fedfacet.analysis.paired import holm, paired_difference, smallest_p

TEN = np.random.default_rng(0).normal([[0.5], [0.0]], 1.0, size=(2, 10))


@pytest.mark.parametrize("n", [2, 3, 5, 10])
def test_t_against_statsmodels(n):
    a, b = TEN[:, :n]
    found, oracle = paired_difference(a, b), DescrStatsW(a - b)
    assert (found.n, found.mean) == (n, pytest.approx(oracle.mean))
    assert found.std == pytest.approx(np.std(a - b, ddof=1))
    assert found.t_interval == pytest.approx(oracle.tconfint_mean(0.05))
    assert found.p_t == pytest.approx(oracle.ttest_mean(0)[1]) == pytest.approx(stats.ttest_rel(a, b).pvalue)


@pytest.mark.parametrize("n", [2, 3, 5, 10])
def test_the_permutation_test_against_all_signs(n):
    differences = TEN[0, :n] - TEN[1, :n]
    means = [abs(np.dot(signs, differences)) for signs in itertools.product((1, -1), repeat=n)]
    expected = np.mean(np.array(means) >= abs(differences.sum()) - 1e-12)
    assert paired_difference(*TEN[:, :n]).p_permutation == pytest.approx(expected)
    assert paired_difference(np.arange(1, n + 1), np.zeros(n)).p_permutation == pytest.approx(smallest_p(n)), "one sign only"


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.integers(2300, 2600), st.integers(-20, 20)), min_size=2, max_size=8))
def test_accuracies_whose_sums_tie(images):
    """Sums of accuracies often tie, since images are counted. A tie that rounding breaks makes a p-value too small."""
    right_N, more_N = np.array(images).T
    sums = [abs(np.dot(signs, more_N)) for signs in itertools.product((1, -1), repeat=len(more_N))]
    expected = np.mean(np.array(sums) >= abs(more_N.sum()))
    a, b = (right_N + more_N) / 3_120 * 100, right_N / 3_120 * 100
    assert paired_difference(a, b).p_permutation == pytest.approx(expected)


@pytest.mark.parametrize("n", [16, 17, 20])
def test_twenty_pairs_are_exact(n):
    """Where all differences have one size, the sign-flip test is the sign test, whose p-value is a binomial tail."""
    a = np.where(np.arange(n) < n - 5, 0.3, -0.3)
    assert paired_difference(a, np.zeros(n)).p_permutation == pytest.approx(stats.binomtest(5, n).pvalue, rel=1e-12)


def test_many_pairs_draw_signs():
    a, b = np.random.default_rng(1).normal([[0.2], [0.0]], 1.0, size=(2, 60))
    found = paired_difference(a, b)
    assert found.p_permutation == pytest.approx(found.p_t, abs=0.02)
    assert found == paired_difference(a, b), "the draw has a key"


def test_the_bootstrap_covers_what_the_normal_distribution_says():
    """Of a mean of many values: mean ± 1.96 standard errors, up to what 9,999 draws leave open."""
    a = np.random.default_rng(2).normal(1.0, 2.0, size=100)
    found, error = paired_difference(a, np.zeros(100)), a.std() / 10
    assert found.bootstrap_interval == pytest.approx((a.mean() - 1.96 * error, a.mean() + 1.96 * error), abs=0.1 * error)


@pytest.mark.parametrize("effect", [0.05, 0.2, 0.5, 0.9, 1.5, 2.5])
def test_seeds_needed_against_statsmodels(effect):
    base = np.array([-1.0, 0.0, 1.0])  # of standard deviation 1
    found = paired_difference(base + effect, np.zeros(3))
    assert found.seeds_needed == math.ceil(TTestPower().solve_power(effect_size=effect, alpha=0.05, power=0.8))


def test_what_cannot_be_said_is_nan_or_certain():
    alone = paired_difference([1.0], [0.5])
    assert alone.mean == 0.5
    assert all(map(math.isnan, (alone.std, *alone.t_interval, *alone.bootstrap_interval, alone.p_t, alone.p_permutation)))
    assert math.isnan(paired_difference([1.0, math.nan], [0.0, 0.0]).p_t)
    same = paired_difference([0.3, 0.4], [0.2, 0.3])
    assert (same.p_t, same.p_permutation, same.seeds_needed) == (0.0, 0.5, 2.0)
    nothing = paired_difference([1.0, 2.0], [1.0, 2.0])
    assert (nothing.p_t, nothing.p_permutation, nothing.seeds_needed) == (1.0, 1.0, math.inf)
    assert paired_difference([0.0001, -0.0001, 0.00000001], [0, 0, 0]).seeds_needed == math.inf


@settings(max_examples=40)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_against_statsmodels(p_values):
    assert holm(p_values) == pytest.approx(list(multipletests(p_values, method="holm")[1]))


def test_holm_passes_over_what_has_no_value():
    assert holm([0.01, math.nan, 0.04]) == pytest.approx([0.02, math.nan, 0.04], nan_ok=True)
