"""The model of the best round by validation, however the run was stopped."""

import json
from contextlib import suppress

import pytest
from safetensors.torch import load_file

from fedfacet import state
from fedfacet.callbacks.base import Callback
from fedfacet.callbacks.save_checkpoint import SaveCheckpoint
from fedfacet.callbacks.summary import Summary
from fedfacet.storage import best_models, checkpoint

VALIDATION = (0.1, 0.3, 0.2, 0.6, 0.6, 0.4)
"""Round 4 is the best one, and round 5 as good; before them, round 2 is."""

BEST = "model/best.safetensors"


class Scores(Callback):
    """Validation as given, and test accuracy that is highest where validation is lowest."""

    def __init__(self):
        self.digests = {}

    def measure(self, federation, round):
        score = VALIDATION[round - 1]
        return {"val/acc_worst_group": score, "val/acc": score, "test/acc_worst_group": 1 - score, "test/acc": 1 - score}

    def on_state_complete(self, federation):
        self.digests[federation.state.round] = state.digest(federation.state.model)


class Killed(Exception):
    """Ends a process without a word."""


class Kill(Callback):
    def __init__(self, after):
        self.after = after

    def on_round_end(self, federation, result):
        if result.round == self.after:
            raise Killed


@pytest.fixture
def run(tiny_federation):
    """Return a function that runs in a folder, or resumes there; it returns the digest of the model of each round."""

    def run(folder, *, rounds=6, every=1, kill=0, resume=None, save=True):
        folder.mkdir(exist_ok=True)
        callbacks = {"scores": Scores(), "summary": Summary(run_dir=folder, facts={}, model_config={}), "kill": Kill(kill)}
        if save:
            callbacks["save_checkpoint"] = SaveCheckpoint(run_dir=folder, run_config={}, every_n_rounds=every)
        federation = tiny_federation(rounds=rounds, callbacks=callbacks)
        if resume is not None:
            federation.restore(checkpoint.load(folder / "checkpoints" / resume)[0])
        with suppress(Killed):
            federation.fit()
        return callbacks["scores"].digests

    return run


def kept(folder):
    return sorted(int(file.stem.partition("_")[2]) for file in (folder / "checkpoints").glob("best_*"))


@pytest.mark.parametrize("save", [True, False])
def test_validation_chooses_and_of_two_the_earlier_round(run, tmp_path, save):
    digests = run(tmp_path, save=save)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["best"]["round"] == 4
    assert state.digest(load_file(tmp_path / BEST)) == summary["best_model_digest"] == digests[4] != digests[5]
    assert kept(tmp_path) == [4]


@pytest.mark.parametrize("every", [1, 2, 3])
@pytest.mark.parametrize("kill", [1, 3, 4, 5, 6])
def test_a_killed_run_ends_with_the_same_file(run, tmp_path, every, kill):
    run(tmp_path / "whole")
    run(tmp_path / "killed", every=every, kill=kill)
    for resume in (checkpoint.LAST, checkpoint.PREVIOUS):
        if (tmp_path / "killed" / "checkpoints" / resume).exists():
            run(tmp_path / "killed", every=every, resume=resume)
            assert (tmp_path / "killed" / BEST).read_bytes() == (tmp_path / "whole" / BEST).read_bytes()


def test_a_best_round_after_the_checkpoint_counts_only_if_it_is_run_again(run, tmp_path):
    """The killed process had written the model of round 4, and its checkpoint is of round 3."""
    run(tmp_path, every=3, kill=4)
    assert kept(tmp_path) == [2, 4]
    (tmp_path / "checkpoints" / "best_000005.safetensors.part").write_bytes(b"half")
    digests = run(tmp_path, rounds=3, resume=checkpoint.LAST)
    assert not digests  # nothing was left to run
    assert json.loads((tmp_path / "summary.json").read_text())["best"]["round"] == 2
    assert state.digest(load_file(tmp_path / BEST)) == state.digest(load_file(best_models.path_of(tmp_path, 2)))


def test_only_a_round_that_is_the_best_so_far_writes(run, tmp_path, monkeypatch):
    written = []
    write = best_models.write_synced

    def count(path, parts):
        write(path, parts)
        written.append((path.name, path.stat().st_size))

    monkeypatch.setattr(best_models, "write_synced", count)
    run(tmp_path)
    size = (tmp_path / "model" / "model.safetensors").stat().st_size
    assert written == [(f"best_{round:06d}.safetensors", size) for round in (1, 2, 4)]
    assert (tmp_path / BEST).stat().st_nlink == 2  # the export writes nothing


def test_a_run_whose_best_model_is_lost_says_so(run, tmp_path, caplog):
    run(tmp_path)
    best_models.path_of(tmp_path, 4).write_bytes(b"half")
    run(tmp_path, resume=checkpoint.LAST)
    assert "best_000004.safetensors, the model of the best round, but it is missing or damaged" in caplog.text
    assert not (tmp_path / BEST).exists()
    assert "best_model_digest" not in json.loads((tmp_path / "summary.json").read_text())
