"""Shadow models: halves, engines, and pools that are gone on with."""

import itertools
import shutil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedfacet.audit.shadows import ShadowData, Shadows
from fedfacet.commands.attack import main
from fedfacet.errors import FedFacetError
from fedfacet.types import Partition

OPTIONS = ("attack=lira", "shadow.models=6", "shadow.epochs=2", "members.min_known=10")


@given(st.integers(1, 8), st.integers(6, 60), st.integers(0, 3))
def test_each_sample_is_in_exactly_half_of_the_halves(pairs, num_samples, seed):
    halves = Shadows(models=2 * pairs, seed=seed).halves(num_samples)
    assert (halves.sum(axis=0) == pairs).all()
    assert set(halves.sum(axis=1).tolist()) <= {num_samples // 2, num_samples - num_samples // 2}
    assert np.array_equal(halves[0], ~halves[1])


def test_halves_differ_by_pair_and_by_seed():
    one, other = Shadows(models=4).halves(50), Shadows(models=4, seed=1).halves(50)
    assert len({half.tobytes() for half in (*one, *other)}) == 8


@pytest.mark.parametrize(
    ("num_samples", "said"), [(1, "2 samples or more"), (3, "at most 3, as many as 3 samples have halves")]
)
def test_more_models_than_halves_are_refused(num_samples, said):
    with pytest.raises(FedFacetError, match=said):
        Shadows(models=4).halves(num_samples)


@given(st.lists(st.integers(2, 60), min_size=3, max_size=6), st.integers(2, 200), st.integers(0, 3))
def test_other_clients_samples_are_never_the_victims(sizes, samples, seed):
    """And each model has a set of its own, of ``samples`` or half of what there is."""
    edges = np.cumsum([0, *sizes])
    partition = Partition(tuple(np.random.default_rng(seed).permutation(edges[-1])[a:b] for a, b in itertools.pairwise(edges)))
    shadows = Shadows(data="others", samples=samples, models=4, seed=seed)
    for client_id, own in enumerate(partition.indices):
        sets = shadows.sets_for(partition, client_id)
        rest = np.concatenate([other for k, other in enumerate(partition.indices) if k != client_id])
        for one in sets:
            assert not np.isin(one, own).any()
            assert np.isin(one, rest).all()
            assert len(np.unique(one)) == len(one) == min(samples, len(rest) // 2)
    assert len(sets) == 4
    with pytest.raises(FedFacetError, match=r"give shadow\.data=all"):
        shadows.sets_for(Partition(partition.indices[:1]), 0)


def test_others_data_find_members(run, attack, tmp_path):
    told = attack(
        run(), "attack=[lira,rmia]", "shadow.data=others", "shadow.models=4", "shadow.epochs=2", "clients=[0]",
        f"paths.log_dir={tmp_path}",
    )  # fmt: skip
    assert told["threat_model"]["shadow_models"]["data"] == "others"
    assert len(list(pool_in(tmp_path).glob("*.safetensors"))) == 4
    for row in told["attacks"]:
        assert row["auc"] > 0.6
        assert row["null_auc"] == pytest.approx(0.5, abs=0.1)


def test_what_a_usual_pool_is_known_by_stays():
    """Pools that were trained before are found again."""
    assert ShadowData(np.arange(3), (np.arange(2),)).key.keys() == {"samples"}
    assert ShadowData(np.arange(3), (np.arange(3, 9),), client_id=1).key.keys() == {"samples", "sets"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("attack=lira", "attack.lira.mode=online"), "give mode=offline"),
        (("attack=lira", "victim=server"), "attack clients"),
        (("attack=lira", "shadow.runs=logs"), "leave one of them out"),
    ],
)
def test_what_needs_models_that_saw_a_sample_is_refused_with_others_data(run, tmp_path, capsys, options, said):
    assert main([f"run={run()}", "shadow.data=others", *options, f"paths.log_dir={tmp_path}"]) == 2
    assert said in capsys.readouterr().err


def pool_in(folder):
    (own,) = [path.parent for path in folder.rglob("pool.json")]
    return own


@pytest.mark.slow
def test_a_pool_is_the_same_by_any_engine_and_after_a_kill(run, attack, tmp_path):
    """To the bit; files that are there are not made again."""
    whole = attack(run(), *OPTIONS, f"paths.log_dir={tmp_path}/one")
    files = sorted(pool_in(tmp_path / "one").glob("*.safetensors"))
    content = [file.read_bytes() for file in files]
    assert len(files) == 6
    times = {file: file.stat().st_mtime_ns for file in files}
    files[4].unlink()
    (files[4].parent / "shadow_0004.safetensors.part").write_bytes(b"half written")
    assert attack(run(), *OPTIONS, f"paths.log_dir={tmp_path}/one") == whole
    assert [file.read_bytes() for file in files] == content
    assert [file.stat().st_mtime_ns != times[file] for file in files] == [False] * 4 + [True, False]

    assert attack(run(), *OPTIONS, "engine=workers", "engine.workers=2", "threads=1", f"paths.log_dir={tmp_path}/two") == whole
    assert [file.read_bytes() for file in sorted(pool_in(tmp_path / "two").glob("*.safetensors"))] == content


def test_one_pool_serves_all_runs_of_its_data_and_model(run, attack, tmp_path):
    for options in ((), ("seed=1", "federation.rounds=1")):
        attack(run(*options), *OPTIONS, f"paths.log_dir={tmp_path}")
    assert len(list(tmp_path.rglob("pool.json"))) == 1
    attack(run("model.hidden=[16]"), *OPTIONS, f"paths.log_dir={tmp_path}")
    assert len(list(tmp_path.rglob("pool.json"))) == 2


def test_damaged_files_are_refused(run, attack, tmp_path, capsys):
    attack(run(), *OPTIONS, f"paths.log_dir={tmp_path}/logs")
    shutil.rmtree(run() / "attacks")
    own = pool_in(tmp_path / "logs")
    file, key = own / "shadow_0001.safetensors", own / "pool.json"
    for path, content in ((file, b"\x00" * 40), (key, b'{"models": 4}'), (key, b"[]")):
        kept = path.read_bytes()
        path.write_bytes(content)
        assert main([f"run={run()}", *OPTIONS, f"paths.log_dir={tmp_path}/logs"]) == 2
        assert "remove" in capsys.readouterr().err.splitlines()[-1]
        assert not (run() / "attacks").exists()
        path.write_bytes(kept)


def test_who_is_at_a_pool_is_waited_for(run, attack, tmp_path, capsys):
    from fedfacet.storage.lock import lock

    attack(run(), *OPTIONS, f"paths.log_dir={tmp_path}")
    with lock(pool_in(tmp_path)):
        assert main([f"run={run()}", *OPTIONS, f"paths.log_dir={tmp_path}"]) == 2
    assert "Expected a pool that nobody else trains" in capsys.readouterr().err


def test_weights_are_drawn_anew_for_each_model_and_know_their_half(run, attack, tmp_path):
    from safetensors.numpy import load_file

    attack(run(), "attack=lira", "shadow.models=6", "shadow.epochs=20", f"paths.log_dir={tmp_path}")
    logits = [load_file(file)["logits"] for file in sorted(pool_in(tmp_path).glob("*.safetensors"))]
    halves = Shadows(models=6).halves(len(logits[0]))
    margins = [np.abs(one[:, 0] - one[:, 1]) for one in logits]
    for half, margin in zip(halves, margins, strict=True):
        assert margin[half].mean() > 1.2 * margin[~half].mean()  # surer of what it was trained on
    assert len({one.tobytes() for one in logits}) == 6


@pytest.mark.parametrize("key", ["models", "epochs", "batch_size", "seed", "samples"])
def test_numbers_out_of_range_are_refused(key):
    with pytest.raises(ValueError, match=f"shadow.{key}"):
        Shadows(**{key: -1})


def test_a_shadow_model_that_diverges_is_not_kept(run, tmp_path, capsys):
    folder = run("optimizer=sgd", "optimizer.lr=1e6", "local.unit=steps", "local.amount=1", "federation.rounds=1")
    assert main([f"run={folder}", *OPTIONS, f"paths.log_dir={tmp_path}"]) == 2
    assert "Expected finite logits of shadow model 0, but it diverges" in capsys.readouterr().err
    assert not list(pool_in(tmp_path).glob("shadow_*"))
