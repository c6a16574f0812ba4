"""What is chosen, given what things take; the clock is the tests'."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from fedfacet import rng, state
from fedfacet.build import build, settle
from fedfacet.clients.local_training import LocalTraining
from fedfacet.config import SETTLED, compose_job
from fedfacet.corrections import Correction
from fedfacet.engines import auto
from fedfacet.engines.auto import (
    COMPILE_SECONDS,
    HAND_OVER_SECONDS,
    THREADS_SLOWDOWN,
    WORKER_SLOWDOWN,
    WORKER_START_SECONDS,
    AutoEngine,
)
from fedfacet.engines.sequential import SequentialEngine
from fedfacet.engines.vectorized import VectorizedEngine
from fedfacet.engines.workers import WorkersEngine
from fedfacet.objectives.classification import ClassificationObjective
from fedfacet.types import Answer, Broadcast, ClientTask

ALL = {"threads", "precision", "compile"}
CORES = 4
STEPS = 8  # of a round: four clients of two steps each
FOREVER = 10**9


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """Four cores, and memory for many processes."""
    monkeypatch.setattr(auto, "num_cores", lambda: CORES)
    monkeypatch.setattr(auto, "_fitting_processes", lambda: 100)


@pytest.fixture
def takes(monkeypatch):
    """Return a function that says what a step takes: with one thread, with four, in bfloat16, compiled, side by side."""

    def say(one, four=FOREVER, *, bf16=FOREVER, compiled=FOREVER, stacked=FOREVER):
        def seconds_per_step(trial, clients):
            if clients.compile:
                assert clients.objective is not trial.clients.objective, "compiled is compiled"
                return compiled
            if clients.precision == "bf16-mixed":
                return bf16
            return {1: one, CORES: four}[torch.get_num_threads()]

        def whole_rounds(trial, name, threads):
            assert name == "vectorized"
            trial._add("vectorized", stacked * sum(trial.steps), 0.0, {"engine": "vectorized"}, threads)

        monkeypatch.setattr(auto._Trial, "_seconds_per_step", seconds_per_step)
        monkeypatch.setattr(auto._Trial, "whole_rounds", whole_rounds)

    return say


@pytest.fixture
def choose(tiny_clients):
    def choose(*, rounds=10, free=frozenset(), allow_inexact=False, cohort_size=4, **clients):
        choice, settled = AutoEngine(allow_inexact=allow_inexact, device="cpu").choose(
            tiny_clients(**clients), cohort_size, rounds, set(free)
        )
        assert choice.pop("why")
        return choice, settled

    return choose


WORKERS = {"engine": "workers", "workers": CORES}
SEQUENTIAL = {"engine": "sequential"}


@pytest.mark.parametrize("per_step", [1.0, 0.01])
def test_processes_are_worth_their_start_only_in_long_runs(takes, choose, per_step):
    takes(per_step)
    saved_a_round = STEPS * per_step * (1 - WORKER_SLOWDOWN / CORES) - 4 * HAND_OVER_SECONDS
    worth_it = int(WORKER_START_SECONDS / saved_a_round) + 1
    assert choose(rounds=worth_it - 1 or 1) == (SEQUENTIAL, {})
    assert choose(rounds=worth_it) == (WORKERS, {})
    assert choose(rounds=FOREVER) == (WORKERS, {})


def test_there_are_as_many_processes_as_cores_clients_and_memory_admit(takes, choose, monkeypatch):
    takes(1.0)
    assert choose(rounds=FOREVER, cohort_size=3)[0] == {"engine": "workers", "workers": 3}
    assert choose(rounds=FOREVER, cohort_size=1)[0] == SEQUENTIAL
    monkeypatch.setattr(auto, "_fitting_processes", lambda: 2)
    assert choose(rounds=FOREVER)[0] == {"engine": "workers", "workers": 2}
    monkeypatch.setattr(auto, "_fitting_processes", lambda: 1)
    assert choose(rounds=FOREVER)[0] == SEQUENTIAL


def test_this_machine_has_room_for_one_process_at_least():
    assert auto._fitting_processes() >= 1


class Undivided(Correction):
    divisible = False


@pytest.mark.parametrize(("correction", "longest"), [(None, 3), (Undivided(), 4)])
def test_what_processes_would_take_follows_from_who_can_be_cut(takes, tiny_clients, monkeypatch, correction, longest):
    """Three clients of two steps on two workers."""
    takes(1.0)
    monkeypatch.setattr(auto, "num_cores", lambda: 2)
    trial = auto._Trial(tiny_clients(correction=correction), 3, 10)
    trial.in_this_process(trial.clients, 1)
    trial.with_workers(1)
    assert [option.seconds for option in trial.options] == pytest.approx(
        [6.0, longest * WORKER_SLOWDOWN + 3 * HAND_OVER_SECONDS]
    )


def test_clients_that_are_done_at_once_are_not_worth_handing_over(takes, choose):
    takes(HAND_OVER_SECONDS / 2)
    assert choose(rounds=FOREVER) == (SEQUENTIAL, {})


@pytest.mark.parametrize(
    ("one", "four", "rounds", "engine", "threads"),
    [
        (1.0, 0.2, 1, "sequential", 4),
        (1.0, 0.2, FOREVER, "sequential", 4),
        (1.0, 0.5, 1, "sequential", 4),
        (1.0, 0.5, FOREVER, "workers", 1),
        (1.0, 0.99 / THREADS_SLOWDOWN, 1, "sequential", 4),
        (1.0, 1.01 / THREADS_SLOWDOWN, 1, "sequential", 1),
        (1.0, 3.0, FOREVER, "workers", 1),
    ],
)
def test_threads_that_are_free_are_chosen_too(takes, choose, one, four, rounds, engine, threads):
    takes(one, four)
    choice, settled = choose(rounds=rounds, free={"threads"})
    assert (choice["engine"], settled) == (engine, {"threads": threads})


@pytest.mark.parametrize("threads", [1, 4])
def test_threads_that_are_not_free_stay(takes, choose, threads):
    takes(1.0, 1.0)
    torch.set_num_threads(threads)
    assert choose(rounds=FOREVER) == ((WORKERS if threads == 1 else SEQUENTIAL), {})
    assert torch.get_num_threads() == threads


INEXACT = {"bf16": 0.01, "compiled": 0.02, "stacked": 0.03}


@pytest.mark.parametrize(
    ("fast", "choice", "settled"),
    [
        ({"stacked"}, {"engine": "vectorized"}, {"threads": 1, "precision": "32-true", "compile": False}),
        ({"bf16"}, SEQUENTIAL, {"threads": 1, "precision": "bf16-mixed", "compile": False}),
        ({"compiled"}, SEQUENTIAL, {"threads": 4, "precision": "32-true", "compile": True}),
        ({"compiled", "stacked"}, SEQUENTIAL, {"threads": 4, "precision": "32-true", "compile": True}),
        (set(), WORKERS, {"threads": 1, "precision": "32-true", "compile": False}),
    ],
)
def test_what_rounds_differently_is_chosen_where_it_is_admitted_only(takes, choose, fast, choice, settled):
    takes(1.0, 1.0, **{name: INEXACT[name] for name in fast})
    assert choose(rounds=FOREVER, free=ALL, allow_inexact=True) == (choice, settled)
    exact = {"threads": 1, "precision": "32-true", "compile": False}
    assert choose(rounds=FOREVER, free=ALL) == (WORKERS, exact)


@pytest.mark.parametrize("free", [set(), {"threads"}, {"precision"}, {"compile"}, {"threads", "compile"}])
def test_what_is_not_free_is_neither_chosen_nor_tried(takes, choose, free):
    takes(1.0, 1.0, bf16=0.01, compiled=0.02)
    choice, settled = choose(rounds=FOREVER, free=free, allow_inexact=True)
    assert settled.keys() == free
    best = {"precision": "bf16-mixed"} if "precision" in free else {"compile": True} if "compile" in free else {}
    assert {name: settled.get(name, value) for name, value in best.items()} == best
    assert choice == (SEQUENTIAL if best else WORKERS)


def test_compiling_is_not_even_tried_for_a_short_run(takes, choose):
    takes(1.0, compiled=0.0)
    pays = int(10 * COMPILE_SECONDS / STEPS)  # as long as one thread in this process is the best
    assert choose(rounds=pays, cohort_size=1, local=LocalTraining(unit="steps", amount=STEPS), free={"compile"})[1] == {
        "compile": False
    }
    for rounds, expected in ((pays, False), (pays + 1, True)):
        clients = {"cohort_size": 1, "local": LocalTraining(unit="steps", amount=STEPS)}
        assert choose(rounds=rounds, free={"compile"}, allow_inexact=True, **clients)[1] == {"compile": expected}


def test_the_reason_is_said_and_kept(takes, tiny_clients, capsys):
    takes(1.0, 0.5)
    choice, _ = AutoEngine(device="cpu").choose(tiny_clients(), 4, FOREVER, {"threads"})
    assert choice["why"] in capsys.readouterr().err
    assert choice["why"].startswith("workers=4, 1 thread each: 2.2 s a round and 6 s to start, for")
    assert "4 clients x 2 steps" in choice["why"]
    assert "sequential, 4 threads: 4.2 s a round" in choice["why"]


def test_torchs_threads_are_put_back_even_if_a_trial_fails(takes, choose, monkeypatch):
    takes(1.0, 1.0)
    choose(free=ALL)
    assert torch.get_num_threads() == 1

    def fail(trial, threads):
        assert torch.get_num_threads() == threads
        if threads == CORES:
            raise ZeroDivisionError

    monkeypatch.setattr(auto._Trial, "with_workers", fail)
    with pytest.raises(ZeroDivisionError):
        choose(free=ALL)
    assert torch.get_num_threads() == 1


# --- trying out ------------------------------------------------------------------------------------------------------------


class Clock(ClassificationObjective):
    """Its steps take the time that it says: the first two of all long, the others a quarter of a second."""

    def __init__(self):
        with rng.forked(0, "weights"):
            super().__init__(nn.Sequential(nn.Flatten(), nn.Linear(16, 2)))
        self.now, self.steps = 0.0, 0

    def training_step(self, batch, batch_idx):
        self.steps += 1
        self.now += 50.0 if self.steps <= 2 else 0.25
        return super().training_step(batch, batch_idx)


@pytest.fixture
def clock(monkeypatch):
    objective = Clock()
    monkeypatch.setattr(auto, "time", SimpleNamespace(perf_counter=lambda: objective.now))
    return objective


@pytest.mark.parametrize("amount", [1, 2, 3, 5, 100])
@pytest.mark.parametrize("cohort_size", [1, 4])
def test_a_step_takes_what_it_takes_once_all_is_warm(clock, tiny_clients, amount, cohort_size):
    clients = tiny_clients(objective=clock, local=LocalTraining(unit="steps", amount=amount, batch_size=2))
    trial = auto._Trial(clients, cohort_size, 10)
    clock.steps += amount <= 2  # one step is all that there is to warm up with
    assert trial._seconds_per_step(clients) == 0.25
    assert clock.now <= 100 + 3 * auto.BUDGET_SECONDS


def test_those_tried_are_of_all_kinds(tiny_clients):
    clients = tiny_clients(matrices=[[[number, 1], [1, 1]] for number in range(1, 10)])
    assert [task.client_id for task in auto._Trial(clients, 3, 10).tasks] == [0, 4, 8]
    assert auto._Trial(clients, 3, 10).steps == [1, 1, 2]


def test_clients_side_by_side_take_what_the_fastest_of_three_rounds_takes(clock, tiny_clients, monkeypatch):
    trial = auto._Trial(tiny_clients(), 4, 10)
    lengths = iter([9.0, 0.75, 0.5, 100.0])

    def run(engine, tasks):
        clock.now += next(lengths)
        return iter(tasks)

    monkeypatch.setattr(VectorizedEngine, "run", run)
    trial.whole_rounds("vectorized", 1)  # the first takes too long for a second one
    trial.whole_rounds("vectorized", 1)
    assert [option.seconds for option in trial.options] == [9.0, 0.5]


def test_clients_that_cannot_be_stacked_are_not_offered_side_by_side(tiny_clients):
    def drawing(num_classes, input_shape):
        return nn.Sequential(nn.Flatten(), nn.RReLU(), nn.Linear(16, num_classes))

    for model, offered in ((drawing, 0), (lambda *_: nn.Sequential(nn.Flatten(), nn.Linear(16, 2)), 1)):
        trial = auto._Trial(tiny_clients(model=model), 4, 10)
        trial.whole_rounds("vectorized", 1)
        assert len(trial.options) == offered


@pytest.mark.parametrize("allow_inexact", [False, True])
def test_trying_out_leaves_no_trace_on_the_numbers_of_the_run(tiny_clients, tiny_federation, monkeypatch, allow_inexact):
    monkeypatch.setattr(auto, "BUDGET_SECONDS", 0.01)
    expected = tiny_federation().fit()
    clients, before = tiny_clients(), torch.get_rng_state()
    engine = AutoEngine(allow_inexact=allow_inexact, device="cpu")
    engine.choose(clients, 4, 2, {"precision"})
    assert torch.equal(torch.get_rng_state(), before)
    clients.program.load(tiny_clients().program.tensors)  # which a trial may have changed, and the first model is made of
    ours = tiny_federation(clients=clients, engine=engine).fit()
    assert state.digest(ours.model) == state.digest(expected.model)


# --- having chosen ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("choice", "kind"),
    [
        (None, SequentialEngine),
        ({"engine": "sequential", "why": "it was so"}, SequentialEngine),
        ({"engine": "workers", "workers": 3, "why": "it was so"}, WorkersEngine),
        ({"engine": "vectorized", "why": "it was so"}, VectorizedEngine),
    ],
)
def test_a_choice_is_used(choice, kind, tiny_clients):
    engine, clients = AutoEngine(choice=choice, device="cpu"), tiny_clients()
    engine.setup(clients)
    assert type(engine.engine) is kind
    assert engine.engine is engine.engine
    assert engine.engine.clients is clients
    assert engine.engine.device == "cpu"
    assert engine.name == kind.__name__
    assert getattr(engine.engine, "workers", 3) == 3
    engine.close()


def test_it_runs_asks_evaluates_and_closes_by_what_it_chose(tiny_clients):
    clients = tiny_clients()
    start = state.clone(clients.program.tensors)
    engines = [AutoEngine(choice={"engine": "sequential"}, device="cpu"), SequentialEngine(device="cpu")]
    tasks = [ClientTask(client, 1, 0, Broadcast(start)) for client in (2, 0)]
    for engine in engines:
        engine.setup(clients)
    ours, theirs = ([state.digest(update.delta) for update in engine.run(tasks)] for engine in engines)
    assert ours == theirs
    query = SimpleNamespace(needs_model=True, answer=lambda context: Answer(context.client_id, 1, 0))
    assert [answer.value for answer in engines[0].ask(query, tasks)] == [2, 0]
    ours, theirs = (engine.evaluate(start, [clients.dataset.test, clients.dataset.test[:3]]) for engine in engines)
    assert ours == theirs
    closed = []
    engines[0].engine.close = lambda: closed.append(True)
    engines[0].close()
    engines[0].close()
    assert closed == [True]


# --- settle ----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def job(monkeypatch):
    """Return a function: overrides -> the main job's configuration, with threads left open."""
    monkeypatch.setattr(auto, "BUDGET_SECONDS", 0.01)

    def compose(*overrides):
        return compose_job("train", ["experiment=digits_gsc", "threads=null", "engine.device=cpu", *overrides])[0]

    return compose


@pytest.mark.parametrize("engine", ["sequential", "vectorized", "debug"])
def test_what_is_left_to_the_machine_is_written_into_the_config(job, engine):
    config = job(f"engine={engine}")
    assert {config[name] for name in SETTLED} == {None}
    torch.set_num_threads(2)
    settle(config)
    assert {name: config[name] for name in SETTLED} == {
        "threads": 2, "memory_format": "channels_last", "precision": "32-true", "compile": False,
    }  # fmt: skip


def test_what_is_given_is_kept(job):
    given = {"threads": 3, "memory_format": "contiguous_format", "precision": "bf16-mixed", "compile": False}
    config = job(*(f"{name}={value}" for name, value in given.items()))
    settle(config)
    assert {name: config[name] for name in SETTLED} == given
    assert torch.get_num_threads() == 3


def test_processes_share_out_the_cores(job, monkeypatch):
    for workers, threads in (("auto", 1), (1, 4), (2, 2), (8, 1)):
        monkeypatch.setattr("fedfacet.engines.workers.num_cores", lambda: CORES)
        config = job("engine=workers", f"engine.workers={workers}")
        settle(config)
        assert config.threads == torch.get_num_threads() == threads


def test_a_choice_is_written_into_the_config_and_not_made_again(job, takes, monkeypatch):
    takes(1.0, 10.0)
    config = job("engine=auto", "federation.rounds=1000")
    settle(config)
    assert (config.engine.choice.engine, config.engine.choice.workers) == ("workers", CORES)
    assert {name: config[name] for name in SETTLED} == {
        "threads": 1, "memory_format": "channels_last", "precision": "32-true", "compile": False,
    }  # fmt: skip
    assert torch.get_num_threads() == 1
    monkeypatch.delattr(auto, "_Trial")  # nothing can be tried out any more
    before = config.copy()
    settle(config)
    assert config == before
    config.logger = config.callbacks = {}
    federation = build(config, None)
    assert type(federation.engine.engine) is WorkersEngine
    assert federation.engine.engine.workers == CORES
    federation.engine.close()


def test_inexact_settings_that_are_chosen_are_written_too(job, takes):
    takes(1.0, 1.0, bf16=0.1)
    config = job("engine=auto", "engine.allow_inexact=true")
    settle(config)
    assert config.precision == "bf16-mixed"
    config = job("engine=auto", "engine.allow_inexact=true", "precision=32-true")
    settle(config)
    assert config.precision == "32-true"


def test_threads_that_are_given_are_those_tried(job, monkeypatch):
    tried = []
    monkeypatch.setattr(auto._Trial, "_seconds_per_step", lambda *_: tried.append(torch.get_num_threads()) or 1.0)
    torch.set_num_threads(2)
    config = job("engine=auto", "threads=1", "federation.rounds=1000")
    settle(config)
    assert tried == [1]
    assert config.engine.choice.engine == "workers"


def test_the_real_thing(job):
    """Nothing of it is left to the tests but how long it lasts."""
    config = job("engine=auto", "federation.rounds=2")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(auto, "num_cores", lambda: 2)
        settle(config)
    assert config.engine.choice.engine == "sequential", "two rounds are not worth the start of processes"
    assert config.threads in (1, 2)
    assert config.engine.choice.why.startswith(f"sequential, {config.threads} thread")
