"""Worker processes: the same numbers, whatever happens to them."""

import math
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from functools import partial

import pytest
import torch

from fedfacet import state
from fedfacet.build import build
from fedfacet.callbacks.base import Callback
from fedfacet.clients.queries.base import Query
from fedfacet.config import compose_job
from fedfacet.cores import num_cores
from fedfacet.deploy.loopback import Loopback
from fedfacet.engines.workers import WorkersEngine
from fedfacet.errors import ConfigError, EngineError
from fedfacet.runs.sweep_workers import num_workers
from fedfacet.types import Answer, Broadcast, ClientTask


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def job(tmp_path):
    """Return a function that builds the offline main job, made short, without anything that writes."""
    built = []

    def make(*overrides):
        config, _ = compose_job(
            "train",
            ["experiment=digits_gsc", "callbacks=evaluate", "heterogeneity.bias_steps=3", "local.batch_size=8", *overrides],
        )
        config.logger = {}
        built.append(build(config, tmp_path))
        return built[-1]

    yield make
    for federation in built:
        federation.engine.close()


@pytest.fixture(scope="module")
def persistent():
    """Two workers that several tests share, since a process takes seconds to start."""
    torch.set_num_threads(1)
    engine = WorkersEngine(workers=2, device="cpu")
    config, _ = compose_job("train", ["experiment=digits_gsc"])
    config.logger = config.callbacks = {}
    federation = build(config, None)
    engine.setup(federation.engine.clients)
    yield engine, federation
    engine.close()


class KillAWorker(Callback):
    """Kill a worker without warning in the second round, when the first of its clients is done: a busy one, if one is left.

    All may be idle by then, since updates are handed on in cohort order. A death between two pieces of work must be found too.
    """

    def __init__(self):
        self.killed = None

    def on_client_end(self, round, position, expected, phase):
        if round == 2 and phase == "train" and self.killed is None:
            self.killed = max(self.engine._workers, key=lambda worker: worker.job is not None).process.pid
            os.kill(self.killed, signal.SIGKILL)

    def on_fit_start(self, federation):
        self.engine = federation.engine


def history(federation, rounds=3, **callbacks):
    federation.rounds = rounds
    federation.callbacks.update(callbacks)
    for callback in federation.callbacks.values():
        callback.on_fit_start(federation)
    results = [federation.run_round() for _ in range(rounds)]
    return [(result.cohort, dict(result.metrics)) for result in results], state.digest(federation.state.model)


def test_rounds_queries_and_evaluation_are_those_of_sequential_even_if_a_worker_is_killed(job):
    """FedDiverse asks every client in round 1; seven clients on three workers are cut into pieces; some are stragglers."""
    settings = ["federation.cohort_size=7", "participation=stragglers", "correction=proximal", "optimizer.momentum=0.9"]
    expected = history(job(*settings))
    killer = KillAWorker()
    federation = job(*settings, "engine=workers", "engine.workers=3")
    assert history(federation, killer=killer) == expected
    assert killer.killed not in [worker.process.pid for worker in federation.engine._workers]
    assert len(federation.engine._workers) == 3


def test_probed_clients_are_trained_alike_wherever_their_probes_were_taken(job):
    """A worker that trains a client may or may not be the one that has probed it."""
    settings = ["selector=probe_fairness", "federation.cohort_size=5", "correction=proximal", "local.amount=2"]
    assert history(job(*settings, "engine=workers", "engine.workers=2"), 2) == history(job(*settings), 2)


def test_nothing_starts_before_it_is_needed():
    engine = WorkersEngine(workers=2)
    engine.setup(None)
    assert engine._workers == []
    engine.close()


class Fragile(Query):
    """Fails at some clients, in the way it is told to."""

    name = "fragile"
    needs_model = False

    def __init__(self, clients, deed):
        self.clients = clients
        self.deed = deed

    def answer(self, context):
        if context.client_id in self.clients:
            self.deed()
        return Answer(os.getpid(), floats_up=0, samples=0)


def fail():
    raise ZeroDivisionError("the client divided by zero")


def tasks_for(federation, clients, round=1):
    return [ClientTask(client_id, round, 0, Broadcast(federation.state.model)) for client_id in clients]


def test_an_exception_crosses_over_with_the_clients_name_and_the_workers_go_on(persistent):
    engine, federation = persistent
    tasks = tasks_for(federation, range(8), round=4)
    with pytest.raises(ZeroDivisionError, match="the client divided by zero") as caught:
        list(engine.ask(Fragile({5}, fail), tasks))
    assert "client 5 in round 4" in "".join(caught.value.__notes__)
    pids = [answer.value for answer in engine.ask(Fragile((), fail), tasks)]
    assert os.getpid() not in pids
    assert len(set(pids)) <= 2


def test_work_that_kills_every_worker_is_given_up(persistent):
    engine, federation = persistent
    with pytest.raises(EngineError, match=r"client 1 in round 1, but 3 died of it \(exit code 7.*lower `engine.workers`"):
        list(engine.ask(Fragile({1}, partial(os._exit, 7)), tasks_for(federation, range(3))))


def test_a_silent_worker_is_replaced_and_named(persistent, caplog, tmp_path):
    engine, federation = persistent
    tasks = tasks_for(federation, range(3))
    list(engine.ask(Fragile((), fail), tasks))  # all have started
    engine.timeout_seconds = 2.0
    try:
        answers = list(engine.ask(Fragile({1}, partial(sleep_once, tmp_path / "slept")), tasks))
    finally:
        engine.timeout_seconds = 3600.0
    assert len(answers) == 3
    assert "A worker process was silent for 2 s over client 1 in round 1." in caplog.text
    assert "another one does it again" in caplog.text


def sleep_once(marker):
    if not marker.exists():
        marker.touch()
        time.sleep(600)


@pytest.mark.slow
def test_a_sigterm_to_all_while_workers_start_is_this_process_alone_to_act_on(checkout):
    """The process from which workers are forked must not die of it, and nothing may be left behind."""
    code = """
import os, signal, time, types, torch
from multiprocessing import forkserver
from fedfacet.engines.workers import WorkersEngine

heard = []
signal.signal(signal.SIGTERM, lambda *_: heard.append(True))
os.setpgrp()
engine = WorkersEngine(workers=2)
engine.clients = types.SimpleNamespace(device=torch.device("cpu"))
workers = [engine._spawn(0)]
server = forkserver._forkserver._forkserver_pid
for _ in range(20):
    os.killpg(0, signal.SIGTERM)
    time.sleep(0.05)
workers.append(engine._spawn(1))
assert forkserver._forkserver._forkserver_pid == server
for worker in workers:
    worker.kill()
print(len(heard) > 0)
"""
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300)
    assert done.stdout == "True\n", done.stderr


UNGUARDED = """
import numpy as np, torch, fedfacet
from functools import partial
from fedfacet.partitioners.synthetic import IIDPartitioner
x = np.random.default_rng(0).normal(size=(60, 4)).astype("float32")
data = fedfacet.deal(fedfacet.dataset_from_arrays(x, (x[:, 0] > 0).astype(int)), IIDPartitioner(num_clients=2))
engine = fedfacet.WorkersEngine(workers=2)
federation = fedfacet.federate(data, torch.nn.Linear(4, 2), optimizer=partial(torch.optim.SGD, lr=1.0), engine=engine, rounds=1)
try:
    federation.fit()
except fedfacet.FedFacetError as error:
    print(error)
"""


@pytest.mark.slow
def test_a_script_without_a_main_guard_is_told_so_at_once(checkout, tmp_path):
    (tmp_path / "script.py").write_text(UNGUARDED)
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src")}
    command = [sys.executable, "script.py"]
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    assert re.fullmatch(r"Expected the script to train under `if __name__ == \"__main__\":`.*\n", ended.stdout)
    assert "Traceback" not in ended.stderr


@pytest.mark.slow  # two processes that import all libraries
def test_the_server_of_the_workers_imports_nothing_from_the_working_folder(checkout, tmp_path):
    (tmp_path / "here").mkdir()
    for name in ("selectors", "socket", "struct", "fedfacet"):
        (tmp_path / "here" / f"{name}.py").write_text(f"open({str(tmp_path / 'trace')!r}, 'w').close()\nraise ImportError\n")
    (tmp_path / "script.py").write_text(
        """
import os, types, torch
from fedfacet.engines.workers import WorkersEngine

engine = WorkersEngine(workers=1)
engine.clients = types.SimpleNamespace(device=torch.device("cpu"))
worker = engine._spawn(0)
worker.process.join(timeout=300)  # of what it was sent instead of clients
print("PYTHONSAFEPATH" in os.environ)
"""
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    environment["PYTHONPATH"] = str(checkout / "src")
    command = [sys.executable, tmp_path / "script.py"]
    done = subprocess.run(command, cwd=tmp_path / "here", env=environment, capture_output=True, text=True, timeout=300)
    assert done.stdout == "False\n", done.stderr
    assert not (tmp_path / "trace").exists()


def test_an_abandoned_round_leaves_no_answer_behind(persistent):
    engine, federation = persistent
    tasks = tasks_for(federation, range(6))
    expected = [state.digest(federation.engine.clients.train(task).delta) for task in tasks]
    updates = engine.run(tasks)
    next(updates)
    updates.close()
    assert [state.digest(update.delta) for update in engine.run(tasks)] == expected


def test_models_that_differ_between_clients_travel_one_by_one(persistent):
    engine, federation = persistent
    tasks = tasks_for(federation, range(4))
    for number, task in enumerate(tasks):
        own = state.scaled(federation.state.model, 1.0 + number / 10)
        tasks[number] = ClientTask(task.client_id, 2, 0, Broadcast(own))
    ours = [state.digest(update.delta) for update in engine.run(tasks)]
    assert ours == [state.digest(federation.engine.clients.train(task).delta) for task in tasks]
    assert len(set(ours)) == 4


class TakeThreads(Query):
    """Say how many threads there are and take another number, as a module may do that is imported with somebody's query."""

    name = "take_threads"
    needs_model = False

    def answer(self, context):
        before = torch.get_num_threads()
        torch.set_num_threads(before + 1)
        return Answer(before, floats_up=0, samples=0)


def test_every_order_is_carried_out_with_the_threads_of_the_run(persistent):
    engine, federation = persistent
    tasks = tasks_for(federation, range(6))
    assert [answer.value for answer in engine.ask(TakeThreads(), tasks)] == [1] * 6


def test_workers_import_nothing_by_chance(persistent):
    """Pickle finds a memory format in whatever module comes first that has torch in it; here in one of the tests'."""
    engine, federation = persistent
    list(engine.ask(Fragile((), fail), tasks_for(federation, [0])))
    assert b"conftest" not in engine._clients


class Scribble(Query):
    """Write into the data set."""

    name = "scribble"
    needs_model = False

    def answer(self, context):
        images = context.data.dataset.inputs.tensor
        before = images[0, 0, 0, 0].item()
        images[0, 0, 0, 0] = 255 - before
        return Answer(before, floats_up=0, samples=0)


def test_all_processes_see_one_copy_of_the_data(persistent):
    engine, federation = persistent
    images = federation.engine.clients.dataset.inputs.tensor
    before = images[0, 0, 0, 0].item()
    assert [answer.value for answer in engine.ask(Scribble(), tasks_for(federation, [0]))] == [before]
    assert images[0, 0, 0, 0].item() == 255 - before
    images[0, 0, 0, 0] = before


def test_closing_ends_the_processes_and_a_round_afterwards_starts_new_ones(job):
    federation = job("engine=workers", "engine.workers=1", "selector=uniform", "federation.cohort_size=1")
    first = federation.run_round()
    process = federation.engine._workers[0].process
    federation.engine.close()
    assert not process.is_alive()
    assert math.isfinite(first.metrics["train/loss"])
    assert federation.run_round().arrived


def test_workers_outlive_signals_and_end_when_nobody_is_left_to_talk_to(persistent):
    engine, federation = persistent
    list(engine.ask(Fragile((), fail), tasks_for(federation, range(4))))
    worker = engine._workers[0]
    os.kill(worker.process.pid, signal.SIGTERM)
    os.kill(worker.process.pid, signal.SIGINT)
    time.sleep(0.2)
    assert worker.process.is_alive()
    worker.channel.connection.close()
    worker.process.join(timeout=20)
    assert worker.process.exitcode == 0
    engine._workers.remove(worker)


def test_what_cannot_be_sent_is_refused_in_a_sentence(persistent):
    _, federation = persistent
    engine = WorkersEngine(workers=1)
    clients = federation.engine.clients
    object.__setattr__(clients, "transforms", [lambda update, rng: update])
    try:
        engine.setup(clients)
        with pytest.raises(EngineError, match="Expected clients that can be sent to other processes"):
            list(engine.run(tasks_for(federation, [0])))
    finally:
        object.__setattr__(clients, "transforms", [])
        engine.close()


@pytest.mark.parametrize("workers", [0, -1, 1.5, "many", None])
def test_a_number_of_workers_that_is_none_is_refused(workers):
    with pytest.raises(ValueError, match=r"Expected `engine\.workers` to be a whole number, 1 or larger, or auto, but got"):
        WorkersEngine(workers=workers)


@pytest.mark.parametrize("far", [17, 100_000])
def test_far_more_processes_than_cores_are_refused_before_one_starts(far):
    for setting, ask in (
        ("engine.workers", lambda number: WorkersEngine(workers=number)),
        ("sweep.workers", lambda number: num_workers(number, 2)),
        ("deploy.clients", lambda number: Loopback(clients=["nowhere/client.yaml"] * number)),
    ):
        with pytest.raises(ConfigError, match=rf"Expected `{setting}` to ask for {16 * num_cores()} processes at most, 16 for"):
            ask(far * num_cores())


def test_no_more_processes_start_than_clients_of_a_round(job):
    before = set(multiprocessing.active_children())
    federation = job("engine=workers", "engine.workers=5", "federation.cohort_size=2")
    for clients, started in (([0], 1), ([0, 1, 2], 2)):
        list(federation.engine.run(tasks_for(federation, clients)))
        assert len(set(multiprocessing.active_children()) - before) == started
