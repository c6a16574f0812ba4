"""What the commands say of devices."""

import json

import pytest

from fedfacet import config
from fedfacet.build import build
from fedfacet.commands.describe import main as describe
from fedfacet.commands.report import main as report
from fedfacet.config import cell_digest, plain
from fedfacet.errors import ConfigError
from fedfacet.runs.run import train

FAST = ("threads=1", "model.width=2", "model.hidden=4", "selector=uniform", "aggregator=fedavg", "debug=smoke")


def test_describe_prints_spread_clients_and_hours(capsys):
    options = ["devices=diurnal", "devices.mean_seconds_per_sample=1", "devices.deadline=11", "devices.on_late=drop", *FAST]
    assert describe(options) == 0
    text = " ".join(capsys.readouterr().out.split())  # folded to the width of the terminal
    assert "would be later than 11 seconds" in text
    assert "When clients are on-line" in text
    assert describe([*options, "output=json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert len(told["clients"]) == 6
    assert told["clients"][0]["on_line"] == pytest.approx(0.5)
    assert sum(client["late"] for client in told["clients"]) > 0
    assert told["seconds"]["round"]["slowest"] == max(client["round"] for client in told["clients"])


def test_describe_of_no_devices_is_refused(capsys):
    assert describe(["devices=none", *FAST]) == 2
    assert "choose devices=lognormal" in capsys.readouterr().err


def test_a_run_from_its_command_to_its_report(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = ("devices=lognormal", "devices.jitter=0.2", "termination=simulated_time", "termination.hours=1e-3")
    run = train(f"paths.output_dir={tmp_path / 'run'}", *given, *FAST, "federation.rounds=40", "~callbacks.figures")
    assert run.summary["stopped"].endswith("0.001 were given")
    assert run.summary["rounds"] < 40
    assert run.summary["devices"]["hours"] >= 1e-3
    assert report([str(tmp_path / "run"), "--time-to", "val/acc=0.01"]) == 0
    assert "minutes to 0.01" in capsys.readouterr().out
    assert report([str(tmp_path / "run"), "--curves", "--against", "sim/clock", "--metric", "val/acc"]) == 0


@pytest.mark.parametrize(
    "wrong",
    [
        ["--time-to", "val/acc"],
        ["--time-to", "val/acc=high"],
        ["--time-to", "val/acc=nan"],
        ["--time-to", "=0.9"],
        ["--time-to", "val/acc=0.9", "--curves"],
        ["--against", "sim/clock"],
    ],
)
def test_options_that_do_not_go_together_are_refused(wrong, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        report([str(tmp_path), *wrong])
    assert ended.value.code == 2
    assert "--time-to" in capsys.readouterr().err or "--against" in wrong


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (["termination=simulated_time"], "provides .devices., which termination=simulated_time requires"),
        (["termination=energy"], "provides .devices., which termination=energy requires"),
        (["devices=uniform", "setting=local"], "all layers stay with them"),
        (["devices=uniform", "selector=all", "devices.overcommit=1.3"], "selector=all to go with devices=uniform, but it asks"),
        (["devices=uniform", "devices.deadline=1e-6", "devices.on_late=drop"], "a `devices.deadline` that somebody can meet"),
        (["devices=trace"], "`devices.capacity` to name a file"),
    ],
)
def test_what_does_not_go_together_is_refused_before_a_folder_is_made(options, fault, tmp_path):
    job, _ = config.compose_job("train", [*FAST, *options])
    with pytest.raises(ConfigError, match=fault):
        build(job, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_deadline_belongs_to_what_becomes_of_the_late(tmp_path):
    job, _ = config.compose_job("train", [*FAST, "devices=uniform", "devices.on_late=partial"])
    with pytest.raises(ValueError, match=r"Expected a `devices\.deadline` for devices\.on_late=partial"):
        build(job, tmp_path / "run")


def test_the_default_leaves_cells_their_names():
    usual = plain(config.compose_job("train", [])[0])
    older = {name: value for name, value in usual.items() if name != "devices"}
    assert cell_digest(usual) == cell_digest(older)
    assert cell_digest(plain(config.compose_job("train", ["devices=uniform"])[0])) != cell_digest(usual)
