"""Every option of conf/ is tested by existing: a fixture ``<group>_option`` runs its test once for each yaml of that group.

Where options go one and the same way, a module's ``USUAL`` names those that a test runs for; its others are slow.
"""

import functools
import io
import random
import tempfile
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from torch import nn

from fedfacet import build as build_module
from fedfacet import config, rng, state
from fedfacet.types import ClientUpdate, Facts

CONF = Path(__file__).parents[2] / "conf"


def pytest_generate_tests(metafunc):
    usual = getattr(metafunc.module, "USUAL", {}).get(metafunc.function.__name__)
    for fixture in metafunc.fixturenames:
        group = fixture.removesuffix("_option")
        if group != fixture and (CONF / group).is_dir():
            options = sorted(file.stem for file in (CONF / group).glob("*.yaml"))
            slow = [option for option in options if usual is not None and option not in usual]
            metafunc.parametrize(
                fixture, [pytest.param(option, marks=pytest.mark.slow if option in slow else ()) for option in options]
            )


@pytest.fixture(autouse=True)
def global_generators_are_left_alone():
    """Law 2: whatever a test of this folder runs, the process' own generators stay where they were."""
    before = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
    yield
    after = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
    assert torch.equal(before[0], after[0]), "something drew from torch's global generator"
    assert before[1][2] == after[1][2], "something drew from numpy's global generator"
    assert np.array_equal(before[1][1], after[1][1]), "something seeded numpy's global generator"
    assert before[2] == after[2], "something drew from Python's global generator"


@pytest.fixture(scope="session")
def composed():
    """Return a function: overrides of train.yaml, without a recipe -> config; composed once each."""

    @functools.cache
    def compose(*overrides):
        return config.compose_job("train", ["~experiment", "wandb.mode=offline", *overrides])[0]

    return lambda *overrides: compose(*overrides).copy()


def options_of_parts():
    """Return the options of every group that a run chooses from: group -> options."""
    options: dict[str, list[str]] = {}
    for file in sorted(CONF.glob("*/*.yaml")):
        if file.parent.name not in {"hydra", "paths", "attack", "deploy"} and "@package _global_" not in file.read_text():
            options.setdefault(file.parent.name, []).append(file.stem)
    return options


@pytest.fixture(scope="session")
def node_of(composed):
    """Return a function: group, option -> its node in a configuration of that option.

    Options of all groups are composed side by side, since a composition takes a tenth of a second.
    """
    options = options_of_parts()

    @functools.cache
    def row(position):
        chosen = {group: names[position % len(names)] for group, names in options.items()}
        job = composed(*map("=".join, chosen.items()))
        return {group: OmegaConf.to_container(job[group], resolve=True) for group in chosen}

    return lambda group, option: OmegaConf.create({group: row(options[group].index(option))[group]})[group]


@pytest.fixture(scope="session")
def facts(composed, tmp_path_factory):
    """All run-time facts that build.py hands to parts, by name, of a small run."""
    seen = {}

    def spy(node, **handed):
        seen.update(handed)
        return config.make(node, **handed)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build_module, "make", spy)
        build_module.build(composed("debug=smoke"), tmp_path_factory.mktemp("run"))
    assert {"num_classes", "heterogeneity", "run_dir"} <= seen.keys()
    return seen


@pytest.fixture(scope="session")
def make_part(node_of, facts):
    """Return a function that makes an option as build.py does: (group, option, other values of its keys) -> object."""

    def make(group, option, **changed):
        if option == "flwr":
            pytest.skip("deals as Flower's own does, which tests/partitioners/test_flwr.py holds it to")
        node = node_of(group, option)
        if lacking := [key for key in changed if key not in node]:
            pytest.skip(f"{group}={option} has no {lacking}")
        node.update(changed)
        with rng.forked(0, "weights"):  # as build.py does for models
            return config.make(node, **facts)

    return make


@pytest.fixture
def smoke(tmp_path, monkeypatch):
    """Return a function that builds and runs one round: overrides -> (federation, run folder), with data files beside it.

    What it has composed last is its ``job``.
    """
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    run_dir = tmp_path / "run"
    run_dir.mkdir()

    def run(*overrides):
        job, _ = config.compose_job("train", [*overrides, "debug=smoke", f"paths.output_dir={run_dir}", "engine.device=cpu"])
        run.job = job
        federation = build_module.build(job, run_dir)
        federation.fit()
        return federation, run_dir

    return run


@pytest.fixture(scope="session")
def batchnorm_model():
    """A state dict with a head, floating-point buffers and integer buffers, and the names of its parameters."""
    generator = torch.Generator().manual_seed(0)
    with rng.forked(0, "weights"):
        model = nn.Sequential(OrderedDict(body=nn.Linear(3, 4), norm=nn.BatchNorm1d(4), head=nn.Linear(4, 2)))
    weights = state.clone(model.state_dict())
    weights["norm.running_mean"] = torch.randn(4, generator=generator)
    weights["norm.running_var"] = 0.5 + torch.rand(4, generator=generator)
    weights["norm.num_batches_tracked"] = torch.tensor(7)
    return weights, [name for name, _ in model.named_parameters()]


@pytest.fixture(scope="session")
def facts_of_model(batchnorm_model):
    """What a server part may know of a federation of ten clients that train that model."""
    weights, parameters = batchnorm_model
    return Facts(10, weights, tuple(parameters), ("norm.running_mean", "norm.running_var"))


@pytest.fixture(scope="session")
def make_update(batchnorm_model):
    """Return a function that draws a client's update of that model; running variances stay positive."""
    weights, parameters = batchnorm_model

    def make(client_id, *, seed=0, num_samples=None, num_steps=5, extras=None):
        generator = torch.Generator().manual_seed(1000 * seed + client_id)
        return ClientUpdate(
            client_id=client_id,
            delta={name: 0.1 * torch.randn(weights[name].shape, generator=generator) for name in parameters},
            buffers={
                "norm.running_mean": 0.1 * torch.randn(4, generator=generator),
                "norm.running_var": 0.1 * torch.rand(4, generator=generator),
            },
            num_samples=num_samples or 10 + client_id,
            num_steps=num_steps,
            step_weight=float(num_steps),
            metrics={"loss_sum": 1.0, "num_seen": 10},
            extras={name: torch.rand(like.shape, generator=generator) for name, like in (extras or {}).items()},
        )

    return make


def _same(left, right):
    if isinstance(left, torch.Tensor):
        return isinstance(right, torch.Tensor) and left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, Mapping):
        return isinstance(right, Mapping) and left.keys() == right.keys() and all(_same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return type(left) is type(right) and len(left) == len(right) and all(map(_same, left, right))
    return type(left) is type(right) and left == right


def _through_a_file(saved):
    file = io.BytesIO()
    torch.save(saved, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.fixture(scope="session")
def same():
    """Tell whether two states are equal, bit for bit."""
    return _same


@pytest.fixture(scope="session")
def through_a_file():
    """Return a state as it comes back from a checkpoint, which loads plain data and tensors only."""
    return _through_a_file
