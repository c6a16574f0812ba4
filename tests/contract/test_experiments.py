"""Every recipe says where it comes from, composes in full, leaves every option free to be exchanged, and runs."""

import csv
import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from safetensors.torch import load_file

from fedfacet import config, state
from fedfacet.errors import ConfigError, InfeasiblePartitionError
from fedfacet.selectors.all import AllSelector

CONF = Path(__file__).parents[2] / "conf"
FIRST_LINES = ("# Source: ", "# Expected: ", "# Command: python src/train.py")

USUAL = {
    "test_the_command_in_the_header_is_valid": {file.stem for file in (CONF / "experiment").glob("*.yaml")}
    - {"adult_gsc", "cifar100_submodels", "cmnist_gsc", "femnist_submodels", "mnist_writers_submodels", "shakespeare"}
}
"""All but commands that run through the same keys as others."""

OURS = {"causal_lm", "char_lstm", "lenet", "mlp", "mobilenet_v2_gn", "resnet50", "resnet50_gn", "resnet8", "small_cnn"}
"""Models that must take the data that they are tried on."""


def header(option):
    return (CONF / "experiment" / f"{option}.yaml").read_text().split("\ndefaults:")[0]


def test_the_header_names_source_expected_figure_and_command(experiment_option):
    lines = header(experiment_option).splitlines()
    assert lines[0] == "# @package _global_"
    for first in FIRST_LINES:
        assert sum(line.startswith(first) for line in lines) == 1, f"one line that starts with {first!r}"
    said = " ".join(line.removeprefix("#").strip() for line in lines)
    assert re.search(r"arXiv:\d{4}\.\d{5}|github\.com/", said), "the paper's number, or where it lies if it has none"
    assert re.search(r"(table|sections?) \d+", said, re.IGNORECASE), "the paper's table, or its section where there is none"
    assert re.search(r"Expected: (no number|.*\d\d\.\d\d)", said), "a figure, or that there is none"


def test_the_command_in_the_header_is_valid(experiment_option, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (command,) = (line for line in header(experiment_option).splitlines() if line.startswith(FIRST_LINES[2]))
    _, *argv = shlex.split(command.removeprefix("# Command: "))
    _, jobs = config.preflight("train", argv)
    assert jobs
    assert {job.choices.experiment for job, _ in getattr(jobs, "looked_at", jobs)} == {experiment_option}
    assert list(tmp_path.iterdir()) == [], "checking a command writes nothing"


def test_it_composes_in_full(experiment_option, job_of):
    """Every key known, every interpolation resolved, nothing missing: ``compose_job`` refuses anything else."""
    job = job_of(f"experiment={experiment_option}")
    settings = config.plain(job)
    assert settings["federation"]["rounds"] >= 40, "a whole run"
    assert settings["smoke"] is False
    assert settings["where_present"] == {}, "all of it is applied"
    recipe = OmegaConf.to_object(OmegaConf.load(CONF / "experiment" / f"{experiment_option}.yaml"))
    for setting, value in recipe.pop("where_present", {}).items():
        key, _, option = setting.partition("@")
        assert option in ("", job.choices[key.partition(".")[0]]), "what is meant for one option is meant for the recipe's"
        applied, (group, _, leaf) = OmegaConf.select(job, key), key.partition(".")
        if applied is None:  # of an option that may be chosen instead
            assert any(leaf in OmegaConf.load(option) for option in (CONF / group).glob("*.yaml")), f"nothing has {key}"
        else:
            assert applied == value
    for override in recipe.pop("defaults"):
        if isinstance(override, str):  # another recipe that this one builds on
            continue
        ((group, option),) = override.items()
        assert settings["choices"][group.removeprefix("override /")] == option


def test_what_it_sets_is_there_in_every_option_that_may_be_chosen_instead(experiment_option):
    """``experiment=digits_gsc partition=iid`` must work; what only some options have belongs under ``where_present``."""
    recipe = OmegaConf.to_object(OmegaConf.load(CONF / "experiment" / f"{experiment_option}.yaml"))
    for group, settings in recipe.items():
        if not isinstance(settings, dict) or not (CONF / group).is_dir():
            continue
        for option in (CONF / group).glob("*.yaml"):
            lacking = set(settings) - set(OmegaConf.load(option))
            assert not lacking, f"{group}={option.stem} has no {lacking}"


def test_where_present_yields_to_the_command_line():
    job, _ = config.compose_job("train", ["partition.scale=0.4"])
    assert job.partition.scale == 0.4
    assert config.compose_job("train", [])[0].partition.scale == 0.2
    assert "scale" not in config.compose_job("train", ["partition=iid"])[0].partition


LARGE = {"mobilenet_v2_gn", "resnet50"}
"""Networks that one recipe trains, or tests/contract/test_models.py; the others' run on a small one here, and whole if slow."""

ELSEWHERE = {"spawrious_gsc_synthetic"}
"""Recipes whose data another test trains on: tests/contract/test_four_classes.py."""

SMALLER = {"shakespeare_lora": ("model.hidden_size=32", "model.num_layers=1")}
"""What makes a recipe's network small."""

DRAWN = {"digits_gsc", "shakespeare"}
"""Recipes whose figures are drawn too, of few classes and of many; that takes longer than the run."""


def chosen_by(recipe):
    """Return the data and the network that a recipe names, or the one that it builds on."""
    text = (CONF / "experiment" / f"{recipe}.yaml").read_text()
    usual = chosen_by(parent[1]) if (parent := re.search(r"^  - (\w+)$", text, re.MULTILINE)) else {}
    return usual | dict(re.findall(r"override /(dataset|model): (\w+)", text))


def recipes():
    """Yield every recipe, and what is said besides; those that train a network of another one, on the same data, are slow."""
    met, trained = [{}], {"resnet50"}
    for recipe in sorted(file.stem for file in (CONF / "experiment").glob("*.yaml")):
        chosen, besides = chosen_by(recipe), SMALLER.get(recipe, ())
        if (model := chosen.get("model")) in trained & LARGE:
            yield pytest.param(recipe, (), marks=pytest.mark.slow, id=f"{recipe}-whole")
            chosen["model"], besides = "small_cnn", ("model=small_cnn",)
        usual = chosen not in met and recipe not in ELSEWHERE
        yield pytest.param(recipe, besides, marks=() if usual else pytest.mark.slow, id=recipe)
        met.append(chosen)
        trained.add(model)


@pytest.mark.parametrize(("recipe", "besides"), list(recipes()))
def test_it_runs_one_small_round(recipe, besides, smoke):
    federation, run_dir = smoke(f"experiment={recipe}", *besides, *([] if recipe in DRAWN else ["~callbacks.figures"]))
    assert federation.state.round == 1
    shape = federation.engine.clients.dataset.input_shape
    assert len(shape) == 1 or max(shape[-2:]) <= 32, "small images"
    with open(run_dir / "metrics.csv", newline="") as file:
        (row,) = csv.DictReader(file)
    cohort = row["cohort"].split()
    selector = federation.selector
    assert 1 <= len(cohort) <= (federation.num_clients if isinstance(selector, AllSelector) or selector.sizes_itself else 3)
    assert federation.num_clients <= 15
    assert 1 <= int(row["train/num_steps"]) <= 2 * len(cohort)
    assert 0 <= float(row["test/acc_worst_group"]) <= float(row["test/acc"]) <= 1
    summary = json.loads((run_dir / "summary.json").read_text())
    assert (summary["status"], summary["rounds"]) == ("finished", 1)
    assert summary["model_digest"] == state.digest(load_file(run_dir / "model" / "model.safetensors"))
    assert (run_dir / "checkpoints" / "last.ckpt").is_file()
    assert (run_dir / "curves.png").exists() == (recipe in DRAWN)


@pytest.mark.parametrize("group", ["heterogeneity", "local", "scheduler"])
def test_every_option_multiplies_with_the_main_job(group, smoke):
    """Law 5. Each option alone in place of the main job's.

    Models of participation run with it in tests/parity/test_resume.py, selectors in test_methods.py and test_unawareness.py,
    engines in test_engines.py, and what clients minimise and send in tests/parity/test_engines.py.
    """
    for file in sorted((CONF / group).glob("*.yaml")):
        first = file.read_text().partition("\n")[0]
        needed = re.findall(r"(?:aggregator|local)=\w+", first) if "Needs " in first else []
        devices = ["devices=lognormal"] if "Needs devices" in first else []
        federation, _ = smoke(f"{group}={file.stem}", *needed, *devices, "callbacks=evaluate")
        assert federation.state.round == 1
        assert state.all_finite(federation.state.model), f"{group}={file.stem}"


@pytest.mark.parametrize("partition", ["iid", "dirichlet", "gci", "classes_per_client", "sampled_sharder"])
@pytest.mark.parametrize("dataset", ["digits", "cmnist"])
def test_partitions_and_data_sets_multiply(dataset, partition, smoke):
    federation, _ = smoke(f"dataset={dataset}", f"partition={partition}", "callbacks=evaluate")
    assert federation.state.round == 1


@pytest.mark.parametrize("classes", [1, 5, 10, 50])
def test_a_hundred_classes_are_dealt_in_a_smoke_test_too(classes, smoke):
    """Four clients of five classes could not hold them, so there are more; who names a number gets that number or a refusal."""
    options = ("experiment=cifar100_participation", "partition=classes_per_client", f"partition.classes_per_client={classes}")
    federation, _ = smoke(*options, "callbacks=evaluate")
    assert federation.state.round == 1
    assert federation.num_clients == max(4, 100 // classes)
    if classes == 5:
        with pytest.raises(InfeasiblePartitionError, match="4 clients of 5 classes to hold all 100"):
            smoke(*options, "partition.num_clients=4")


@pytest.mark.parametrize("heterogeneity", ["estimated", "true"])
def test_feddiverse_runs_on_a_hundred_classes_without_an_attribute(heterogeneity, smoke):
    """With one attribute value attribute imbalance and spurious correlation are 0, but for what an estimate takes for them."""
    federation, _ = smoke(
        *("experiment=cifar100_participation", "partition=classes_per_client", "partition.classes_per_client=10"),
        *("selector=feddiverse", f"heterogeneity={heterogeneity}", "federation.rounds=2", "callbacks=evaluate"),
    )
    assert federation.state.round == 2
    assert federation.state.participation_counts.sum() == 2 * 3
    (triplets,) = federation.state.disclosures.values()
    assert len(triplets) == federation.num_clients
    if heterogeneity == "true":
        for class_imbalance, *others in triplets.values():
            assert 0 < class_imbalance < 1
            assert others == [0, 0]
    else:
        assert all(0 <= measure <= 1 for measures in triplets.values() for measure in measures)


def models():
    """Yield every model; those that a recipe or tests/contract/test_models.py trains, and that take a second, are slow."""
    for file in sorted((CONF / "model").glob("*.yaml")):
        yield pytest.param(file.stem, marks=pytest.mark.slow if file.stem in {*LARGE, "resnet50_gn"} else ())


@pytest.mark.parametrize("model", list(models()))
def test_models_fit_other_data(model, smoke):
    other = "shakespeare" if model in ("causal_lm", "char_lstm") else "cmnist_gsc"
    try:
        federation, _ = smoke(f"model={model}", f"experiment={other}", "selector=uniform", "callbacks=evaluate")
    except (ConfigError, ValueError) as refusal:
        if model in OURS:
            raise
        pytest.skip(f"somebody's own, for other data: {refusal}")
    assert state.all_finite(federation.state.model)


def test_a_run_folder_holds_what_it_should(start_script, tmp_path):
    """Through the script, as a user starts it."""
    done = start_script(
        tmp_path, "train.py", "debug=smoke", "paths.output_dir=run", out=tmp_path / "run.out", err=tmp_path / "run.err"
    ).result()
    assert done.status == 0, done.err
    run_dir = tmp_path / "run"
    files = {path.relative_to(run_dir).as_posix() for path in run_dir.rglob("*") if path.is_file()}
    assert files >= {
        ".hydra/config.yaml",
        ".hydra/overrides.yaml",
        "config.yaml",
        "metrics.csv",
        "timing.csv",
        "summary.json",
        "partition.json",
        "partition.png",
        "curves.png",
        "checkpoints/last.ckpt",
        "model/model.safetensors",
        "model/config.json",
        "train.log",
    }
    assert not [file for file in files if file.endswith(".part")], "nothing half-written is left"
    partition = json.loads((run_dir / "partition.json").read_text())
    assert np.shape(partition["counts"])[1:] == (2, 2)
    assert len({index for client in partition["indices"] for index in client}) == sum(map(len, partition["indices"]))
    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary["partition_digest"] == partition["digest"]
    settings = OmegaConf.load(run_dir / "config.yaml")
    assert settings.threads >= 1
    assert OmegaConf.to_yaml(settings, resolve=True) == OmegaConf.to_yaml(settings), "resolved"
    saved = torch.load(run_dir / "checkpoints" / "last.ckpt", weights_only=True)
    assert state.digest(saved["state"]["model"]) == summary["model_digest"]
    assert {path.name for path in tmp_path.iterdir()} == {"run", "run.out", "run.err"}, "nothing beside the run folder"
