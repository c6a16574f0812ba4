"""The same job in three settings, from the command line to the table."""

import csv
import json
import re

import pytest
from omegaconf import OmegaConf
from safetensors.torch import load_file

from fedfacet import state
from fedfacet.commands import report
from fedfacet.config import override_of


@pytest.mark.slow
def test_three_settings_in_one_sweep_and_one_table(trained, tmp_path, capsys):
    said = trained("setting=centralized,local,federated", "federation.rounds=2", "paths.sweep_dir=sweep", "-m").out
    begun = re.findall(r"^job (\d) of 3(, about \d+ min left)?: .*\bsetting=(\w+)\b.*$", said, re.MULTILINE)
    assert [(number, bool(left), setting) for number, left, setting in begun] == [
        ("1", False, "centralized"),
        ("2", True, "local"),
        ("3", True, "federated"),
    ]
    assert "HYDRA" not in said
    assert re.search(r"Job 2 of 3, about .*setting=local", (tmp_path / "sweep" / "1" / "train.log").read_text())
    runs = {OmegaConf.load(folder / "config.yaml").choices.setting: folder for folder in (tmp_path / "sweep").glob("[0-9]")}
    files = {name: {path.relative_to(run).as_posix() for path in run.rglob("*.*")} for name, run in runs.items()}
    kept = {name: {file for file in own if file.startswith("clients/")} for name, own in files.items()}
    assert kept["local"], "what 24 clients keep"
    assert not kept["federated"]
    asked = {"heterogeneity.csv", "disclosures.csv"}  # by FedDiverse
    bests = {"checkpoints/best_000001.safetensors", "checkpoints/best_000002.safetensors"}  # whichever round it was
    same = files["federated"] - asked - bests
    assert files["centralized"] - kept["centralized"] - bests == files["local"] - kept["local"] - bests == same
    rows = {name: list(csv.DictReader((run / "metrics.csv").read_text().splitlines())) for name, run in runs.items()}
    assert [row["cohort"] for row in rows["centralized"]] == ["0"] * 2
    assert [len(row["cohort"].split()) for row in rows["local"]] == [24] * 2
    assert [len(row["cohort"].split()) for row in rows["federated"]] == [24, 9]
    assert [row["comm/floats_up"] for row in rows["local"]] == ["0"] * 2
    last = rows["local"][-1]
    assert float(last["test/acc_min"]) < float(last["test/acc"]) < float(last["test/acc_max"])
    for run in runs.values():
        summary = json.loads((run / "summary.json").read_text())
        assert summary["model_digest"] == state.digest(load_file(run / "model" / "model.safetensors"))
    clients = {name.partition("/")[0] for name in load_file(runs["local"] / "model" / "model.safetensors") if "/" in name}
    assert clients == {f"client_{client_id}" for client_id in range(24)}

    assert report.main([str(tmp_path / "sweep"), "--at", "last"]) == 0
    heads = [line.split("|")[1].strip() for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert heads[0] == "setting / selector"
    assert heads[2:] == ["Centralised / All clients", "Federated / FedDiverse", "Local / All clients"]


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["centralized", "local"])
def test_workers_change_nothing(setting, trained, tmp_path):
    """The exact engine with processes: clients come and go with their memory, and long ones are divided."""
    tables = []
    for engine in (["engine=sequential"], ["engine=workers", "engine.workers=2"]):
        folder = tmp_path / engine[0]
        trained(f"setting={setting}", *engine, "federation.rounds=3", override_of("paths.output_dir", folder))
        digest = json.loads((folder / "summary.json").read_text())["model_digest"]
        tables.append(((folder / "metrics.csv").read_bytes(), digest))
    assert tables[0] == tables[1]
