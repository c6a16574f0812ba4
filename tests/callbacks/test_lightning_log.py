"""A run's numbers through a logger of Lightning."""

import csv
import math

import pytest
import yaml
from lightning_utilities.core.rank_zero import rank_zero_only

from fedfacet.callbacks.lightning_log import LightningLog, checked_id
from fedfacet.errors import CheckpointError, ConfigError


def test_the_numbers_are_the_rounds_own(tiny_federation, tmp_path):
    log = LightningLog(run_dir=tmp_path, run_config={"seed": 3, "model": {"width": 2}}, arguments={"name": "mine"})
    federation = tiny_federation(rounds=3, callbacks={"lightning_log": log})
    log.on_fit_start(federation)
    results = [federation.run_round() for _ in range(3)]
    log.on_fit_end(federation, "finished")
    folder = tmp_path / "mine" / "version_0"
    with (folder / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == [1, 2, 3]
    for row, result in zip(rows, results, strict=True):
        known = {name: value for name, value in result.metrics.items() if not math.isnan(value)}
        assert {name: float(row[name]) for name in known} == pytest.approx(known)
    assert yaml.safe_load((folder / "hparams.yaml").read_text())["seed"] == 3


def test_a_launchers_rank_does_not_silence_it(tiny_federation, tmp_path, monkeypatch):
    """As the second job of an array has it: Lightning reads SLURM_PROCID and the like when it is imported."""
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    log = LightningLog(run_dir=tmp_path, run_config={"seed": 3}, arguments={"name": "mine"})
    federation = tiny_federation(rounds=1, callbacks={"lightning_log": log})
    federation.fit()
    assert sorted(file.name for file in (tmp_path / "mine" / "version_0").iterdir()) == ["hparams.yaml", "metrics.csv"]


@pytest.mark.parametrize("status", ["finished", "interrupted"])
def test_the_best_round_is_told_at_the_end(tiny_federation, tmp_path, status):
    (tmp_path / "summary.json").write_text('{"best": {"round": 2, "val/acc": 0.75, "val/acc_g1": null}}')
    log = LightningLog(run_dir=tmp_path, run_config={}, arguments={"name": "mine"})
    federation = tiny_federation(rounds=1, callbacks={"lightning_log": log})
    log.on_fit_start(federation)
    federation.run_round()
    log.on_fit_end(federation, status)
    with (tmp_path / "mine" / "version_0" / "metrics.csv").open() as file:
        *_, row = csv.DictReader(file)
    best = {name: float(value) for name, value in row.items() if name.startswith("best/")}
    assert best == ({"best/round": 2, "best/val/acc": 0.75} if status == "finished" else {})
    assert row["step"] == "1"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"logger": "CsvLogger"}, "to be one of CSVLogger, CometLogger.*but got 'CsvLogger'"),
        ({"logger": "CSVLogger", "arguments": {"folder": "x"}}, "arguments that CSVLogger takes, .*folder"),
        ({"logger": "CometLogger"}, "the package of CometLogger, but it is not installed"),
    ],
)
def test_what_does_not_fit_is_said(tmp_path, settings, said):
    with pytest.raises(ConfigError, match=said):
        LightningLog(run_dir=tmp_path, run_config={}, **settings)


@pytest.mark.parametrize("saved", ["../../mine", "a/b", "", "x" * 129, 3, ["x"], "a?b", "a\n"])
def test_an_id_of_a_checkpoint_is_a_word(saved):
    with pytest.raises(CheckpointError, match="to name a logged run by a word"):
        checked_id(saved)
    assert checked_id("b3f-2_A") == "b3f-2_A"
    assert checked_id(None) is None
