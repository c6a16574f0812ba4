"""Group fairness against fairlearn, scikit-learn, statsmodels and tables by hand."""

import math

import numpy as np
import pytest
import torch
from fairlearn.metrics import (
    MetricFrame,
    demographic_parity_difference,
    demographic_parity_ratio,
    equal_opportunity_difference,
    equalized_odds_difference,
    false_positive_rate,
)
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.metrics import accuracy_score, precision_score, recall_score
from statsmodels.stats.proportion import confint_proportions_2indep

from fedfacet.metrics import group_fairness
from fedfacet.metrics.group_fairness import FairnessMetric, fairness_of, newcombe_interval, rates_of

BY_HAND = [[[30, 10], [20, 40]], [[5, 15], [25, 5]]]

CLASSES = [kind for kind in vars(group_fairness).values() if isinstance(kind, type) and issubclass(kind, FairnessMetric)]
CLASSES.remove(FairnessMetric)


def tables(num_classes, lowest=1):
    """Tables of 2 to 5 groups; with ``lowest`` 1 no cell is empty."""
    shapes = st.integers(2, 5).map(lambda groups: (num_classes, groups, num_classes))
    return shapes.flatmap(lambda shape: arrays(np.int64, shape, elements=st.integers(lowest, 30)))


def samples_of(counts):
    """The true classes, attribute values and predicted classes that a table counts."""
    cells = np.array(list(np.ndindex(counts.shape)))
    return np.repeat(cells, counts.ravel(), axis=0).T


# By hand


def test_a_small_table_by_hand():
    """TPR 15/20 and 5/30, FPR 10/40 and 40/60, SEL 25/60 and 45/90, ACC 45/60 and 25/90."""
    found = fairness_of(BY_HAND)
    assert found["equal_opportunity"] == pytest.approx(15 / 20 - 5 / 30)
    assert found["predictive_equality"] == pytest.approx(40 / 60 - 10 / 40)
    assert found["equalized_odds"] == pytest.approx(15 / 20 - 5 / 30)
    assert fairness_of(BY_HAND, odds="mean")["equalized_odds"] == pytest.approx((15 / 20 - 5 / 30 + 40 / 60 - 10 / 40) / 2)
    assert found["demographic_parity"] == pytest.approx(45 / 90 - 25 / 60)
    assert found["demographic_parity_ratio"] == pytest.approx((25 / 60) / (45 / 90))
    assert found["accuracy_parity"] == pytest.approx(45 / 60 - 25 / 90)
    assert found["calibration"] == pytest.approx(max(15 / 25 - 5 / 45, 30 / 35 - 20 / 45))
    assert found["discrimination_index"] == pytest.approx(25 / 60 - 45 / 90)


@pytest.mark.parametrize(
    ("table", "statistical_parity", "equal_opportunity", "average_odds", "disparate_impact"),
    [
        # Group 1 unprivileged. aif360's formulas, in fractions: unprivileged minus privileged, or over it.
        (BY_HAND, 45 / 90 - 25 / 60, 5 / 30 - 15 / 20, ((40 / 60 - 10 / 40) + (5 / 30 - 15 / 20)) / 2, (45 / 90) / (25 / 60)),
        ([[[8, 2], [6, 4]], [[1, 9], [5, 5]]], 9 / 20 - 11 / 20, 5 / 10 - 9 / 10, (2 / 10 - 4 / 10) / 2, 9 / 11),
        ([[[5, 5], [5, 5]], [[5, 5], [5, 5]]], 0, 0, 0, 1),
        ([[[9, 1], [1, 9]], [[9, 1], [1, 9]]], 0.9 - 0.1, 0.9 - 0.1, 0.8, 9),
        ([[[1, 3], [3, 1]], [[2, 2], [1, 3]]], 4 / 8 - 5 / 8, 3 / 4 - 2 / 4, ((1 / 4 - 3 / 4) + 1 / 4) / 2, 4 / 5),
    ],
)
def test_signs_are_those_of_aif360(table, statistical_parity, equal_opportunity, average_odds, disparate_impact):
    rates = rates_of(table, 1)
    gaps = {name: rates[name][1] - rates[name][0] for name in rates}
    assert gaps["sel"] == pytest.approx(statistical_parity)
    assert gaps["tpr"] == pytest.approx(equal_opportunity)
    assert (gaps["fpr"] + gaps["tpr"]) / 2 == pytest.approx(average_odds)
    found = fairness_of(table)
    assert found["discrimination_index"] == pytest.approx(-statistical_parity)
    assert found["demographic_parity_ratio"] == pytest.approx(min(disparate_impact, 1 / disparate_impact))


# Oracles


@settings(max_examples=7)
@given(tables(2), st.sampled_from(["between_groups", "to_overall"]))
def test_of_two_classes_it_is_fairlearn(counts, method):
    y, a, predicted = samples_of(counts)
    found = fairness_of(counts, method=method)
    given_ = {"sensitive_features": a, "method": method}
    assert found["equal_opportunity"] == pytest.approx(equal_opportunity_difference(y, predicted, **given_))
    assert found["equalized_odds"] == pytest.approx(equalized_odds_difference(y, predicted, **given_))
    mean = fairness_of(counts, method=method, odds="mean")["equalized_odds"]
    assert mean == pytest.approx(equalized_odds_difference(y, predicted, agg="mean", **given_))
    assert found["demographic_parity"] == pytest.approx(demographic_parity_difference(y, predicted, **given_))
    frames = {
        name: MetricFrame(metrics=metric, y_true=y, y_pred=predicted, sensitive_features=a).difference(method=method)
        for name, metric in (("predictive_equality", false_positive_rate), ("accuracy_parity", accuracy_score))
    }
    for name, expected in frames.items():
        assert found[name] == pytest.approx(expected)
    if method == "between_groups":
        assert found["demographic_parity_ratio"] == pytest.approx(demographic_parity_ratio(y, predicted, sensitive_features=a))


@settings(max_examples=5)
@given(tables(3), st.sampled_from(["max", "mean"]))
def test_of_several_classes_each_is_taken_against_the_rest(counts, classes):
    """And calibration is scikit-learn's precision."""
    y, a, predicted = samples_of(counts)
    found = fairness_of(counts, positive_class=None, classes=classes)
    over = max if classes == "max" else lambda values: sum(values) / 3
    one_vs_rest = [(y == c, predicted == c) for c in range(3)]
    for name, oracle in (
        ("equal_opportunity", equal_opportunity_difference),
        ("equalized_odds", equalized_odds_difference),
        ("demographic_parity", demographic_parity_difference),
    ):
        expected = over([oracle(true, said, sensitive_features=a) for true, said in one_vs_rest])
        assert found[name] == pytest.approx(expected)
    precision = [[precision_score(y[a == g] == c, predicted[a == g] == c) for g in range(counts.shape[1])] for c in range(3)]
    assert found["calibration"] == pytest.approx(max(max(of) - min(of) for of in precision))
    assert math.isnan(found["discrimination_index"])
    recalls = [recall_score(y[a == g] == 2, predicted[a == g] == 2) for g in range(counts.shape[1])]
    assert rates_of(counts, 2)["tpr"] == pytest.approx(recalls)


@given(tables(2))
def test_the_distance_from_the_first_group_is_at_most_the_spread_and_of_two_groups_it(counts):
    apart, from_first = fairness_of(counts), fairness_of(counts, method="to_reference")
    for name in ("equal_opportunity", "predictive_equality", "demographic_parity", "accuracy_parity"):
        assert from_first[name] <= apart[name] + 1e-12
        if counts.shape[1] == 2:
            assert from_first[name] == pytest.approx(apart[name])


@given(st.integers(1, 60), st.integers(1, 60), st.data())
def test_the_interval_is_newcombes(size_0, size_1, data):
    x_0, x_1 = data.draw(st.integers(0, size_0)), data.draw(st.integers(0, size_1))
    expected = confint_proportions_2indep(x_1, size_1, x_0, size_0, method="newcomb", compare="diff")
    assert newcombe_interval((x_0, x_1), (size_0, size_1)) == pytest.approx(expected, abs=1e-9)


def test_without_samples_there_is_no_interval():
    assert all(map(math.isnan, newcombe_interval((0, 1), (0, 2))))


# Empty cells


def test_a_rate_of_nobody_is_nan_where_fairlearn_says_zero():
    """Group 1 has no positives: fairlearn's gap in TPR is group 0's rate, ours is unknown."""
    counts = np.array([[[5, 1], [4, 2]], [[1, 3], [0, 0]]])
    y, a, predicted = samples_of(counts)
    assert equal_opportunity_difference(y, predicted, sensitive_features=a) == pytest.approx(0.75)
    assert np.isnan(rates_of(counts, 1)["tpr"]).tolist() == [False, True]
    found = fairness_of(counts)
    assert math.isnan(found["equal_opportunity"])
    assert math.isnan(found["equalized_odds"])
    assert found["predictive_equality"] == pytest.approx(2 / 6 - 1 / 6)


def test_groups_without_a_rate_are_left_out_of_three():
    counts = np.array([[[5, 1], [4, 2], [3, 3]], [[1, 3], [0, 0], [3, 1]]])
    assert fairness_of(counts)["equal_opportunity"] == pytest.approx(3 / 4 - 1 / 4)
    assert math.isnan(fairness_of(counts, method="to_reference", min_count=5)["equal_opportunity"])


@given(tables(2, lowest=0), st.integers(1, 10))
def test_a_rate_needs_enough_samples(counts, min_count):
    rates = rates_of(counts, 1, min_count=min_count)
    assert (np.isnan(rates["tpr"]) == (counts[1].sum(axis=-1) < min_count)).all()
    assert (np.isnan(rates["sel"]) == (counts.sum(axis=(0, 2)) < min_count)).all()
    assert all(math.isnan(value) for value in fairness_of(counts, min_count=10**6).values())


# The classes


def test_there_is_a_class_for_every_measure():
    assert {kind.measure for kind in CLASSES} == fairness_of(BY_HAND).keys()


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
@settings(max_examples=10)
@given(counts=tables(2), cuts=st.integers(1, 4))
def test_batches_and_clients_add_up(kind, counts, cuts):
    """Sample by sample or as counts, in one metric or in several merged ones, as labels or as logits."""
    y, a, predicted = (torch.tensor(column) for column in np.random.default_rng(0).permutation(samples_of(counts).T).T)
    groups = counts.shape[1]
    whole, merged = kind(2, groups), kind(2, groups)
    merged.update_counts(torch.zeros(2, groups, 2, dtype=torch.int64))
    for part in torch.tensor_split(torch.arange(len(y)), cuts):
        whole.update(predicted[part], y[part], a[part])
        client = kind(2, groups)
        client.update(torch.nn.functional.one_hot(predicted[part], 2).float(), y[part], a[part])
        merged.merge_state(client)
    made_elsewhere = kind(2, groups)
    made_elsewhere.update_counts(torch.tensor(counts))
    expected = torch.tensor(fairness_of(counts)[kind.measure], dtype=torch.float32)
    for metric in (whole, merged, made_elsewhere):
        torch.testing.assert_close(metric.compute(), expected, equal_nan=True)


@given(tables(3))
def test_a_classifier_without_errors_on_equal_groups_is_fair(counts):
    right = np.zeros_like(counts)
    right[range(3), :, range(3)] = counts[:, :1, 0]
    assume(right.sum())
    for positive_class in (0, 2, None):
        found = fairness_of(right, positive_class=positive_class)
        gaps = [value for name, value in found.items() if name != "demographic_parity_ratio" and not math.isnan(value)]
        assert gaps == pytest.approx([0] * len(gaps))
        assert found["demographic_parity_ratio"] == pytest.approx(1)


# Bad input


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"positive_class": 2}, "Expected `positive_class` to be one of the 2 classes"),
        ({"positive_class": -1}, "Expected `positive_class` to be one of the 2 classes"),
        ({"method": "between"}, r"Expected `method` to be .*between_groups"),
        ({"classes": "min"}, "Expected `classes` to be 'max' or"),
        ({"odds": "best"}, "Expected `odds` to be 'worst_case' or"),
        ({"min_count": 0}, "Expected `min_count`"),
    ],
)
def test_bad_settings_are_refused(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        fairness_of(BY_HAND, **arguments)
    with pytest.raises(ValueError, match=sentence):
        CLASSES[0](2, 2, **arguments)


def test_bad_counts_and_labels_are_refused():
    with pytest.raises(ValueError, match=r"^Expected counts of shape \(Y, A, Y\)"):
        fairness_of(np.ones((2, 2, 3)))
    with pytest.raises(ValueError, match="num_attributes"):
        CLASSES[0](2, 1)
    metric = CLASSES[0](2, 2)
    for bad in (([2], [0], [0]), ([0], [2], [0]), ([0], [0], [-1])):
        with pytest.raises(ValueError, match=r"^Expected `"):
            metric.update(*map(torch.tensor, bad))
