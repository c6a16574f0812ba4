"""The ROC curve of an attack, against scikit-learn, brute force, closed forms and simulation."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm
from sklearn.metrics import roc_auc_score

from fedfacet.metrics.roc import pooled_auc, roc_of

SCORES = st.lists(st.integers(-5, 5).map(float), min_size=2, max_size=30)


@settings(max_examples=40)
@given(members=SCORES, others=SCORES)
def test_area_and_rates_against_brute_force(members, others):
    """With many ties, each counting one half."""
    roc = roc_of(members, others)
    wins = [(x > y) + 0.5 * (x == y) for x in members for y in others]
    assert roc.auc == pytest.approx(np.mean(wins), abs=1e-12)
    y_true = [1] * len(members) + [0] * len(others)
    assert roc.auc == pytest.approx(roc_auc_score(y_true, members + others), abs=1e-12)
    bounds = sorted({*members, *others, math.inf})
    rates = [(np.mean([y >= t for y in others]), np.mean([x >= t for x in members])) for t in bounds]
    assert roc.advantage == pytest.approx(max(tpr - fpr for fpr, tpr in rates))
    for alpha in (0.0, 0.1, 0.5, 1.0):
        found = roc.true_positives_at(alpha)
        if alpha * len(others) < 1:
            assert math.isnan(found)
        else:
            assert found == pytest.approx(max(tpr for fpr, tpr in rates if fpr <= alpha))


@settings(max_examples=40)
@given(members=SCORES, others=SCORES)
def test_direction_and_monotone_maps(members, others):
    roc, reversed_, cubed = (
        roc_of(members, others),
        roc_of(others, members),
        roc_of(*(np.array(s) ** 3 for s in (members, others))),
    )
    assert roc.auc == pytest.approx(1 - reversed_.auc, abs=1e-12)
    assert (cubed.auc, cubed.auc_low, cubed.auc_high) == pytest.approx((roc.auc, roc.auc_low, roc.auc_high))


def test_two_normals_have_the_areas_of_the_closed_form():
    """Unit variance, distance d: AUC = Phi(d / sqrt 2), advantage = 2 Phi(d / 2) - 1, TPR(alpha) = Phi(d - z)."""
    generator, d, n = np.random.default_rng(0), 0.8, 200_000
    roc = roc_of(generator.normal(d, size=n), generator.normal(size=n))
    assert roc.auc == pytest.approx(norm.cdf(d / math.sqrt(2)), abs=3e-3)
    assert roc.advantage == pytest.approx(2 * norm.cdf(d / 2) - 1, abs=5e-3)
    for alpha in (0.001, 0.01, 0.1):
        assert roc.true_positives_at(alpha) == pytest.approx(norm.cdf(d - norm.isf(alpha)), abs=5e-3)


@pytest.mark.parametrize("d", [0.0, 0.5])
def test_the_interval_covers_the_area_as_often_as_it_says(d):
    """800 simulations with 60 members and 90 others."""
    generator, truth = np.random.default_rng(1), norm.cdf(d / math.sqrt(2))
    rocs = [roc_of(generator.normal(d, size=60), generator.normal(size=90)) for _ in range(800)]
    covered = np.mean([roc.auc_low <= truth <= roc.auc_high for roc in rocs])
    assert 0.93 <= covered <= 0.97
    if d == 0:
        assert np.std([roc.auc for roc in rocs]) == pytest.approx(rocs[0].null_std, rel=0.05)
        assert np.mean([roc.p_null < 0.05 for roc in rocs]) == pytest.approx(0.05, abs=0.015)


def test_the_interval_covers_an_area_near_one():
    """At AUC .98 with 20 of each, where one order in six is perfect."""
    generator, d = np.random.default_rng(0), math.sqrt(2) * norm.ppf(0.98)
    rocs = [roc_of(generator.normal(d, size=20), generator.normal(size=20)) for _ in range(600)]
    assert np.mean([roc.auc_low <= 0.98 <= roc.auc_high for roc in rocs]) >= 0.93
    assert sum(roc.auc == 1 for roc in rocs) > 60
    assert all(0 < roc.auc_low < roc.auc_high <= 1 for roc in rocs)


@pytest.mark.parametrize(("members", "others", "ends"), [
    ([2, 3, 4, 5, 6], [-3, -2, -1, 0, 1], (0.05**0.2, 1)),
    ([-3, -2, -1, 0, 1], [2, 3, 4, 5, 6, 7], (0, 1 - 0.05**0.2)),
    ([1, 1, 1], [1, 1], (0.05**0.5 / 2, 1 - 0.05**0.5 / 2)),
])  # fmt: skip
def test_an_order_without_variance_has_an_exact_bound(members, others, ends):
    """And so has one over several models."""
    roc = roc_of(members, others)
    assert (roc.auc_low, roc.auc_high) == pytest.approx(ends)
    _, low, high = pooled_auc([roc, roc])
    assert high - low > 0.2


@pytest.mark.parametrize(("n", "m", "close"), [(3, 3, 0.012), (30, 30, 0.004), (20, 60, 0.012)])
def test_an_attack_that_knows_nothing_has_an_advantage_over_all_thresholds(n, m, close):
    """Its mean over 4,000 random orders; with three of each it is (4^3 / 20 - 1) / 6, by counting them all."""
    orders = np.random.default_rng(0).permuted(np.repeat([[1 / n] * n + [-1 / m] * m], 4000, axis=0), axis=1)
    simulated = np.maximum(orders.cumsum(axis=1).max(axis=1), 0).mean()
    chance = roc_of(np.arange(n), np.arange(m)).null_advantage
    assert chance == pytest.approx(simulated, abs=close)
    if n == m == 3:
        assert chance == pytest.approx((64 / 20 - 1) / 6)


def test_perfect_and_useless():
    assert roc_of([2, 3], [0, 1]).auc == roc_of([2, 3], [0, 1]).advantage == 1
    flat = roc_of([1, 1, 1], [1, 1])
    assert (flat.auc, flat.advantage) == (0.5, 0)


@pytest.mark.parametrize(
    ("members", "others", "sentence"),
    [
        ([1.0], [1.0, 2.0], "two members and two others"),
        ([1.0, 2.0], [], "two members and two others"),
        ([1.0, math.nan], [1.0, 2.0], "1 of 4 are not"),
    ],
)
def test_refuses_what_has_no_curve(members, others, sentence):
    with pytest.raises(ValueError, match=sentence):
        roc_of(members, others)
