"""When a run ends before its rounds are done, and what stays of that."""

import json
import math
from types import SimpleNamespace

import pytest

from fedfacet.callbacks.base import Measurement, UpdatesMeasurement
from fedfacet.callbacks.csv_log import CsvLog
from fedfacet.callbacks.save_checkpoint import SaveCheckpoint
from fedfacet.callbacks.summary import Summary
from fedfacet.config import cell_digest, compose_job, plain
from fedfacet.config.resuming import check_resumable, is_complete
from fedfacet.errors import CheckpointError, ConfigError
from fedfacet.participation import Participation
from fedfacet.storage import checkpoint
from fedfacet.storage.run_files import rows_of
from fedfacet.termination import AccuracyTermination, PlateauTermination, SilenceTermination


class Scored(Measurement):
    """A validation accuracy that grows by a tenth a round."""

    name = "scored"

    def measure(self, federation, round):
        return {"val/acc": round / 10 if self.is_due(federation, round) else math.nan}


class Seldom(Measurement):
    """Something else, measured every five rounds."""

    name = "seldom"

    def measure(self, federation, round):
        return {"other": float(round) if self.is_due(federation, round) else math.nan}


class Arrived(UpdatesMeasurement):
    """How many updates it was given, every five rounds."""

    name = "arrived"

    def measure(self, federation, round):
        _, updates = self.take_round()
        return {"arrived": float(len(updates)) if self.is_due(federation, round) else math.nan}


class AwayFrom(Participation):
    """Clients that are all away from a round on, counted by how often they are asked for."""

    def __init__(self, *away):
        self.away = away
        self.round = 0

    def available(self, num_clients, rng):
        self.round += 1
        return () if self.round in self.away else tuple(range(num_clients))


@pytest.fixture
def run(tiny_federation, tmp_path):
    """Return a function that runs a federation in a run folder, and returns it and its rows."""

    def make(*, termination=None, resume=False, rounds=9, **settings):
        callbacks = {
            "arrived": Arrived(every_n_rounds=5),
            "seldom": Seldom(every_n_rounds=5),
            "scored": Scored(every_n_rounds=2),
            "csv_log": CsvLog(run_dir=tmp_path),
            "summary": Summary(run_dir=tmp_path, facts={}, model_config={}),
            "save_checkpoint": SaveCheckpoint(run_dir=tmp_path, run_config={}),
        }
        federation = tiny_federation(rounds=rounds, callbacks=callbacks, termination=termination, **settings)
        if resume:
            federation.restore(checkpoint.load(tmp_path / "checkpoints" / "last.ckpt")[0])
        federation.fit()
        return federation, rows_of(tmp_path / "metrics.csv")

    return make


def test_an_accurate_run_ends_and_its_last_round_is_measured_by_all(run, tmp_path):
    federation, rows = run(termination=AccuracyTermination(target=0.35))
    assert [row["val/acc"] for row in rows] == ["nan", "0.2", "nan", "0.4"]
    assert [row["other"] for row in rows] == ["nan", "nan", "nan", "4.0"]
    assert [row["arrived"] for row in rows] == ["nan", "nan", "nan", "2.0"]
    assert federation.state.stopped == "val/acc is 0.4, and 0.35 was the target"
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["stopped"] == federation.state.stopped
    assert (summary["status"], summary["rounds"]) == ("finished", 4)
    assert is_complete(tmp_path, 9)
    assert is_complete(tmp_path, 4)
    assert not is_complete(tmp_path, 3)


def test_columns_and_models_are_those_of_a_run_without(run, tmp_path):
    without, rows = run(rounds=4)
    (tmp_path / "metrics.csv").unlink()
    with_it, others = run(termination=AccuracyTermination(target=0.35))
    assert list(rows[0]) == list(others[0])
    assert rows == others
    assert all((without.state.model[name] == tensor).all() for name, tensor in with_it.state.model.items())


def test_a_target_that_is_never_reached_changes_nothing(run):
    federation, rows = run(termination=AccuracyTermination(target=1.0), rounds=4)
    assert (len(rows), federation.state.stopped) == (4, "")


def test_a_run_that_has_ended_does_not_go_on(run):
    run(termination=AccuracyTermination(target=0.35))
    federation, rows = run(termination=AccuracyTermination(target=0.35), resume=True)
    assert (federation.state.round, len(rows)) == (4, 4)
    given = {"federation": {"rounds": 99}, "callbacks": {}}
    with pytest.raises(CheckpointError, match=r"this one ended after round 4 \(val/acc is 0\.4"):
        check_resumable(given, given, 4, stopped=federation.state.stopped)
    check_resumable(given, given, 4, stopped=federation.state.stopped, complete=False)  # its summary is still to be written


def test_a_metric_that_nobody_measures_is_named(run):
    with pytest.raises(ConfigError, match=r"Expected rounds to measure 'val/acc_worst_group' for `termination=accuracy`"):
        run(termination=AccuracyTermination(metric="val/acc_worst_group"))


@pytest.mark.parametrize(("away", "rounds", "last"), [((3,), 1, 3), ((3,), 2, 6), ((2, 4, 5), 2, 5), ((), 1, 6)])
def test_silence_is_counted_in_a_row(run, away, rounds, last):
    federation, rows = run(termination=SilenceTermination(rounds=rounds), participation=AwayFrom(*away), rounds=6)
    assert len(rows) == federation.state.round == last
    assert bool(federation.state.stopped) == (last < 6)


def test_silence_is_counted_over_a_resume(run, tmp_path):
    first, _ = run(termination=SilenceTermination(rounds=3), participation=AwayFrom(2, 3), rounds=3)
    assert first.state.slots["termination"] == {"silent": 2}
    then, rows = run(termination=SilenceTermination(rounds=3), participation=AwayFrom(1), rounds=9, resume=True)
    assert len(rows) == 4
    assert then.state.stopped == "no update arrived for 3 rounds"


def test_the_default_leaves_cells_their_names():
    usual = plain(compose_job("train", [])[0])
    older = {name: value for name, value in usual.items() if name != "termination"}
    assert cell_digest(usual) == cell_digest(older)
    assert cell_digest(plain(compose_job("train", ["termination=silence"])[0])) != cell_digest(usual)


def test_of_a_loss_less_is_better():
    termination = PlateauTermination(metric="val/mse_worst_group", patience=2, least_gain=0.1)
    server, reasons = termination.init(), []
    for value in (3.0, math.nan, 2.0, 1.95, 2.5):
        server, reason = termination.observe(server, SimpleNamespace(metrics={"val/mse_worst_group": value}))
        reasons.append(reason)
    assert reasons == [None] * 4 + ["val/mse_worst_group has not fallen below 2 for 2 rounds"]
