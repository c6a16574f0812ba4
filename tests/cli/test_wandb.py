"""``logger=wandb``, offline: what lies in the run folder afterwards is read back."""

import csv
import json
import re
import shlex
import signal

import pytest
from wandb.proto.wandb_internal_pb2 import Record

OFFLINE = ("logger=wandb", "wandb.mode=offline")
FIGURES = ("callbacks=[evaluate,csv_log,save_checkpoint,figures,summary]", "threads=1", "selector=uniform", "model.width=2")


@pytest.fixture
def home(tmp_path):
    """A home of its own, so that what W&B leaves outside the run folder can be seen."""
    (tmp_path / "home").mkdir()
    names = (
        "WANDB_API_KEY",
        "WANDB_MODE",
        "WANDB_DIR",
        "WANDB_CACHE_DIR",
        "XDG_CACHE_HOME",
        "XDG_CONFIG_HOME",
        "XDG_DATA_HOME",
    )
    return dict.fromkeys(names) | {"HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path / "home")}


def records(file):
    """Read a .wandb file: a LevelDB log of protocol buffers after a header of seven bytes."""
    content, position, parts = file.read_bytes(), 7, b""
    while position + 7 <= len(content):
        left = 32768 - position % 32768
        if left < 7:
            position += left
            continue
        size, kind = int.from_bytes(content[position + 4 : position + 6], "little"), content[position + 6]
        parts += content[position + 7 : position + 7 + size]
        position += 7 + size
        if kind in (1, 4):  # a whole record, or the last part of one
            yield Record.FromString(parts)
            parts = b""


class Stored:
    """A run that W&B has on disk."""

    def __init__(self, file):
        self.history, self.summary, self.axes, self.exit_code = [], {}, {}, None
        for record in records(file):
            kind = record.WhichOneof("record_type")
            if kind == "run":
                self.id, self.group, self.name = record.run.run_id, record.run.run_group, record.run.display_name
                self.config = {item.key: json.loads(item.value_json) for item in record.run.config.update}
            elif kind == "history":
                items = record.history.item
                self.history.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items})
            elif kind == "summary":
                items = record.summary.update
                self.summary |= {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
            elif kind == "metric":
                self.axes[record.metric.name or record.metric.glob_name] = record.metric.step_metric
            elif kind == "exit":
                self.exit_code = record.exit.exit_code


def stored_in(run):
    return [Stored(file) for file in sorted(run.glob("wandb/offline-run-*/*.wandb"))]


@pytest.mark.slow
def test_a_sweep_is_one_finished_run_per_job_in_one_group(trained, home, tmp_path):
    trained(*FIGURES, *OFFLINE, "seed=1,2", "federation.rounds=2", "paths.sweep_dir=sweep", "-m", fast=False, env=home)
    stored = []
    for job, seed in ((tmp_path / "sweep" / "0", 1), (tmp_path / "sweep" / "1", 2)):
        [run] = stored_in(job)
        stored.append(run)
        assert run.exit_code == 0
        assert run.summary["status"] == "finished"
        assert run.config["seed"] == seed
        assert run.name == f"{run.group}-s{seed}"
        # The round is the axis of every curve, and the curves are those of metrics.csv.
        assert run.axes["*"] == "round"
        with open(job / "metrics.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        assert [row["round"] for row in run.history] == [1, 2]
        for row, logged in zip(rows, run.history, strict=True):
            assert {name: float(row[name]) for name in row if "/" in name} == {
                name: logged[name] for name in logged if "/" in name and not name.startswith("system/")
            }
        assert "test/acc_group/y1_a1" in run.history[0]
        assert run.summary["clients"]["_type"] == "table-file"
        summary = json.loads((job / "summary.json").read_text())
        assert run.summary["model_digest"] == summary["model_digest"]
        assert run.summary["bytes_up"] == summary["bytes_up"] > 0
        assert run.summary["best/round"] == summary["best"]["round"]
        assert run.summary["best/val/acc_worst_group"] == summary["best"]["val/acc_worst_group"]
        for picture in ("partition", "curves", "selection"):
            assert run.summary[picture]["_type"] == "image-file"
            assert (next(job.glob("wandb/offline-run-*")) / "files" / run.summary[picture]["path"]).is_file()
    first, second = stored
    assert first.id != second.id
    digest = json.loads((tmp_path / "sweep" / "0" / "summary.json").read_text())["partition_digest"]
    assert first.group == second.group == f"uniform-fedavgm-digits_gsc-{digest[:8]}"
    # Nothing beside the run folders but W&B's own cache.
    beside = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    beside = {path for path in beside if not re.match(r"(sweep/|home/\.cache/|home/\.config/matplotlib|\.\d+\.)", path)}
    assert beside == set()


def test_a_stopped_run_is_finished_as_such_and_gone_on_with(start, trained, refused, home, tmp_path):
    run = tmp_path / "run"
    process = start(*OFFLINE, "federation.rounds=10", "paths.output_dir=run", env=home)
    process.wait_until(lambda: (run / "metrics.csv").exists() and (run / "metrics.csv").read_bytes().count(b"\n") > 3)
    process.kill(signal.SIGTERM)
    assert process.wait() == 143, process.err.read_text()
    [before] = stored_in(run)
    assert before.exit_code == 1
    assert before.summary["status"] == "interrupted"
    assert "it sets `logger` to wandb: give `logger` again on the command line" in refused("resume=run")
    [remedy] = re.findall(r"to go on:\n  \S*python\S* \S*src/train\.py (.*)\n$", process.err.read_text())
    trained(*shlex.split(remedy), fast=False, env=home)
    stored = stored_in(run)
    assert len(stored) == 2
    after = next(one for one in stored if one.exit_code == 0)
    assert after.id == before.id
    assert after.summary["heterogeneity_error"]["clients"] == 24
    assert after.group == before.group
    assert [row["round"] for row in before.history + after.history] == list(range(1, 11))


@pytest.mark.slow
def test_a_failed_run_is_finished_as_such(train, home, tmp_path):
    result = train(*OFFLINE, "optimizer.lr=1e30", "paths.output_dir=run", env=home)
    assert result.status == 2, result.err
    [run] = stored_in(tmp_path / "run")
    assert run.exit_code == 1
    assert run.summary["status"] == "failed"


def test_online_needs_an_api_key(train, home, files_of, tmp_path):
    before = files_of(tmp_path)
    result = train("logger=wandb", "paths.output_dir=run", env=home)
    assert result.status == 2
    assert "wandb login" in result.err
    assert "wandb.mode=offline" in result.err
    assert "Traceback" not in result.err
    assert {path for path in files_of(tmp_path).keys() - before.keys() if not path.startswith("home/")} == set()


def test_a_plain_run_does_not_import_wandb(trained, checkout, tmp_path):
    """It brings a dozen packages with it; nor has the process that forks this one."""
    script = tmp_path / "script.py"
    script.write_text(f"""
import runpy, sys
try:
    runpy.run_path({str(checkout / "src" / "train.py")!r}, run_name="__main__")
finally:
    print("wandb" in sys.modules)
""")
    assert trained("paths.output_dir=run", script=script).out.splitlines()[-1] == "False"
