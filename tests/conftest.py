"""What all tests share: one thread per process, no global randomness in hypothesis, a tiny federation, the real data."""

import os

# Before torch loads, and inherited by every process that a test starts: sums over threads are part of the numbers.
os.environ["OMP_NUM_THREADS"] = "1"

import fedfacet.libraries  # noqa: F401, I001  # before anything else that loads torch

import functools
import gc
import importlib.util
import json
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings
from omegaconf import OmegaConf

from fedfacet import rng
from fedfacet.aggregators.fedavg import FedAvg
from fedfacet.client_setup import clock_of
from fedfacet.clients.local_training import LocalTraining
from fedfacet.callbacks.mechanism import Callbacks
from fedfacet.clients.trainer import Clients
from fedfacet.config import compose_job
from fedfacet.data.dataset import Dataset, InMemoryInputs
from fedfacet.engines.sequential import SequentialEngine
from fedfacet.federation import Federation
from fedfacet.models.small_cnn import SmallCNN
from fedfacet.mechanisms import mechanisms_of
from fedfacet.mechanisms.server_data import ServerEvaluation
from fedfacet.mechanisms.updates import UpdateCheck
from fedfacet.objectives.classification import ClassificationObjective
from fedfacet.partitioners.interaction_matrix import InteractionMatrixPartitioner
from fedfacet.selectors.uniform import UniformSelector
from fedfacet.types import ServerData

# The same examples in every run, and no verdict by a clock that other processes share.
settings.register_profile("fedfacet", derandomize=True, deadline=None, database=None)
settings.load_profile("fedfacet")
torch.set_num_threads(1)

TOY_MATRICES = ([[6, 2], [2, 6]], [[2, 6], [6, 2]], [[7, 7], [1, 1]], [[7, 1], [7, 1]])
"""Four clients of 16 samples: two spurious ones that disagree, one of one class, one of one attribute."""

TOY_MODEL = partial(SmallCNN, width=2, hidden=4)

SERVER = """
import atexit, contextlib, gc, json, os, runpy, sys, traceback
import fedfacet.runs.console, fedfacet.build, fedfacet.callbacks.evaluate, fedfacet.data.digits, hydra
import fedfacet.objectives.classification, fedfacet.commands.train, fedfacet.runs.open_run, rich._emoji_codes, rich.table
import fedfacet.clients.queries.true_heterogeneity, hydra._internal.logging_config, torch.utils.serialization
with contextlib.suppress(ImportError):
    import optuna.samplers, optuna.storages.journal

fedfacet.config.compose_job("train", [])  # reads the yamls, which is half of what composing takes
gc.freeze()  # what is imported stays: without this every collection and every exit in a fork goes through all of it
print(json.dumps("ready"), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    if "poll" in request:
        pid, status = os.waitpid(request["poll"], os.WNOHANG)
        print(json.dumps(os.waitstatus_to_exitcode(status) if pid else None), flush=True)
        continue
    if pid := os.fork():
        print(pid, flush=True)
        continue
    for number, (file, mode) in enumerate([(os.devnull, "r"), (request["out"], "w"), (request["err"], "w")]):
        with open(file, mode) as opened:
            os.dup2(opened.fileno(), number)
    os.chdir(request["cwd"])
    for name, value in request["env"].items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    sys.argv = request["argv"]
    status = 0
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as stop:
        status = stop.code or 0
    except BaseException:
        traceback.print_exc()
        status = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
os._exit(0)
"""

PATIENCE = 300
"""Seconds until a process counts as stuck; on a machine with other work a run of one second takes a minute."""


@dataclass(frozen=True)
class Result:
    """What a process said, and how it ended."""

    status: int
    out: str
    err: str


class Server:
    """Starts scripts by forking a process that has imported what they need."""

    def __init__(self, src):
        pipe, environment = subprocess.PIPE, {**os.environ, "PYTHONPATH": str(src)}
        command = [sys.executable, "-c", SERVER]
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)
        assert json.loads(self.process.stdout.readline()) == "ready"  # so that no test seems to take what this does

    def ask(self, **request):
        print(json.dumps(request), file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())

    def close(self):
        self.process.communicate(timeout=PATIENCE)


class Started:
    """A process under way."""

    def __init__(self, server, pid, out, err):
        self.server, self.pid, self.out, self.err = server, pid, out, err
        self.status = None

    def poll(self):
        if self.status is None:
            self.status = self.server.ask(poll=self.pid)
        return self.status

    def kill(self, number):
        """Send a signal, unless the process is over."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def wait(self, seconds=PATIENCE):
        deadline = time.monotonic() + seconds
        while self.poll() is None:
            if time.monotonic() > deadline:
                self.kill(signal.SIGKILL)
                raise TimeoutError(f"still running after {seconds} s; it said {self.err.read_text()!r}")
            time.sleep(0.01)
        return self.status

    def result(self, seconds=PATIENCE):
        """Wait and return all that is left."""
        return Result(self.wait(seconds), self.out.read_text(), self.err.read_text())

    def wait_until(self, condition, seconds=PATIENCE):
        """Return as soon as the condition holds."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.poll() is None, f"over with {self.status} too early: {self.err.read_text()}"
            assert time.monotonic() < deadline, self.err.read_text()
            time.sleep(0.002)


def pytest_addoption(parser):
    """Have ``--cpu-record=FILE`` record what each test costs; see ``cpu_record.py``."""
    parser.addoption("--cpu-record", type=Path, help="write the CPU seconds of each test to a csv file")


def pytest_configure(config):
    """Load the plugin, which is a file beside this one and of no package."""
    if config.getoption("cpu_record"):
        spec = importlib.util.spec_from_file_location("cpu_record", Path(__file__).with_name("cpu_record.py"))
        plugin = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(plugin)
        config.pluginmanager.register(plugin.CpuRecord(config))


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Have Python look for garbage neither while thousands of tests are collected nor among them afterwards: they stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(10_000, 10, 10)  # a search takes 0.2 s of CPU, and a twentieth of the whole suite's without this
        gc.enable()


@pytest.fixture(autouse=True)
def one_thread():
    """Undo what a test's run did to torch's threads."""
    yield
    if torch.get_num_threads() != 1:
        torch.set_num_threads(1)


@functools.cache
def _job(*overrides):
    return compose_job("train", overrides)[0]


@pytest.fixture(scope="session")
def job_of():
    """Return a function: overrides of train.yaml -> config; Hydra composes each list once, which takes it a while."""
    return lambda *overrides: _job(*overrides).copy()


@pytest.fixture(scope="session")
def checkout():
    """The folder that holds src/, conf/ and tests/."""
    return Path(__file__).parents[1]


@pytest.fixture(scope="session")
def start_script(checkout):
    """Return a function that starts a script of ``src/``, or one with a path, in a folder.

    Importing torch and lightning takes seconds, so a server imports them once and forks. What runs in the fork is the script,
    with a command line, a working folder, signals and an exit status of its own.
    """
    server = Server(checkout / "src")

    def start_script(folder, script, *arguments, out=None, err=None, env=None):
        number = len(list(folder.glob(".*.err")))
        out, err = (Path(given or folder / f".{number}.{name}") for name, given in (("out", out), ("err", err)))
        argv = [str(checkout / "src" / script), *map(str, arguments)]
        pid = server.ask(argv=argv, cwd=str(folder), out=str(out), err=str(err), env=env or {})
        return Started(server, pid, out, err)

    yield start_script
    server.close()


@pytest.fixture(scope="session")
def data_dir(checkout):
    """The folder of real data sets: FEDFACET_DATA, or shared/data beside the checkout."""
    named = os.environ.get("FEDFACET_DATA")
    folder = Path(named) if named else checkout.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no real data in {folder}: point FEDFACET_DATA at a folder of data sets")
    return folder


@pytest.fixture(scope="session")
def real_folder(data_dir):
    """Return a function: name of a folder of real data -> its path; a test skips where it is absent."""

    def folder(name):
        if not (data_dir / name).is_dir():
            pytest.skip(f"no {name} in {data_dir}: point FEDFACET_DATA at a folder that holds {name}/")
        return str(data_dir / name)

    return folder


@pytest.fixture(scope="session")
def toy_dataset():
    """Return a function that makes a data set in memory.

    ``per_cell`` has the training samples of each (class, attribute) cell; test cells have ``test_per_cell``. Images of shape
    (1, 4, 4) are noise whose upper half is brighter for higher classes and lower half brighter for higher attributes.
    """

    def make(per_cell=((17, 16), (16, 15)), *, test_per_cell=4, seed=0):
        per_cell = np.asarray(per_cell)
        Y, A = per_cell.shape
        sizes = np.stack([per_cell.ravel(), np.full(Y * A, test_per_cell)])
        groups = np.concatenate([np.repeat(np.arange(Y * A), split) for split in sizes])
        y, a = np.divmod(groups, A)
        pixels = rng.stream(seed, "toy-images").integers(100, size=(len(groups), 1, 4, 4))
        pixels[:, :, :2] += (y * (150 // max(Y - 1, 1)))[:, None, None, None]
        pixels[:, :, 2:] += (a * (150 // max(A - 1, 1)))[:, None, None, None]
        num_train = int(per_cell.sum())
        return Dataset(
            inputs=InMemoryInputs(torch.from_numpy(pixels.astype(np.uint8))),
            y=y,
            a=a,
            train=np.arange(num_train),
            test=np.arange(num_train, len(y)),
            val=None,
            class_names=tuple(f"class {label}" for label in range(Y)),
            attribute_names=tuple(f"attribute {value}" for value in range(A)),
            mean=(0.5,),
            std=(0.25,),
        )

    return make


@pytest.fixture(scope="session")
def tiny_clients(toy_dataset):
    """Return a function that makes the clients of a tiny federation, as ``Clients``; a run is milliseconds.

    ``matrices`` has an interaction matrix per client; ``model`` maps (num_classes, input_shape) to a module; ``lr`` and
    ``momentum`` are of the clients' SGD; ``objective`` replaces the classification with such a model.
    """

    def make(
        *,
        matrices=TOY_MATRICES,
        seed=0,
        model=TOY_MODEL,
        objective=None,
        correction=None,
        lr=0.1,
        momentum=0.9,
        local=None,
        transforms=(),
    ):
        partitioner = InteractionMatrixPartitioner([{"count": 1, "matrix": matrix} for matrix in matrices])
        dataset = toy_dataset(partitioner.demand)
        partition = partitioner.partition(dataset.y[dataset.train], dataset.a[dataset.train])
        optimizer = partial(torch.optim.SGD, lr=lr, momentum=momentum)
        if objective is None:
            with rng.forked(seed, "weights"):
                objective = ClassificationObjective(
                    model(dataset.num_classes, (1, 4, 4)), correction=correction, optimizer=optimizer
                )
        local = local or LocalTraining(batch_size=8)
        return Clients(objective, optimizer, dataset, partition, local, transforms, torch.device("cpu"))

    return make


@pytest.fixture(scope="session")
def tiny_federation(tiny_clients):
    """Return a function that makes a federation in memory; what it does not know goes to ``tiny_clients``."""

    def make(
        *,
        rounds=2,
        cohort_size=2,
        seed=0,
        selector=None,
        aggregator=None,
        participation=None,
        on_bad_update="raise",
        callbacks=None,
        scheduler=None,
        engine=None,
        clients=None,
        devices=None,
        termination=None,
        **of_clients,
    ):
        clients = clients or tiny_clients(seed=seed, **of_clients)
        engine = engine or SequentialEngine(device="cpu")
        aggregator, selector = aggregator or FedAvg(), selector or UniformSelector()
        clock = clock_of(devices, clients, aggregator, cohort_size) if devices is not None else None
        clients.needs[:] = clock.needs() if clock is not None else []
        engine.setup(clients)
        parts = {"engine": engine, "selector": selector, "aggregator": aggregator}
        more = {"participation": participation, "scheduler": scheduler, "termination": termination}
        evaluation = ServerEvaluation(ServerData(clients.dataset.test), **parts)
        made = mechanisms_of(clock=clock, evaluation=evaluation, **more)
        made += aggregator.mechanisms(clock, cohort_size, clients.partition.num_clients)
        return Federation(
            facts=clients.facts,
            **parts,
            mechanisms=[*made, UpdateCheck(on_bad_update), Callbacks(callbacks or {})],
            rounds=rounds,
            cohort_size=cohort_size,
            seed=seed,
        )

    return make


@pytest.fixture(scope="session")
def plain():
    """Return a function that makes plain values of any state, so that two are equal exactly where they are bit for bit."""

    def plainly(value):
        if isinstance(value, torch.Tensor):
            return str(value.dtype), tuple(value.shape), value.detach().cpu().contiguous().numpy().tobytes()
        if isinstance(value, float):
            return value.hex()
        if is_dataclass(value):
            return type(value).__name__, {field.name: plainly(getattr(value, field.name)) for field in fields(value)}
        if isinstance(value, Mapping):
            return {key: plainly(entry) for key, entry in value.items()}
        return [plainly(entry) for entry in value] if isinstance(value, list | tuple) else value

    return plainly


@pytest.fixture(scope="session")
def paper():
    """What the paper prints of its federations: ``federations_of_the_paper.yaml``."""
    return OmegaConf.to_object(OmegaConf.load(Path(__file__).with_name("federations_of_the_paper.yaml")))
