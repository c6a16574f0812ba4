import csv
import math
from types import SimpleNamespace

import pytest

from fedfacet import federation as rounds
from fedfacet.callbacks.base import Callback
from fedfacet.callbacks.csv_log import CsvLog
from fedfacet.clients.queries.base import Query
from fedfacet.errors import Interrupted
from fedfacet.selectors.feddiverse import FedDiverseSelector
from fedfacet.types import Answer


class Metric(Callback):
    """Measures a number that a csv file must not round, and nothing in even rounds."""

    def measure(self, federation, round):
        return {"test/third": round / 3 if round % 2 else math.nan}


def rows_of(file):
    with open(file, newline="") as opened:
        return list(csv.DictReader(opened))


@pytest.fixture
def federation(tiny_federation, tmp_path):
    return lambda rounds=4, **more: tiny_federation(
        rounds=rounds, callbacks={"metric": Metric(), "csv_log": CsvLog(run_dir=tmp_path), **more}
    )


def test_a_row_per_round_with_every_number_in_full(federation, tmp_path):
    results = []

    class Note(Callback):
        def on_round_end(self, federation, result):
            results.append(result)

    federation(note=Note()).fit()
    rows = rows_of(tmp_path / "metrics.csv")
    assert [row["round"] for row in rows] == ["1", "2", "3", "4"]
    for row, result in zip(rows, results, strict=True):
        assert row["cohort"] == " ".join(map(str, result.cohort))
        assert int(row["num_arrived"]) == len(result.arrived) == 2
        for name, value in result.metrics.items():
            assert float(row[name]) == value or (math.isnan(value) and math.isnan(float(row[name]))), name
    assert float(rows[0]["test/third"]) == 1 / 3


def test_seconds_and_memory_are_elsewhere(federation, tmp_path):
    federation().fit()
    assert not {"seconds", "peak_memory_mb", "engine"} & set(rows_of(tmp_path / "metrics.csv")[0])
    timing = rows_of(tmp_path / "timing.csv")
    assert [row["round"] for row in timing] == ["1", "2", "3", "4"]
    for row in timing:
        phases = [float(value) for name, value in row.items() if name.startswith("seconds/")]
        assert float(row["seconds"]) == pytest.approx(sum(phases), abs=1e-5)
        assert 10 < float(row["peak_memory_mb"]) < 1e6
        assert row["engine"] == "SequentialEngine"


def test_two_runs_write_the_same_file(federation, tmp_path):
    federation().fit()
    before = (tmp_path / "metrics.csv").read_bytes()
    (tmp_path / "metrics.csv").unlink()
    federation().fit()
    assert (tmp_path / "metrics.csv").read_bytes() == before


@pytest.mark.parametrize("torn", [b"", b"9,", b"9,0 1,2,0.5", b"999"])
def test_what_lies_beyond_the_state_is_cut_back(federation, tmp_path, torn, stop):
    federation().fit()
    whole = (tmp_path / "metrics.csv").read_bytes()
    stopped = federation()
    stop(stopped, after=2)
    for file in ("metrics.csv", "timing.csv"):
        (tmp_path / file).write_bytes(whole + torn)
    with pytest.raises(Interrupted):
        stopped.fit()  # its state is before the first round, so all of it goes
    assert (tmp_path / "metrics.csv").read_bytes() == b"".join(whole.splitlines(keepends=True)[:3])
    for file in ("metrics.csv", "timing.csv"):
        (tmp_path / file).write_bytes((tmp_path / file).read_bytes() + whole.splitlines(keepends=True)[3] + torn)
    stopped.fit()
    assert (tmp_path / "metrics.csv").read_bytes() == whole
    assert [row["round"] for row in rows_of(tmp_path / "timing.csv")] == ["1", "2", "3", "4"]
    assert not list(tmp_path.glob("*.part"))


def test_columns_that_change_are_refused(federation, tmp_path):
    class Moody(Callback):
        def measure(self, federation, round):
            return {f"test/{round}": 1.0}

    with pytest.raises(ValueError, match="fixed names"):
        federation(moody=Moody()).fit()
    assert len(rows_of(tmp_path / "metrics.csv")) == 1


def test_a_timing_file_of_another_version_keeps_its_columns(federation, tmp_path):
    (tmp_path / "timing.csv").write_text("round,seconds,seconds/old,engine\n")
    run = federation(rounds=1)
    run.run_round()
    assert [list(row) for row in rows_of(tmp_path / "timing.csv")] == [["round", "seconds", "seconds/old", "engine"]]
    (row,) = rows_of(tmp_path / "timing.csv")
    assert (row["round"], row["seconds/old"], row["engine"]) == ("1", "", "SequentialEngine")


def test_waiting_for_answers_is_not_selecting(tiny_federation, tmp_path, monkeypatch):
    """By a clock that goes on while clients answer and while the selector observes, and stands still otherwise."""
    now = [0.0]
    monkeypatch.setattr(rounds, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    class Slow(Query):
        name, needs_model = "heterogeneity", False

        def answer(self, context):
            now[0] += 2.0
            return Answer([0.1, 0.2, 0.3], 3, 0)

    class Ponder(FedDiverseSelector):
        def observe(self, server, result, updates, rng):
            now[0] += 0.5
            return server

    selector = Ponder(heterogeneity=Slow())
    tiny_federation(rounds=2, selector=selector, callbacks={"csv_log": CsvLog(run_dir=tmp_path)}).fit()
    timing = rows_of(tmp_path / "timing.csv")
    assert [float(row["seconds/ask"]) for row in timing] == [4 * 2.0, 0]
    assert [float(row["seconds/select"]) for row in timing] == [0.5, 0.5]
    assert [float(row["seconds/train"]) for row in timing] == [0, 0]
