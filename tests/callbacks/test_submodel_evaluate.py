"""Parts of the model, measured as clients receive them and as they are after training."""

import math

import pytest

from fedfacet.build import build
from fedfacet.callbacks.evaluate_clients import PersonalEvaluate
from fedfacet.clients.personal_memory import local_model
from fedfacet.federation import Federation
from fedfacet.mechanisms.submodels import Submodels
from fedfacet.types import ClientTask


@pytest.fixture
def federation(job_of):
    """Return a function: overrides -> a federation of three clients a round that measures their parts."""

    def make(*overrides) -> Federation:
        settings = ("selector=uniform", "aggregator=fedavg", "federation.cohort_size=3", "partition.scale=0.3", "model.width=4")
        more = ("model.hidden=16", "optimizer.lr=0.2", "callbacks=submodel_evaluate", "logger=[]", "threads=1")
        config = job_of(*settings, *more, "callbacks.submodel_evaluate.every_n_rounds=2", *overrides)
        return build(config, None)

    return make


def test_received_and_trained_parts_by_rate(federation):
    run = federation("capacity=proportions", "submodel=fed_dropout")
    first, before = run.run_round().metrics, run.state
    assert all(math.isnan(value) for name, value in first.items() if "_test/acc" in name)
    assert math.isnan(first["submodel/covered"])
    second = run.run_round()
    test = run.callbacks["submodel_evaluate"].test
    by_hand = [run.engine.evaluate(run.sent(before, k).model, [test])[0].average_accuracy for k in second.cohort]
    assert second.metrics["received_test/acc_mean"] == pytest.approx(sum(by_hand) / 3)
    assert second.metrics["received_test/acc_min"] == min(by_hand)
    rates = run.find(Submodels).parts.rates(2)
    for rate in (1.0, 0.5):
        own = [value for k, value in zip(second.cohort, by_hand, strict=True) if rates[k] == rate]
        found = second.metrics[f"received_test/acc_mean_rate_{rate:g}"]
        assert found == pytest.approx(sum(own) / len(own)) if own else math.isnan(found)
    tasks = [ClientTask(k, 2, run.seed, run.sent(before, k)) for k in second.cohort]
    trained = [local_model(task.broadcast, update) for task, update in zip(tasks, run.engine.run(tasks), strict=True)]
    accuracies = [run.engine.evaluate(model, [test])[0].average_accuracy for model in trained]
    assert second.metrics["trained_test/acc_mean"] == pytest.approx(sum(accuracies) / 3)
    assert 0 < second.metrics["submodel/covered"] <= 1


def test_what_nobody_holds_is_not_covered(federation):
    """Without whole clients all hold the same half of each layer's inputs and outputs."""
    run = federation(
        "capacity=largest", "capacity.num_whole=0", "submodel=heterofl", "callbacks.submodel_evaluate.every_n_rounds=1"
    )
    covered = run.run_round().metrics["submodel/covered"]
    whole = sum(run.state.model[name].numel() for name in run.facts.parameters)
    held = sum(run.sent(run.state, 0).model[name].numel() for name in run.facts.parameters)
    assert covered == held / whole


def test_without_parts_it_is_the_clients_own_models(federation):
    run = federation("callbacks.submodel_evaluate.every_n_rounds=1")
    run.callbacks["personal"] = PersonalEvaluate(data=run.callbacks["submodel_evaluate"].data)
    metrics = run.run_round().metrics
    assert metrics["submodel/covered"] == 1
    assert metrics["received_test/acc_std"] == 0
    assert metrics["trained_test/acc_min"] >= metrics["personal_test/acc_min"]  # others have the global model there


def test_clients_that_are_sent_models_of_their_own_are_measured_one_by_one(federation):
    """FedPAC sends every client another head, in an object that nobody keeps."""
    run = federation(
        "method=fedpac", "aggregator=fedpac", "callbacks.submodel_evaluate.every_n_rounds=1", "federation.cohort_size=24"
    )
    run.run_round()
    measured, predict = [], run.engine.predict
    run.engine.predict = lambda model, *given: measured.append(model) or predict(model, *given)
    run.run_round()
    assert len(measured) == 2 * 24  # received and trained
