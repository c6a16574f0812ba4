import itertools
import pickle

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from fairlearn.metrics import MetricFrame
from sklearn.metrics import accuracy_score
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy

from fedfacet.metrics.group_accuracy import AdjustedAccuracy, GroupAccuracy, WorstGroupAccuracy
from fedfacet.metrics.group_counts import count_groups

NUM_CLASSES, NUM_ATTRIBUTES = 3, 2
WEIGHTS = [5, 1, 0, 2, 4, 8]


def metrics(num_classes=NUM_CLASSES, num_attributes=NUM_ATTRIBUTES, weights=WEIGHTS):
    return [
        GroupAccuracy(num_classes, num_attributes),
        WorstGroupAccuracy(num_classes, num_attributes),
        AdjustedAccuracy(num_classes, num_attributes, group_weights=weights),
    ]


@pytest.fixture(params=range(3), ids=["group", "worst", "adjusted"])
def metric(request):
    return metrics()[request.param]


@pytest.fixture
def batches():
    """Four batches of sizes that differ, with every group in the first and none of group (1, 0) ever right."""
    draw = torch.Generator().manual_seed(1)
    made = []
    for size in (60, 7, 25, 1):
        y = torch.randint(NUM_CLASSES, (size,), generator=draw)
        a = torch.randint(NUM_ATTRIBUTES, (size,), generator=draw)
        preds = torch.where(torch.rand(size, generator=draw) < 0.6, y, torch.randint(NUM_CLASSES, (size,), generator=draw))
        made.append((torch.where((y == 1) & (a == 0), 2, preds), y, a))
    return made


def pooled(batches):
    return tuple(torch.cat(parts) for parts in zip(*batches, strict=True))


def expected_values(preds, y, a):
    """What fairlearn says; a combination that does not occur is NaN."""
    frame = MetricFrame(
        metrics=accuracy_score,
        y_true=y.numpy(),
        y_pred=preds.numpy(),
        sensitive_features={"y": y.numpy(), "a": a.numpy()},
    )
    groups = itertools.product(range(NUM_CLASSES), range(NUM_ATTRIBUTES))
    table = np.array([frame.by_group.get(group, np.nan) for group in groups], dtype=float)
    weighed = np.array(WEIGHTS) > 0
    adjusted = np.average(table[weighed], weights=np.array(WEIGHTS)[weighed])
    return [table.reshape(NUM_CLASSES, NUM_ATTRIBUTES), np.nanmin(table), adjusted]


def test_fairlearn_agrees_batch_by_batch(batches):
    for batch in batches:
        for metric, expected in zip(metrics(), expected_values(*batch), strict=True):
            assert metric(*batch).numpy() == pytest.approx(expected, abs=1e-6, nan_ok=True)
    assert np.isnan(expected_values(*batches[-1])[0]).sum() == 5  # the last batch is one sample


def test_fairlearn_agrees_on_the_pooled_samples(batches):
    for metric, expected in zip(metrics(), expected_values(*pooled(batches)), strict=True):
        for batch in batches:
            metric.update(*batch)
        assert metric.compute().numpy() == pytest.approx(expected, abs=1e-6)


def test_scikit_learn_agrees_group_by_group(batches):
    preds, y, a = pooled(batches)
    ours = GroupAccuracy(NUM_CLASSES, NUM_ATTRIBUTES)
    values = ours(preds, y, a)
    for label in range(NUM_CLASSES):
        for attribute in range(NUM_ATTRIBUTES):
            chosen = (y == label) & (a == attribute)
            assert values[label, attribute].item() == pytest.approx(accuracy_score(y[chosen], preds[chosen]))
            assert ours.total[label * NUM_ATTRIBUTES + attribute] == chosen.sum()


def test_the_pooled_value_is_not_the_mean_of_the_batches(batches):
    """Never average ratios: batches of different sizes give another number, and empty groups would poison it."""
    metric = WorstGroupAccuracy(2, 1)
    first, second = (torch.tensor([0] * 9 + [1]), torch.zeros(10, dtype=torch.int64)), (torch.tensor([1]), torch.tensor([0]))
    for preds, y in (first, second):
        metric.update(preds, y, torch.zeros_like(y))
    assert metric.compute().item() == pytest.approx(9 / 11)


def test_forward_gives_the_batchs_value_and_accumulates(metric, batches):
    twin = metric.clone()
    for batch in batches:
        alone = metric.clone()
        alone.reset()
        alone.update(*batch)
        assert torch.equal(metric(*batch).nan_to_num(-1), alone.compute().nan_to_num(-1))
        twin.update(*batch)
    assert torch.equal(metric.compute(), twin.compute())


def test_logits_and_classes_give_the_same(metric, batches):
    preds, y, a = pooled(batches)
    logits = torch.nn.functional.one_hot(preds, NUM_CLASSES) * 3.0 - 5
    assert torch.equal(metric(logits, y, a), metric.clone()(preds, y, a))


def test_counts_made_elsewhere_merge_into_the_same_value(metric, batches):
    central = metric.clone()
    for preds, y, a in batches:
        metric.update_counts(*count_groups(preds, y, a, NUM_CLASSES, NUM_ATTRIBUTES))
        central.update(preds, y, a)
    assert torch.equal(metric.compute(), central.compute())


def test_a_value_computed_in_between_does_not_linger(metric, batches):
    central = metric.clone()
    for preds, y, a in batches:
        metric.update_counts(*count_groups(preds, y, a, NUM_CLASSES, NUM_ATTRIBUTES))
        central.update(preds, y, a)
        assert torch.equal(metric.compute(), central.compute())
    other = metric.clone()
    other.reset()
    other.update_counts(torch.zeros(6, dtype=torch.int64), torch.full((6,), 1000))
    metric.merge_state(other)
    assert metric.compute().max() < 0.1


def test_merge_state_adds_two_metrics_up(metric, batches):
    left, right, whole = metric.clone(), metric.clone(), metric.clone()
    for position, batch in enumerate(batches):
        (left if position % 2 else right).update(*batch)
        whole.update(*batch)
    left.merge_state(right)
    assert torch.equal(left.compute(), whole.compute())
    assert torch.equal(left.total, whole.total)


def test_a_pickled_metric_goes_on_where_it_was(metric, batches):
    metric.update(*batches[0])
    copy = pickle.loads(pickle.dumps(metric))
    for one in (metric, copy):
        one.update(*batches[1])
    assert torch.equal(metric.compute(), copy.compute())


def test_reset_forgets_everything_but_the_settings(metric, batches):
    fresh = metric.clone()
    metric.update(*batches[0])
    metric.reset()
    assert metric.total.sum() == metric.correct.sum() == 0
    for one in (metric, fresh):
        one.update(*batches[2])
    assert torch.equal(metric.compute().nan_to_num(-1), fresh.compute().nan_to_num(-1))


def test_a_clone_is_independent(metric, batches):
    metric.update(*batches[0])
    clone = metric.clone()
    clone.update(*batches[1])
    assert clone.total.sum() == metric.total.sum() + len(batches[1][0])


def test_a_group_without_samples_is_nan_and_not_zero():
    metric = GroupAccuracy(2, 2)
    metric.update(torch.tensor([0, 1]), torch.tensor([0, 0]), torch.tensor([0, 1]))
    assert metric.compute().isnan().tolist() == [[False, False], [True, True]]
    assert metric.total.tolist() == [1, 1, 0, 0]


def test_the_worst_group_is_the_worst_that_has_samples():
    metric = WorstGroupAccuracy(2, 2)
    metric.update(torch.tensor([0, 0, 1]), torch.tensor([0, 0, 0]), torch.tensor([0, 1, 1]))
    assert metric.compute().item() == 0.5


@pytest.mark.filterwarnings("ignore:The ``compute`` method of metric .* was called before:UserWarning")
def test_nothing_measured_is_nan():
    for metric in metrics():
        assert metric.compute().isnan().all()


def test_a_weighed_group_without_samples_makes_the_adjusted_average_nan():
    metric = AdjustedAccuracy(2, 1, group_weights=[1, 1])
    metric.update(torch.tensor([0]), torch.tensor([0]), torch.tensor([0]))
    assert metric.compute().isnan()


def test_an_unweighed_group_may_be_empty():
    metric = AdjustedAccuracy(2, 1, group_weights=[3, 0])
    metric.update(torch.tensor([0, 1]), torch.tensor([0, 0]), torch.tensor([0, 0]))
    assert metric.compute().item() == 0.5


def test_weights_are_ratios():
    """WaterBirds weighs by training counts; only their ratios matter."""
    samples = torch.tensor([0, 1, 0]), torch.tensor([0, 0, 1]), torch.tensor([0, 0, 0])
    values = [AdjustedAccuracy(2, 1, group_weights=weights)(*samples).item() for weights in ([3, 1], [0.75, 0.25], [300, 100])]
    assert values == [pytest.approx(0.75 * 0.5)] * 3


@pytest.mark.parametrize("weights", [[1, 1, 1], [1, -1, 1, 1], [0, 0, 0, 0], [float("nan"), 1, 1, 1]])
def test_malformed_weights_are_refused(weights):
    with pytest.raises(ValueError, match="Expected `group_weights` to be 4 non-negative numbers"):
        AdjustedAccuracy(2, 2, group_weights=weights)


@pytest.mark.parametrize("sizes", [(0, 2), (2, 0)])
def test_impossible_sizes_are_refused(sizes):
    with pytest.raises(ValueError, match="to be 1 or larger, but got 0"):
        GroupAccuracy(*sizes)


@pytest.mark.parametrize(("y", "a"), [([0, 1], [0, 2]), ([0, 3], [0, 1]), ([0, 1], [0, -1])])
def test_labels_out_of_range_are_refused_and_not_booked_under_another_group(y, a):
    """(y=0, a=2) would have the number of (y=1, a=0)."""
    metric = GroupAccuracy(NUM_CLASSES, NUM_ATTRIBUTES)
    with pytest.raises(ValueError, match="Expected"):
        metric.update(torch.tensor([0, 1]), torch.tensor(y), torch.tensor(a))


def test_its_state_is_not_part_of_a_checkpoint():
    """A LightningModule's state_dict stays the bare model with a metric inside."""
    for metric in metrics():
        assert metric.state_dict() == {}


@pytest.mark.parametrize(("kind", "curves"), [(WorstGroupAccuracy, 1), (GroupAccuracy, 4)])
def test_a_value_and_values_over_steps_are_plotted(kind, curves):
    metric = kind(2, 2)
    labels = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 0, 1, 0]), torch.tensor([0, 1, 1, 1])
    values = [metric(*labels), metric(*labels)]
    for (figure, axes), steps in ((metric.plot(), 1), (metric.plot(values), 2)):
        assert [len(line.get_xdata()) for line in axes.lines] == [steps] * curves
        drawn = np.array([line.get_ydata()[-1] for line in axes.lines])
        np.testing.assert_allclose(drawn, metric.compute().flatten().numpy())
        plt.close(figure)


def test_a_collection_with_a_metric_of_torchmetrics_takes_names():
    """As docs/from_python.md says: by position, each metric would get the attribute."""
    metrics = MetricCollection([WorstGroupAccuracy(2, 2), MulticlassAccuracy(2)])
    y = torch.tensor([0, 1, 1])
    assert set(metrics(preds=y, target=y, attribute=torch.tensor([0, 1, 0]))) == {"WorstGroupAccuracy", "MulticlassAccuracy"}
