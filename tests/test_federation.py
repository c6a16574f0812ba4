"""The contracts of a round: who takes part, what is lost on the way, what crosses, and what a failure leaves behind."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedfacet import IIDPartitioner, dataset_from_arrays, deal, federate, rng, state
from fedfacet.aggregators.fedavg import FedAvg
from fedfacet.aggregators.fedavgm import FedAvgM
from fedfacet.build import build
from fedfacet.callbacks.base import Callback
from fedfacet.callbacks.mechanism import Callbacks
from fedfacet.clients.local_training import LocalTraining
from fedfacet.clients.queries.base import Query
from fedfacet.clients.queries.true_heterogeneity import TrueHeterogeneity
from fedfacet.clients.trainer import Clients
from fedfacet.config import compose_job
from fedfacet.corrections import Correction
from fedfacet.data.dataset import Dataset, InMemoryInputs
from fedfacet.engines.sequential import SequentialEngine
from fedfacet.errors import BadUpdateError, CheckpointError, Interrupted, SelectionError
from fedfacet.federation import Federation
from fedfacet.mechanisms.participation import ClientParticipation
from fedfacet.mechanisms.updates import UpdateCheck
from fedfacet.objectives.classification import ClassificationObjective
from fedfacet.participation import Participation
from fedfacet.selectors.all import AllSelector
from fedfacet.selectors.base import ClientSelector
from fedfacet.selectors.round_robin import RoundRobinSelector
from fedfacet.selectors.uniform import UniformSelector
from fedfacet.storage import checkpoint
from fedfacet.transforms import UpdateTransform
from fedfacet.types import Answer, Broadcast, Partition

NUM_CLIENTS = 5
SAMPLES = 10
NUM_FLOATS = 6 * 2 + 2  # of a linear layer from 6 pixels to 2 classes


class Scripted(Participation):
    """Who is there and how it ends, said beforehand."""

    def __init__(self, available=range(NUM_CLIENTS), outcomes=None):
        self.there = tuple(available)
        self.outcomes = outcomes or {}

    def available(self, num_clients, rng):
        return self.there

    def outcome(self, client_id, draw):
        return self.outcomes.get(client_id, 1.0)


class Chosen(ClientSelector):
    """Who is selected, said beforehand."""

    def __init__(self, *cohort, query=None, asked=()):
        self.cohort = list(cohort)
        self.query = query
        self.asked = asked

    def select(self, server, context):
        if self.query is not None:
            context.ask(self.query, self.asked)
        return list(self.cohort)


class Spoil(UpdateTransform):
    """Spoils the updates of some clients on their way out."""

    def __init__(self, spoil, *client_ids):
        self.spoil = spoil
        self.client_ids = client_ids

    def apply(self, update, rng):
        return self.spoil(update) if update.client_id in self.client_ids else update


def with_delta(**tensors):
    return lambda update: replace(update, delta=update.delta | {f"1.{name}": tensor for name, tensor in tensors.items()})


NAN = with_delta(bias=torch.tensor([0.0, float("nan")]))


@pytest.fixture
def make():
    """Return a function that puts five clients of ten samples behind a server; three are to take part, or those chosen."""

    def build_federation(
        *,
        selector=None,
        participation=None,
        aggregator=None,
        transforms=(),
        correction=None,
        callbacks=None,
        on_bad_update="raise",
        cohort_size=None,
        local=None,
        model=None,
        **settings,
    ):
        draw = np.random.default_rng(0)
        total = NUM_CLIENTS * SAMPLES
        positions = np.arange(total)
        dataset = Dataset(
            inputs=InMemoryInputs(torch.from_numpy(draw.integers(0, 256, size=(total, 1, 2, 3))).to(torch.uint8)),
            y=draw.integers(2, size=total),
            a=draw.integers(2, size=total),
            train=positions,
            test=positions,
            val=None,
            class_names=("0", "1"),
            attribute_names=("0", "1"),
            mean=(0.5,),
            std=(0.3,),
        )
        partition = Partition(tuple(np.split(positions, NUM_CLIENTS)))
        with rng.forked(0, "weights"):
            model = model if model is not None else nn.Sequential(nn.Flatten(), nn.Linear(6, 2))

        def sgd(parameters):
            return torch.optim.SGD(parameters, lr=0.1)

        objective = ClassificationObjective(model, correction=correction, optimizer=sgd)
        engine = SequentialEngine(device="cpu")
        local = local if local is not None else LocalTraining(batch_size=4)
        clients = Clients(objective, sgd, dataset, partition, local, transforms, torch.device("cpu"))
        engine.setup(clients)
        if cohort_size is None:
            cohort_size = len(selector.cohort) if isinstance(selector, Chosen) else 3
        return Federation(
            **{
                "facts": clients.facts,
                "engine": engine,
                "selector": selector if selector is not None else UniformSelector(),
                "aggregator": aggregator if aggregator is not None else FedAvg(),
                "mechanisms": [
                    ClientParticipation(participation or Scripted()),
                    UpdateCheck(on_bad_update),
                    Callbacks(callbacks or {}),
                ],
                "rounds": 10,
                "cohort_size": cohort_size,
                "seed": 1,
            }
            | settings
        )

    return build_federation


@pytest.fixture
def fingerprint(plain):
    """Return a function: federation -> its whole state but the number of rounds, bit by bit."""
    return lambda federation: plain(replace(federation.state, round=0))


# --- clients that are away, drop out or are slow ---------------------------------------------------------------------------


def test_only_available_clients_are_selected(make):
    federation = make(participation=Scripted(available=[1, 4]))
    for _ in range(5):
        assert sorted(federation.run_round().cohort) == [1, 4]  # three were asked for, two are there
    assert federation.state.participation_counts.tolist() == [0, 5, 0, 0, 5]


@pytest.mark.parametrize("selector", [UniformSelector, AllSelector, RoundRobinSelector])
def test_with_nobody_there_the_round_passes_and_changes_nothing(selector, make, fingerprint):
    federation = make(selector=selector(), aggregator=FedAvgM())
    federation.run_round()
    before = fingerprint(federation)
    federation.put(ClientParticipation(Scripted(available=[])))
    result = federation.run_round()
    assert fingerprint(federation) == before
    assert federation.state.round == result.round == 2
    assert (result.cohort, result.arrived) == ((), ())
    assert np.isnan(result.metrics["train/loss"])
    assert result.metrics["train/num_steps"] == 0
    assert result.ledger.floats_down == result.ledger.floats_up == 0


def test_when_all_drop_out_only_the_downlink_was_used(make, fingerprint):
    federation = make(aggregator=FedAvgM(), selector=UniformSelector())
    federation.run_round()
    before = fingerprint(federation)
    federation.put(ClientParticipation(Scripted(outcomes=dict.fromkeys(range(NUM_CLIENTS), 0.0))))
    result = federation.run_round()
    assert fingerprint(federation) == before
    assert federation.state.round == 2
    assert len(result.cohort) == 3
    assert result.arrived == ()
    assert result.ledger.floats_down == 3 * NUM_FLOATS
    assert result.ledger.floats_up == 0


@pytest.mark.parametrize("weighting", ["equal", "samples"])
def test_a_client_that_drops_out_leaves_no_trace_but_its_download(weighting, make, fingerprint):
    lossy = make(selector=Chosen(0, 3, 2), participation=Scripted(outcomes={3: 0.0}), aggregator=FedAvgM(weighting=weighting))
    short = make(selector=Chosen(0, 2), aggregator=FedAvgM(weighting=weighting))
    lost, plain = lossy.run_round(), short.run_round()
    assert fingerprint(lossy) == fingerprint(short)
    assert (lost.cohort, lost.arrived) == ((0, 3, 2), (0, 2))
    assert lost.metrics["train/loss"] == plain.metrics["train/loss"]
    assert lost.ledger.floats_down - plain.ledger.floats_down == NUM_FLOATS
    assert lost.ledger.floats_up == plain.ledger.floats_up == 2 * NUM_FLOATS


def test_round_robin_does_not_ask_a_client_that_dropped_out_before_the_others(make):
    federation = make(selector=RoundRobinSelector(), participation=Scripted(outcomes={0: 0.0}), cohort_size=1)
    assert sorted(federation.run_round().cohort[0] for _ in range(NUM_CLIENTS)) == list(range(NUM_CLIENTS))
    assert federation.state.participation_counts.tolist() == [0, 1, 1, 1, 1]


def test_stragglers_finish_a_part_of_their_steps(make):
    """Ten samples in batches of 4 are 3 steps an epoch; 2 epochs are 6."""
    outcomes = {0: 1.0, 1: 0.5, 2: 0.34, 3: 0.01, 4: 5 / 6}
    seen = {}

    class Watch(Callback):
        needs_updates = True

        def on_updates(self, federation, updates):
            seen.update({update.client_id: update.num_steps for update in updates})

    federation = make(
        selector=AllSelector(),
        participation=Scripted(outcomes=outcomes),
        callbacks={"watch": Watch()},
        local=LocalTraining(amount=2, batch_size=4),
    )
    result = federation.run_round()
    assert seen == {0: 6, 1: 3, 2: 3, 3: 1, 4: 5}
    assert result.metrics["train/num_steps"] == 18


# --- updates that cannot be used -------------------------------------------------------------------------------------------


class Noticing(Correction):
    """Sends along how often it was called, one number for each of three."""

    def on_client_end(self, end):
        return {"noted": torch.ones(3)}, {}


class Reading(FedAvgM):
    """Reads what comes along."""

    def extras(self, facts):
        return {"noted": torch.empty(3)}


def but(**fields):
    return lambda update: replace(update, **fields)


def but_measured(**metrics):
    return lambda update: replace(update, metrics={**update.metrics, **metrics})


WEIGHT = torch.zeros(2, 6)
BAD = {
    "nan": (NAN, "it holds NaN or infinite numbers"),
    "infinite": (with_delta(bias=torch.tensor([float("inf"), 0.0])), "it holds NaN or infinite numbers"),
    "nan buffer": (but(buffers={"2.scale": torch.full((2,), float("nan"))}), "it holds NaN"),
    "nan extra": (but(extras={"noted": torch.full((3,), float("nan"))}), "it holds NaN"),
    "nan in another extra": (but(extras={"noted": torch.ones(3), "beside": torch.tensor(float("nan"))}), "it holds NaN"),
    "nan memory": (but(memory={"personal|w": torch.tensor(float("nan"))}), "it holds NaN"),
    "shape": (with_delta(bias=torch.zeros(3)), r"'1.bias' in its delta has shape \(3,\) instead of \(2,\)"),
    "broadcastable shape": (with_delta(bias=torch.zeros(1)), r"'1.bias' in its delta has shape \(1,\) instead of \(2,\)"),
    "name": (with_delta(scale=torch.zeros(2)), "its delta holds '1.scale', which it must not"),
    "lacking": (but(delta={"1.bias": torch.zeros(2)}), "its delta lacks '1.weight'"),
    "no buffers": (but(buffers={}), "its buffers lacks '2.scale'"),
    "integer buffer": (but(buffers={"2.scale": torch.ones(2), "2.count": torch.tensor(1)}), "its buffers holds '2.count'"),
    "buffer's shape": (but(buffers={"2.scale": torch.ones(2, 1)}), r"'2.scale' in its buffers has shape \(2, 1\)"),
    "dtype": (with_delta(weight=WEIGHT.double()), "'1.weight' in its delta is torch.float64 on cpu instead of torch.float32"),
    "integers": (with_delta(weight=WEIGHT.int()), "'1.weight' in its delta is torch.int32"),
    "elsewhere": (with_delta(weight=WEIGHT.to("meta")), "'1.weight' in its delta is no dense tensor of real numbers"),
    "complex": (with_delta(weight=WEIGHT.to(torch.complex64)), "'1.weight' in its delta is no dense tensor of real numbers"),
    "sparse": (with_delta(weight=WEIGHT.to_sparse()), "'1.weight' in its delta is no dense tensor of real numbers"),
    "no tensor": (with_delta(weight=None), "'1.weight' in its delta is no dense tensor of real numbers"),
    "no delta": (but(delta=None), "its delta is NoneType instead of tensors by name"),
    "no extra": (but(extras={}), "its extras lacks 'noted'"),
    "extra's shape": (but(extras={"noted": torch.ones(4)}), r"'noted' in its extras has shape \(4,\) instead of \(3,\)"),
    "text as extra": (but(extras={"noted": torch.ones(3), "beside": "me"}), "'beside' in its extras is no dense tensor"),
    "text as memory": (but(memory={"kept": "me"}), "'kept' in its memory is no dense tensor"),
    "nothing": (lambda update: None, "it is NoneType instead of an update"),
    "another sender": (but(client_id=2), "it names client 2 as its sender"),
    "no sender": (but(client_id=None), "it names client None as its sender"),
    "no samples": (but(num_samples=0), "its num_samples is 0"),
    "half a sample": (but(num_samples=0.5), "its num_samples is 0.5"),
    "samples in words": (but(num_samples="ten"), "its num_samples is 'ten'"),
    "true samples": (but(num_samples=True), "its num_samples is True"),
    "no steps": (but(num_steps=0), "its num_steps is 0"),
    "no weight": (but(step_weight=0.0), "its step_weight is 0.0"),
    "infinite weight": (but(step_weight=float("inf")), "its step_weight is inf"),
    "nan weight": (but(step_weight=float("nan")), "its step_weight is nan"),
    "nan loss": (but_measured(loss_sum=float("nan")), "its loss_sum is nan"),
    "infinite loss": (but_measured(loss_sum=-float("inf")), "its loss_sum is -inf"),
    "loss in words": (but_measured(loss_sum="low"), "its loss_sum is 'low'"),
    "no loss": (but(metrics={}), "its loss_sum is None"),
    "no metrics": (but(metrics=None), "its loss_sum is None"),
    "less than nothing seen": (but_measured(num_seen=-1), "its num_seen is -1"),
}


class Buffered(nn.Module):
    """Has a buffer of floats, which are averaged, and one of integers, which are not."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(2))
        self.register_buffer("count", torch.tensor(0))

    def forward(self, x):
        return x * self.scale


@pytest.fixture
def make_reading(make):
    """Return ``make`` for a model with buffers and an aggregator that reads an extra."""

    def make_one(*cohort, **settings):
        with rng.forked(0, "weights"):
            model = nn.Sequential(nn.Flatten(), nn.Linear(6, 2), Buffered())
        return make(selector=Chosen(*cohort), aggregator=Reading(), correction=Noticing(), model=model, **settings)

    return make_one


@pytest.mark.parametrize("fault", BAD)
def test_a_bad_update_is_refused_by_client_and_round(fault, make_reading, fingerprint):
    spoil, message = BAD[fault]
    federation = make_reading(0, 3, 2)
    federation.run_round()
    before = fingerprint(federation)
    spoiled = make_reading(0, 3, 2, transforms=[Spoil(spoil, 3)])
    spoiled.restore(federation.state)
    with pytest.raises(BadUpdateError, match=f"from client 3 in round 2, but {message}.*federation.on_bad_update=drop"):
        spoiled.run_round()
    assert fingerprint(spoiled) == before
    assert spoiled.state.round == 1


@pytest.mark.parametrize("fault", BAD)
def test_a_bad_update_can_be_dropped(fault, make_reading, caplog, fingerprint):
    spoil, _ = BAD[fault]
    lossy = make_reading(0, 3, 2, transforms=[Spoil(spoil, 3)], on_bad_update="drop")
    short = make_reading(0, 2)
    result = lossy.run_round()
    short.run_round()
    assert fingerprint(lossy) == fingerprint(short)
    assert (result.cohort, result.arrived) == ((0, 3, 2), (0, 2))
    assert "client 3 in round 1" in caplog.text


@pytest.mark.parametrize("fault", BAD)
def test_the_first_update_may_be_the_bad_one_too(fault, make_reading, fingerprint):
    lossy = make_reading(3, 0, 2, transforms=[Spoil(BAD[fault][0], 3)], on_bad_update="drop")
    short = make_reading(0, 2)
    lossy.run_round()
    short.run_round()
    assert fingerprint(lossy) == fingerprint(short)


def test_a_round_that_drops_everybody_ends_the_run(make, fingerprint):
    """It would end with the initial model and look like a success."""
    federation = make(selector=Chosen(0, 1), transforms=[Spoil(NAN, 0, 1)], on_bad_update="drop", aggregator=FedAvgM())
    before = fingerprint(federation)
    with pytest.raises(BadUpdateError, match="Expected a valid update in round 1, but all 2 were dropped: "):
        federation.fit()
    assert fingerprint(federation) == before
    assert federation.state.round == 0


def test_one_client_alone_may_fail_once_another_has_not(make, fingerprint):
    alone = make(selector=Chosen(0), transforms=[Spoil(NAN, 0)], on_bad_update="drop")
    with pytest.raises(BadUpdateError, match="but all 1 were dropped"):
        alone.run_round()
    federation = make(selector=Chosen(1), transforms=[Spoil(NAN, 0)], on_bad_update="drop")
    federation.run_round()
    federation.selector = Chosen(0)
    before = fingerprint(federation)
    assert federation.run_round().arrived == ()
    assert fingerprint(federation) == before
    assert federation.state.round == 2


def test_a_diverging_learning_rate_is_caught(make):
    federation = make(selector=Chosen(2), local=LocalTraining(unit="steps", amount=3))
    federation.restore(replace(federation.state, model=state.scaled(federation.state.model, 3e38)))
    with pytest.raises(BadUpdateError, match=r"from client 2 in round 1.*lower the learning rate"):
        federation.run_round()


# --- selectors that break their contract -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cohort", "fault"),
    [
        ([0, 0, 1], r"got \[0, 0, 1\]: fix its `select`"),
        ([0, 4, 1], r"got \[0, 4, 1\], .* \[4\] are away"),
        ([0, 1, 99], r"got .* \[99\] are away"),
        ([0, -1, 1], r"got .* \[-1\] are away"),
    ],
)
def test_a_wrong_cohort_is_refused(cohort, fault, make):
    federation = make(selector=Chosen(*cohort), participation=Scripted(available=[0, 1, 2, 3]))
    with pytest.raises(
        SelectionError, match=f"Expected Chosen to select 3 distinct available clients, .* round 1, but {fault}"
    ):
        federation.run_round()
    assert federation.state.round == 0


@pytest.mark.parametrize("cohort", [[0, 1], [0, 1, 2, 3], []])  # three, or all five, would do
def test_a_cohort_of_another_size_is_refused(cohort, make):
    message = f"Expected Chosen to select 3 distinct available clients, or all 5, in round 1, but got {cohort}: fix"
    with pytest.raises(SelectionError, match=re.escape(message)):
        make(selector=Chosen(*cohort), cohort_size=3).run_round()


def test_asking_somebody_who_is_away_is_refused(make):
    selector = Chosen(0, query=TrueHeterogeneity(), asked=[0, 4])
    federation = make(selector=selector, participation=Scripted(available=[0, 1]))
    with pytest.raises(
        SelectionError, match=r"Expected the selector to ask only clients that are available in round 1, but \[4\]"
    ):
        federation.run_round()


def test_numbers_of_numpy_become_pythons(make):
    result = make(selector=Chosen(*np.array([2, 0]))).run_round()
    assert result.cohort == (2, 0)
    assert {type(client_id) for client_id in result.cohort} == {int}


# --- what crosses ----------------------------------------------------------------------------------------------------------


class CountSamples(Query):
    """Three floats about one look at all samples."""

    name = "count"

    def __init__(self, needs_model):
        self.needs_model = needs_model

    def answer(self, context):
        return Answer(len(context.data), floats_up=3, samples=len(context.data))


def test_a_plain_rounds_ledger(make):
    ledger = make(selector=Chosen(0, 3, 2)).run_round().ledger
    assert (ledger.floats_down, ledger.floats_up) == (3 * NUM_FLOATS, 3 * NUM_FLOATS)
    assert ledger.query_floats_down == ledger.query_floats_up == ledger.query_samples == 0


@pytest.mark.parametrize(("needs_model", "floats_down"), [(True, 2 * NUM_FLOATS), (False, 0)])
def test_a_query_sends_the_model_to_those_who_do_not_get_it_anyway(needs_model, floats_down, make):
    selector = Chosen(0, 3, query=CountSamples(needs_model), asked=[3, 1, 4])
    federation = make(selector=selector)
    result = federation.run_round()
    assert result.ledger.query_floats_down == floats_down  # to 1 and 4: 3 is in the cohort
    assert result.ledger.query_floats_up == 9
    assert result.ledger.query_samples == 30
    assert result.ledger.floats_down == 2 * NUM_FLOATS
    assert federation.state.disclosures == {"count": {3: 10, 1: 10, 4: 10}}
    assert {name: value for name, value in result.metrics.items() if name.startswith("comm/")} == {
        "comm/floats_down": 2 * NUM_FLOATS,
        "comm/floats_up": 2 * NUM_FLOATS,
        "comm/query_floats_down": floats_down,
        "comm/query_floats_up": 9,
        "comm/query_samples": 30,
    }


class Generous(FedAvg):
    """Sends something beside the model, to some more than to others."""

    def broadcast(self, server, model, client_id):
        return Broadcast(model, {"beside": torch.zeros(10 + client_id), "counts": torch.zeros(7, dtype=torch.int64)})


@pytest.mark.parametrize("needs_model", [True, False])
def test_what_a_broadcast_has_beside_the_model_is_counted_wherever_it_is_sent(needs_model, make):
    federation = make(selector=Chosen(0, 3, query=CountSamples(needs_model), asked=[3, 1, 4]), aggregator=Generous())
    ledger = federation.run_round().ledger
    assert ledger.floats_down == 2 * NUM_FLOATS + 10 + 13  # to 0 and 3
    assert ledger.query_floats_down == (2 * NUM_FLOATS + 11 + 14 if needs_model else 0)  # to 1 and 4


@pytest.fixture
def main_job(tmp_path):
    def make_job(*overrides):
        config, _ = compose_job("train", ["experiment=digits_gsc", "callbacks=evaluate", *overrides])
        config.logger = {}
        return build(config, tmp_path)

    return make_job


def test_uniform_selection_costs_the_models_alone(main_job):
    federation = main_job("selector=uniform")
    size = state.num_floats(federation.state.model)
    for _ in range(2):
        ledger = federation.run_round().ledger
        assert (ledger.floats_down, ledger.floats_up) == (9 * size, 9 * size)
        assert ledger.query_floats_down == ledger.query_floats_up == ledger.query_samples == 0


@pytest.mark.parametrize("pretraining_rounds", [0, 2])
def test_feddiverse_costs_three_floats_per_client_once(pretraining_rounds, main_job):
    """Asked in round T_0 + 1, on a model that travels for it to all but the 9 who train on it."""
    federation = main_job(f"selector.pretraining_rounds={pretraining_rounds}", "heterogeneity.bias_steps=2")
    size = state.num_floats(federation.state.model)
    asked_in = pretraining_rounds + 1
    for round in range(1, asked_in + 2):
        result = federation.run_round()
        ledger, cohort_size = result.ledger, 24 if round <= pretraining_rounds else 9
        assert len(result.cohort) == cohort_size
        assert (ledger.floats_down, ledger.floats_up) == (cohort_size * size, cohort_size * size)
        if round == asked_in:
            assert ledger.query_floats_up == 24 * 3
            assert ledger.query_samples == 24 * (2 * 28 + 40)  # two biased batches and one pass
            assert ledger.query_floats_down == (24 - cohort_size) * size
        else:
            assert ledger.query_floats_up == ledger.query_samples == ledger.query_floats_down == 0


def test_known_attributes_cost_no_model(main_job):
    federation = main_job("selector.pretraining_rounds=0", "heterogeneity=true")
    ledger = federation.run_round().ledger
    assert (ledger.query_floats_up, ledger.query_floats_down, ledger.query_samples) == (72, 0, 0)


# --- what survives ---------------------------------------------------------------------------------------------------------


class Remembering(Correction):
    """Counts its client's rounds in the client's own memory, and tells the server."""

    def on_client_start(self, parameters, start):
        self.count = start.memory.get("count", torch.tensor(0.0)) + 1

    def on_client_end(self, end):
        return {"count": self.count.clone()}, {"count": self.count.clone()}


def test_a_clients_memory_waits_for_its_next_round(make):
    federation = make(selector=RoundRobinSelector(), correction=Remembering(), cohort_size=2)
    for _ in range(5):
        ledger = federation.run_round().ledger
        assert ledger.floats_up == 2 * (NUM_FLOATS + 1)  # what is sent along is counted, what is kept is not
    assert {client_id: memory["count"].item() for client_id, memory in federation.state.memory.items()} == dict.fromkeys(
        range(NUM_CLIENTS), 2.0
    )


def test_who_drops_out_remembers_nothing_of_it(make):
    federation = make(selector=AllSelector(), correction=Remembering())
    federation.run_round()
    federation.put(ClientParticipation(Scripted(outcomes={1: 0.0})))
    federation.run_round()
    assert [federation.state.memory[client_id]["count"].item() for client_id in range(NUM_CLIENTS)] == [2, 1, 2, 2, 2]


def test_the_broadcast_model_is_never_written_to(make):
    federation = make(aggregator=FedAvgM())
    for _ in range(3):
        before = federation.state.model
        digest = state.digest(before)
        federation.run_round()
        assert state.digest(before) == digest
        assert federation.state.model is not before


class StopAt(UpdateTransform):
    """Has a federation stopped while the client at some position trains; at 0 at once."""

    position, federation = 0, None

    def watch(self, federation):
        self.federation, self.trained = federation, 0
        if self.position == 0:
            federation.stop(2)

    def apply(self, update, rng):
        if self.federation is not None:
            self.trained += 1
            if self.trained == self.position:
                self.federation.stop(2)
        return update


def test_an_interrupted_round_has_not_happened(make, fingerprint):
    """Stopped after any number of clients, a second attempt at the round gives what an undisturbed one gives."""
    whole = make(aggregator=FedAvgM(), selector=RoundRobinSelector())
    for _ in range(2):
        whole.run_round()
    stop = StopAt()
    for stop.position in range(4):  # 0: before the round; else while the client at this position trains
        stop.federation = None
        stopping = make(aggregator=FedAvgM(), selector=RoundRobinSelector(), rounds=2, transforms=[stop])
        stopping.run_round()
        before = fingerprint(stopping)
        stop.watch(stopping)
        with pytest.raises(Interrupted):
            stopping.fit()
        assert fingerprint(stopping) == before
        assert stopping.state.round == 1
        stopping.fit()
        assert fingerprint(stopping) == fingerprint(whole)


def test_updates_are_kept_only_for_those_who_need_them(make):
    class Watch(Callback):
        def __init__(self, wanted):
            self.needs_updates = wanted
            self.seen = []

        def on_updates(self, federation, updates):
            self.seen.append(([update.client_id for update in updates], federation.state))

    eager, idle = Watch(True), Watch(False)
    federation = make(selector=Chosen(2, 0), callbacks={"eager": eager, "idle": idle})
    start = federation.state
    federation.run_round()
    (client_ids, before), *more = eager.seen
    assert (client_ids, more, idle.seen) == ([2, 0], [], [])
    assert before is start  # and not yet the state after the round
    assert federation.state.memory == {}


def test_every_callback_hears_of_the_end(make):
    heard = []

    class Failing(Callback):
        def on_fit_end(self, federation, status):
            heard.append(status)
            raise RuntimeError("no network")

    class Last(Failing):
        def on_fit_end(self, federation, status):
            heard.append(status)

    federation = make(callbacks={"first": Failing(), "last": Last()}, rounds=1)
    with pytest.raises(RuntimeError, match="no network"):
        federation.fit()
    assert heard == ["finished", "finished"]
    assert federation.state.round == 1


def test_a_checkpoint_of_another_partition_or_data_set_is_refused(make, tmp_path):
    federation = make()
    federation.run_round()
    checkpoint.save(tmp_path / "checkpoints" / "last.ckpt", federation.state, {})
    changed = replace(federation.facts, data_digest="other files")
    elsewhere = replace(federation.facts, partition_digest="another")
    for other, what in ((make(facts=elsewhere), "partition with digest another"), (make(facts=changed), "data set")):
        with pytest.raises(CheckpointError, match=f"Expected a checkpoint of the {what}"):
            other.restore(checkpoint.load(tmp_path / "checkpoints" / "last.ckpt")[0])
        assert other.state.round == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rounds": 0}, "Expected `federation.rounds` to be a whole number, 1 or larger, but got 0"),
        ({"rounds": 2.5}, "Expected `federation.rounds` to be a whole number"),
        ({"cohort_size": 0}, "Expected `federation.cohort_size` between 1 and the federation's 5 clients, but got 0"),
        ({"cohort_size": 6}, "between 1 and the federation's 5 clients, but got 6: lower it or choose a partition"),
        ({"seed": -1}, "Expected `seed` to be a whole number, 0 or larger, but got -1"),
        ({"on_bad_update": "ignore"}, "Expected `federation.on_bad_update` to be 'raise' or 'drop', but got 'ignore'"),
    ],
)
def test_impossible_settings_are_refused(settings, message, make):
    with pytest.raises(ValueError, match=message):
        make(**settings)


def test_callbacks_without_names_are_refused():
    dataset = dataset_from_arrays(np.zeros((8, 2), dtype=np.float32), np.arange(8) % 2)
    data = deal(dataset, IIDPartitioner(num_clients=2))
    with pytest.raises(TypeError, match="Expected `callbacks` to map names to callbacks, but got list"):
        federate(data, nn.Linear(2, 2), callbacks=[Callback()])
