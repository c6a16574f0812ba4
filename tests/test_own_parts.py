"""A part of the user's own that makes an ordinary mistake: it is one sentence, or it does not matter."""

import random
import re

import lightning as L
import numpy as np
import pytest
import torch
from torch import nn

from fedfacet import IIDPartitioner, dataset_from_arrays, deal, federate, state
from fedfacet.aggregators.base import Aggregator
from fedfacet.aggregators.fedavg import FedAvg
from fedfacet.callbacks.base import Callback
from fedfacet.clients.local_training import LocalTraining
from fedfacet.clients.queries.base import Query
from fedfacet.engines.vectorized import VectorizedEngine
from fedfacet.errors import AggregationError, BadUpdateError
from fedfacet.mechanism import Mechanism
from fedfacet.objectives.classification import ClassificationObjective
from fedfacet.participation import Participation
from fedfacet.schedulers import Scheduler
from fedfacet.selectors.uniform import UniformSelector
from fedfacet.storage.client_memory import ClientMemory
from fedfacet.types import Answer

K = 4


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 4))
    return deal(dataset_from_arrays(x, (x[:, 0] > 0).astype(int)), IIDPartitioner(num_clients=K))


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))


class Module(L.LightningModule):
    """A module with a trainer's habits; ``step`` is what is done to a batch before it trains on it."""

    def __init__(self, step=lambda batch: batch, optimizer=torch.optim.SGD):
        super().__init__()
        self.network, self.step, self.kind = network(), step, optimizer

    def forward(self, x):
        return self.network(x)

    def training_step(self, batch, batch_idx):
        x, y = self.step((batch.x, batch.y))
        return nn.functional.cross_entropy(self(x), y)

    def configure_optimizers(self):
        return self.kind(self.parameters(), lr=0.1)


# What a federation is handed stays as it is


@pytest.mark.parametrize("make", [network, Module])
def test_a_module_that_an_earlier_federation_has_trained_is_told(make, data, caplog):
    module = make()
    federate(data, module)
    federate(data, module).run_round()
    assert "An earlier federation" not in caplog.text
    federate(data, module)
    assert "whose weights have changed since, and the new one begins with them" in caplog.text


def test_whoever_calls_eval_between_rounds_changes_nothing(data):
    ours, theirs = (federate(data, network(), callbacks={}) for _ in range(2))
    for _ in range(2):
        theirs.engine.clients.objective.eval()
        ours.run_round()
        theirs.run_round()
    assert state.digest(ours.state.model) == state.digest(theirs.state.model)


class Counting(Module):
    """It writes to the memory that it was given, and hands that back."""

    def on_client_start(self, start):
        self.memory = start.memory

    def on_client_end(self, end):
        self.memory["rounds"] = self.memory.get("rounds", torch.zeros(1)) + 1
        return {}, self.memory


def test_memory_that_is_written_to_is_saved(data, tmp_path):
    federation, store = federate(data, Counting(), callbacks={}), ClientMemory(tmp_path)
    for _ in range(3):
        before = federation.state.memory
        federation.run_round()
        index, files = store.pack(federation.state.memory)
        store.write(files)
    assert [kept["rounds"].item() for kept in before.values()] == [2.0] * K
    assert [kept["rounds"].item() for kept in store.read(index).values()] == [3.0] * K


class LinearProbe(Query):
    """It freezes what it does not train, or puts a layer of its own in the place of another."""

    name, needs_model = "linear_probe", True

    def __init__(self, deed):
        self.deed = deed

    def answer(self, context):
        self.deed(context.model)
        return Answer(0.5, floats_up=1, samples=0)


def freeze(model):
    for parameter in model[0].parameters():
        parameter.requires_grad_(False)


def swap(model):
    model[2] = nn.Linear(8, 2)


class Asking(UniformSelector):
    def __init__(self, query):
        super().__init__()
        self.query = query

    def select(self, server, context):
        context.ask(self.query, context.available)
        return super().select(server, context)


def test_what_a_query_freezes_is_trained_all_the_same(data):
    asked, plain = (
        federate(data, network(), selector=selector, callbacks={})
        for selector in (Asking(LinearProbe(freeze)), UniformSelector())
    )
    asked.run_round()
    plain.run_round()
    assert state.digest(asked.state.model) == state.digest(plain.state.model)


def test_an_answer_that_is_none_is_told(data):
    class Bare(LinearProbe):
        def answer(self, context):
            return 0.5

    with pytest.raises(ValueError, match=r"the query to return an Answer\(value, floats_up, samples\), but got float"):
        federate(data, network(), selector=Asking(Bare(freeze)), callbacks={}).run_round()


def test_a_layer_that_a_query_swaps_is_told(data):
    with pytest.raises(ValueError, match=r"the parameters that it had before the query, but '2\.weight' is another"):
        federate(data, network(), selector=Asking(LinearProbe(swap)), callbacks={}).run_round()


# What a client's training may draw, and what it learns


def mixed_up(batch):
    """Mixup as it is often written, by numpy's and Python's own generators."""
    x, y = batch
    share = np.random.beta(0.4, 0.4) * random.random()  # noqa: NPY002
    return share * x + (1 - share) * x[torch.from_numpy(np.random.permutation(len(x)))], y  # noqa: NPY002


def drawn(number):
    return [(np.random.normal(), random.random(), float(torch.rand(()))) for _ in range(number)]  # noqa: NPY002


def reseed():
    np.random.seed(5)  # noqa: NPY002
    random.seed(5)
    torch.manual_seed(5)


def test_numpys_and_pythons_own_generators_are_seeded_too_and_put_back(data):
    reseed()
    expected, digests = drawn(2), set()
    for _ in range(2):
        federation = federate(data, Module(mixed_up))
        reseed()
        federation.run_round()
        assert drawn(2) == expected, "a round leaves them where they were"
        digests.add(state.digest(federation.state.model))
    assert len(digests) == 1


class Drawing(FedAvg):
    """An aggregator that draws by all global generators, between updates and after the last."""

    def aggregate(self, server, model, updates):
        self.drawn = []

        def noted():
            for update in updates:
                self.drawn += drawn(1)
                yield update

        aggregated = super().aggregate(server, model, noted())
        self.drawn += drawn(1)
        return aggregated


class Failing(FedAvg):
    """It takes an update and fails, as one of ours does that is interrupted."""

    __module__ = FedAvg.__module__

    def aggregate(self, server, model, updates):
        next(iter(updates))
        raise KeyboardInterrupt


def test_an_aggregator_does_not_draw_from_the_clients_generators(data):
    """Or what it draws would hang on the engine, and be known to clients."""
    aggregator = Drawing()
    federation = federate(data, Module(mixed_up), aggregator=aggregator)
    reseed()
    expected = drawn(K + 2)
    reseed()
    federation.run_round()
    assert [*aggregator.drawn, *drawn(1)] == expected


class DrawingMechanism(Mechanism):
    """A mechanism that draws by all global generators when an update arrives."""

    def __init__(self):
        self.drawn = []

    def incoming(self, round, task, update):
        self.drawn += drawn(1)
        return update


def test_a_mechanism_does_not_draw_from_the_clients_generators(data):
    mechanism = DrawingMechanism()
    federation = federate(data, Module(mixed_up), mechanisms=[mechanism])
    reseed()
    expected = drawn(K + 1)
    reseed()
    federation.run_round()
    assert [*mechanism.drawn, *drawn(1)] == expected


class Deaf(Callback):
    """It hears of rounds alone."""


class Hearing(Callback):
    def on_client_end(self, round, position, expected, phase):
        random.random()


@pytest.mark.parametrize(("callback", "copies"), [(Deaf(), 1), (Hearing(), K + 2)])
def test_generators_are_copied_once_a_round_unless_somebody_may_draw_between_clients(callback, copies, data, monkeypatch):
    federation = federate(data, Module(mixed_up), callbacks={"own": callback})
    federation.run_round()
    copied, copy = [], np.random.get_state
    monkeypatch.setattr(np.random, "get_state", lambda **how: copied.append(how) or copy(**how))
    federation.run_round()
    assert len(copied) == copies


def test_generators_are_put_back_after_a_round_that_fails_halfway(data):
    federation = federate(data, Module(mixed_up), aggregator=Failing())
    reseed()
    expected = drawn(1)
    reseed()
    with pytest.raises(KeyboardInterrupt) as failed:
        federation.run_round()
    assert drawn(1) == expected, f"though frames of {failed} still wait for the next update"


def drawing_in_vain(logits, batch):
    np.random.random()  # noqa: NPY002
    return nn.functional.cross_entropy(logits, batch.y)


def test_a_loss_that_draws_is_not_trained_side_by_side(data):
    """All clients would share the numbers of one of them, though here nobody would notice."""
    plain = nn.Linear(4, 2)
    engine = VectorizedEngine()
    federate(data, ClassificationObjective(plain, loss=drawing_in_vain), engine=engine, callbacks={}).run_round()
    assert "a step draws by numpy's or Python's" in engine.fallback_reason


class Lookahead(torch.optim.SGD):
    """It keeps something beside its ``state``."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, lr)
        self.steps = 0

    def step(self, closure=None):
        self.steps += 1
        if self.steps % 3 == 0:
            return None
        return super().step(closure)


def test_every_client_gets_a_fresh_optimizer_of_the_users_own(data):
    federations = [federate(data, network(), optimizer=lambda p: Lookahead(p, lr=0.1), callbacks={}) for _ in range(2)]
    one, other = (federation.engine.clients for federation in federations)
    tasks = [federations[0].order(federations[0].state, client_id) for client_id in range(2)]
    alone = one.train(tasks[1])
    other.train(tasks[0])
    assert state.digest(other.train(tasks[1]).delta) == state.digest(alone.delta)


def test_a_parameter_that_is_not_the_modules_is_refused(data):
    class Outside(Module):
        def configure_optimizers(self):
            self.scale = [nn.Parameter(torch.ones(3))]
            return torch.optim.SGD([*self.parameters(), *self.scale], lr=0.1)

    with pytest.raises(ValueError, match=r"the optimizer of Outside .* but it has another one, of shape \(3,\)"):
        federate(data, Outside())


@pytest.mark.parametrize(("given", "told"), [("2", "'2.weight', '2.bias'"), ("2.wieght", "'2.weight'"), ("head", "'0.weight'")])
def test_a_layer_to_keep_that_does_not_exist_is_refused(given, told, data):
    with pytest.raises(ValueError, match=f"`personal` to name tensors of the model, but got '{given}': name some of {told}"):
        federate(data, network(), personal={given})


# What is asked of it


class Present(Participation):
    def __init__(self, available=range(K), outcome=1.0):
        self.there, self.ends = available, outcome

    def available(self, num_clients, rng):
        return self.there

    def outcome(self, client_id, draw):
        return self.ends


@pytest.mark.parametrize(
    ("there", "came"),
    [
        (range(1, K + 1), r"range\(1, 5\)"),
        ([2, 1], r"\[2, 1\]"),
        ([1, 1], r"\[1, 1\]"),
        (np.array([True, False, True, True]), "a mask of 4: `np.flatnonzero` makes numbers of it"),
        ([0.0, 1.0], r"\[0.0, 1.0\]"),
    ],
)
def test_who_is_there_is_numbers_in_order(there, came, data):
    with pytest.raises(ValueError, match=f"Present.available to return the numbers of clients, from 0 to 3, .* but got {came}"):
        federate(data, network(), participation=Present(there)).run_round()


def test_who_is_there_may_be_an_array(data):
    federation = federate(data, network(), participation=Present(np.array([0, 2])), cohort_size=2)
    assert set(federation.run_round().cohort) == {0, 2}


class Weighing(Participation):
    gives_weights = True

    def __init__(self, log_weights):
        self.weights = log_weights

    def log_weights(self, num_clients, rng):
        return np.array(self.weights)


@pytest.mark.parametrize(
    ("weights", "came"), [([0.0] * (K - 1), r"the shape \(3,\)"), ([0.0, float("nan"), 0.0, 0.0], "NaN among them")]
)
def test_every_client_has_a_weight(weights, came, data):
    with pytest.raises(ValueError, match=f"Weighing.log_weights to return a number for each of 4 clients, but got {came}"):
        federate(data, network(), participation=Weighing(weights), cohort_size=2).run_round()


@pytest.mark.parametrize("outcome", [50, -0.2, float("nan")])
def test_a_part_of_the_steps_is_a_fraction(outcome, data):
    with pytest.raises(ValueError, match=r"Expected `Present.outcome` in \[0, 1\], but got"):
        federate(data, network(), participation=Present(outcome=outcome)).run_round()


class Factor(Scheduler):
    def __init__(self, value):
        self.value = value

    def factor(self, server, round):
        return self.value


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_a_learning_rate_does_not_climb(value, data):
    with pytest.raises(ValueError, match=r"Expected `Factor.factor` in \[0, inf\), but got"):
        federate(data, network(), scheduler=Factor(value)).run_round()


class Doubling(Aggregator):
    def aggregate(self, server, model, updates):
        deltas = [update.delta for update in updates]
        weights = torch.tensor(np.full(len(deltas), 1 / len(deltas)))  # float64, as numpy makes them
        return server, {
            name: tensor + torch.tensordot(weights, torch.stack([delta[name] for delta in deltas]).double(), dims=1)
            for name, tensor in model.items()
        }


def test_a_model_of_another_type_is_refused(data):
    with pytest.raises(AggregationError, match=r"'0.weight' as the model has it, torch.float32 .* but got torch.float64"):
        federate(data, network(), aggregator=Doubling(), local=LocalTraining(batch_size=5)).run_round()


class Watching(Callback):
    """Measures what ``measure`` says of the model."""

    def __init__(self, measure):
        self._of_model = measure

    def measure(self, federation, round):
        return self._of_model(federation.state.model)


def test_a_callback_leaves_the_model_alone(data):
    watching = Watching(lambda model: {"norm": model["0.weight"].div_(2).norm().item()})
    with pytest.raises(ValueError, match=r"Watching.measure to leave the model .* written to '0.weight': work on a copy"):
        federate(data, network(), callbacks={"mine": watching}).run_round()


@pytest.mark.parametrize(
    ("came", "told"),
    [
        (None, "a dict of numbers, but got NoneType: return {}"),
        ({"norm": torch.ones(2)}, "'norm' is Tensor: return one number for each name"),
        ({"norm": np.ones(2)}, "'norm' is ndarray"),
        ({"norm": "1.0"}, "'norm' is str"),
        ({1: 1.0}, "numbers by name, but 1 is float"),
    ],
)
def test_a_callback_returns_numbers(came, told, data):
    with pytest.raises(ValueError, match=re.escape(told)):
        federate(data, network(), callbacks={"mine": Watching(lambda _: came)}).run_round()


@pytest.mark.parametrize(("metric", "owner"), [("train/loss", "the round itself"), ("norm", "the callback 'other'")])
def test_a_metric_has_one_owner(metric, owner, data):
    watching = {name: Watching(lambda _, named=named: {named: 1.0}) for name, named in (("other", "norm"), ("mine", metric))}
    with pytest.raises(ValueError, match=f"but {owner} and the callback 'mine' both measure '{metric}': give one"):
        federate(data, network(), callbacks=watching).run_round()


def test_numbers_of_numpy_and_torch_are_numbers(data):
    came = {"norm": np.float32(0.5), "size": np.int64(3), "loss": torch.tensor(0.25)}
    metrics = federate(data, network(), callbacks={"mine": Watching(lambda _: came)}).run_round().metrics
    assert {name: metrics[name] for name in came} == {"norm": 0.5, "size": 3.0, "loss": 0.25}
    assert {type(metrics[name]) for name in came} == {float}


@pytest.mark.parametrize(
    ("mechanisms", "said"),
    [
        ([Mechanism], r"`mechanisms\[0\]` to be a Mechanism, but got the class Mechanism"),
        ([Mechanism(), FedAvg()], r"`mechanisms\[1\]` to be a Mechanism, but got"),
        (Mechanism(), "`mechanisms` to be a Sequence, but got"),
        ({"mine": Mechanism()}, "`mechanisms` to be a Sequence, but got"),
    ],
)
def test_what_is_no_mechanism_is_refused(data, mechanisms, said):
    with pytest.raises(TypeError, match=said):
        federate(data, network(), mechanisms=mechanisms)


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ({"model": torch.nn.Linear}, "`model` to be a Module, but got the class Linear"),
        ({"local": {"amount": 2}}, "`local` to be a LocalTraining, but got {'amount': 2}"),
        ({"scheduler": torch.optim.lr_scheduler.StepLR}, "`scheduler` to be a Scheduler, but got the class StepLR"),
    ],
)
def test_what_is_no_part_is_refused(data, part, said):
    with pytest.raises(TypeError, match=said):
        federate(data, **{"model": network()} | part)


class Forgetful(Mechanism):
    """A mechanism whose author forgot to return the update."""

    def incoming(self, round, task, update):
        pass


def test_a_mechanism_that_drops_all_updates_does_not_do_so_in_silence(data):
    with pytest.raises(BadUpdateError, match=f"but all {K} were dropped"):
        federate(data, network(), mechanisms=[Forgetful()]).run_round()
