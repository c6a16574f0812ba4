"""Clients measure the global model on what they hold out; ``tests/deploy/test_holdout.py`` has the same of real sites."""

import numpy as np
import pytest

from fedfacet import build, config, state
from fedfacet.errors import Interrupted

OPTIONS = (
    "experiment=digits_gsc", "partition.scale=0.1", "federation.rounds=3", "threads=1", "model.width=4", "method=fedavg",
    "logger=[]", "partition.local_holdout=0.25", "callbacks=[federated_evaluate]",
)  # fmt: skip


@pytest.fixture
def federation(tmp_path):
    def make(*overrides):
        job, _ = config.compose_job("train", [*OPTIONS, *overrides])
        build.settle(job)
        return build.build(job, tmp_path)

    return make


def test_it_is_what_the_engine_finds_on_the_same_samples_and_every_number_is_counted(federation):
    run = federation()
    result = run.run_round()
    positions = np.concatenate(run.engine.clients.local_holdout.indices)
    (counts,) = run.engine.evaluate(run.state.model, [np.sort(positions)])
    assert result.metrics["holdout/acc"] == counts.average_accuracy
    assert result.metrics["holdout/acc_worst_group"] == counts.worst_group_accuracy
    assert [result.metrics[f"holdout/acc_group/y{g // 2}_a{g % 2}"] for g in range(4)] == list(counts.accuracies)
    assert result.metrics["holdout/num_samples"] == len(positions) == 24 * 5
    assert not set(positions) & set(np.concatenate(run.engine.clients.partition.indices))
    assert result.metrics["comm/query_floats_up"] == 24 * 8
    assert result.metrics["comm/query_floats_down"] == 24 * state.num_floats(run.state.model)
    assert result.metrics["comm/query_samples"] == len(positions)
    assert {(one.client_id, one.query, one.kind) for one in result.disclosed} == {
        (k, "holdout_counts", "group_performance") for k in range(24)
    }
    assert run.state.disclosures["holdout_counts"][0] == result.answers["holdout_counts"][0]


def test_it_changes_nothing_that_the_run_learns_and_measures_every_few_rounds_and_the_last(federation):
    run, without = federation("callbacks.federated_evaluate.every_n_rounds=2"), federation("callbacks=[]")
    rounds = [run.run_round() for _ in range(3)]
    for _ in range(3):
        without.run_round()
    assert state.digest(run.state.model) == state.digest(without.state.model)
    assert [np.isnan(one.metrics["holdout/num_away"]) for one in rounds] == [True, False, False]
    assert rounds[0].metrics.keys() == rounds[1].metrics.keys()
    assert rounds[0].disclosed == ()


def test_every_engine_has_clients_answer_alike(federation):
    runs = (
        federation(),
        federation("engine=workers", "engine.workers=1", "participation=dropouts"),
        federation("participation=dropouts"),
    )
    found = [run.run_round().metrics for run in runs]
    for run in runs:
        run.engine.close()
    assert found[1] == found[2]
    assert found[0].keys() == found[1].keys()


def test_a_stop_while_clients_answer_leaves_the_state_of_the_last_round(federation):
    run, undisturbed = federation(), federation()
    first = run.run_round()
    before, ask = run.state, run.engine.ask

    def ask_and_stop(query, tasks):
        for answer in ask(query, tasks):
            run.stop(2)
            yield answer

    run.engine.ask = ask_and_stop
    with pytest.raises(Interrupted):
        run.run_round()
    assert run.state is before
    run.engine.ask = ask
    assert [first.metrics, run.run_round().metrics] == [undisturbed.run_round().metrics for _ in range(2)]


def test_where_termination_ends_a_run_its_last_round_is_measured(federation):
    run = federation(
        *("callbacks.federated_evaluate.every_n_rounds=2", "termination=plateau", "termination.metric=holdout/acc"),
        *("termination.patience=3", "federation.rounds=50", "optimizer.lr=1e-12"),
    )
    while not run.state.stopped:
        result = run.run_round()
    assert result.round == 5, "in which it is not its turn"
    assert result.metrics["holdout/num_clients"] == 24
    assert len(result.disclosed) == 24
