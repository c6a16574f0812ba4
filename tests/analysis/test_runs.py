import json
import math
import shutil

import pytest
from omegaconf import OmegaConf

from fedfacet.analysis.runs import differing_keys, find_runs, load_run
from fedfacet.errors import ConfigError, FedFacetError


def write_run(folder, seed=0, status="finished", best=True, **changes):
    """Write what train.py leaves behind; ``changes`` are config values by dotted key, with ``__`` for the dot."""
    config = OmegaConf.create(
        {
            "seed": seed,
            "task": "train",
            "dataset": {"_target_": "fedfacet.data.mnist.ColouredMnist", "seed": 0},
            "aggregator": {"_target_": "fedfacet.aggregators.fedavgm.FedAvgM", "server_lr": 0.1},
            "local": {"lr": 1e-5, "deterministic": True, "layers": [8, 16]},
            "paths": {"output_dir": str(folder)},
            "engine": {"workers": seed + 1},
            "federation": {"rounds": 50},
            "logger": {"name": f"fedavgm-s{seed}"},
            "choices": {"selector": "feddiverse", "aggregator": "fedavgm", "experiment": None, "engine": "sequential"},
        }
    )
    for key, value in changes.items():
        OmegaConf.update(config, key.replace("__", "."), value, force_add=True)
    (folder / ".hydra").mkdir(parents=True)
    OmegaConf.save(config, folder / "config.yaml")
    OmegaConf.save({"seed": "${oc.env:HOME}"}, folder / ".hydra" / "config.yaml")
    metrics = {"test/acc": 0.9, "test/acc_worst_group": 0.75, "test/acc_group/y=0,a=1": None}
    (folder / "metrics.csv").write_text("round,test/acc\n1,0.5\n2,0.9\n")
    if status:
        done = 12 if status == "interrupted" else 50
        summary = {"status": status, "rounds": done, "final": {"round": done, **metrics}}
        summary["best"] = {"round": 7, **metrics, "test/acc": 0.8} if best else None
        (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def test_a_run_folder_is_read_back(tmp_path):
    run = load_run(write_run(tmp_path / "run", seed=3))
    assert (run.seed, run.finished, run.path) == (3, True, tmp_path / "run")
    assert run.at("last")["test/acc"] == 0.9
    assert run.at("last")["round"] == 50
    assert run.at("best")["test/acc"] == 0.8
    assert math.isnan(run.at("last")["test/acc_group/y=0,a=1"])


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("selector", "feddiverse"),
        ("experiment", "null"),
        ("aggregator.server_lr", "0.1"),
        ("choices.aggregator", "fedavgm"),
        ("seed", "0"),
        ("local.lr", "1e-05"),
        ("local.deterministic", "true"),
        ("local.layers", "[8, 16]"),
        ("local", None),
        ("aggregator.beta", None),
    ],
)
def test_setting(tmp_path, key, text):
    assert load_run(write_run(tmp_path / "run")).setting(key) == text


def test_a_number_may_be_named_in_any_spelling(tmp_path):
    run = load_run(write_run(tmp_path / "run", partition__alpha=100.0, partition__num_clients=5))
    assert run.setting("partition.alpha") == "100"
    for alpha in ("100", "100.0", "1e2"):
        assert run.fits({"partition.alpha": alpha, "local.lr": "0.00001"})
        assert not run.fits({"partition.alpha": alpha, "local.lr": "0.0001"})
    assert run.fits({"local.deterministic": "true", "selector": "feddiverse", "partition.num_clients": "5.0"})
    assert not run.fits({"partition.alpha": "high"})


def test_without_validation_there_is_no_best_round(tmp_path):
    run = load_run(write_run(tmp_path / "run", best=False))
    assert run.at("best") == {}
    assert run.at("last")["test/acc"] == 0.9


def test_who_goes_on_from_the_end_for_more_rounds_has_not_finished(tmp_path):
    run = load_run(write_run(tmp_path / "run", federation__rounds=100))
    assert not run.finished
    assert run.progress == "finished at round 50 of 100"


@pytest.mark.parametrize(
    ("status", "progress"), [(None, "no summary.json yet"), ("interrupted", "interrupted at round 12 of 50")]
)
def test_an_unfinished_run_says_how_far_it_is(tmp_path, status, progress):
    run = load_run(write_run(tmp_path / "run", status=status))
    assert not run.finished
    assert run.progress == progress


def test_runs_are_found_below_parents_and_patterns_and_counted_once(tmp_path, monkeypatch):
    for job in ("a/0", "a/1", "b[x]/0", "c/d/0", ".trash/0"):
        write_run(tmp_path / job)
    (tmp_path / "a" / "multirun.yaml").write_text("hydra: {}\n")
    inner = tmp_path / "a" / "0" / "wandb" / "files"
    inner.mkdir(parents=True)
    shutil.copy(tmp_path / "a" / "0" / "config.yaml", inner)
    (tmp_path / "loop").symlink_to(tmp_path)
    monkeypatch.chdir(tmp_path)

    def found(*paths):
        return [str(run.path) for run in find_runs(paths)]

    assert found("a") == ["a/0", "a/1"]
    assert found("b[x]", "a/1") == ["b[x]/0", "a/1"]
    assert found("*/1") == ["a/1"]
    assert found("**/0") == ["a/0", "b[x]/0", "c/d/0"]
    assert found("a/multirun.yaml", "a/0", "a") == ["a/0", "a/1"]
    assert found(tmp_path) == [str(tmp_path / job) for job in ("a/0", "a/1", "b[x]/0", "c/d/0")]


@pytest.mark.parametrize("path", ["nowhere", "no*where", "empty", "run/metrics.csv", "run/.hydra", "x" * 300])
def test_a_path_that_leads_to_no_run_is_named(tmp_path, monkeypatch, path):
    write_run(tmp_path / "run")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"to be a run folder") as caught:
        find_runs(["run", path])
    assert path in str(caught.value)


def test_nothing_given_is_an_error():
    with pytest.raises(ConfigError, match="at least one run"):
        find_runs([])


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.yaml", b"seed: [1, 2"),
        ("config.yaml", b"\xff\xfe\x00"),
        ("config.yaml", b"defaults:\n  - dataset: cmnist\n"),
        ("config.yaml", b"- 1\n- 2\n"),
        ("config.yaml", b""),
        ("summary.json", b'{"status": "finished", "fin'),
        ("summary.json", b"[]"),
        ("summary.json", b'{"status": "finished", "final": [1]}'),
        ("summary.json", b"\xff"),
        ("summary.json", b'{"status": ["finished"]}'),
        ("summary.json", b'{"status": "finished", "rounds": "7"}'),
        ("summary.json", b'{"status": "finished", "heterogeneity_error": 3}'),
        ("summary.json", b'{"status": "finished", "participation_counts": {"a": 1}}'),
        ("summary.json", b'{"status": "finished", "participation_counts": [1' + 400 * b"0" + b"]}"),
        ("summary.json", b"[" * 100_000),
    ],
)
def test_a_damaged_file_is_named(tmp_path, file, content):
    (write_run(tmp_path / "run") / file).write_bytes(content)
    with pytest.raises(FedFacetError, match=r"^Expected .*: ") as caught:
        find_runs([tmp_path])
    assert str(tmp_path / "run" / file) in str(caught.value)


def test_seed_paths_engine_and_logger_are_no_difference(tmp_path):
    runs = [load_run(write_run(tmp_path / str(seed), seed=seed, choices__logger=str(seed))) for seed in (0, 1)]
    assert runs[0].settings["paths.output_dir"] != runs[1].settings["paths.output_dir"]
    assert differing_keys(runs) == []


@pytest.mark.parametrize(
    ("change", "keys"),
    [
        ({"local__lr": 0.01}, ["local.lr"]),
        ({"local__momentum": 0.9}, ["local.momentum"]),
        ({"dataset__seed": 1}, ["dataset.seed"]),
        ({"choices__aggregator": "fedavg", "aggregator": {"_target_": "FedAvg"}, "local__lr": 1}, ["aggregator", "local.lr"]),
    ],
)
def test_what_differs_is_named(tmp_path, change, keys):
    runs = [load_run(write_run(tmp_path / "a", seed=0)), load_run(write_run(tmp_path / "b", seed=1, **change))]
    assert differing_keys(runs) == keys
    assert differing_keys(runs[::-1]) == keys


def test_another_partition_is_a_difference(tmp_path):
    folders = [write_run(tmp_path / name) for name in "ab"]
    for digest, folder in zip(("3f", "9a"), folders, strict=True):
        file = folder / "summary.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"partition_digest": digest}))
    assert differing_keys(map(load_run, folders)) == ["partition_digest"]


def test_numbers_that_no_float_holds_are_left_out(tmp_path):
    folder = write_run(tmp_path / "run")
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps({**summary, "final": {"round": 3, "huge": 10**400, "text": "x"}}))
    assert load_run(folder).at("last") == {"round": 3.0}


def test_a_setting_is_no_command_to_a_terminal(tmp_path):
    run = load_run(write_run(tmp_path / "run", choices__selector="uni\x1b[2J\x07form\n"))
    assert run.setting("selector") == "uni?[2J?form?"
