"""Every bundle of conf/method is the row of a table that it names, with every recipe."""

import csv
import re
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from fedfacet import state
from fedfacet.privacy.disclosure import KINDS, UPDATE

CONF = Path(__file__).parents[2] / "conf"
PARTS = ("selector", "aggregator", "correction")

ROWS = {
    # FedDiverse, table 3: the algorithms, with random selection
    "fedavg": ("uniform", "fedavg", "none"),
    "fedavgm": ("uniform", "fedavgm", "none"),
    "fedprox": ("uniform", "fedavg", "proximal"),
    "fedavgm_fedprox": ("uniform", "fedavgm", "proximal"),
    # table 1: all of them with FedAvgM, but FedNova, which is an average of its own with all clients in it
    "uniform": ("uniform", "fedavgm", "none"),
    "round_robin": ("round_robin", "fedavgm", "none"),
    "fednova": ("all", "fednova", "none"),
    "pow_d": ("pow_d", "fedavgm", "none"),
    "fedpns": ("fedpns", "fedavgm", "none"),
    "hcsfed": ("hcsfed", "fedavgm", "none"),
    "feddiverse": ("feddiverse", "fedavgm", "none"),
    # table 4 (thesis, table 17): the ablation
    "feddiverse_known": ("feddiverse", "fedavgm", "none"),
    "fedrk": ("fedrk", "fedavgm", "none"),
    # FedLD, tables 1 and 3
    "fedbn": ("uniform", "fedavg", "none"),
    "fedpac": ("uniform", "fedpac", "none"),
    "fedgh": ("uniform", "fedgh", "none"),
    "fedld": ("uniform", "fedld", "none"),
    # table 2: the ablation
    "fedld_margin": ("uniform", "fedavg", "none"),
    "fedld_principal": ("uniform", "fedld", "none"),
    # in no table of the five papers: rivals that users look for
    "scaffold": ("uniform", "scaffold", "scaffold"),
    "feddyn": ("uniform", "feddyn", "feddyn"),
    "ditto": ("uniform", "fedavg", "none"),
    "fedper": ("uniform", "fedavg", "none"),
    "moon": ("uniform", "fedavg", "none"),
}
CLIENTS = {
    "feddiverse": {"heterogeneity": "estimated"},
    "feddiverse_known": {"heterogeneity": "true"},
    "fedbn": {"personal": "norm_layers"},
    "fedper": {"personal": "head"},
    "fedpac": {"objective": "fedpac"},
    "fedld": {"loss": "margin"},
    "fedld_margin": {"loss": "margin"},
    "ditto": {"objective": "ditto"},
    "moon": {"objective": "moon"},
}
"""What else a row has: what its clients disclose and keep, and what they minimise where it is not the cross-entropy."""


def clients_of(method):
    return {"objective": "classification", "loss": "cross_entropy"} | CLIENTS.get(method, {})


@pytest.fixture
def chosen(job_of):
    return job_of


def assert_is(job, method):
    assert tuple(job.choices[part] for part in PARTS) == ROWS[method]
    assert job.choices.method == method
    for group, option in clients_of(method).items():
        assert job.choices[group] == option


def parts_of(method):
    """Return what a bundle chooses."""
    bundle = OmegaConf.to_object(OmegaConf.load(CONF / "method" / f"{method}.yaml"))
    assert set(bundle) == {"defaults"}
    return {group.removeprefix("override /"): option for default in bundle["defaults"] for group, option in default.items()}


@pytest.mark.parametrize("row", ROWS)
def test_there_is_a_bundle_for_every_row_that_says_where_it_is(row):
    text = (CONF / "method" / f"{row}.yaml").read_text()
    source = r"(FedDiverse \(arXiv:2504\.11216\), table \d|FedLD, tables? \d|\w+ \(.*arXiv:\d)"
    assert re.match(rf"# @package _global_\n# {source}", text)
    assert parts_of(row) == dict(zip(PARTS, ROWS[row], strict=True)) | clients_of(row)


def test_it_names_every_part_and_sets_nothing_else(method_option):
    """Cohort size, rounds and learning rate are the recipe's; every part is named, whatever the recipe has there."""
    text = (CONF / "method" / f"{method_option}.yaml").read_text()
    assert re.match(r"# @package _global_\n# \S", text), "and its second line says what it is"
    assert parts_of(method_option).keys() >= {*PARTS, "objective", "loss"}


FEW = ("cifar100_participation", "digits_gsc", "fedld_pneumonia", "shakespeare", "waterbirds")
"""Recipes that set different things."""


def recipes():
    for file in sorted((CONF / "experiment").glob("*.yaml")):
        yield pytest.param(file.stem, marks=() if file.stem in FEW else pytest.mark.slow)


@pytest.mark.parametrize("recipe", list(recipes()))
def test_every_recipe_takes_fedpac(recipe, chosen):
    """After the recipe, which keeps all the rest."""
    alone = chosen(f"experiment={recipe}")
    job = chosen(f"experiment={recipe}", "method=fedpac")
    assert_is(job, "fedpac")
    for group in set(alone.choices) - {*PARTS, *clients_of("fedpac"), "method"}:
        assert job.choices[group] == alone.choices[group], group
    for key in ("federation", "local", "optimizer", "dataset", "partition", "model"):
        assert job[key] == alone[key], key


@pytest.mark.slow
def test_every_recipe_takes_every_bundle(method_option, experiment_option, chosen):
    job, parts = chosen(f"experiment={experiment_option}", f"method={method_option}"), parts_of(method_option)
    assert {group: job.choices[group] for group in parts} == parts


def test_the_command_line_has_the_last_word(chosen):
    """``method=fedprox selector=feddiverse`` is the other column of table 3."""
    job = chosen("method=fedprox", "selector=feddiverse", "aggregator.weighting=samples")
    assert tuple(job.choices[part] for part in PARTS) == ("feddiverse", "fedavg", "proximal")
    assert job.aggregator.weighting == "samples"
    assert job.correction.mu == 0.1


def test_a_row_does_not_keep_the_recipes_loss(chosen):
    job = chosen("experiment=fedld_pneumonia", "method=fedavgm")
    assert (job.choices.loss, job.choices.objective) == ("cross_entropy", "classification")


def test_without_one_the_recipe_stays(chosen):
    job = chosen()
    assert job.choices.method is None
    assert job.choices.selector == "feddiverse"


def test_it_has_what_it_names_and_runs(method_option, smoke):
    whole = ["capacity.rates=[1.0]", "capacity.shares=[1.0]"]  # or what is written down below would not be all of it
    networks = {
        "fedbn": ["model=resnet8"],
        "heterofl": ["model=scaler_cnn", "model.norm=static", "model.width=2", *whole],
        "fjord": whole,
    }
    network = networks.get(method_option, [])  # which has the layers that the method is about
    federation, run_dir = smoke(f"method={method_option}", "callbacks=[disclosures,csv_log]", *network)
    parts = parts_of(method_option)
    assert smoke.job.choices.method == method_option
    assert {group: smoke.job.choices[group] for group in parts} == parts
    assert federation.state.round == 1
    assert_all_that_left_is_written_down(federation, run_dir)
    if method_option not in ROWS:  # somebody's own
        return
    names = [type(part).__name__.lower() for part in (federation.selector, federation.aggregator)]
    expected = [ROWS[method_option][position].replace("_", "") for position in (0, 1)]
    assert names == [f"{expected[0]}selector", expected[1]]
    curvature = 0.1 if "prox" in method_option else 0.01 if method_option == "feddyn" else 0.0
    assert federation.engine.clients.objective.curvature == curvature
    assert (federation.engine.clients.objective.correction is None) == (ROWS[method_option][2] == "none")
    everybody = ROWS[method_option][0] in ("all", "hcsfed")
    assert federation.state.participation_counts.sum() == (federation.num_clients if everybody else 3)


def assert_all_that_left_is_written_down(federation, run_dir):
    """What crossed upwards is answers, updates, and what came along with these, which ``disclosures.csv`` has."""
    (row,) = rows_of(run_dir / "metrics.csv")
    facts = federation.facts
    update = state.num_floats({name: facts.model[name] for name in (*facts.parameters, *facts.buffers)})
    written = rows_of(run_dir / "disclosures.csv")
    told = int(float(row["comm/query_floats_up"])) + int(float(row["comm/floats_up"])) - int(row["num_arrived"]) * update
    assert sum(int(one["floats"]) for one in written) == told
    assert {one["kind"] for one in written} <= {*KINDS, UPDATE}


def rows_of(file):
    return list(csv.DictReader(file.read_text().splitlines())) if file.exists() else []
