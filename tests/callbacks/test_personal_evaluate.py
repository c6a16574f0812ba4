"""The clients' models after local training, measured against models put together by hand."""

import csv
import math
import statistics
from dataclasses import replace
from functools import partial

import pytest
import torch

from fedfacet import rng, state
from fedfacet.build import build
from fedfacet.callbacks.evaluate_clients import PersonalEvaluate
from fedfacet.config import compose_job
from fedfacet.corrections import Correction
from fedfacet.data.federated import FederatedData
from fedfacet.mechanisms.participation import ClientParticipation
from fedfacet.methods.fedpac import FedPAC, FedPACObjective
from fedfacet.models.resnet8 import ResNet8
from fedfacet.participation import Participation
from fedfacet.personal import PersonalHead, PersonalNormLayers
from fedfacet.selectors.base import ClientSelector
from fedfacet.selectors.round_robin import RoundRobinSelector
from fedfacet.storage import checkpoint
from fedfacet.types import Broadcast, ClientTask


class Chosen(ClientSelector):
    """Who is selected in which round, said beforehand."""

    def __init__(self, *cohorts):
        self.cohorts = cohorts

    def select(self, server, context):
        return list(self.cohorts[context.round - 1])


@pytest.fixture
def clients(tiny_clients):
    def make(personal=None, aggregator=None):
        objective = None
        if isinstance(aggregator, FedPAC):  # a method of two halves
            with rng.forked(0, "weights"):
                sgd = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
                objective = FedPACObjective(ResNet8(2, (1, 4, 4), width=2), optimizer=sgd)
        clients = tiny_clients(model=partial(ResNet8, width=2), objective=objective)
        return replace(clients, personal=personal.names(clients.objective.model) if personal else frozenset())

    return make


@pytest.fixture
def measured(clients, tiny_federation):
    """Return a function that makes a federation that measures, with two held-out samples of clients 0 to 2 and none of 3."""

    def make(*, personal=None, every_n_rounds=1, holdout=True, aggregator=None, **settings):
        made = clients(personal, aggregator)
        held_out = [made.dataset.train[2 * k : 2 * k + 2] for k in range(3)] + [made.dataset.train[:0]]
        held_out = held_out if holdout else [client[:0] for client in held_out]
        data = FederatedData(made.dataset, made.partition, made.dataset.train, tuple(held_out))
        callback = PersonalEvaluate(data=data, every_n_rounds=every_n_rounds)
        return tiny_federation(clients=made, callbacks={"personal": callback}, aggregator=aggregator, **settings)

    return make


def accuracy(clients, model, positions):
    network = ResNet8(2, (1, 4, 4), width=2)
    network.load_state_dict(model)
    batch = clients.dataset.batch(positions)
    with torch.inference_mode():
        return (network.eval()(batch.x).argmax(dim=1) == batch.y).double().mean().item() if len(positions) else math.nan


def expected(clients, models, holdouts):
    test = [accuracy(clients, model, clients.dataset.test) for model in models]
    own = [accuracy(clients, model, held) for model, held in zip(models, holdouts, strict=True) if len(held)]
    return {
        f"{name}/acc_{kind}": of(values)
        for name, values in (("personal_test", test), ("personal_holdout", own))
        for kind, of in (("mean", statistics.fmean), ("min", min), ("std", statistics.pstdev))
    }


@pytest.mark.parametrize("personal", [None, PersonalNormLayers(), PersonalHead()], ids=["none", "norm_layers", "head"])
def test_it_measures_the_models_that_updates_are_made_from(measured, clients, personal):
    """With everybody there: FedLD's protocol."""
    run = measured(personal=personal, cohort_size=4)
    twin = clients(personal)
    for round in (1, 2):
        models = []
        for k in range(4):
            twin.train(ClientTask(k, round, 0, Broadcast(run.state.model), run.state.memory.get(k, {})))
            models.append(state.clone(twin.program.tensors))
        metrics = run.run_round().metrics
        want = expected(twin, models, run.callbacks["personal"].data.local_holdout)
        assert {name: metrics[name] for name in want} == pytest.approx(want)
        assert (metrics["personal/num_never_selected"], metrics["personal_holdout/num_clients"]) == (0, 3)


def test_who_stays_away_is_trained_for_the_measurement_and_who_never_came_has_the_global_model(measured, clients):
    run = measured(personal=PersonalNormLayers(), selector=Chosen([0, 1], [1, 2]), rounds=2)
    assert run.run_round().metrics["personal/num_never_selected"] == 2
    before, memory = run.state.model, dict(run.state.memory)
    metrics = run.run_round().metrics
    twin = clients(PersonalNormLayers())
    models = []
    for k in (0, 1, 2):
        twin.train(ClientTask(k, 2, 0, Broadcast(before), memory.get(k, {})))
        models.append(state.clone(twin.program.tensors))
    models.append(run.state.model)
    want = expected(twin, models, run.callbacks["personal"].data.local_holdout)
    assert {name: metrics[name] for name in want} == pytest.approx(want)
    assert metrics["personal/num_never_selected"] == 1
    assert state.digest(run.state.memory[0]) == state.digest(memory[0])  # nothing of the measurement is kept


def test_a_client_whose_update_got_lost_counts_as_away(measured):
    class Dropping(Participation):
        def outcome(self, client_id, draw):
            return 0.0 if client_id == 1 else 1.0

    run = measured(participation=Dropping(), selector=Chosen([0, 1]), rounds=1)
    assert run.run_round().metrics["personal/num_never_selected"] == 3


def test_a_round_without_any_update_measures_all_the_same(measured):
    class Nobody(Participation):
        def outcome(self, client_id, draw):
            return 0.0

    metrics = measured(participation=Nobody(), rounds=1).run_round().metrics
    assert metrics["personal/num_never_selected"] == 4
    assert metrics["personal_test/acc_std"] == 0


class Only(Participation):
    """Nobody else is there."""

    def __init__(self, *clients):
        self.clients = clients

    def available(self, num_clients, rng):
        return tuple(sorted(self.clients))


class Diverging(Correction):
    """Makes a client's training diverge whenever it has taken part before."""

    def on_client_start(self, parameters, start):
        self.came_before = bool(start.memory)

    def forward(self, parameters):
        return sum(parameter.sum() for parameter in parameters.values()) * math.nan if self.came_before else 0.0

    def on_client_end(self, end):
        return {}, {"came": torch.ones(1)}


@pytest.mark.parametrize(("on_bad_update", "cohort"), [("raise", [2]), ("drop", [2, 1])])
def test_a_model_that_diverged_has_no_accuracy_and_is_counted(tiny_clients, tiny_federation, on_bad_update, cohort):
    """It would say class 0 to everything. Client 0's did so in the measurement alone, that of client 1 in the round too."""

    def clients():
        return tiny_clients(model=partial(ResNet8, width=2), correction=Diverging())

    ours, twin = clients(), clients()
    held_out = [ours.dataset.train[2 * k : 2 * k + 2] for k in range(4)]
    data = FederatedData(ours.dataset, ours.partition, ours.dataset.test[:0], tuple(held_out))
    run = tiny_federation(
        clients=ours,
        callbacks={"personal": PersonalEvaluate(data=data)},
        selector=Chosen([0, 1], cohort),
        on_bad_update=on_bad_update,
        rounds=2,
    )
    assert run.run_round().metrics["personal/num_diverged"] == 0
    twin.train(ClientTask(2, 2, 0, Broadcast(run.state.model)))
    run.put(ClientParticipation(Only(*cohort)))
    metrics = run.run_round().metrics
    want = expected(twin, [state.clone(twin.program.tensors), run.state.model], held_out[2:])
    assert {name: metrics[name] for name in want} == pytest.approx(want)
    assert (metrics["personal/num_diverged"], metrics["personal_holdout/num_clients"]) == (2, 2)
    assert metrics["personal/num_never_selected"] == 1


def test_heads_of_the_round_before_are_what_clients_were_sent(measured, clients):
    """FedPAC's server has combined new heads by the time of the measurement."""
    run = measured(aggregator=FedPAC(), cohort_size=4)
    run.run_round()
    sent = [run.sent(run.state, k) for k in range(4)]
    assert sent[0].model is not run.state.model
    twin = clients(aggregator=run.aggregator)
    models = []
    for k in range(4):
        twin.train(ClientTask(k, 2, 0, sent[k]))
        models.append(state.clone(twin.program.tensors))
    metrics = run.run_round().metrics
    want = expected(twin, models, run.callbacks["personal"].data.local_holdout)
    assert {name: metrics[name] for name in want} == pytest.approx(want)


def test_measuring_changes_nothing(measured, clients, tiny_federation):
    plain = tiny_federation(clients=clients(PersonalNormLayers()), selector=RoundRobinSelector(), rounds=3)
    ours = measured(personal=PersonalNormLayers(), selector=RoundRobinSelector(), rounds=3)
    plain.fit()
    ours.fit()
    assert state.digest(ours.state.model) == state.digest(plain.state.model)
    assert {k: state.digest(m) for k, m in ours.state.memory.items()} == {
        k: state.digest(m) for k, m in plain.state.memory.items()
    }
    assert ours.state.participation_counts.tolist() == plain.state.participation_counts.tolist()


def test_updates_are_kept_only_for_rounds_that_are_measured(measured):
    run = measured(every_n_rounds=3, rounds=5)
    callback, kept, told = run.callbacks["personal"], [], []
    note = callback.on_updates
    callback.on_updates = lambda run, updates: (kept.append(run.state.round + 1), note(run, updates))
    callback.on_round_end = lambda federation, result: told.append(result.metrics)
    run.fit()
    assert kept == [3, 5]  # the last one always
    names = list(told[0])
    for round, metrics in enumerate(told, 1):
        assert list(metrics) == names
        values = [value for name, value in metrics.items() if name.startswith("personal")]
        assert all(map(math.isnan, values)) == (round not in kept)
    assert callback._round == (None, ())


def test_a_resumed_run_measures_the_same(measured, tmp_path):
    whole = measured(personal=PersonalNormLayers(), selector=RoundRobinSelector(), rounds=3)
    told = [repr(whole.run_round().metrics) for _ in range(3)]
    part = measured(personal=PersonalNormLayers(), selector=RoundRobinSelector(), rounds=3)
    part.run_round()
    checkpoint.save(tmp_path / "checkpoints" / "last.ckpt", part.state, {})
    resumed = measured(personal=PersonalNormLayers(), selector=RoundRobinSelector(), rounds=3)
    resumed.restore(checkpoint.load(tmp_path / "checkpoints" / "last.ckpt")[0])
    assert [repr(resumed.run_round().metrics) for _ in range(2)] == told[1:]


def test_without_a_holdout_it_measures_on_the_test_set_alone(measured):
    metrics = measured(holdout=False).run_round().metrics
    assert not [name for name in metrics if name.startswith("personal_holdout")]
    assert 0 <= metrics["personal_test/acc_min"] <= metrics["personal_test/acc_mean"] <= 1


def test_rounds_between_measurements_are_checked():
    with pytest.raises(ValueError, match="every_n_rounds"):
        PersonalEvaluate(data=None, every_n_rounds=0)


def test_a_whole_run_writes_it_down(tmp_path):
    config, _ = compose_job(
        "train",
        [
            *("experiment=digits_gsc", "callbacks=[csv_log,personal_evaluate]", "model=resnet8", "model.width=2"),
            *("personal=norm_layers", "aggregator=fedld", "loss=margin", "partition.local_holdout=0.25", "selector=uniform"),
            *("federation.rounds=2", "federation.cohort_size=2", "logger=[]"),
        ],
    )
    build(config, tmp_path).fit()
    with open(tmp_path / "metrics.csv", newline="") as file:
        first, last = csv.DictReader(file)
    assert (first["personal/num_never_selected"], last["personal_holdout/num_clients"]) == ("22", "24")
    assert all(math.isfinite(float(value)) for name, value in last.items() if name.startswith("personal"))
