"""What a run has written is read back as it was written, or refused in a sentence that names the file."""

import contextlib
import io
import os
import random
import shutil

import pytest

import fedfacet
from fedfacet import state
from fedfacet.commands import report
from fedfacet.errors import CheckpointError, FedFacetError
from fedfacet.storage import checkpoint
from fedfacet.storage.run_files import LIST

SUMMED = ("config.yaml", "metrics.csv", "model/config.json", "model/model.safetensors", "summary.json")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    fedfacet.train(
        f"paths.output_dir={folder}", "threads=1", "model.width=2", "model.hidden=4", "heterogeneity=true",
        "~callbacks.figures", "~callbacks.progress", "federation.rounds=2",
    )  # fmt: skip
    return folder


@pytest.fixture
def run(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "run")


def values(folder):
    run = fedfacet.load_run(folder)
    return repr((run.config, run.metrics, run.summary)), state.digest(run.model.state_dict())


def reported(folder):
    said, wrong = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(wrong):
        status = report.main([str(folder)])
    return status, said.getvalue(), wrong.getvalue()


@pytest.mark.parametrize("name", SUMMED)
def test_a_flipped_bit_changes_no_value_in_silence(run, whole, name):
    right, drawn = values(whole), random.Random(name)
    file, content = run / name, (whole / name).read_bytes()
    for _ in range(12):
        flipped = bytearray(content)
        flipped[drawn.randrange(len(content))] ^= 1 << drawn.randrange(8)
        file.write_bytes(flipped)
        with pytest.raises(FedFacetError, match=f"{name}|{file.name}"):
            values(run)
    file.write_bytes(content)
    assert values(run) == right


def test_a_flipped_bit_in_the_list_changes_no_value(run, whole):
    right, drawn, content = values(whole), random.Random(1), (whole / LIST).read_bytes()
    for _ in range(12):
        flipped = bytearray(content)
        flipped[drawn.randrange(len(content))] ^= 1 << drawn.randrange(8)
        (run / LIST).write_bytes(flipped)
        with contextlib.suppress(FedFacetError):
            assert values(run) == right


@pytest.mark.parametrize("name", ["config.yaml", "summary.json"])
def test_a_report_names_run_and_file(run, name):
    content = (run / name).read_bytes()
    for damage in (content[:-3], content.replace(b"1", b"2"), b""):
        (run / name).write_bytes(damage)
        status, said, wrong = reported(run)
        assert (status, said) == (2, "")
        assert str(run / name) in wrong


@pytest.mark.parametrize("name", SUMMED)
@pytest.mark.parametrize("what", ["absent", "folder", "link", "pipe"])
def test_something_else_in_the_place_of_a_file(run, name, what):
    file = run / name
    file.rename(run / "elsewhere")
    if what == "folder":
        file.mkdir()
    elif what == "link":
        file.symlink_to(run / "elsewhere")
    elif what == "pipe":
        os.mkfifo(file)
    with pytest.raises(FedFacetError, match=file.name):
        values(run)


def test_tables_of_a_killed_run_are_held_to_its_last_checkpoint(run, whole):
    (run / LIST).unlink()
    assert values(run) == values(whole)
    table = run / "metrics.csv"
    content = table.read_bytes()
    table.write_bytes(content + b"3,0 1")  # a row that was not written to its end
    assert values(run) == values(whole)
    table.write_bytes(content.replace(b"0.", b"1.", 1))
    with pytest.raises(CheckpointError, match=r"metrics.csv .* does not begin with the 2 rows that .*last.ckpt tells of"):
        fedfacet.load_run(run).metrics  # noqa: B018


def test_a_model_without_a_list_is_held_to_the_summary(run):
    (run / LIST).unlink()
    file = run / "model" / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-5] ^= 64
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        fedfacet.load_run(run).model  # noqa: B018


def test_a_run_without_a_list_is_read_and_one_line_says_so(run, caplog):
    before = reported(run)
    (run / LIST).unlink()
    (run / "checkpoints" / "last.ckpt").unlink()
    assert reported(run)[:2] == before[:2]
    assert [str(run) in message for message in caplog.messages if LIST in message] == [True]


def test_the_list_is_gone_while_a_run_writes(run, monkeypatch):
    """A process that is killed leaves no list of what was there before."""
    seen = []
    monkeypatch.setattr("fedfacet.storage.table.Table.append", lambda *_: seen.append((run / LIST).exists()))
    fedfacet.load_run(run).resume("federation.rounds=3")
    assert seen
    assert not any(seen)
    assert (run / LIST).exists()


def test_an_agent_of_a_damaged_checkpoint(run):
    """Whoever reads a checkpoint verifies it."""
    last = run / "checkpoints" / "last.ckpt"
    content = bytearray(last.read_bytes())
    content[len(content) // 2] ^= 1
    last.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"last\.ckpt"):
        checkpoint.verified(last)
