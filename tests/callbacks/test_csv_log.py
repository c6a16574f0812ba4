import csv
import hashlib
import math
import shutil
from types import SimpleNamespace

import pytest

from fedfacet import round as rounds
from fedfacet.callbacks.base import Callback
from fedfacet.callbacks.csv_log import CsvLog
from fedfacet.clients.queries.base import Query
from fedfacet.errors import CheckpointError, FedFacetError, Interrupted
from fedfacet.methods.feddiverse import FedDiverseSelector
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
    header = b"round,seconds,seconds/old,engine\n"
    (tmp_path / "timing.csv").write_bytes(header)
    run = federation(rounds=1)
    record = {"rows": 0, "bytes": len(header), "sha256": hashlib.sha256(header).hexdigest()}
    run.callbacks["csv_log"].load_state_dict(run.callbacks["csv_log"].state_dict() | {"timing.csv": record})
    run.run_round()
    (row,) = rows_of(tmp_path / "timing.csv")
    assert list(row) == ["round", "seconds", "seconds/old", "engine"]
    assert (row["round"], row["seconds/old"], row["engine"]) == ("1", "", "SequentialEngine")


def without_row(lines):
    return [*lines[:2], *lines[3:]]


def with_other_number(lines):
    return [*lines[:2], lines[2].replace(b"2", b"3", 1), *lines[3:]]


TAMPERINGS = {
    "missing": (None, "it is missing"),
    "a folder": (None, r"it cannot be read \(Is a directory\)"),
    "emptied": (lambda lines: [], "it has only 0 of them"),
    "header alone": (lambda lines: lines[:1], "it has only 0 of them"),
    "shortened": (lambda lines: lines[:3], "it has only 2 of them"),
    "half a last line": (lambda lines: [*lines[:-1], lines[-1][:5]], "it has only 2 of them"),
    "without a header": (lambda lines: lines[1:], "it has only 2 of them"),
    "a row left out": (without_row, "it has only 2 of them"),
    "reordered": (lambda lines: [lines[0], lines[2], lines[1], lines[3]], "they have been changed"),
    "a row twice": (lambda lines: [*lines[:2], *lines[1:]], "they have been changed"),
    "edited": (with_other_number, "they have been changed"),
    "extended in place": (lambda lines: [lines[0][:-1] + b",more\n", *(line[:-1] + b",1\n" for line in lines[1:])], "changed"),
    "another line ending": (lambda lines: [line.replace(b"\n", b"\r\n") for line in lines], "they have been changed"),
    "a byte order mark": (lambda lines: [b"\xef\xbb\xbf", *lines], "they have been changed"),
    "binary": (lambda lines: [bytes(range(256)) * 20], "they have been changed"),
    "nothing but line ends": (lambda lines: [b"\n" * 2000], "they have been changed"),
}


@pytest.mark.parametrize("file", ["metrics.csv", "timing.csv"])
@pytest.mark.parametrize("tampering", TAMPERINGS)
def test_a_table_that_is_not_the_runs_is_refused_before_any_training(federation, tmp_path, file, tampering):
    first = federation(rounds=3)
    first.fit()
    table = tmp_path / file
    lines = table.read_bytes().splitlines(keepends=True)
    change, fault = TAMPERINGS[tampering]
    table.unlink()
    if change is not None:
        table.write_bytes(b"".join(change(lines)))
    elif tampering == "a folder":
        table.mkdir()
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    sentence = f"Expected {table} to begin with the 3 rows .*, but .*{fault}: bring the file back .*, or start a new run"
    with pytest.raises(CheckpointError, match=sentence):
        federation(rounds=5).restore(first.state)
    assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


@pytest.mark.parametrize(
    "record", [{}, {"rows": 1, "bytes": -1, "sha256": ""}, {"rows": "3", "bytes": 2, "sha256": ""}, {"rows": 1, "bytes": None}]
)
def test_a_record_that_no_run_keeps_is_refused(federation, record):
    with pytest.raises(CheckpointError, match=r"tells how long .*metrics\.csv was"):
        federation().callbacks["csv_log"].load_state_dict({"metrics.csv": record})


@pytest.mark.parametrize("change", [lambda file: file.unlink(), lambda file: file.write_bytes(file.read_bytes() + b"9,9\n")])
def test_a_table_that_somebody_else_writes_to_ends_the_run(federation, tmp_path, change):
    run = federation()
    run.run_round()
    change(tmp_path / "metrics.csv")
    with pytest.raises(FedFacetError, match=r"Expected .*metrics\.csv to hold the \d+ bytes that the run wrote"):
        run.run_round()


def test_a_table_without_a_record_is_left_as_it_is(tiny_federation, federation, tmp_path):
    """As where the callback was left out when the run began."""
    (tmp_path / "metrics.csv").write_text("somebody's\n")
    without = tiny_federation(rounds=1)
    without.fit()
    run = federation()
    run.restore(without.state)
    with pytest.raises(FedFacetError, match=r"metrics\.csv to hold the 0 bytes that the run wrote"):
        run.fit()
    assert (tmp_path / "metrics.csv").read_text() == "somebody's\n"


def test_a_run_folder_removed_in_the_middle_ends_the_run_and_stays_removed(federation, tmp_path):
    run = federation()
    run.run_round()
    shutil.rmtree(tmp_path)
    with pytest.raises(FedFacetError, match=r"Expected the folder .*, but it was removed while the run went on"):
        run.run_round()
    assert not tmp_path.exists()


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
    assert [float(row["seconds/ask"]) for row in timing] == [0, 4 * 2.0]
    assert [float(row["seconds/select"]) for row in timing] == [0.5, 0.5]
    assert [float(row["seconds/train"]) for row in timing] == [0, 0]
