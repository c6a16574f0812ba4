import os
import shutil

import pytest

from fedfacet import state
from fedfacet.callbacks.base import Callback
from fedfacet.callbacks.save_checkpoint import SaveCheckpoint
from fedfacet.errors import FedFacetError, Interrupted
from fedfacet.storage import checkpoint

CONFIG = {"seed": 0}


@pytest.fixture
def federation(tiny_federation, tmp_path):
    """Return a function that makes a federation that saves, and notes which round is saved after each."""

    def make(every_n_rounds=1, rounds=5):
        save = SaveCheckpoint(run_dir=tmp_path, run_config=CONFIG, every_n_rounds=every_n_rounds)
        return tiny_federation(rounds=rounds, callbacks={"save": save, "note": Note(save)})

    return make


class Note(Callback):
    """What is saved, once the writer is done."""

    def __init__(self, save):
        self.save, self.saved = save, []

    def on_fit_start(self, federation):
        self.saved.append(saved_round(self.save.path))

    def on_state_complete(self, federation):
        self.save._wait()
        self.saved.append(saved_round(self.save.path))


def saved_round(path):
    return checkpoint.load(path)[0].round


@pytest.mark.parametrize(("every", "saved"), [(1, [0, 1, 2, 3, 4, 5]), (2, [0, 0, 2, 2, 4, 4]), (9, [0, 0, 0, 0, 0, 0])])
def test_the_first_state_every_nth_and_the_last_are_saved(federation, every, saved):
    run = federation(every)
    run.fit()
    assert run.callbacks["note"].saved == saved
    assert saved_round(run.callbacks["save"].path) == 5


def test_what_is_saved_is_the_whole_state(federation):
    run = federation()
    run.fit()
    loaded, config = checkpoint.load(run.callbacks["save"].path)
    assert config == CONFIG
    assert state.digest(loaded.model) == state.digest(run.state.model)
    assert loaded.participation_counts.tolist() == run.state.participation_counts.tolist()
    assert set(loaded.callbacks) == {"save", "note"}


def test_an_interrupted_run_loses_no_whole_round(federation, stop):
    run = federation(every_n_rounds=100)
    stop(run, after=3)
    with pytest.raises(Interrupted):
        run.fit()
    assert saved_round(run.callbacks["save"].path) == 3


def test_a_failed_round_is_not_saved(federation, fail):
    """Its state may be half changed."""
    run = federation(every_n_rounds=2)
    fail(run, round=4)
    with pytest.raises(RuntimeError, match="broken"):
        run.fit()
    assert saved_round(run.callbacks["save"].path) == 2


def test_a_resumed_run_is_saved_only_when_it_is_further(federation):
    run = federation(every_n_rounds=2, rounds=3)
    run.fit()
    path = run.callbacks["save"].path
    before = path.stat().st_mtime_ns
    again = federation(every_n_rounds=2, rounds=3)
    again.restore(checkpoint.load(path)[0])
    again.fit()
    assert path.stat().st_mtime_ns == before
    longer = federation(every_n_rounds=10, rounds=4)
    longer.restore(checkpoint.load(path)[0])
    longer.fit()
    assert saved_round(path) == 4


def test_rounds_between_checkpoints_are_checked(federation):
    with pytest.raises(ValueError, match="every_n_rounds"):
        federation(every_n_rounds=0)


def test_what_a_checkpoint_holds_does_not_change_while_it_is_written(federation):
    run = federation(rounds=1)
    run.fit()
    content = checkpoint.dumps(run.state, CONFIG)
    before = state.digest(run.state.model)
    next(iter(run.state.model.values())).add_(1)
    checkpoint.write(run.callbacks["save"].path, content)
    assert state.digest(checkpoint.load(run.callbacks["save"].path)[0].model) == before


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_checkpoint_that_cannot_be_written_ends_the_run(federation, monkeypatch, rounds):
    run = federation(rounds=rounds)
    write = checkpoint.write

    def full(path, content):
        if run.state.round:
            raise OSError(28, "No space left on device")
        write(path, content)

    monkeypatch.setattr(checkpoint, "write", full)
    with pytest.raises(OSError, match="No space"):
        run.fit()
    assert run.state.round <= 2
    assert saved_round(run.callbacks["save"].path) == 0


@pytest.mark.parametrize("hard_links", [True, False])
def test_the_one_before_stays_until_the_next(federation, monkeypatch, hard_links):
    def refuse(*_):
        raise PermissionError("no such thing here")

    if not hard_links:
        monkeypatch.setattr("os.link", refuse)
    run = federation(every_n_rounds=2)
    previous = run.callbacks["save"].path.with_name("previous.ckpt")
    stays = []
    run.callbacks["note"].on_state_complete = lambda federation: (
        federation.callbacks["save"]._wait(),
        stays.append(saved_round(previous) if previous.exists() else None),
    )
    run.fit()
    assert stays == [None, 0, 0, 2, 2]
    assert saved_round(previous) == 4
    assert sorted(file.name for file in previous.parent.iterdir()) == ["last.ckpt", "previous.ckpt"]


def test_links_that_a_killed_process_left_do_no_harm(federation, tmp_path):
    run = federation(rounds=3)
    run.fit()
    path = run.callbacks["save"].path
    previous = path.with_name("previous.ckpt")
    os.link(previous, path.with_name("previous.ckpt.link.part"))
    longer = federation(rounds=4)
    longer.restore(checkpoint.load(path)[0])
    longer.fit()
    assert (saved_round(path), saved_round(previous)) == (4, 3)
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.parametrize("gone", ["", "checkpoints"])
@pytest.mark.parametrize("rounds", [2, 3])
def test_a_folder_removed_in_the_middle_ends_the_run_and_stays_removed(federation, tmp_path, gone, rounds):
    run = federation(rounds=rounds)

    class Remove(Callback):
        def on_client_end(self, *_):
            if run.state.round == 1:
                run.callbacks["save"]._wait()
                shutil.rmtree(tmp_path / gone, ignore_errors=True)

    run.callbacks["remove"] = Remove()

    with pytest.raises(FedFacetError, match=r"Expected the folder .*, but it was removed while the run went on"):
        run.fit()
    assert not (tmp_path / gone).exists()


@pytest.mark.parametrize(("every", "kept"), [(1, [0, 1, 2, 3, 4, 5]), (2, [0, 2, 4, 5])])
def test_all_that_is_saved_is_kept_where_that_is_chosen(tiny_federation, tmp_path, every, kept):
    save = SaveCheckpoint(run_dir=tmp_path, run_config=CONFIG, every_n_rounds=every, keep="all")
    run = tiny_federation(rounds=5, callbacks={"save": save})
    digests = {0: state.digest(run.state.model)}
    save.on_round_end = lambda federation, result: digests.update({result.round: state.digest(federation.state.model)})
    run.fit()
    files = sorted((tmp_path / "checkpoints").glob("*"))
    assert [file.name for file in files] == ["last.ckpt", "previous.ckpt", *(f"round_{round:06d}.ckpt" for round in kept)]
    for file, round in zip(files, [5, 4, *kept], strict=True):
        loaded, config = checkpoint.load(file)
        assert (loaded.round, config) == (round, CONFIG)
        assert state.digest(loaded.model) == digests[round]


def test_what_to_keep_is_checked(tmp_path):
    with pytest.raises(ValueError, match=r"Expected `callbacks\.save_checkpoint\.keep` to be 'last' or 'all', but got 'some'"):
        SaveCheckpoint(run_dir=tmp_path, run_config=CONFIG, keep="some")
