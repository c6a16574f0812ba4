"""The folder is the catalogue and the signature is the schema (law 7)."""

import functools
import importlib
import inspect
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hydra.utils import get_object
from omegaconf import OmegaConf

from fedfacet import rng
from fedfacet.config import compose_job, make, plain, targets
from fedfacet.config.kinds import KINDS
from fedfacet.config.nodes import BESIDE_ARGUMENTS
from fedfacet.config.trust import check_trusted
from fedfacet.errors import ConfigError
from fedfacet.models.causal_lm import CausalLM

CONF = Path(__file__).parents[2] / "conf"
PACKAGE = Path(__file__).parents[2] / "src" / "fedfacet"
YAMLS = sorted(CONF.glob("*/*.yaml"))
NO_PARTS = {"hydra", "paths"}
OF_COMMANDS = {"attack": "attack", "deploy": "serve"}
"""Groups of commands other than ``train``, and these."""

OF_PARTS = [
    pytest.param(file, id=f"{file.parent.name}={file.stem}")
    for file in YAMLS
    if file.parent.name not in NO_PARTS and "@package _global_" not in file.read_text()
]
OTHER_INPUTS = ((64,), (80,))
"""The shapes of inputs that a model is tried with which refuses images: feature vectors, rows of characters."""

FOR_LANGUAGE_MODELS = {"next_token"}
"""Objectives that refuse other models."""

HELD_OUT = {"client_fairness", "federated_evaluate"}
"""Callbacks that nobody can have without samples that clients hold out."""

NO_OPTIONS = {"callbacks": {"mechanism", "module_metrics"}, "models": {"checks", "pretrained"}, "submodels": {"parts"}}
"""Modules that serve any part of a room instead of being one."""

ROOMS_OF_OPTIONS = ["aggregators", "callbacks", "engines", "models", "partitioners", "privacy", "selectors", "submodels"]
SHARED_MODULES = {
    "adapters": set(), "attacks": {"Trajectories", "Signals"}, "capacities": set(), "corrections": set(), "losses": set(),
    "participation": set(), "personal": set(), "schedulers": {"TorchScheduler"}, "termination": {"MetricTermination"},
    "transforms": set(), "devices.synthetic": set(), "devices.trace": set(),
    "aggregators.robust": set(), "models.resnet50": {"ResNet50Network"}, "objectives.counting": {"CountingObjective"},
    "partitioners.natural": set(), "partitioners.synthetic": set(), "callbacks.evaluate": {"Outcome"},
    "callbacks.evaluate_clients": {"ClientAccuracy", "TrainedModels"}, "callbacks.probabilities": set(),
    "callbacks.lightning_log": {"LoggerAdapter"},
}  # fmt: skip
"""Modules that hold all small parts of a kind, each an option -> what they hold beside these and their contract."""


@pytest.fixture
def nodes(node_of):
    """Return a function: yaml -> its nodes that name a class or a function."""

    def find(file):
        if file.parent.name in OF_COMMANDS:
            return list(targets(_composed_for(file)[file.parent.name]))
        return list(targets(node_of(file.parent.name, file.stem)))

    return find


def test_every_group_is_a_default_of_train_yaml():
    defaults = OmegaConf.to_object(OmegaConf.load(CONF / "train.yaml"))["defaults"]
    chosen = {group for default in defaults if isinstance(default, dict) for group in default}
    assert {file.parent.name for file in YAMLS} - set(OF_COMMANDS) == chosen


@pytest.mark.slow
def test_an_option_alone_is_what_it_is_among_others(composed, node_of):
    """Or what is held to the rules would not be what a run gets."""
    for file in (parameter.values[0] for parameter in OF_PARTS):
        group = file.parent.name
        if group not in OF_COMMANDS:
            assert plain(composed(f"{group}={file.stem}")[group]) == plain(node_of(group, file.stem)), file


@pytest.mark.parametrize("file", OF_PARTS)
def test_an_option_keeps_to_the_rules(file, nodes, facts):
    """In one test, since the configuration is composed for all of them once."""
    found = nodes(file)
    check_trusted([plain(node) for _, node in found], (), "a run folder, which may name it, or no run could be gone on with")
    assert_keys_are_exactly_the_hyperparameters(file, found, facts)
    assert_it_can_be_made(file, found, facts)
    assert_yaml_and_module_share_one_name(file, found)


def assert_keys_are_exactly_the_hyperparameters(file, found, facts):
    """Constructor arguments that no run-time fact supplies, every one of them, so that the yaml shows all there is to set.

    A key may also stand for a fact, which then differs where the configuration does.
    """
    for path, node in found:
        target = get_object(node["_target_"])
        parameters = inspect.signature(target).parameters
        keys = {str(key) for key in node} - {"_target_", "_partial_"} - BESIDE_ARGUMENTS
        supplied = set(facts) | ({"logits", "batch"} if file.parent.name == "loss" else set())
        assert keys <= set(parameters), f"{path}: not an argument of {target.__name__}"
        if node["_target_"].startswith("fedfacet."):
            assert keys == set(parameters) - (supplied - keys), f"{path}: keys and hyperparameters of {target.__name__} differ"


def made_for_some_input(node, facts):
    """Make a model for the first kind of input that it does not refuse."""
    refusals = []
    for shape in (facts["input_shape"], *OTHER_INPUTS):
        with rng.forked(0, "weights"):  # as build.py does
            try:
                return make(node, **facts | {"input_shape": shape})
            except (ValueError, ConfigError) as refusal:
                refusals.append(str(refusal))
    raise AssertionError(f"it refuses every kind of input: {refusals}")


def assert_it_can_be_made(file, found, facts):
    if file.stem in HELD_OUT:
        data = replace(facts["data"], local_holdout=(np.arange(2),))
        facts = facts | {"data": data, "num_holding_out": 1}
    if file.stem in FOR_LANGUAGE_MODELS:
        pytest.importorskip("transformers", reason="transformers, of the extra `text`, is not installed")
        with rng.forked(0, "weights"):
            facts = facts | {"model": CausalLM(2, (8,))}
    if file.stem == "text_classifier":  # the number of tokens follows from a data set of texts
        pytest.importorskip("transformers", reason="transformers, of the extra `text`, is not installed")
        found = [(path, OmegaConf.merge(node, {"vocabulary": 16})) for path, node in found]
    if file.stem == "flwr":
        pytest.importorskip("flwr_datasets", reason="the extra `flwr` is not installed")
    for _, node in found:
        made = made_for_some_input(node, facts) if file.parent.name == "model" else make(node, **facts)
        target = get_object(node["_target_"])
        assert callable(made) if node.get("_partial_") else isinstance(made, target)


def assert_yaml_and_module_share_one_name(file, found):
    """``pow_d.yaml`` names something in ``pow_d.py``; presets, and the questions a part asks, have names of their own."""
    group, option = file.parent.name, file.stem
    if "defaults" in OmegaConf.load(file):  # a list of siblings, which are held to it themselves
        return
    siblings = [str(OmegaConf.load(sibling).get("_target_")) for sibling in file.parent.glob("*.yaml")]
    for _, node in found:
        target = node["_target_"]
        if not target.startswith("fedfacet.") or siblings.count(target) > 1 or option in ("default", "deployed"):
            continue
        if group == "dataset" and sum(sibling.startswith(target.rpartition(".")[0] + ".") for sibling in siblings) > 1:
            continue  # a family of data sets, such as CIFAR's
        if target.startswith("fedfacet.clients.queries.") and target not in siblings:
            continue
        if target == "fedfacet.objectives.classification.cross_entropy":  # the usual loss stands beside its objective
            continue
        module, name = target.split(".")[-2:]
        if module in SHARED_MODULES or ".".join(target.split(".")[-3:-1]) in SHARED_MODULES:
            assert option.replace("_", "").removesuffix("s") in name.replace("_", "").lower(), f"{group}={option} is {name}"
            continue
        if target.startswith("fedfacet.methods.") and (CONF / "method" / f"{module}.yaml").is_file():  # one half of several
            continue
        assert module == option or module.startswith(f"{option}_"), f"{group}={option} lives in {module}.py"
        assert (PACKAGE.parent / Path(*target.split(".")[:-1])).with_suffix(".py").is_file()


@pytest.mark.parametrize("room", ROOMS_OF_OPTIONS)
def test_every_module_of_a_room_has_an_option(room):
    named = {target.split(".")[-2] for file in YAMLS for target in _targets_in(file) if f".{room}." in target}
    modules = {file.stem for file in (PACKAGE / room).glob("*.py")} - {"__init__", "base"} - NO_OPTIONS.get(room, set())
    assert modules == named


@pytest.mark.parametrize("room", ROOMS_OF_OPTIONS)
def test_a_module_holds_one_class_of_its_own(room):
    """One idea, one file. Private helpers do not count."""
    for file in (PACKAGE / room).glob("*.py"):
        if file.stem in {"__init__", "base"} | NO_OPTIONS.get(room, set()) or f"{room}.{file.stem}" in SHARED_MODULES:
            continue
        module = importlib.import_module(f"fedfacet.{room}.{file.stem}")
        classes = [name for name, value in vars(module).items() if _defined_here(value, module) and not name.startswith("_")]
        assert len(classes) == 1, f"{file.name} defines {classes}"


@pytest.mark.parametrize("name", SHARED_MODULES)
def test_every_part_of_a_shared_module_is_an_option(name):
    module = importlib.import_module(f"fedfacet.{name}")
    named = {get_object(target) for file in YAMLS for target in _targets_in(file) if target.startswith(f"{module.__name__}.")}
    contracts = set(map(get_object, KINDS.values())) | {getattr(module, helper) for helper in SHARED_MODULES[name]}
    public = [value for own, value in vars(module).items() if not own.startswith("_")]
    if name == "losses":
        held = {value for value in public if inspect.isfunction(value) and value.__module__ == module.__name__}
    else:
        held = {value for value in public if _defined_here(value, module)} - contracts
    assert held == named


def test_names_are_snake_case():
    names = [file.stem for file in YAMLS]
    assert [name for name in names if not name.replace("_", "a").isalnum() or name != name.lower()] == []


def _composed_for(file):
    needed = ["card=card.yaml", "roster=roster.yaml"] if file.parent.name == "deploy" else []
    return compose_job(OF_COMMANDS[file.parent.name], [f"{file.parent.name}={file.stem}", *needed])[0]


@functools.cache
def _targets_in(file):
    def walk(node):
        if isinstance(node, dict):
            if "_target_" in node:
                yield node["_target_"]
            for value in node.values():
                yield from walk(value)

    return list(walk(OmegaConf.to_container(OmegaConf.load(file))))


def _defined_here(value, module):
    return inspect.isclass(value) and value.__module__ == module.__name__
