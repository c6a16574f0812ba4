"""A run of n rounds equals k rounds, a checkpoint on disk, and n - k more in another process's objects: bit for bit."""

import itertools
import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch

from fedfacet import state
from fedfacet.storage import checkpoint

CONF = Path(__file__).parents[2] / "conf"
ROUNDS, CUT = 3, 2

QUICK = (
    "heterogeneity.bias_steps=3", "heterogeneity.attribute_steps=2", "callbacks.evaluate.every_n_rounds=2",
    "partition.scale=0.3", "model.width=4", "model.hidden=16",
)  # fmt: skip


def options(group):
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def results(federation, rounds):
    return [(result.cohort, result.arrived, repr(result.metrics)) for result in (federation.run_round() for _ in range(rounds))]


def assert_it_resumes_exactly(make, path, *cuts):
    """Compare a run that goes on with others that take up its checkpoints; return what it ends in."""
    whole, told = make(), []
    for round in range(1, ROUNDS + 1):
        told += results(whole, 1)
        if round in (cuts or (CUT,)):
            checkpoint.save(path.with_name(f"{round}.ckpt"), whole.state, {"seed": 0})
    for cut in cuts or (CUT,):
        part = make()
        part.restore(checkpoint.load(path.with_name(f"{cut}.ckpt"))[0])
        assert results(part, ROUNDS - cut) == told[cut:]
        assert everything(part.state) == everything(whole.state)
    assert state.all_finite(whole.state.model)
    return whole.state


def digested(value):
    """Return a value with a digest in place of every tensor in it, of which ``repr`` shows a part, rounded."""
    if isinstance(value, torch.Tensor):
        return state.digest({"": value})
    if isinstance(value, np.ndarray):
        return digested(torch.from_numpy(value))
    if isinstance(value, Mapping):
        return {name: digested(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [digested(entry) for entry in value]
    return value


def everything(saved):
    """Return a federation's saved state as comparable text: digests for tensors, plain data as it is."""
    return repr([(field.name, digested(getattr(saved, field.name))) for field in fields(saved)])


def test_the_comparison_sees_the_last_bit_of_what_lies_deep():
    """Or the tests below could not fail."""
    heads = {0: {"head.weight": torch.arange(2000.0)}}
    other = {0: {"head.weight": heads[0]["head.weight"].clone()}}
    assert digested({"heads": heads}) == digested({"heads": other})
    other[0]["head.weight"][1000] += 1e-4
    assert repr(heads) == repr(other)
    assert digested({"heads": heads}) != digested({"heads": other})


def needed_by(group, option):
    """Return what the first line of an option's yaml says that it needs: group -> option."""
    line = (CONF / group / f"{option}.yaml").read_text().partition("\n")[0]
    return dict(re.findall(r"(objective|aggregator|local)=(\w+)", line)) if "Needs " in line else {}


KEEP = {
    ("feddiverse", "fedavgm"),  # answers, and a momentum
    ("pow_d", "fedyogi"),  # two moments
    ("favor", "fairfed"),  # a network that learns, and weights of clients
    ("oort", "fednova"),  # utilities by the clock
    ("fedpns", "fedavg"),  # shares of who has been kept
    ("cbim", "scaffold"),  # control variates, here and there
    ("k_fed", "fedminmax"),  # clusters, and reports
    ("s_fedavg", "global_reweighing"),  # values that updates have shown
    ("bandwidth_threshold", "rank_trimmed"),  # judged on the server's data
    ("diversity_score", "fair_lagrangian"),  # multipliers
    ("uniform", "lag"),  # a gradient of each client
}
"""Pairs in which a run keeps something different; tests/contract has each half's own state go through a file."""


def each_with_another():
    """Return every pair of options that go together; all are slow but those above."""
    aggregators = [one for one in options("aggregator") if one != "fedbuff"]  # goes with few selectors: test_async_schedule.py
    for selector, aggregator in itertools.product(options("selector"), aggregators):
        if needed_by("selector", selector).get("aggregator") in (None, aggregator):
            yield pytest.param(selector, aggregator, marks=() if (selector, aggregator) in KEEP else pytest.mark.slow)


@pytest.mark.parametrize(("selector", "aggregator"), list(each_with_another()))
def test_every_selector_and_aggregator_resumes_exactly(selector, aggregator, main_job, tmp_path):
    def make():
        halves = [half for half in ("objective", "correction") if (CONF / half / f"{aggregator}.yaml").exists()]
        parts = [f"{group}={aggregator}" for group in ("aggregator", *halves)]
        needed = needed_by("aggregator", aggregator) | needed_by("selector", selector)
        parts += [part for part in map("=".join, needed.items()) if part not in parts]
        methods = [CONF / "method" / f"{option}.yaml" for option in (aggregator, selector)]
        if any(method.exists() and "server_data" in method.read_text() for method in methods):
            parts.append("server_data=validation")
        if "Needs devices" in (CONF / "selector" / f"{selector}.yaml").read_text():
            parts.append("devices=lognormal")
        return main_job(f"selector={selector}", *parts, *QUICK)

    assert_it_resumes_exactly(make, tmp_path / "checkpoints" / "last.ckpt")


@pytest.mark.parametrize("participation", options("participation"))
def test_unreliable_clients_do_not_hinder_it(participation, main_job, tmp_path):
    def make():
        few = [setting for setting in QUICK if not setting.startswith("heterogeneity")]
        return main_job(f"participation={participation}", "heterogeneity=true", "correction=proximal", *few)

    assert_it_resumes_exactly(make, tmp_path / "checkpoints" / "last.ckpt", 1, 2)


def test_heads_and_mean_features_of_fedpac_survive(main_job, tmp_path):
    """The server has a head for each client, and every class's mean feature."""

    def make():
        return main_job("selector=uniform", "method=fedpac", "federation.cohort_size=5", *QUICK)

    ends = assert_it_resumes_exactly(make, tmp_path / "checkpoints" / "last.ckpt", 1, 2)
    assert len(ends.aggregator["heads"]) > 5
    assert ends.aggregator["centroids"]


@pytest.mark.parametrize("submodel", options("submodel"))
def test_parts_of_the_model_come_again(submodel, main_job, tmp_path):
    """With momentum, which entries that nobody held keep; every option sends other parts than the others do."""

    def make():
        capacity = "capacity=whole" if submodel == "whole" else "capacity=proportions"
        return main_job("selector=pow_d", "federation.cohort_size=3", capacity, f"submodel={submodel}", *QUICK)

    assert_it_resumes_exactly(make, tmp_path / "checkpoints" / "last.ckpt")


@pytest.mark.parametrize("adapter", options("adapter"))
def test_a_frozen_base_is_made_again(adapter, main_job, tmp_path):
    if adapter == "lora":
        pytest.importorskip("peft", reason="peft, of the extra `lora`, is not installed")

    def make():
        dropout = ["adapter.r=2", "adapter.dropout=0.3"] if adapter == "lora" else []
        return main_job("selector=uniform", f"adapter={adapter}", *dropout, *QUICK)

    assert_it_resumes_exactly(make, tmp_path / "checkpoints" / "last.ckpt")


def test_another_seed_is_another_run(main_job):
    cohorts = []
    for seed in (0, 1):
        federation = main_job("selector=uniform", f"seed={seed}")
        cohorts.append([federation.run_round().cohort for _ in range(2)])
    assert cohorts[0] != cohorts[1]


@pytest.mark.parametrize("momentum", [False, True], ids=["fresh", "kept"])
def test_noise_of_updates_and_of_steps_is_drawn_again(momentum, main_job, tmp_path):
    def make():
        noised = ("transforms=clip_and_noise", "privacy=dp_sgd", f"local.keep_optimizer={momentum}")
        return main_job(*noised, "selector=uniform", "aggregator=fedavg", *QUICK)

    assert_it_resumes_exactly(make, tmp_path / "checkpoints" / "last.ckpt")
