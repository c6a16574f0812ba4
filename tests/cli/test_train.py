"""``python src/train.py`` as a user starts it, and what it leaves behind."""

import csv
import json
import os
import pty
import re
import subprocess
import sys
import threading

import pytest
import torch
from omegaconf import OmegaConf
from safetensors.torch import load_file

from fedfacet import state
from fedfacet.build import load_data
from fedfacet.config import make, preflight
from fedfacet.storage import checkpoint

FILES = {
    ".hydra/config.yaml", ".hydra/hydra.yaml", ".hydra/overrides.yaml", "config.yaml", "metrics.csv", "timing.csv",
    "summary.json", "partition.json", "partition.png", "curves.png", "selection.png", "checkpoints/last.ckpt",
    "checkpoints/previous.ckpt", "model/model.safetensors", "model/config.json", "train.log", "SHA256SUMS", "heterogeneity.csv",
    "disclosures.csv", "model/best.safetensors",
}  # fmt: skip


def rows_of(run):
    with open(run / "metrics.csv", newline="") as file:
        return list(csv.DictReader(file))


def summary_of(run):
    return json.loads((run / "summary.json").read_text())


@pytest.fixture(scope="module")
def finished(start_in, tmp_path_factory):
    """A finished run of FedDiverse, with what it said; ``test_workers.py`` starts one as a user starts it."""
    folder = tmp_path_factory.mktemp("finished")
    arguments = ["federation.rounds=6", "threads=1", "model.width=4", "model.hidden=16", "heterogeneity.bias_steps=5"]
    result = start_in(folder, *arguments, f"paths.output_dir={folder / 'run'}", fast=False).result()
    assert result.status == 0, result.err
    return folder / "run", result


def test_the_run_folder_is_complete_and_nothing_lies_beside_it(finished):
    run, _ = finished
    assert {str(path.relative_to(run)) for path in run.rglob("*") if path.is_file()} == {
        *FILES,
        f"checkpoints/best_{summary_of(run)['best']['round']:06d}.safetensors",
    }
    assert [path for path in run.parent.iterdir() if not re.fullmatch(r"\.\d+\.(out|err)", path.name)] == [run]


def test_into_a_pipe_it_prints_plain_lines_and_the_table(finished):
    run, result = finished
    summary = summary_of(run)
    said, *lines = result.err.splitlines()
    assert said == (
        "dataset digits  partition gsc  clients 24, 9 a round  model small_cnn  selector feddiverse  aggregator fedavgm"
        f"  parameters {summary['parameters']['trainable']:,} trainable, {summary['parameters']['total']:,} total  seed 0"
        f"  engine sequential on {'cuda' if torch.cuda.is_available() else 'cpu'}"
    )
    plain = r"round \d/6  clients \d+/\d+  average [\d.]+ %  worst group [\d.]+ %  time left \d+:\d\d"
    assert lines
    assert all(re.fullmatch(plain, line) for line in lines), result.err
    assert lines[0].startswith("round 1/6  clients 24/24")
    assert lines[-1].startswith("round 6/6  clients 9/9")
    assert "\x1b" not in result.out + result.err
    for group, name in enumerate(("digit<5, red", "digit<5, green", "digit>=5, red", "digit>=5, green")):
        accuracies = [
            f"{100 * summary[which][f'test/acc_group/y{group // 2}_a{group % 2}']:.2f}" for which in ("final", "best")
        ]
        assert re.search(rf"{name} +│ +104 │ +{accuracies[0]} │ +{accuracies[1]} │", result.out), result.out
    for name, key in (("average", "acc"), ("adjusted average", "acc_adjusted"), ("worst group", "acc_worst_group")):
        accuracies = [f"{100 * summary[which][f'test/{key}']:.2f}" for which in ("final", "best")]
        assert re.search(rf"{name} +│ +(416)? +│ +{accuracies[0]} │ +{accuracies[1]} │", result.out), result.out
    printed = {line.strip() for line in result.out.splitlines()}
    assert f"run folder  {run}" in printed
    assert {name for name in FILES if not name.startswith(".hydra")} - {
        "model/config.json",
        "checkpoints/previous.ckpt",
        "SHA256SUMS",
    } <= printed


def test_the_log_has_the_command_and_every_round(finished):
    run, _ = finished
    log = (run / "train.log").read_text()
    assert f" heterogeneity.bias_steps=5 paths.output_dir={run}\n" in log.splitlines(keepends=True)[0]
    assert re.findall(r"round (\d)/6 ", log) == list("123456")
    assert log.rstrip().endswith("Finished round 6.")


def test_on_a_terminal_it_shows_a_live_bar(start, tmp_path):
    ours, theirs = pty.openpty()
    shown = []

    def read():
        while True:
            try:
                shown.append(os.read(ours, 65536))
            except OSError:  # the other end is closed
                return

    reader = threading.Thread(target=read)
    reader.start()
    name = os.ttyname(theirs)
    process = start("paths.output_dir=run", "federation.rounds=8", out=name, err=name, env={"TERM": "xterm", "COLUMNS": "120"})
    process.wait()
    os.close(theirs)
    reader.join(timeout=10)
    os.close(ours)
    text = b"".join(shown).decode()
    assert process.status == 0, text
    assert "\x1b[" in text
    assert re.search(r"round.*\d/8", text), text
    assert re.search(r"(query \w+|train) \d+/\d+", text), text
    assert "worst group" in text
    assert "Test accuracy" in text


def test_the_configuration_is_whole_and_builds_the_same_federation(finished):
    run, _ = finished
    text = (run / "config.yaml").read_text()
    config = OmegaConf.load(run / "config.yaml")
    assert "${" not in text
    assert config.paths.output_dir == str(run)
    assert config.choices.selector == "feddiverse"
    assert (config.threads, config.seed, config.federation.rounds) == (1, 0, 6)
    partition = json.loads((run / "partition.json").read_text())
    data = load_data(config)
    assert partition["digest"] == data.partition.digest == summary_of(run)["partition_digest"]
    assert partition["indices"] == [client.tolist() for client in data.partition.indices]
    assert partition["counts"] == [matrix.counts.tolist() for matrix in data.matrices]
    assert not set(partition["validation"]) & {position for client in partition["indices"] for position in client}


def test_metrics_have_a_row_per_round_and_fixed_columns(finished):
    run, _ = finished
    rows = rows_of(run)
    groups = ("y0_a0", "y0_a1", "y1_a0", "y1_a1")
    assert list(rows[0]) == [
        "round", "cohort", "num_arrived", "train/loss", "train/num_steps", "comm/floats_down", "comm/floats_up",
        "comm/query_floats_down", "comm/query_floats_up", "comm/query_samples",
        *(f"{split}/{name}" for split in ("val", "test")
          for name in ("loss", "acc", "acc_adjusted", "acc_worst_group", *(f"acc_group/{group}" for group in groups))),
    ]  # fmt: skip
    assert [int(row["round"]) for row in rows] == [1, 2, 3, 4, 5, 6]
    for row in rows:
        for split in ("val", "test"):
            accuracies = [float(row[f"{split}/acc_group/{group}"]) for group in groups]
            assert float(row[f"{split}/acc_worst_group"]) == min(accuracies)
            assert float(row[f"{split}/acc"]) == pytest.approx(sum(accuracies) / 4)  # the groups are equally large
    with open(run / "timing.csv", newline="") as file:
        timing = list(csv.DictReader(file))
    assert [row["round"] for row in timing] == [row["round"] for row in rows]
    assert all(float(row["seconds"]) > 0 and float(row["peak_memory_mb"]) > 1 for row in timing)


def test_the_summary_says_what_the_metrics_say(finished):
    run, _ = finished
    rows, summary = rows_of(run), summary_of(run)
    assert (summary["status"], summary["rounds"]) == ("finished", 6)

    def measured(row):
        return {"round": int(row["round"])} | {
            name: float(row[name]) for name in row if name.startswith(("train/", "val/", "test/"))
        }

    best = max(rows, key=lambda row: (float(row["val/acc_worst_group"]), float(row["val/acc"]), -int(row["round"])))
    assert summary["final"] == measured(rows[-1])
    assert summary["best"] == measured(best)
    counts = [0] * 24
    for row in rows:
        for client in row["cohort"].split():
            counts[int(client)] += 1
    assert summary["participation_counts"] == counts
    assert summary["participation_counts"] == [counts[client] for client in range(24)]
    with open(run / "timing.csv", newline="") as file:
        assert summary["seconds"] == pytest.approx(sum(float(row["seconds"]) for row in csv.DictReader(file)), abs=1e-3)
    assert {"seed", "engine", "threads", "hardware", "versions", "git_commit"} <= set(summary)


def test_bytes_add_up(finished):
    run, _ = finished
    rows, summary = rows_of(run), summary_of(run)
    model = load_file(run / "model" / "model.safetensors")
    floats = sum(tensor.numel() for tensor in model.values())
    for row in rows:
        assert int(row["comm/floats_down"]) == int(row["comm/floats_up"]) == floats * len(row["cohort"].split())
    asked = [int(row["comm/query_samples"]) > 0 for row in rows]
    assert asked.count(True) == 1  # FedDiverse asks once
    # All 24 answer with three numbers each; they need the model for it, and in the first round get it for training anyway.
    assert sum(int(row["comm/query_floats_up"]) for row in rows) == 3 * 24
    for direction in ("up", "down"):
        query = sum(4 * int(row[f"comm/query_floats_{direction}"]) for row in rows)
        assert summary[f"query_bytes_{direction}"] == query
        assert summary[f"bytes_{direction}"] == query + sum(4 * int(row[f"comm/floats_{direction}"]) for row in rows)


def test_the_exported_model_is_the_final_one_and_loads(finished):
    run, _ = finished
    settings = json.loads((run / "model" / "config.json").read_text())
    model = make(OmegaConf.create(settings))
    weights = load_file(run / "model" / "model.safetensors")
    model.load_state_dict(weights, strict=True)
    saved, _ = checkpoint.load(run / "checkpoints" / "last.ckpt")
    assert state.digest(weights) == state.digest(saved.model) == summary_of(run)["model_digest"]
    # It is the model that was measured: the test accuracy comes out again.
    config = OmegaConf.load(run / "config.yaml")
    dataset = load_data(config).dataset
    batch = dataset.batch(dataset.test)
    with torch.inference_mode():
        accuracy = (model.eval()(batch.x).argmax(dim=1) == batch.y).float().mean()
    assert float(accuracy) == pytest.approx(summary_of(run)["final"]["test/acc"], abs=1e-6)


@pytest.mark.slow
def test_one_seed_gives_one_run_and_two_seeds_give_two(trained, tmp_path):
    """The jobs of a sweep share a process, and the first has left its traces in it."""
    trained("seed=1,2", "-m", "paths.sweep_dir=sweep")
    trained("seed=2", "paths.output_dir=alone")
    first, second, alone = tmp_path / "sweep" / "0", tmp_path / "sweep" / "1", tmp_path / "alone"
    assert (second / "metrics.csv").read_bytes() == (alone / "metrics.csv").read_bytes()
    assert summary_of(second)["model_digest"] == summary_of(alone)["model_digest"]
    assert summary_of(first)["model_digest"] != summary_of(second)["model_digest"]
    cohorts = [[row["cohort"] for row in rows_of(run)] for run in (first, second)]
    assert cohorts[0][1:] != cohorts[1][1:]
    assert summary_of(first)["partition_digest"] == summary_of(second)["partition_digest"]
    assert [OmegaConf.load(run / "config.yaml").paths.output_dir for run in (first, second)] == [str(first), str(second)]
    assert [OmegaConf.load(run / "config.yaml").seed for run in (first, second)] == [1, 2]


def test_without_a_folder_given_it_makes_one_by_task_and_time_and_without_callbacks_little_is_in_it(trained, tmp_path):
    result = trained("task=study", "callbacks=[]", "threads=1", "federation.rounds=1", "selector=uniform", fast=False)
    [run] = (tmp_path / "logs" / "study" / "runs").iterdir()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d-\d{6}", run.name)
    assert result.out.startswith(f"run folder  {run}\nIt has no summary: `callbacks=NAME` replaces the usual ones, ")
    assert OmegaConf.load(run / "config.yaml").paths.output_dir == str(run)
    assert {path.name for path in run.iterdir()} == {".hydra", "config.yaml", "partition.json", "train.log", "SHA256SUMS"}


@pytest.mark.parametrize(("columns", "width"), [(30, 40), (400, 128)])
def test_help_says_what_it_does_and_what_there_is_to_choose(train, checkout, columns, width):
    result = train("--help", fast=False, env={"COLUMNS": str(columns)})
    assert (result.status, result.err) == (0, "")
    assert "Train a federation" in result.out
    lists = re.search(r"(?<=options:\n\n).+?(?=\n\n)", result.out, re.DOTALL)[0]
    assert max(map(len, lists.splitlines())) in range(width - 40, width + 1)
    assert max(map(len, result.out.splitlines())) <= width, "no line is broken within a word by the terminal"
    joined = " ".join(lists.split())
    for folder in {file.parent for file in (checkout / "conf").glob("*/*.yaml")} - {checkout / "conf" / "hydra"}:
        options = ", ".join(sorted(file.stem for file in folder.glob("*.yaml")))
        assert re.search(rf"\b{folder.name}: \w[^:]+(:[^:]+)? {re.escape(options)}( |$)", joined), (
            "what it is for, and its options"
        )
    assert " ".join(result.out.split()).count(" python src/train.py ") >= 3


def test_help_does_not_wait_for_torch(checkout, tmp_path):
    command = [sys.executable, "-X", "importtime", str(checkout / "src" / "train.py"), "--help"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    imported = {line.rpartition("|")[2].strip() for line in result.stderr.splitlines()}
    assert "fedfacet.config" in imported
    assert not imported & {"torch", "lightning", "matplotlib", "wandb", "sklearn"}
    assert list(tmp_path.iterdir()) == []


def test_the_examples_of_the_help_are_accepted(checkout, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    help_text = (checkout / "conf" / "hydra" / "default.yaml").read_text()
    examples = [
        line.split("#")[0].split()[2:] for line in help_text.splitlines() if line.startswith("      python src/train.py")
    ]
    assert len(examples) == 4
    for example in examples:
        if example[0].startswith("resume="):
            continue
        _, jobs = preflight("train", ["train.py", *example])
        assert len(jobs) in (1, 6, 7)


@pytest.mark.slow
def test_the_configuration_can_be_printed_without_a_run(train, tmp_path, files_of):
    before = files_of(tmp_path)
    result = train("--cfg", "job", "seed=5", fast=False)
    assert (result.status, result.err) == (0, "")
    assert OmegaConf.create(result.out).seed == 5
    assert files_of(tmp_path) == before


def test_a_warning_is_shown_once(trained, tmp_path):
    """The parts are made for the check of the command line, and again in the job, whose log has the warning too."""
    (tmp_path / "mine.py").write_text(
        "from fedfacet.objectives.classification import ClassificationObjective\n"
        "class Mine(ClassificationObjective):\n"
        "    def on_train_batch_start(self, *_): pass\n"
    )
    ended = trained("objective._target_=mine.Mine", "federation.rounds=1", "paths.output_dir=run")
    told = "but not its on_train_batch_start"
    assert (ended.out + ended.err).count(told) == 1
    assert (tmp_path / "run" / "train.log").read_text().count(told) == 1
