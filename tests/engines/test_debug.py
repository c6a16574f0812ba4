"""The engine that looks at every step: what it finds, and that it changes nothing."""

import numpy as np
import pytest
import torch
from torch import nn

from fedfacet import rng, state
from fedfacet.clients.local_training import LocalTraining
from fedfacet.clients.queries.base import Query
from fedfacet.corrections import Correction
from fedfacet.engines.debug import DebugEngine
from fedfacet.engines.sequential import SequentialEngine
from fedfacet.errors import BadUpdateError, EngineError
from fedfacet.objectives.classification import ClassificationObjective
from fedfacet.participation import Stragglers
from fedfacet.types import Answer, Broadcast, ClientTask

LOCAL = LocalTraining(batch_size=4)  # four steps for each of the toy federation's clients


def watchfulness():
    return torch.are_deterministic_algorithms_enabled(), torch.is_anomaly_enabled()


@pytest.fixture(autouse=True)
def put_back():
    """Torch's own watchfulness is nobody's to keep."""
    before = watchfulness()
    yield
    after = watchfulness()
    torch.use_deterministic_algorithms(before[0])
    torch.autograd.set_detect_anomaly(before[1])
    assert after == before


class Told(ClassificationObjective):
    """Does what it is told to in each step, with the loss."""

    def __init__(self, deed, model=None, **parts):
        with rng.forked(0, "weights"):
            super().__init__(model or nn.Sequential(nn.Flatten(), nn.Linear(16, 2)), **parts)
        self.deed = deed

    def training_step(self, batch, batch_idx):
        return self.deed(self, super().training_step(batch, batch_idx), batch_idx)


@pytest.fixture
def run(tiny_clients):
    """Return a function: (objective, engine) -> the updates of two clients in round 5."""

    def run(objective, engine=None, **settings):
        engine = engine or DebugEngine(device="cpu")
        clients = tiny_clients(objective=objective, local=LOCAL, **settings)
        engine.setup(clients)
        start = Broadcast(state.clone(clients.program.tensors))
        return list(engine.run([ClientTask(client, 5, 0, start) for client in (0, 3)]))

    return run


# --- what it finds ---------------------------------------------------------------------------------------------------------


def nothing(objective, loss, step):
    return loss


def spoils(value, at, what="loss"):
    """Return a deed: from a step on, counted from 0, the loss (or a weight) is no number any more."""

    def deed(objective, loss, step):
        if step == at and what == "loss":
            return loss * 0 + value  # its gradient is all zeros
        if step == at:
            with torch.no_grad():
                objective.model[1].bias[1] = value
        return loss

    return deed


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_loss_that_is_no_number_is_named_with_client_round_and_step(run, at, value):
    expected = rf"client 0 in round 5, but after step {at + 1} the loss is not finite: lower the learning rate"
    with pytest.raises(BadUpdateError, match=expected):
        run(Told(spoils(value, at)))


@pytest.mark.parametrize("at", [0, 2])
def test_a_weight_that_is_no_number_is_named(run, at):
    with pytest.raises(BadUpdateError, match=rf"after step {at + 1} .*1\.bias.* is not finite"):
        run(Told(spoils(float("nan"), at, "weight"), model=Detached()))


class Detached(nn.Sequential):
    """Its bias is no part of the loss, which therefore stays finite."""

    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(16, 2))

    def forward(self, x):
        return self[0](x) @ self[1].weight.T


@pytest.mark.parametrize("what", ["loss", "weight"])
def test_the_last_step_is_looked_at_too(run, what):
    """Of four; no later loss would show it."""
    with pytest.raises(BadUpdateError, match="client 0 in round 5, but after step 4"):
        run(Told(spoils(float("nan"), 3, what), model=Detached()))


class Undivided(Correction):
    divisible = False


def test_where_steps_cannot_be_divided_the_client_is_looked_at_as_a_whole(run):
    with pytest.raises(BadUpdateError, match="client 0 in round 5, but after step 4"):
        run(Told(spoils(float("nan"), 1, "weight"), model=Detached(), correction=Undivided()))


class Countdown(Correction):
    """Counts a client's steps, which it could not if others took some of them."""

    divisible = False

    def on_client_start(self, parameters, start):
        self.steps = 0

    def forward(self, parameters):
        self.steps += 1
        return self.steps * sum(parameter.square().sum() for parameter in parameters.values())


def test_what_cannot_be_divided_is_trained_whole(run):
    ours, theirs = (
        [state.digest(update.delta) for update in run(Told(nothing, correction=Countdown()), engine)]
        for engine in (DebugEngine(device="cpu"), SequentialEngine(device="cpu"))
    )
    assert ours == theirs


def draws_from_its_own(objective, loss, step):
    return loss * (1 + np.random.default_rng().random())


def remembers(objective, loss, step):
    objective.calls = getattr(objective, "calls", 0) + 1
    return loss * objective.calls


@pytest.mark.parametrize("deed", [draws_from_its_own, remembers])
def test_what_does_not_come_out_the_same_twice_is_caught(run, deed):
    with pytest.raises(EngineError, match="Expected client 0 in round 5 to come out the same twice, but its delta differs"):
        run(Told(deed))


def draws_from_numpy(objective, loss, step):
    return loss * (1 + float(np.random.rand()))  # noqa: NPY002


def test_what_draws_from_numpys_own_generator_comes_out_the_same(run):
    run(Told(draws_from_numpy))


class Remembers(Correction):
    """What it sends along or keeps depends on how often it was asked."""

    def __init__(self, bundle):
        super().__init__()
        self.bundle, self.asked = bundle, 0

    def on_client_end(self, end):
        self.asked += 1
        bundles = {"extras": {}, "memory": {}}
        bundles[self.bundle]["asked"] = torch.tensor(float(self.asked))
        return bundles["extras"], bundles["memory"]


@pytest.mark.parametrize("bundle", ["extras", "memory"])
def test_all_that_an_update_holds_is_compared(run, bundle):
    with pytest.raises(EngineError, match=f"but its {bundle} differs"):
        run(Told(nothing, correction=Remembers(bundle)))


class Growing(nn.Sequential):
    """Its buffer takes note of how often the class was used."""

    calls = 0

    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(16, 2))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        Growing.calls += 1
        self.seen += Growing.calls
        return super().forward(x)


def test_buffers_are_compared_too(run):
    with pytest.raises(EngineError, match="but its buffers differs"):
        run(Told(nothing, model=Growing()))


def test_what_has_no_deterministic_algorithm_raises(run):
    def deed(objective, loss, step):
        target = torch.zeros(2)
        target.put_(torch.tensor([0, 0]), torch.tensor([1.0, 2.0]))  # which of them stays, nobody knows
        return loss + 0 * target.sum()

    assert run(Told(deed), SequentialEngine(device="cpu"))
    with pytest.raises(RuntimeError, match="put_ does not have a deterministic implementation"):
        run(Told(deed))


@pytest.mark.filterwarnings("ignore:Error detected in")
def test_a_gradient_that_is_no_number_shows_the_operation_that_it_comes_from(run):
    """The square root of 0 has an infinite slope, and 0 times infinity is no number; the loss is finite all along."""

    def deed(objective, loss, step):
        return loss + (torch.sqrt(objective.model[1].weight * 0) * 0).sum() if step == 2 else loss

    with pytest.raises(RuntimeError, match="returned nan values") as caught:
        run(Told(deed))
    assert caught.value.__notes__ == ["It happened to client 0 in round 5, step 3 of 4."]


class Stumbles(Query):
    name = "stumbles"
    needs_model = False

    def answer(self, context):
        return Answer(1 / len(context.data) - 1 / 0, floats_up=1, samples=0)


def test_a_question_that_fails_names_the_client(tiny_clients):
    engine = DebugEngine(device="cpu")
    engine.setup(tiny_clients(objective=Told(nothing), local=LOCAL))
    with pytest.raises(ZeroDivisionError) as caught:
        list(engine.ask(Stumbles(), [ClientTask(3, 5, 0, Broadcast({}))]))
    assert caught.value.__notes__ == ["It happened to client 3 in round 5, asked by Stumbles."]


# --- that it changes nothing -----------------------------------------------------------------------------------------------


class Tells(Query):
    """Answers what torch watches while it is asked."""

    name = "tells"
    needs_model = True

    def answer(self, context):
        return Answer(watchfulness(), floats_up=0, samples=0)


def test_torch_watches_while_clients_are_at_work_and_not_a_moment_longer(tiny_clients):
    seen = []

    def deed(objective, loss, step):
        seen.append(watchfulness())
        return loss

    engine, clients = DebugEngine(device="cpu"), tiny_clients(objective=Told(deed), local=LOCAL)
    engine.setup(clients)
    start = Broadcast(state.clone(clients.program.tensors))
    tasks = [ClientTask(client, 1, 0, start) for client in range(3)]
    for _ in engine.run(tasks):
        assert watchfulness() == (False, False), "others may be at work in between"
    assert len(seen) == 3 * 2 * 4
    assert set(seen) == {(True, True)}
    answers = engine.ask(Tells(), tasks)
    assert next(answers).value == (True, True)
    assert watchfulness() == (False, False)
    answers.close()
    seen.clear()
    clients.program.module.register_forward_hook(lambda *_: seen.append(watchfulness()))
    engine.evaluate(start.model, [clients.dataset.test])
    assert set(seen) == {(True, True)}
    assert watchfulness() == (False, False)


def test_what_was_on_before_stays_on(run):
    torch.use_deterministic_algorithms(True)
    torch.autograd.set_detect_anomaly(True)
    try:
        run(Told(nothing))
        assert watchfulness() == (True, True)
    finally:
        torch.use_deterministic_algorithms(False)
        torch.autograd.set_detect_anomaly(False)


def test_torchs_watchfulness_is_put_back_after_a_failure(run):
    """``put_back`` looks whether it is."""
    with pytest.raises(BadUpdateError):
        run(Told(spoils(float("nan"), 1)))


def test_the_numbers_are_those_of_the_sequential_engine(tiny_federation):
    """Dropout and running statistics, stragglers, and a correction."""

    def model(num_classes, input_shape):
        return nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(), nn.Linear(16, num_classes)
        )

    saved, evaluated = [], []
    for engine in (DebugEngine(device="cpu"), SequentialEngine(device="cpu")):
        federation = tiny_federation(
            engine=engine, model=model, local=LOCAL, rounds=3, cohort_size=3, participation=Stragglers()
        )
        saved.append(federation.fit())
        evaluated.append(engine.evaluate(federation.state.model, [engine.clients.dataset.test]))
    assert state.digest(saved[0].model) == state.digest(saved[1].model)
    assert evaluated[0] == evaluated[1]
