import pytest
import torch

from fedfacet import state
from fedfacet.build import build, settle
from fedfacet.callbacks.base import Callback
from fedfacet.callbacks.save_checkpoint import SaveCheckpoint
from fedfacet.clients.local_training import LocalTraining
from fedfacet.config import compose_job
from fedfacet.errors import CheckpointError
from fedfacet.storage import checkpoint
from fedfacet.storage.client_memory import ClientMemory

MEMORY = {3: {"head": torch.arange(4.0), "steps": torch.tensor(7)}, 0: {"head": torch.ones(4)}}


@pytest.fixture
def stored(tmp_path):
    """Return the store of a run folder with some memory, and its index."""
    store = ClientMemory(tmp_path)
    index, files = store.pack(MEMORY)
    store.write(files)
    return store, index


def names(store):
    return {file.name for file in store.folder.iterdir()}


def same(left, right):
    return {k: state.digest(kept) for k, kept in left.items()} == {k: state.digest(kept) for k, kept in right.items()}


def test_what_is_written_is_read(stored, tmp_path):
    read = ClientMemory(tmp_path).read(stored[1])
    assert same(read, MEMORY)
    assert ClientMemory(tmp_path).pack(read)[0] == stored[1], "a resumed run need not write it again"


def test_nobodys_memory_is_no_file(tmp_path):
    store = ClientMemory(tmp_path)
    assert store.pack({}) == ("", {})
    store.write({})
    assert store.read("") == {}
    assert not list(tmp_path.iterdir())


def test_only_what_has_changed_is_packed(stored):
    store, index = stored
    assert store.pack(MEMORY)[0] == index
    changed = MEMORY | {0: {"head": torch.zeros(4)}}
    _, files = store.pack(changed)
    assert sorted(name.partition("_")[0] for name in files) == ["000000", "index"]


def test_a_view_is_packed_without_what_it_is_a_view_of(tmp_path):
    large = torch.zeros(10**6)
    _, files = ClientMemory(tmp_path).pack({0: {"head": large[:3]}})
    assert sum(map(len, files.values())) < 5000


def test_strides_survive(tmp_path):
    """Sums may depend on them."""
    kept = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0)).to(memory_format=torch.channels_last)
    store = ClientMemory(tmp_path)
    index, files = store.pack({0: {"weight": kept}})
    store.write(files)
    assert store.read(index)[0]["weight"].stride() == kept.stride()


def test_what_no_index_lists_is_removed(stored):
    store, before = stored
    index, files = store.pack({3: MEMORY[3], 0: {"head": torch.zeros(4)}})
    store.write(files)
    (store.folder / f"000000_{64 * 'd'}.pt.part").touch()
    store.keep_only([before, index, ""])
    assert len(names(store)) == 3 + 2
    store.keep_only([index])
    assert len(names(store)) == 2 + 1
    assert same(store.read(index), {3: MEMORY[3], 0: {"head": torch.zeros(4)}})
    with pytest.raises(CheckpointError, match=f"index_{before}"):
        store.read(before)


@pytest.mark.parametrize("which", ["000003_*.pt", "index_*.txt"])
@pytest.mark.parametrize("damage", ["missing", "a folder", "empty", "another's"])
def test_damage_is_named(stored, which, damage):
    store, index = stored
    (file,) = store.folder.glob(which)
    content = next(store.folder.glob("000000_*")).read_bytes()
    file.unlink()
    if damage == "a folder":
        file.mkdir()
    elif damage != "missing":
        file.write_bytes(b"" if damage == "empty" else content)
    with pytest.raises(CheckpointError, match=file.name):
        store.read(index)


def test_a_damaged_file_is_written_again_where_its_content_comes_again(stored, tmp_path):
    """As when a run goes on from the checkpoint before."""
    _, index = stored
    again = ClientMemory(tmp_path)
    next(again.folder.glob("000003_*")).write_bytes(b"damaged")
    packed, files = again.pack(MEMORY)
    again.write(files)
    assert packed == index
    assert same(again.read(index), MEMORY)


def test_an_index_comes_after_all_that_it_lists(tmp_path):
    """Or a run killed in between would go on from a memory that is not there."""
    store = ClientMemory(tmp_path)
    index, files = store.pack({k: {"head": torch.full((3,), float(k))} for k in range(50)})
    blocked = store.folder / next(iter(files))
    (blocked / "in the way").mkdir(parents=True)
    with pytest.raises(OSError, match=blocked.name):
        store.write(files)
    assert f"index_{index}.txt" not in names(store)
    (blocked / "in the way").rmdir()
    blocked.rmdir()
    store.write(files)
    assert len(store.read(index)) == 50
    assert len(names(store)) == 51


def test_while_a_run_goes_on_a_file_is_written_for_each_memory_that_changes(tiny_federation, tmp_path):
    save = SaveCheckpoint(run_dir=tmp_path, run_config={})
    run = tiny_federation(rounds=6, callbacks={"save": save}, local=LocalTraining(batch_size=8, keep_optimizer=True))
    written = {}
    kept = {0: run.state.memory}
    save.on_round_end = lambda federation, result: kept.update({result.round: federation.state.memory})

    class Look(Callback):
        def on_client_end(self, *_):
            look()

    def look():
        save._wait()
        for file in (tmp_path / "clients" / "memory").glob("0*.pt"):
            written.setdefault(file.name, file.stat().st_ino)
            assert written[file.name] == file.stat().st_ino, "an unchanged one is not written again"

    run.callbacks["look"] = Look()
    run.fit()
    look()
    versions = {(k, state.digest(memory)) for memories in kept.values() for k, memory in memories.items()}
    assert len(written) == len(versions) > 6
    there = {file.name for file in (tmp_path / "clients" / "memory").iterdir()}
    needed = {(k, state.digest(memory)) for round in (5, 6) for k, memory in kept[round].items()}
    assert len(there) == len(needed) + 2, "those of the last two checkpoints, and their indices"
    for name, round in (("last.ckpt", 6), ("previous.ckpt", 5)):
        assert same(checkpoint.load(tmp_path / "checkpoints" / name)[0].memory, kept[round])


def test_checkpoints_do_not_grow_with_the_clients_that_keep_something(tmp_path):
    sizes = []
    for num_clients in (12, 96):
        folder = tmp_path / str(num_clients)
        config, _ = compose_job(
            "train",
            [
                *("setting=local", "partition=iid", f"partition.num_clients={num_clients}", "threads=1", "federation.rounds=1"),
                *("callbacks=save_checkpoint", "logger=[]", "local.amount=1", "local.unit=steps", "model.width=8"),
            ],
        )
        settle(config)
        federation = build(config, folder)
        federation.fit()
        file = folder / "checkpoints" / "last.ckpt"
        assert len(checkpoint.load(file)[0].memory) == num_clients
        sizes.append(file.stat().st_size)
    assert sizes[1] < 1.1 * sizes[0], sizes
