"""Objective, correction and aggregator of conf/ in every combination: whole methods work, halves are refused (law 5)."""

import functools
import itertools
import re
from functools import partial
from pathlib import Path

import pytest
import torch

from fedfacet import config, rng, state
from fedfacet.build import build
from fedfacet.clients.local_training import LocalTraining
from fedfacet.compatibility import OPTIONAL, check_pairs
from fedfacet.devices.synthetic import UniformDevices
from fedfacet.errors import ConfigError
from fedfacet.models.small_cnn import SmallCNN
from fedfacet.objectives.classification import cross_entropy
from fedfacet.types import CLIENT_GRADIENTS, DEVICES

CONF = Path(__file__).parents[2] / "conf"
GROUPS = ("objective", "correction", "aggregator")
FOR_LANGUAGE_MODELS = {"next_token"}
"""Objectives that refuse the network of these tests; they give and need what ``classification`` does."""

OPTIONS = ({file.stem for file in (CONF / group).glob("*.yaml")} - FOR_LANGUAGE_MODELS for group in GROUPS)
PAIRS = list(itertools.product(*map(sorted, OPTIONS)))


@pytest.fixture(scope="module")
def parts_of(node_of, make_part):
    """Return a function: three options, other values of the correction's keys -> objective and aggregator."""

    def make(objective, correction, aggregator, **changed):
        handed = {
            "correction": make_part("correction", correction, **changed),
            "loss": cross_entropy,
            "optimizer": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
        }
        with rng.forked(0, "weights"):
            model = SmallCNN(2, (1, 4, 4), width=2, hidden=4)
        made = config.make(node_of("objective", objective), model=model, **handed)
        return {"objective": made, "aggregator": make_part("aggregator", aggregator)}

    return make


@pytest.fixture(scope="module")
def only_named(parts_of):
    """Return a function: three options -> parts that say what they give and need, made once each, as none is run."""
    made = functools.cache(parts_of)
    usual = {option: pair for *pair, option in PAIRS}

    def find(objective, correction, aggregator):
        return made(objective, correction, PAIRS[0][2]) | {"aggregator": made(*usual[aggregator], aggregator)["aggregator"]}

    return find


@pytest.fixture(scope="module")
def lacking_of(only_named):
    """Return a function: three options -> the names that one of them requires or provides and no other provides or requires."""

    @functools.cache
    def find(*options):
        parts = only_named(*options).values()
        provides, requires = (frozenset().union(*(getattr(part, kind) for part in parts)) for kind in ("provides", "requires"))
        return (requires - provides - {CLIENT_GRADIENTS, DEVICES}) | (provides - requires - OPTIONAL)

    return find


@pytest.fixture
def model_after(parts_of, tiny_federation):
    """Return a function: three options and local steps -> the model before and after some rounds."""

    def run(*options, steps, rounds=2, **changed):
        parts = parts_of(*options, **changed)
        local = LocalTraining(unit="steps", amount=steps, batch_size=8)
        federation = tiny_federation(**parts, local=local, cohort_size=3, rounds=rounds)
        before = federation.state.model
        return before, federation.fit().model

    return run


REFUSAL = re.compile(
    r"Expected a part that (?:provides|requires) '(\S+)', which (\w+)=(\w+) (?:requires|provides), but there is none: [^\n]+\."
)


def refused_by_what_it_lacks(parts, choices, lacking):
    """Tell whether the combination is refused in a sentence that names what is missing, and who wants it."""
    try:
        check_pairs(parts | {"devices": UniformDevices()}, choices)
    except ConfigError as refusal:
        said = REFUSAL.fullmatch(str(refusal))
        return said is not None and said[1] in lacking and choices[said[2]] == said[3]
    return False


def test_one_half_is_refused_by_what_it_lacks(only_named, lacking_of):
    refused = {options: lacking for options in PAIRS if (lacking := lacking_of(*options))}
    assert 0 < len(refused) < len(PAIRS)
    wrong = [
        options
        for options, lacking in refused.items()
        if not refused_by_what_it_lacks(only_named(*options), dict(zip(GROUPS, options, strict=True)), lacking)
    ]
    assert wrong == []


def covering(whole):
    """Return combinations that hold every objective with every correction that it goes with, and every aggregator.

    All combinations run in tests/parity/test_engines.py.
    """
    chosen, met = [], set()
    for least in (2, 1):
        for options in whole:
            if len(new := {options[:2], options[2]} - met) >= least:
                chosen.append(options)
                met |= new
    return chosen


def test_both_halves_go_together_and_change_the_whole_model(aggregator_option, parts_of, lacking_of, model_after):
    wrong = {}
    whole = covering([options for options in PAIRS if not lacking_of(*options)])
    for options in (options for options in whole if options[2] == aggregator_option):
        check_pairs(parts_of(*options) | {"devices": UniformDevices()}, dict(zip(GROUPS, options, strict=True)))
        before, after = model_after(*options, steps=3)
        still = [name for name in before if torch.equal(after[name], before[name])]
        if list(after) != list(before) or not state.all_finite(after) or still:
            wrong[options] = still
    assert wrong == {}


def test_a_build_refuses_half_a_method_before_anything_is_written(composed, lacking_of, tmp_path):
    """A combination for each group."""
    for position, group in enumerate(GROUPS):
        halves = {options[position]: options for options in PAIRS if lacking_of(*options)}
        whole = {options[position] for options in PAIRS if not lacking_of(*options)}
        assert whole == {options[position] for options in PAIRS}, f"every {group} is a part of some method"
        for options in list(halves.values())[:1]:
            job = composed(*map("=".join, zip(GROUPS, options, strict=True)), "debug=smoke")
            with pytest.raises(ConfigError, match="choose the other half of the method too"):
                build(job, tmp_path / "run")
            assert list(tmp_path.iterdir()) == []


UNLIKE = {"bounded_group_loss", "fair_lagrangian", "fedavg", "feddyn", "fedgft", "fednova", "fedpac", "krum", "lag"}
"""Aggregators with an objective of their own, with a weight for steps or a choice of clients; the others add up updates."""


@pytest.mark.parametrize(
    "aggregator",
    [
        pytest.param(aggregator, marks=() if aggregator in UNLIKE else pytest.mark.slow)
        for aggregator in sorted({aggregator for _, _, aggregator in PAIRS})
    ],
)
def test_mu_changes_a_later_local_step_and_not_the_first(aggregator, lacking_of, model_after):
    """Whatever the aggregator makes of the updates: at the start of a client's round the proximal term is flat."""
    objectives = sorted({objective for objective, _, _ in PAIRS}, key=lambda option: option != "classification")
    fitting = [o for o in objectives if not lacking_of(o, "none", aggregator) and not lacking_of(o, "proximal", aggregator)]
    if not fitting:
        pytest.skip(f"aggregator={aggregator} goes with a correction of its own alone")
    later = 2 if fitting[0] == "classification" else 4  # where head and body take turns, the second step may be another's first
    for steps in (1, later):
        _, plain = model_after(fitting[0], "none", aggregator, steps=steps, rounds=1)
        _, without = model_after(fitting[0], "proximal", aggregator, steps=steps, rounds=1, mu=0.0)
        _, pulled = model_after(fitting[0], "proximal", aggregator, steps=steps, rounds=1, mu=1.0)
        assert state.digest(without) == state.digest(plain)
        assert (state.digest(pulled) == state.digest(plain)) is (steps == 1)
