"""Every sweep says what it is, names options that there are, and goes together with overrides of the user's."""

import math
import re
import shlex
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from fedfacet import config

CONF = Path(__file__).parents[2] / "conf"
FIRST_LINES = ("# Source: ", "# Cells: ", "# Command: python src/train.py")
GENERIC = "cells"
ALIKE = {
    *("bad_clients", "coloured_mnist", "fairness_levels", "fairness_methods", "fedld_table1", "fedld_table2", "fedld_table3"),
    *("model_integration", "participation_cifar100", "participation_selectors", "participation_shakespeare", "selector_zoo"),
    *("table3", "table7", "table8", "thesis_table23"),
}
"""Sweeps through nothing but keys that others go through too."""

USUAL = {"test_it_composes_with_overrides_of_the_users": {file.stem for file in (CONF / "sweep").glob("*.yaml")} - ALIKE}
PICTURES = {"sensitivity", "fedld_decomposition"}
"""Sweeps with a folder of their own, which is drawn as a whole."""


def params(sweep):
    """What a sweep runs through: key -> values."""
    found = OmegaConf.to_container(OmegaConf.load(CONF / "sweep" / f"{sweep}.yaml"), resolve=False)["hydra"].get("sweeper", {})
    parsed = OverridesParser.create().parse_overrides([f"{key}={value}" for key, value in found.get("params", {}).items()])
    return {
        override.key_or_group: list(override.sweep_string_iterator())
        if override.is_sweep_override()
        else [str(override.value())]
        for override in parsed
    }


def jobs_of(*overrides):
    """Return all jobs of a sweep so small that all of them are looked at beforehand."""
    jobs = config.preflight("train", ["train.py", *overrides, "-m"])[1]
    assert len(jobs.looked_at) == len(jobs)
    return jobs.looked_at


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_the_header_names_source_number_of_cells_and_command(sweep_option):
    lines = (CONF / "sweep" / f"{sweep_option}.yaml").read_text().splitlines()
    assert lines[0] == "# @package _global_"
    if sweep_option == GENERIC:
        return
    for first in FIRST_LINES:
        assert sum(line.startswith(first) for line in lines) == 1, f"one line that starts with {first!r}"
    source, cells, command = (next(line for line in lines if line.startswith(first)) for first in FIRST_LINES)
    assert re.search(r"arXiv:\d{4}\.\d{5}|github\.com/", source)
    assert int(re.match(r"# Cells: (\d+)", cells)[1]) == math.prod(map(len, params(sweep_option).values()))
    assert shlex.split(command)[-2:] == [f"sweep={sweep_option}", "-m"]


def test_it_names_options_that_there_are(sweep_option):
    for group, options in params(sweep_option).items():
        if "." not in group and group != "seed":
            assert set(options) <= {file.stem for file in (CONF / group).glob("*.yaml")}


def test_it_composes_with_overrides_of_the_users(sweep_option):
    """The last of its cells, on other data, and with an option of the user's."""
    mine = ["experiment=digits_gsc", "seed=7", "loss=generalized_cross_entropy", "debug=smoke"]
    others = {key: values for key, values in params(sweep_option).items() if key not in ("experiment", "seed")}
    last = [f"{key}={values[-1]}" for key, values in others.items()]
    job, _ = config.compose_job("train", [f"sweep={sweep_option}", *mine, *last])
    assert (job.choices.experiment, job.seed, job.choices.loss) == ("digits_gsc", 7, "generalized_cross_entropy")


@pytest.mark.parametrize("sweep", ["cells", "table5", *sorted(PICTURES)])
def test_a_cell_has_a_folder_by_what_its_numbers_depend_on(sweep):
    mine = ["experiment=digits_gsc", "seed=7", "debug=smoke"]
    last = [f"{key}={values[-1]}" for key, values in params(sweep).items() if key not in ("experiment", "seed")]
    ((job, run_dir),) = jobs_of(f"sweep={sweep}", *mine, *last)
    assert run_dir.parent == Path("logs/train", sweep if sweep in PICTURES else "cells")
    assert run_dir.name == config.cell_digest(config.plain(job))


def test_tables_share_the_runs_that_they_have_in_common():
    recipe = ("experiment=cmnist_gsc_mobilenet", "seed=1")
    ((_, one),) = jobs_of("sweep=table1", *recipe, "method=feddiverse")
    ((_, three),) = jobs_of("sweep=table3", *recipe, "method=feddiverse", "aggregator=fedavgm", "correction=none")
    ((_, own),) = jobs_of("sweep=cells", *recipe, "selector=feddiverse")
    assert one == three == own


def test_fedlds_tables_share_the_runs_that_they_have_in_common():
    """Also with a run of the same settings that were spelt out."""
    jobs = [
        jobs_of(*sweep, "experiment=fedld_pneumonia_split3", "seed=1", "method=fedld")
        for sweep in (
            ("sweep=fedld_table1",),
            ("sweep=fedld_table2",),
            ("sweep=cells", "callbacks=[default,personal_evaluate,auc]", "callbacks.evaluate.every_n_rounds=5",
             "callbacks.personal_evaluate.every_n_rounds=5", "callbacks.auc.every_n_rounds=5", "partition.seed=1"),
        )
    ]  # fmt: skip
    assert len({run_dir for ((_, run_dir),) in jobs}) == 1


def test_fedlds_table_3_deals_50_clients_by_class():
    """Whatever the recipe has dealt by before."""
    for recipe in ("retina_split3", "fedld_pneumonia_split3"):
        ((job, _),) = jobs_of("sweep=fedld_table3", f"experiment={recipe}", "seed=0", "method=fedld")
        assert (job.choices.partition, job.partition.num_clients, job.partition.alpha) == ("dirichlet", 50, 0.5)
        assert (job.partition.label, job.federation.cohort_size) == ("y", 5)


def test_sweeps_of_smaller_models_share_the_runs_that_they_have_in_common():
    """The coupled cells of table 6 are table 24's, and both take FedAvg from the sweep over widths with any recipe."""
    ((coupled, one),) = jobs_of("sweep=channel_coupling", "submodel=gfr", "submodel.coupled=true", "seed=1")
    ((_, two),) = jobs_of("sweep=model_integration", "submodel=gfr", "capacity.num_whole=2", "seed=1")
    assert one == two
    assert (coupled.capacity.num_whole, coupled.model.norm, coupled.federation.rounds) == (2, "batch", 150)
    for data in ("cifar10", "cifar100"):
        recipe = (f"experiment={data}_submodels", "seed=1")
        ((whole, _),) = jobs_of("sweep=model_complexity", *recipe, "model.width=16")
        ((parts, _),) = jobs_of("sweep=model_integration", *recipe, "submodel=osm", "capacity.num_whole=2")
        assert whole.choices.dataset == data
        assert {key for key in whole if whole[key] != parts[key]} == {"capacity", "submodel", "choices", "paths"}


def test_cells_of_the_exploration_sweep_explore_differently():
    jobs = jobs_of("sweep=participation_epsilon")
    explored = {math.floor(job.selector.epsilon * job.federation.cohort_size + 0.5) for job, _ in jobs}
    assert len(explored) == len(jobs)


def test_plain_multiruns_keep_their_numbers():
    assert [run_dir.name for _, run_dir in jobs_of("seed=0,1")] == ["0", "1"]
