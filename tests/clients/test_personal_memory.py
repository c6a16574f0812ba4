"""Personal layers over the rounds of a federation: FedBN and its kin."""

import copy
from dataclasses import replace

import pytest
import torch

from fedfacet import state
from fedfacet.aggregators.fedavg import FedAvg
from fedfacet.aggregators.fedgh import FedGH
from fedfacet.aggregators.fedld import FedLD
from fedfacet.clients.personal_memory import all_layers, local_model, own_model, to_keep
from fedfacet.clients.queries.base import Query
from fedfacet.corrections import Correction
from fedfacet.engines.vectorized import VectorizedEngine
from fedfacet.models.resnet8 import ResNet8
from fedfacet.personal import PersonalHead, PersonalNormLayers
from fedfacet.selectors.round_robin import RoundRobinSelector
from fedfacet.storage import checkpoint
from fedfacet.types import Answer, Broadcast, ClientTask, ClientUpdate


def tiny_resnet(num_classes, shape):
    return ResNet8(num_classes, shape, width=2)


@pytest.fixture
def make_clients(tiny_clients):
    """Return a function that makes clients with these personal tensors, FedBN's by default."""

    def make(personal=None, **settings):
        clients = tiny_clients(model=tiny_resnet, **settings)
        names = PersonalNormLayers().names(clients.objective.model) if personal is None else personal
        return replace(clients, personal=names)

    return make


@pytest.fixture
def federation(make_clients, tiny_federation):
    def make(*, personal=None, correction=None, **settings):
        return tiny_federation(clients=make_clients(personal, correction=correction), **settings)

    return make


@pytest.mark.parametrize("aggregator", [FedAvg, FedLD, FedGH])
def test_the_server_never_has_the_personal_layers(federation, aggregator):
    run = federation(cohort_size=3, aggregator=aggregator())
    personal = run.engine.clients.personal
    before = run.state.model
    for _ in range(3):
        run.run_round()
    for name, tensor in run.state.model.items():
        if tensor.is_floating_point():
            assert torch.equal(tensor, before[name]) == (name in personal), name


def test_what_is_sent_up_is_counted_without_them(federation):
    run = federation(cohort_size=3)
    shared = {name: tensor for name, tensor in run.state.model.items() if name not in run.engine.clients.personal}
    assert run.run_round().ledger.floats_up == 3 * state.num_floats(shared)


def test_clients_differ_in_their_own_layers_and_memory_grows_only_with_clients_seen(federation):
    run = federation(cohort_size=2, selector=RoundRobinSelector())
    one, two = run.run_round().cohort
    assert set(run.state.memory) == {one, two}
    assert state.digest(run.state.memory[one]) != state.digest(run.state.memory[two])
    before = state.digest(run.state.memory[one])
    assert not {one, two} & set(run.run_round().cohort)
    assert set(run.state.memory) == {0, 1, 2, 3}
    assert state.digest(run.state.memory[one]) == before  # of nobody else's round
    assert one in run.run_round().cohort
    assert state.digest(run.state.memory[one]) != before
    assert set(run.state.memory) == {0, 1, 2, 3}


def test_counters_of_batch_norm_are_kept_too(federation):
    run = federation(cohort_size=4)
    for _ in range(2):
        run.run_round()
    (name,) = [name for name in run.state.memory[0] if name.endswith("backbone.1.num_batches_tracked")]
    steps = run.engine.clients.num_steps(ClientTask(0, 1, 0, Broadcast(run.state.model)))
    assert run.state.memory[0][name].item() == 2 * steps
    assert run.state.memory[0][name].dtype == torch.int64


def test_fedbn_written_out(federation, make_clients):
    """Each client has a whole model of its own; what is shared is overwritten by the mean, what is personal is not."""
    run = federation(cohort_size=4)
    personal = run.engine.clients.personal
    plain = make_clients(frozenset())
    models = [run.state.model] * 4
    for round in range(1, 4):
        updates = [plain.train(ClientTask(k, round, 0, Broadcast(models[k]))) for k in range(4)]
        trained = [state.add(models[k], updates[k].delta | updates[k].buffers) for k in range(4)]
        shared = {
            name: tensor + torch.stack([(u.delta | u.buffers)[name] for u in updates]).mean(dim=0)
            for name, tensor in models[0].items()
            if name not in personal
        }
        models = [trained[k] | shared | {n: t for n, t in models[k].items() if not t.is_floating_point()} for k in range(4)]
        run.run_round()
    for k in range(4):
        ours = own_model(run.state.model, run.state.memory[k])
        for name, tensor in models[k].items():
            if tensor.is_floating_point():
                torch.testing.assert_close(ours[name], tensor, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(models[0]["backbone.1.running_mean"], models[1]["backbone.1.running_mean"])


def test_with_all_personal_everybody_trains_alone(federation, make_clients):
    run = federation(personal=frozenset(tiny_resnet(2, (1, 4, 4)).state_dict()), cohort_size=4)
    start = run.state.model
    for _ in range(2):
        assert run.run_round().ledger.floats_up == 0
    assert state.digest(run.state.model) == state.digest(start)
    alone = make_clients(frozenset())
    first = alone.train(ClientTask(2, 1, 0, Broadcast(start)))
    after_one = state.add(start, first.delta | first.buffers)
    second = alone.train(ClientTask(2, 2, 0, Broadcast(after_one)))
    expected = state.add(after_one, second.delta | second.buffers)
    ours = own_model(run.state.model, run.state.memory[2])
    for name, tensor in expected.items():
        if tensor.is_floating_point():
            torch.testing.assert_close(ours[name], tensor, rtol=1e-5, atol=1e-6)


class Counting(Correction):
    """Keeps something in the client's memory itself."""

    def on_client_start(self, parameters, start):
        self.count = start.memory.get("count", torch.tensor(0.0)) + 1

    def on_client_end(self, end):
        self.seen = set(end.delta)
        return {}, {"count": self.count.clone()}


def test_personal_layers_and_a_corrections_memory_lie_side_by_side(federation):
    correction = Counting()
    run = federation(correction=correction, cohort_size=4)
    for _ in range(2):
        run.run_round()
    assert run.state.memory[0]["count"].item() == 2
    assert len(run.state.memory[0]) == 1 + len(run.engine.clients.personal)
    assert not correction.seen & run.engine.clients.personal


@pytest.mark.parametrize("layers", [PersonalNormLayers(), PersonalHead()], ids=["norm_layers", "head"])
def test_a_resumed_run_ends_with_the_same_memory(federation, layers, tmp_path):
    personal = layers.names(tiny_resnet(2, (1, 4, 4)))
    whole = federation(personal=personal, cohort_size=2)
    for _ in range(4):
        whole.run_round()
    part = federation(personal=personal, cohort_size=2)
    for _ in range(2):
        part.run_round()
    checkpoint.save(tmp_path / "checkpoints" / "last.ckpt", part.state, {})
    resumed = federation(personal=personal, cohort_size=2)
    resumed.restore(checkpoint.load(tmp_path / "checkpoints" / "last.ckpt")[0])
    for _ in range(2):
        resumed.run_round()
    assert state.digest(resumed.state.model) == state.digest(whole.state.model)
    assert resumed.state.memory.keys() == whole.state.memory.keys()
    for client_id, memory in whole.state.memory.items():
        assert {name.removeprefix("personal|") for name in memory} == personal
        assert state.digest(resumed.state.memory[client_id]) == state.digest(memory)


def test_side_by_side_they_come_out_nearly_the_same(federation):
    plain, side_by_side = federation(cohort_size=3), federation(cohort_size=3, engine=VectorizedEngine(device="cpu"))
    for _ in range(2):
        plain.run_round()
        side_by_side.run_round()
    assert side_by_side.engine.fallback_reason is None
    ours, theirs = side_by_side.state, plain.state
    for one, other in [(ours.model, theirs.model), *((ours.memory[k], memory) for k, memory in theirs.memory.items())]:
        assert one.keys() == other.keys()
        for name, tensor in other.items():
            torch.testing.assert_close(one[name], tensor, rtol=1e-3, atol=1e-5)


class Statistics(Query):
    name = "statistics"
    needs_model = True

    def answer(self, context):
        return Answer(context.model.backbone[1].running_mean.tolist(), 2, 0)


def test_a_question_is_answered_with_the_clients_own_layers(federation):
    run = federation(cohort_size=4)
    run.run_round()
    tasks = [ClientTask(k, 2, 0, Broadcast(run.state.model), run.state.memory[k]) for k in range(4)]
    answers = [answer.value for answer in run.engine.ask(Statistics(), tasks)]
    assert answers == [run.state.memory[k]["personal|backbone.1.running_mean"].tolist() for k in range(4)]
    assert len({tuple(answer) for answer in answers}) == 4


def test_a_local_model_is_what_the_client_had_in_the_end(make_clients):
    clients = make_clients()
    start = Broadcast(state.clone(clients.program.tensors))
    update = clients.train(ClientTask(1, 1, 0, start))
    trained = {name: tensor.detach().clone() for name, tensor in clients.program.tensors.items()}
    ours = local_model(start, update)
    assert ours.keys() == trained.keys()
    for name, tensor in trained.items():
        if tensor.is_floating_point():
            torch.testing.assert_close(ours[name], tensor, rtol=1e-6, atol=1e-7)
        elif name in clients.personal:
            assert torch.equal(ours[name], tensor)


def test_memory_shares_nothing_with_the_program():
    tensors = {"a": torch.ones(2), "b": torch.ones(2)}
    kept = to_keep(tensors, {"a"})
    tensors["a"].zero_()
    assert {name: tensor.tolist() for name, tensor in kept.items()} == {"personal|a": [1.0, 1.0]}


def test_without_personal_layers_the_broadcast_is_not_copied():
    model = {"w": torch.ones(1)}
    assert own_model(model, {"count": torch.ones(1)}) is model
    update = ClientUpdate(0, {"w": torch.ones(1)}, {}, 1, 1, 1.0, {}, memory=copy.copy({"count": torch.ones(1)}))
    assert {name: tensor.tolist() for name, tensor in local_model(Broadcast(model), update).items()} == {"w": [2.0]}


def test_what_a_client_has_of_its_own_is_sent_to_it_once(federation):
    """So the ledger counts it in a client's first round and in no other."""
    run = federation(cohort_size=2, selector=RoundRobinSelector())
    whole, own = (state.num_floats(part) for part in (run.state.model, {n: run.state.model[n] for n in run.facts.personal}))
    assert 0 < own < whole
    first, second, third = (run.run_round() for _ in range(3))
    assert set(first.cohort) | set(second.cohort) == {0, 1, 2, 3}
    assert first.ledger.floats_down == second.ledger.floats_down == 2 * whole
    assert third.ledger.floats_down == 2 * (whole - own)


class Curious(RoundRobinSelector):
    """Asks everybody."""

    def select(self, server, context):
        context.ask(Statistics(), context.available)
        return super().select(server, context)


def test_nor_is_it_sent_again_with_a_question(federation):
    run = federation(cohort_size=1, selector=Curious())
    whole, own = (state.num_floats(part) for part in (run.state.model, {n: run.state.model[n] for n in run.facts.personal}))
    ledgers = [run.run_round().ledger for _ in range(3)]
    assert [ledger.query_floats_down for ledger in ledgers] == [3 * whole, 3 * whole - own, 3 * whole - 2 * own]


def test_all_layers_of_everybody(federation):
    run = federation(cohort_size=2, selector=RoundRobinSelector())
    run.run_round()
    everything = all_layers(run.state.model, run.state.memory)
    assert {name: everything[name] for name in run.state.model} == run.state.model
    own = {name for name in everything if name.startswith("client_")}
    assert own == {f"client_{client_id}/{name}" for client_id in run.state.memory for name in run.engine.clients.personal}
    for client_id, memory in run.state.memory.items():
        model = own_model(run.state.model, memory)
        assert all(everything[f"client_{client_id}/{name}"] is model[name] for name in run.engine.clients.personal)
