"""All that is measured of a model on the same samples comes from one prediction, and any metric of torchmetrics joins in."""

import csv
import math
from collections import Counter

import numpy as np
import pytest
import torch
from torchmetrics.classification import BinaryAUROC, MulticlassF1Score, MulticlassROC

from fedfacet.build import build
from fedfacet.callbacks.evaluate import Evaluate
from fedfacet.data.federated import FederatedData
from fedfacet.errors import ConfigError
from fedfacet.metrics.group_accuracy import WorstGroupAccuracy

GLOBAL = ("evaluate", "auc", "calibration", "fairness")
ALL = (*GLOBAL, "client_fairness", "personal_evaluate", "submodel_evaluate")
F1 = "metrics.f1._target_=torchmetrics.classification.MulticlassF1Score"


@pytest.fixture
def run(job_of, tmp_path):
    """Return a function: callbacks and overrides -> a federation of three clients a round that hold out samples."""

    def make(callbacks, *overrides):
        settings = (
            "selector=uniform",
            "aggregator=fedavg",
            "federation.cohort_size=3",
            "federation.rounds=3",
            "partition.scale=0.3",
        )
        more = ("model.width=4", "model.hidden=16", "partition.local_holdout=0.2", "logger=[]", "threads=1")
        return build(job_of(*settings, *more, f"callbacks=[{','.join(callbacks)}]", *overrides), tmp_path)

    return make


def passes(federation):
    """Run a round, and count how many samples the network has seen in eval mode; training clients see them in another."""
    seen = Counter()
    module = federation.engine.clients.program.module
    hook = module.register_forward_hook(lambda module, given, said: seen.update({module.training: len(given[0])}))
    metrics = federation.run_round().metrics
    hook.remove()
    return seen[False], metrics


def test_four_measurements_of_the_global_model_see_its_samples_once(run):
    one, alone = passes(run(GLOBAL[:1]))
    four, metrics = passes(run(GLOBAL))
    assert four == one == sum(map(len, run(GLOBAL[:1]).callbacks["evaluate"].splits.values()))
    assert repr({name: metrics[name] for name in alone}) == repr(alone)


def test_every_model_predicts_the_same_samples_once(run):
    """The global model, that of each client of the round, and what they were sent, on the test set; own samples once more."""
    federation = run(ALL)
    data, before = federation.callbacks["evaluate"].data, federation.state.model
    seen, metrics = passes(federation)
    held_out = sum(map(len, data.local_holdout))
    trained = [k for k, count in enumerate(federation.state.participation_counts.tolist()) if count]
    of_trained = sum(len(data.dataset.test) + len(data.local_holdout[k]) for k in trained)
    assert seen == len(data.val) + len(data.dataset.test) + held_out + of_trained + len(data.dataset.test)
    assert not math.isnan(metrics["personal_holdout/acc_mean"] + metrics["trained_test/acc_mean"])
    assert federation.state.model is not before


def test_predictions_are_those_of_each_measurement_alone(run):
    together = run(ALL, "callbacks.auc.every_n_rounds=2", "callbacks.client_fairness.every_n_rounds=3")
    rows = [dict(together.run_round().metrics) for _ in range(3)]
    for name in ALL:
        every = [
            f"callbacks.{name}.every_n_rounds={number}" for own, number in (("auc", 2), ("client_fairness", 3)) if own == name
        ]
        alone = run((name,), *every)
        for row in rows:
            metrics = alone.run_round().metrics
            assert repr(metrics) == repr({key: row[key] for key in metrics}), name


def test_any_metric_of_torchmetrics_by_yaml(run, tmp_path):
    federation = run(("csv_log", "evaluate"), f"+callbacks.evaluate.{F1}", "callbacks.evaluate.every_n_rounds=2")
    federation.fit()
    with open(tmp_path / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["test/f1"] == "" or math.isnan(float(row["test/f1"])) for row in rows] == [True, False, False]
    data = federation.callbacks["evaluate"].data
    for split, positions in data.splits.items():
        (said,) = federation.engine.predict(federation.state.model, [positions])
        by_hand = MulticlassF1Score(num_classes=data.dataset.num_classes)
        assert float(rows[-1][f"{split}/f1"]) == float(
            by_hand(torch.as_tensor(said.labels), torch.as_tensor(data.dataset.y[positions]))
        )


def test_a_metric_of_the_clients_models_spreads_over_clients(run):
    seen, metrics = passes(run(ALL, *(f"+callbacks.{name}.{F1}" for name in ALL if name not in GLOBAL)))
    assert seen == passes(run(ALL))[0]
    for name in ("client_fairness", "personal_test", "personal_holdout", "received_test", "trained_test"):
        assert 0 <= metrics[f"{name}/f1_min"] <= metrics[f"{name}/f1_mean"] <= 1, name
        assert metrics[f"{name}/f1_std"] >= 0, name
    assert metrics["received_test/f1_mean_rate_1"] == metrics["received_test/f1_mean"]


@pytest.fixture
def measured(tiny_federation, tiny_clients):
    """Return a function: metrics -> what ``Evaluate`` says of two classes."""

    def make(**metrics):
        clients = tiny_clients()
        data = FederatedData(clients.dataset, clients.partition, clients.dataset.test[:0])
        federation = tiny_federation(clients=clients)
        (said,) = federation.engine.predict(federation.state.model, [data.dataset.test])
        return Evaluate(data=data, metrics=metrics).measure(federation, 1), said, data.dataset

    return make


def test_binary_metrics_get_the_second_class_and_groups_their_attribute(measured):
    metrics, said, dataset = measured(auroc=BinaryAUROC(), worst=WorstGroupAccuracy(2, 2))
    by_hand = BinaryAUROC()(torch.as_tensor(said.logits).softmax(dim=1)[:, 1], torch.as_tensor(dataset.y[dataset.test]))
    assert metrics["test/auroc"] == pytest.approx(float(by_hand))
    assert metrics["test/worst"] == pytest.approx(metrics["test/acc_worst_group"])
    assert math.isnan(metrics["val/auroc"]), "there are no samples"


def test_entries_of_a_tensor_have_names(measured):
    metrics, said, dataset = measured(f1=MulticlassF1Score(2, average=None))
    assert [name for name in metrics if name.startswith("test/f1")] == ["test/f1/0", "test/f1/1"]
    y = dataset.y[dataset.test]
    right = np.sum((said.labels == 1) & (y == 1))
    assert metrics["test/f1/1"] == pytest.approx(2 * right / (np.sum(said.labels == 1) + np.sum(y == 1)))


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        (MulticlassF1Score(num_classes=3), "metric `m` to make numbers of class probabilities, but MulticlassF1Score says"),
        (MulticlassROC(num_classes=2), "Expected a tensor, but got tuple: choose a metric that returns numbers"),
        (3, "the metric `m` to be an object of torchmetrics, but got int"),
    ],
)
def test_what_is_no_metric_of_probabilities_is_refused(measured, metric, said):
    with pytest.raises(ConfigError, match=said):
        measured(m=metric)


def test_a_name_that_is_taken_is_refused(measured):
    with pytest.raises(ConfigError, match=r"new names in `callbacks\.evaluate\.metrics`, but `acc` is measured already"):
        measured(acc=MulticlassF1Score(num_classes=2))
