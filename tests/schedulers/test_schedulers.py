"""Each scheduler against its closed form, its refusals, and what becomes of a factor at the clients."""

import math
from functools import partial

import numpy as np
import pytest
import torch

from fedfacet import rng, state
from fedfacet.callbacks.base import Callback
from fedfacet.clients.local_training import LocalTraining
from fedfacet.clients.queries.probe_norm import ProbeNorm
from fedfacet.clients.vectorized_training import StackedTraining
from fedfacet.corrections import ProximalCorrection
from fedfacet.errors import ConfigError
from fedfacet.models.small_cnn import SmallCNN
from fedfacet.objectives.classification import ClassificationObjective
from fedfacet.schedulers import (
    CosineScheduler,
    ExponentialScheduler,
    MultiStepScheduler,
    OneCycleScheduler,
    PlateauScheduler,
    StepScheduler,
    WarmRestartsScheduler,
)
from fedfacet.selectors.probe_fairness import ProbeFairnessSelector
from fedfacet.types import Broadcast, ClientTask

R = 40


def falling(part):
    return (1 + math.cos(math.pi * part)) / 2


def one_cycle(t, *, rounds, rising, start, end):
    """Half a cosine up from 1 / start to 1, and one down to 1 / (start * end)."""
    step, peak, last = t - 1, rising * rounds - 1, rounds - 1
    low, bottom = 1 / start, 1 / (start * end)
    if step <= peak:
        return 1 + (low - 1) * falling(step / peak)
    return bottom + (1 - bottom) * falling((step - peak) / (last - peak))


CLOSED_FORMS = {
    "step": (StepScheduler(every_n_rounds=7, decay=0.3), lambda t: 0.3 ** ((t - 1) // 7)),
    "multi_step": (
        MultiStepScheduler(milestones=[3, 10, 11], decay=0.2),
        lambda t: 0.2 ** sum(t > milestone for milestone in (3, 10, 11)),
    ),
    "exponential": (ExponentialScheduler(decay=0.9), lambda t: 0.9 ** (t - 1)),
    "cosine": (CosineScheduler(rounds=R, min_factor=0.1), lambda t: 0.1 + 0.9 * falling((t - 1) / R)),
    "warm_restarts": (
        WarmRestartsScheduler(first_cycle=5, growth=2, min_factor=0.2),
        lambda t: (
            0.2 + 0.8 * (falling((t - 1) / 5) if t <= 5 else falling((t - 6) / 10) if t <= 15 else falling((t - 16) / 20))
        ),
    ),
    "one_cycle": (
        OneCycleScheduler(rounds=R, rising=0.25, start_divisor=10, end_divisor=100),
        lambda t: one_cycle(t, rounds=R, rising=0.25, start=10, end=100),
    ),
}


@pytest.mark.parametrize("name", CLOSED_FORMS)
def test_closed_forms(name):
    scheduler, expected = CLOSED_FORMS[name]
    rounds = range(1, 36) if name == "warm_restarts" else range(1, R + 1)
    for t in (7, *rounds):  # in any order
        assert scheduler.factor(scheduler.init(), t) == pytest.approx(expected(t), rel=1e-9, abs=1e-12), t


def test_one_cycle_ends_where_the_rounds_do():
    scheduler = OneCycleScheduler(rounds=3)
    assert scheduler.factor({}, 4) == scheduler.factor({}, 3)
    for rounds in (1, 2, 3, 100):
        assert all(0 < OneCycleScheduler(rounds=rounds).factor({}, t) <= 1 for t in range(1, rounds + 1))


def test_a_plateau_is_patient_and_then_acts():
    scheduler = PlateauScheduler(patience=2, decay=0.1, cooldown=1, min_factor=0.005)
    server, factors = scheduler.init(), []
    for loss in [3.0, 2.0, math.nan, 2.0, 2.0, math.nan, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0]:
        factors.append(scheduler.factor(server, 1))
        server = scheduler.observe(server, {"val/loss": loss})
    # The third bad round is the seventh; one to cool down, then three more.
    assert factors == pytest.approx([1.0] * 7 + [0.1] * 4 + [0.01] * 4)
    assert scheduler.factor(server, 1) == pytest.approx(0.005)


def test_a_plateau_of_an_accuracy_waits_for_a_maximum():
    scheduler = PlateauScheduler(metric="val/acc", mode="max", patience=0, decay=0.5)
    server, factors = scheduler.init(), []
    for accuracy in (0.1, 0.2, 0.3, 0.3, 0.4, 0.35):
        server = scheduler.observe(server, {"val/acc": accuracy})
        factors.append(scheduler.factor(server, 1))
    assert factors == [1.0, 1.0, 1.0, 0.5, 0.5, 0.25]


def test_a_metric_that_is_not_measured_is_named():
    with pytest.raises(ConfigError, match=r"'val/loss' for `scheduler=plateau`, but got train/loss: set `scheduler\.metric`"):
        PlateauScheduler().observe(PlateauScheduler().init(), {"train/loss": 1.0})
    groups = {f"val/acc_group/y{y}_a0": 0.0 for y in range(100)}
    scheduler = PlateauScheduler(metric="val/los")
    with pytest.raises(ConfigError, match=r"but got val/loss, .* and 99 more: set"):
        scheduler.observe(scheduler.init(), {"train/loss": 1.0, "val/loss": 1.0, "val/acc": 0.0, **groups})


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: StepScheduler(every_n_rounds=0), r"`scheduler\.every_n_rounds` to be a whole number, 1 or larger, but got 0"),
        (lambda: StepScheduler(decay=0.0), r"`scheduler\.decay` in \(0, 1\], but got 0"),
        (lambda: ExponentialScheduler(decay=1.1), r"`scheduler\.decay`"),
        (lambda: MultiStepScheduler(milestones=[5, 3]), r"`scheduler\.milestones` to ascend, but got \[5, 3\]"),
        (lambda: MultiStepScheduler(milestones=[0]), r"`scheduler\.milestones` to be a whole number"),
        (lambda: CosineScheduler(rounds=9, min_factor=1.0), r"`scheduler\.min_factor` in \[0, 1\), but got 1"),
        (lambda: WarmRestartsScheduler(first_cycle=0), r"`scheduler\.first_cycle`"),
        (lambda: WarmRestartsScheduler(growth=1.5), r"`scheduler\.growth` to be a whole number, 1 or larger, but got 1\.5"),
        (lambda: OneCycleScheduler(rounds=9, rising=1.0), r"`scheduler\.rising` in \(0, 1\)"),
        (lambda: OneCycleScheduler(rounds=9, start_divisor=1.0), r"`scheduler\.start_divisor` to be larger than 1"),
        (lambda: OneCycleScheduler(rounds=9, end_divisor=math.nan), r"`scheduler\.end_divisor` to be larger than 1"),
        (lambda: OneCycleScheduler(rounds=9, anneal="sin"), r"'cos' or 'linear', but got 'sin'"),
        (lambda: OneCycleScheduler(rounds=10, rising=0.1), r"more or less than a single round, but got 0\.1 of 10 rounds"),
        (lambda: PlateauScheduler(metric="test/acc"), "the test set never chooses"),
        (lambda: PlateauScheduler(metric="personal_test/acc_mean"), "the test set never chooses"),
        (lambda: PlateauScheduler(mode="low"), "'min' or 'max', but got 'low'"),
        (lambda: PlateauScheduler(decay=1.0), "smaller than 1, but got 1: choose `scheduler=none`"),
        (lambda: PlateauScheduler(patience=-1), r"`scheduler\.patience` to be a whole number, 0 or larger"),
        (lambda: PlateauScheduler(threshold=-1.0), r"`scheduler\.threshold` to be 0 or larger"),
    ],
)
def test_impossible_settings_are_refused(make, said):
    with pytest.raises(ValueError, match=said):
        make()


# At the clients


@pytest.fixture
def task_of(tiny_clients):
    """Return a function: learning-rate factor -> a task, always from the same weights."""
    start = Broadcast(state.clone(tiny_clients().program.tensors))
    return lambda lr_factor, client_id=1: ClientTask(client_id, 2, 0, start, lr_factor=lr_factor)


@pytest.mark.parametrize("factor", [0.5, 0.25, 0.3])
def test_a_factor_is_a_smaller_learning_rate_bit_for_bit(tiny_clients, task_of, factor):
    """Also in the weight of the steps, which a proximal term makes depend on the learning rate."""
    settings = {"local": LocalTraining(batch_size=4, amount=2)}
    scaled = tiny_clients(lr=0.2, correction=ProximalCorrection(mu=0.5), **settings)
    plain = tiny_clients(lr=0.2 * factor, correction=ProximalCorrection(mu=0.5), **settings)
    ours, theirs = scaled.train(task_of(factor)), plain.train(task_of(1.0))
    assert state.digest(ours.delta) == state.digest(theirs.delta)
    assert ours.step_weight == theirs.step_weight
    assert ours.metrics == theirs.metrics
    again = scaled.train(task_of(1.0))
    unscaled = tiny_clients(lr=0.2, correction=ProximalCorrection(mu=0.5), **settings)
    assert state.digest(again.delta) == state.digest(unscaled.train(task_of(1.0)).delta), "nothing of it is left"


def test_clients_side_by_side_have_it_too(tiny_clients, task_of):
    clients = tiny_clients(lr=0.2, correction=ProximalCorrection(mu=0.5))
    tasks = [task_of((0.3, 0.4)[client_id % 2], client_id) for client_id in range(4)]
    expected = [clients.train(task) for task in tasks]
    for ours, theirs in zip(StackedTraining(clients).train_clients(tasks), expected, strict=True):
        assert ours.step_weight == theirs.step_weight
        for name, tensor in theirs.delta.items():
            torch.testing.assert_close(ours.delta[name], tensor, rtol=1e-4, atol=1e-6)


class Grouped(ClassificationObjective):
    """Its head learns ten times as fast as the rest."""

    def __init__(self, lr):
        with rng.forked(0, "weights"):
            super().__init__(SmallCNN(2, (1, 4, 4), width=2, hidden=4))
        self.lr = lr

    def configure_optimizers(self):
        *others, weight, bias = self.model.parameters()
        return torch.optim.SGD([{"params": [weight, bias], "lr": 10 * self.lr}, {"params": others}], lr=self.lr)


def test_every_parameter_group_is_scaled(tiny_clients, task_of):
    """Groups keep the ratio of their learning rates."""
    digests = [
        state.digest(tiny_clients(objective=Grouped(lr)).train(task_of(factor)).delta)
        for lr, factor in ((0.02, 0.5), (0.01, 1.0), (0.02, 1.0))
    ]
    assert digests[0] == digests[1] != digests[2]


class Measured(Callback):
    """Says that the validation loss does not get better after the second round."""

    def measure(self, federation, round):
        return {"val/loss": max(1.0, 3.0 - round)}


SCHEDULERS = {
    "one_cycle": partial(OneCycleScheduler, rounds=6),
    "plateau": partial(PlateauScheduler, patience=0, decay=0.5),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_federation_logs_the_factor_and_resumes_with_it(name, tiny_federation):
    def make(rounds=6):
        return tiny_federation(rounds=rounds, scheduler=SCHEDULERS[name](), callbacks={"measured": Measured()})

    whole, stopped, resumed = make(), make(), make()
    factors = [whole.run_round().metrics["train/lr_factor"] for _ in range(6)]
    assert len(set(factors)) > 2
    if name == "plateau":
        assert factors == [1.0, 1.0, 1.0, 0.5, 0.25, 0.125]
    for _ in range(4):
        stopped.run_round()
    resumed.restore(stopped.state)
    assert [resumed.run_round().metrics["train/lr_factor"] for _ in range(2)] == factors[4:]
    assert state.digest(resumed.state.model) == state.digest(whole.state.model)
    unscheduled = tiny_federation(rounds=6)
    assert state.digest(unscheduled.fit().model) != state.digest(whole.state.model)


def test_a_constant_learning_rate_is_not_logged_and_is_that_of_a_factor_of_one(tiny_federation):
    plain, constant = tiny_federation(), tiny_federation(scheduler=StepScheduler(decay=1.0))
    results = plain.run_round(), constant.run_round()
    assert plain.order(plain.state, 0).lr_factor == constant.order(constant.state, 0).lr_factor == 1.0
    assert results[1].metrics.keys() - results[0].metrics.keys() == {"train/lr_factor"}
    assert plain.state.slots == {}
    assert state.digest(plain.state.model) == state.digest(constant.state.model)


def test_probes_learn_of_it(tiny_federation):
    """A first step without momentum is as long as the round's learning rate says."""
    norms = {}
    for scheduler in (None, SCHEDULERS["one_cycle"]()):
        federation = tiny_federation(
            scheduler=scheduler, selector=ProbeFairnessSelector(probe=ProbeNorm(probe_steps=1)), momentum=0.0
        )
        factor = federation.order(federation.state, 0).lr_factor
        federation.run_round()
        norms[factor] = np.array([norm for _, norm in sorted(federation.state.disclosures["probe_norm"].items())])
    constant, scheduled = norms.pop(1.0), norms[factor]
    assert factor < 0.5
    assert scheduled == pytest.approx(factor * constant, rel=1e-4)
