"""Engines change the time that a run takes, and nothing else (law 4): for everything that clients may train, send and keep.

Each case is a short run of five clients of unequal size, some of them stragglers, all of whom take part in two rounds, so that
what a client keeps is used. There is a case for every option of the groups below, found in ``conf/``.
"""

import functools
import importlib.util
import itertools
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from torch.nn.modules.module import register_module_forward_pre_hook

from fedfacet import state
from fedfacet.build import build, settle
from fedfacet.callbacks.base import Callback
from fedfacet.compatibility import check_pairs
from fedfacet.config import compose_job, make, plain
from fedfacet.devices.synthetic import UniformDevices
from fedfacet.errors import ConfigError
from fedfacet.methods.lag import LAG
from fedfacet.models.small_cnn import SmallCNN
from fedfacet.types import ASYNCHRONOUS

CONF = Path(__file__).parents[2] / "conf"

PLAIN = {
    "objective": "classification",
    "loss": "cross_entropy",
    "correction": "none",
    "personal": "none",
    "optimizer": "sgd",
    "transforms": "none",
    "privacy": "none",
    "aggregator": "fedavg",
}

BASE = {
    "experiment": "digits_gsc",
    "partition": "dirichlet",
    "partition.num_clients": 5,
    "partition.alpha": 1.0,
    "participation": "stragglers",
    "selector": "all",
    "federation.rounds": 2,
    "federation.cohort_size": 5,
    "model.width": 4,
    "model.hidden": 8,
    "local.batch_size": 32,
    "threads": 1,
    "callbacks": "evaluate",
    "logger": "[]",
    **PLAIN,
}

JUDGED = {
    **{"server_data": "validation", "partition": "iid", "partition.alpha": None},
    **{"optimizer.lr": 0.3, "local.batch_size": 8},
}
"""With ``BASE``'s rate all clients' models tell the server the same class, so that a rule that ranks them weighs none apart."""

NEEDS = {
    "personal=norm_layers": {"model": "resnet8", "model.hidden": None},
    "objective=fedrs": {"partition.alpha": 0.1},  # some clients lack a class
    "objective=masked": {"partition.alpha": 0.1},
    "optimizer=adam": {"optimizer.lr": 0.01, "local.max_grad_norm": 0.5},
    "aggregator=fair_fate": {"server_data": "validation", "aggregator.measure": "accuracy_parity"},
    "aggregator=ddaba": JUDGED,
    "aggregator=fair_grad": {"server_data": "validation"},
    "aggregator=rank_trimmed": JUDGED,
    "aggregator=fair_accuracy": JUDGED,
    "aggregator=norm_bound": {"aggregator.bound": 0.04},
    "aggregator=fedbuff": {"devices": "lognormal", "selector": "uniform", "federation.cohort_size": 2},
    "transforms=packet_loss": {"devices": "lognormal", "transforms.packet_loss.rate": 0.5},
    "transforms=clip": {"transforms.clip.clip_norm": 0.05},
    "transforms=clip_and_noise": {"transforms.clip_and_noise.clip_norm": 0.05},
}
"""What an option would do nothing without; ``None`` takes away what ``BASE`` sets."""

OTHER_IMAGES = {"partition": "iid", "partition.alpha": None, "local.unit": "steps", "local.amount": 4, "local.batch_size": 8}

LANGUAGE_MODEL = {
    **OTHER_IMAGES,
    **{"dataset": "shakespeare", "smoke": True, "model": "causal_lm", "model.width": None, "model.hidden": None},
    **{
        "model.hidden_size": 8,
        "model.num_heads": 2,
        "model.architecture": "gpt2",
        "objective": "next_token",
        "optimizer.lr": 0.5,
    },
    "model.attention": "eager",  # torch cannot stack the other
    **{f"+model.arguments.{name}_pdrop": 0.0 for name in ("attn", "embd", "resid")},
}

BESIDES = {
    "batch normalisation": {"model": "resnet8", "model.hidden": None, "aggregator": "fedavgm"},
    "kept momentum": {"local.keep_optimizer": True, "local.sampling": "with_replacement"},
    "fednova of proximal steps": {"aggregator": "fednova", "correction": "proximal"},
    "all at once": {
        **{"objective": "fedpac", "aggregator": "fedpac", "correction": "proximal", "loss": "margin"},
        **{"transforms": "clip", "transforms.clip.clip_norm": 0.5, "scheduler": "exponential", "local.keep_optimizer": True},
        "local.sampling": "with_replacement",
    },
    "dropout": {
        **OTHER_IMAGES,
        **{"dataset": "shakespeare", "smoke": True, "model": "char_lstm", "model.width": None, "model.hidden": None},
        **{"model.embedding_size": 4, "model.hidden_size": 8, "model.dropout": 0.5, "optimizer.lr": 0.5},
    },
    "shifted and mirrored": {**OTHER_IMAGES, "dataset": "cifar100", "smoke": True},
    "zoomed and turned": {**OTHER_IMAGES, "dataset": "retina", "dataset.image_size": 16, "smoke": True},
    "parts of the model": {
        **{"capacity": "proportions", "capacity.assignment": "dynamic", "submodel": "fed_dropout"},
        **{"aggregator": "fedavgm", "correction": "proximal"},
    },
    "parts with running statistics": {
        **{"model": "resnet8", "model.hidden": None, "capacity": "largest", "submodel": "gfm", "aggregator": "fednova"},
    },
    "parts that normalise by their batch": {
        **{"model": "scaler_cnn", "model.hidden": None, "model.norm": "batch", "dataset": "cifar10", "smoke": True},
        **{"capacity": "largest", "capacity.rate": 0.25, "submodel": "fedrolex", **OTHER_IMAGES},
    },
    "private parts of the model": {
        **{"privacy": "dp_sgd", "model": "scaler_cnn", "model.width": 4, "model.hidden": None, "optimizer": "adam"},
        **{"capacity": "largest", "submodel": "gfm", "transforms": "clip_and_noise", "local.keep_optimizer": None},
    },
    "a frozen base": {"adapter": "frozen"},
    **({"low-rank changes": {"adapter": "lora", "adapter.r": 2}} if importlib.util.find_spec("peft") else {}),
    **({"a language model": LANGUAGE_MODEL} if importlib.util.find_spec("transformers") else {}),
    "two threads": {"threads": 2, "model.width": 16, "model.hidden": 64, "local.unit": "steps", "local.amount": 2},
}

FOR_LANGUAGE_MODELS = {"next_token"}
"""Objectives that refuse the plain network; a case of ``BESIDES`` has one that they take."""

OPTIONS = {group: sorted({file.stem for file in (CONF / group).glob("*.yaml")} - FOR_LANGUAGE_MODELS) for group in PLAIN}

MULTIPLIED = ("objective", "correction", "aggregator")


@functools.cache
def nodes_of(group, option):
    """Return an option as its yaml has it, beside what an aggregator may ask for."""
    beside = {"optimizer": {"lr": 0.1}, "federation": {"rounds": 2}}
    return OmegaConf.create({group: OmegaConf.load(CONF / group / f"{option}.yaml"), **beside})[group]


@functools.cache
def objective_with(objective, correction):
    made = make(nodes_of("correction", correction))
    return make(nodes_of("objective", objective), model=SmallCNN(2, (3, 8, 8)), correction=made)


@functools.cache
def aggregator_of(aggregator):
    return make(nodes_of("aggregator", aggregator))


def go_together(options):
    """Tell whether a run may have these three, or whether a method's other half is missing."""
    parts = {
        "objective": objective_with(options["objective"], options["correction"]),
        "aggregator": aggregator_of(options["aggregator"]),
        "devices": UniformDevices(),  # for those that need some
    }
    try:
        check_pairs(parts, options)
    except ConfigError:
        return False
    return True


def unusual(options):
    return {group: option for group, option in options.items() if option != PLAIN[group]}


def name_of(options):
    return " ".join(f"{group}={option}" for group, option in options.items()) or "plain"


TOGETHER = {
    " ".join(options.values()): options
    for values in itertools.product(*(OPTIONS[group] for group in MULTIPLIED))
    if go_together(options := dict(zip(MULTIPLIED, values, strict=True)))
}
"""Every objective with every correction and every aggregator that it goes with."""


def simplest(group, option):
    """Return what has to be chosen for the sake of an option: itself, and the other half of its method."""
    if group not in MULTIPLIED:
        return {group: option}
    return min((unusual(options) for options in TOGETHER.values() if options[group] == option), key=len)


def suits(group, option):
    """Tell whether an option goes with ``BASE``: the plain network has what a personal part keeps, or ``NEEDS`` another."""
    if f"{group}={option}" == "transforms=silence":
        return False  # its clients take one step a round, and none straggles
    if group != "personal" or f"{group}={option}" in NEEDS:
        return True
    try:
        make(OmegaConf.load(CONF / group / f"{option}.yaml")).names(SmallCNN(2, (3, 8, 8)))
    except ConfigError:
        return False
    return True


CASES = {
    "plain": {},
    **{
        name_of(chosen): {**chosen, **NEEDS.get(name_of(chosen), {})}
        for group, usual in PLAIN.items()
        for option in OPTIONS[group]
        if option != usual and suits(group, option) and (chosen := simplest(group, option))
    },
    **BESIDES,
}

FALLS_BACK = {
    "objective=ditto": "Expected an objective that is `divisible`, but DittoObjective does not say that it is",
    "objective=ordered_dropout": "Expected training that can be stacked, but got RuntimeError (Tensor.item() cannot be called "
    "on meta tensors)",
    "all at once": "Expected clients whose optimizers begin without a memory, but they keep theirs",
    "dropout": "Expected layers that can be stacked, but LSTM cannot be (Batching rule not implemented for aten::lstm.input)",
    "privacy=dp_sgd": "Expected gradients of batches, but those of privacy=dp_sgd are taken sample by sample",
    "kept momentum": "Expected clients whose optimizers begin without a memory, but they keep theirs",
    "parts of the model": "Expected clients with models of one shape, but they have several",
    "parts with running statistics": "Expected clients with models of one shape, but they have several",
    "parts that normalise by their batch": "Expected clients with models of one shape, but they have several",
    "private parts of the model": "Expected clients with models of one shape, but they have several",
}
"""Why the vectorized engine trains the clients of a case one after another; it stacks those of all others."""

TOLERANCES = {torch.float32: 1e-3, torch.float64: 1e-12}
"""Of an update, relative to its largest number; rounding in single precision grows over the steps of two rounds."""

IN_SINGLE = ("fedpac", "moon", "fair_lagrangian", "fpfl")
"""Objectives that take features past the hook that makes inputs double, or send single precision."""

SINGLE_TOO = ("plain",)
"""What is compared in both precisions; other layers and data are in the slow tests."""


def seen_by_engines(case):
    """Return what of a case engines see: all that clients have, and how the server's half uses them, whatever it computes."""
    chosen = PLAIN | CASES[case]
    made = aggregator_of(chosen.pop("aggregator"))
    uses = [getattr(made, name) is not None for name in ("broadcast", "report", "prepare", "judges")]
    uses += [
        made.takes_mean,
        ASYNCHRONOUS in made.provides,
        isinstance(made, LAG),
        made.entrywise,
        bool(made.provides),
        bool(made.requires),
    ]
    chosen = {key: value for key, value in chosen.items() if not key.startswith(("aggregator.", "server_data"))}
    return repr(sorted(chosen.items(), key=str)), tuple(uses)


def first_of_each_kind():
    """Return the first case of all that differ in the server's arithmetic alone."""
    kinds = {}
    for case in CASES:
        kinds.setdefault(seen_by_engines(case), case)
    return set(kinds.values())


OF_A_KIND = first_of_each_kind()
SEEN = OF_A_KIND - {"two threads"}

ON_WORKERS = {
    "plain",
    "batch normalisation",  # buffers
    "dropout",  # draws of its own, and another kind of data
    "shifted and mirrored",  # augmentation
    "objective=ditto",  # memory, and clients that cannot be divided
    "correction=scaffold aggregator=scaffold",  # extras in both directions, and memory
    "objective=fedgft aggregator=fedgft",  # reports
    "aggregator=fair_accuracy",  # the server's own data
    "aggregator=fedbuff",  # models of several rounds
    "aggregator=lag",  # what the server keeps of each client
    "privacy=central",
    "private parts of the model",  # submodels, noise of steps and of updates
    "a frozen base",
    "all at once",
}
"""A case for each thing that travels between processes; the others are slow: what they compute, a client computes alone."""

NOT_STACKED = {
    *("transforms=clip", "transforms=label_flip", "transforms=random_update", "transforms=sign_flip", "privacy=central"),
    *("personal=norm_layers", "personal=model", "correction=proximal"),
}
"""What changes one client's update after the other's as other transforms do, and what a case of several has too: slow."""


def to_stack(case):
    """Tell whether a case has layers, steps or a server's message of its own for clients that are stacked."""
    made = aggregator_of((PLAIN | CASES[case])["aggregator"])
    works_on = ASYNCHRONOUS in made.provides or isinstance(made, LAG)
    return case in OF_A_KIND - NOT_STACKED and (not case.startswith("aggregator=") or works_on)


def slow_unless(usual, *values):
    return pytest.param(*values, marks=[] if usual else [pytest.mark.slow])


STACKED = [case for case in CASES if case not in FALLS_BACK and case != "two threads"]
IN_BOTH = [
    slow_unless(to_stack(case) and (dtype == torch.float64 or needs_single or case in SINGLE_TOO), case, dtype)
    for case in STACKED
    for needs_single in [any(name in case for name in IN_SINGLE)]
    for dtype in TOLERANCES
    if (dtype == torch.float32) == needs_single or (not needs_single and (case == "plain" or case in BESIDES))
]
"""In double precision, which shows the least difference; in single precision where layers and data differ."""


def federation_of(job):
    settle(job)
    return build(job, None)


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    """Return a function: case, an engine's settings -> the configuration of a run."""

    @functools.cache
    def composed(case):
        chosen = BASE | (CASES | TOGETHER)[case]
        chosen |= NEEDS.get(f"aggregator={chosen['aggregator']}", {})
        chosen = {key: value for key, value in chosen.items() if value is not None}
        return compose_job("train", [f"{key}={value}" for key, value in chosen.items()])[0]

    def make(case, engine, **arguments):
        job = composed(case).copy()
        target = f"fedfacet.engines.{engine}.{engine.capitalize()}Engine"
        job.engine = {"_target_": target, "device": "cpu", **arguments}
        return job

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("generated")))
        yield make


@pytest.fixture(scope="module")
def starts():
    """The model that each case's runs have begun with."""
    return {}


@pytest.fixture(scope="module")
def run(settings, starts):
    """Return a function: case, an engine's settings -> the results of its two rounds, and the state that it ends in."""

    def make(case, engine, **arguments):
        federation = federation_of(settings(case, engine, **arguments))
        starts[case] = state.clone(federation.state.model)
        try:
            return [federation.run_round() for _ in range(2)], federation.state
        finally:
            federation.engine.close()

    return make


@pytest.fixture(scope="module")
def reference(run):
    """Return a function: case -> what it comes to with the sequential engine."""
    return functools.cache(lambda case: run(case, "sequential"))


@pytest.fixture
def on_two_ranks(settings, checkout, tmp_path):
    """Return a function: cases -> what they come to on two ranks; see ``two_ranks.py``, which starts them once for all."""

    def run_all(cases):
        runs = tmp_path / "runs.json"
        runs.write_text(json.dumps({case: plain(settings(case, "distributed", timeout_seconds=60)) for case in cases}))
        result = subprocess.run(
            [sys.executable, str(checkout / "tests" / "engines" / "two_ranks.py"), str(runs)],
            cwd=tmp_path,
            # Where generated data may lie: the ranks generate it where no other test has.
            env={**os.environ, "PYTHONPATH": str(checkout / "src"), "TMPDIR": tempfile.gettempdir()},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert result.returncode == 0, result.stderr
        return torch.load(runs.with_suffix(".pt"), weights_only=False)

    return run_all


def digests(value):
    """Put digests in the place of tensors."""
    if isinstance(value, torch.Tensor):
        return state.digest({"": value})
    if isinstance(value, dict):
        return {key: digests(one) for key, one in value.items()}
    return value


def facts(history):
    """All that two equal runs have in common, as text: NaN is not equal to itself."""
    results, saved = history
    told = [(result.cohort, result.receipts, dict(result.metrics), result.ledger) for result in results]
    return [*map(repr, told), *(f"{part.name}: {digests(getattr(saved, part.name))!r}" for part in fields(saved))]


def assert_close(ours, theirs, tolerance):
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=0, atol=tolerance, msg=lambda text, name=name: f"{name}: {text}")


# What is compared


@pytest.mark.parametrize("case", [slow_unless(case in SEEN, case) for case in CASES])
def test_it_is_a_run_in_which_something_happens(case, reference, starts):
    """Or engines that do nothing would agree too."""
    results, saved = reference(case)
    start = starts[case]
    steps = [result.metrics["train/num_steps"] for result in results]
    buffer = 2 if case == "aggregator=fedbuff" else 5
    assert [len(set(result.arrived)) for result in results] == [buffer] * 2
    assert min(steps) > 5, "more than one step for some"
    assert steps[0] != steps[1], "others straggle"
    moved = {**state.subtract(saved.model, start), **{f"{k}/{n}": t for k, own in saved.memory.items() for n, t in own.items()}}
    assert state.norm({name: tensor for name, tensor in moved.items() if tensor.is_floating_point()}) > 1e-2


@pytest.mark.parametrize("cases", [SEEN, pytest.param(set(CASES), marks=pytest.mark.slow)], ids=["of a kind", "all"])
def test_the_cases_differ(cases, reference):
    """Every option does something, so that no two runs are the same; tests/contract says so of aggregators alone."""
    alike: dict[str, list[str]] = {}
    for case in [case for case in CASES if case in cases]:
        alike.setdefault(repr(facts(reference(case))), []).append(case)
    assert [cases for cases in alike.values() if len(cases) > 1] == []


# Exact engines


@pytest.mark.parametrize(
    "case", [*(slow_unless(case in ON_WORKERS, case) for case in CASES), *(slow_unless(False, case) for case in TOGETHER)]
)
def test_two_workers_come_to_the_same_bit_for_bit(case, run, reference):
    """Of five clients some are divided between the two, where what they train can be."""
    assert facts(run(case, "workers", workers=2)) == facts(reference(case))


@pytest.mark.parametrize("cases", [CASES, TOGETHER], ids=["one by one", "together"])
@pytest.mark.slow
def test_two_ranks_come_to_the_same_bit_for_bit(cases, on_two_ranks, reference):
    """All cases in one test, since the ranks take seconds to start."""
    histories = on_two_ranks(cases)
    assert histories.keys() == cases.keys()
    differing = {
        case: [(ours, theirs) for ours, theirs in zip(facts(history), facts(reference(case)), strict=True) if ours != theirs]
        for case, history in histories.items()
    }
    assert not {case: parts for case, parts in differing.items() if parts}


def test_another_number_of_threads_comes_to_nearly_the_same(settings):
    """Sums over threads have another order."""
    models = []
    for threads in (1, 2):
        job = settings("two threads", "sequential")
        job.threads = threads
        federation = federation_of(job)
        assert torch.get_num_threads() == threads
        federation.run_round()
        models.append(federation.state.model)
    assert_close(*models, tolerance=1e-5)


# The inexact engine


def in_precision(dtype, module, inputs):
    """Return a layer's inputs in some precision; tokens stay whole numbers."""
    return tuple(x.to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in inputs)


@pytest.fixture(scope="module")
def two_rounds(settings):
    """Return a function: case, engine, dtype -> the federation after two rounds, and all updates."""

    def make(case, engine, dtype=torch.float32):
        usual = torch.get_default_dtype()
        torch.set_default_dtype(dtype)  # of the model that is made
        trial = register_module_forward_pre_hook(functools.partial(in_precision, dtype))
        try:
            federation = federation_of(settings(case, engine))
        finally:
            torch.set_default_dtype(usual)
            trial.remove()
        federation.engine.clients.objective.model.register_forward_pre_hook(functools.partial(in_precision, dtype))
        witness = Witness()
        federation.callbacks["witness"] = witness
        federation.state = replace(federation.state, callbacks=federation.state.callbacks | {"witness": {}})
        for _ in range(2):
            federation.run_round()
        return federation, witness.updates

    return make


class Witness(Callback):
    """Keeps what the clients sent."""

    needs_updates = True

    def __init__(self):
        self.updates = []

    def on_updates(self, federation, updates):
        self.updates.extend(updates)


def assert_same_updates(ours, theirs, dtype):
    """Compare what clients send and keep, each bundle relative to its largest number."""
    assert [update.client_id for update in ours] == [update.client_id for update in theirs]
    for our, their in zip(ours, theirs, strict=True):
        assert (our.num_steps, our.num_samples, our.step_weight) == (their.num_steps, their.num_samples, their.step_weight)
        assert our.metrics["loss_sum"] == pytest.approx(their.metrics["loss_sum"], rel=TOLERANCES[dtype])
        for name in ("delta", "buffers", "extras", "memory"):
            bundle = getattr(their, name)
            scale = max((float(tensor.abs().max()) for tensor in bundle.values() if tensor.numel()), default=0.0)
            assert_close(getattr(our, name), bundle, TOLERANCES[dtype] * max(scale, 1e-3))


@pytest.mark.parametrize(("case", "dtype"), IN_BOTH)
def test_clients_side_by_side_come_to_nearly_the_same(case, dtype, two_rounds):
    (ours, our_updates), (theirs, their_updates) = (two_rounds(case, engine, dtype) for engine in ("vectorized", "sequential"))
    if (reason := ours.engine.fallback_reason) is not None and reason.startswith(("Expected clients", "Expected an objective")):
        assert state.digest(ours.state.model) == state.digest(theirs.state.model)
        pytest.skip(f"{reason} (nothing to do for a part of your own; ours are in FALLS_BACK)")
    assert reason is None
    assert_same_updates(our_updates, their_updates, dtype)
    assert_close(ours.state.model, theirs.state.model, TOLERANCES[dtype])
    assert {tensor.dtype for tensor in ours.state.model.values() if tensor.is_floating_point()} == {dtype}


@pytest.mark.parametrize("case", [slow_unless(not case.startswith(("all", "parts ", "private")), case) for case in FALLS_BACK])
def test_who_cannot_be_side_by_side_is_told_and_comes_to_the_same(case, settings, reference):
    federation = federation_of(settings(case, "vectorized"))
    history = [federation.run_round() for _ in range(2)], federation.state
    assert federation.engine.fallback_reason == FALLS_BACK[case]
    assert facts(history) == facts(reference(case))


@pytest.mark.slow
@pytest.mark.parametrize("case", TOGETHER)
def test_side_by_side_or_not_it_comes_to_nearly_the_same(case, two_rounds):
    (ours, _), (theirs, _) = (two_rounds(case, engine) for engine in ("vectorized", "sequential"))
    stacked = not any(name_of(simplest(group, option)) in FALLS_BACK for group, option in TOGETHER[case].items())
    assert (ours.engine.fallback_reason is None) == stacked
    assert_close(ours.state.model, theirs.state.model, tolerance=1e-4 if stacked else 0)
