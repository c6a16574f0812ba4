"""What an attack has written is read back as it was written, or refused in a sentence that names it."""

import random
import shutil

import numpy as np
import pytest
from safetensors.numpy import save_file

from fedfacet.analysis.audits import load_audits
from fedfacet.audit.shadows import keep, kept
from fedfacet.commands import report
from fedfacet.commands.attack import main
from fedfacet.errors import CheckpointError
from fedfacet.storage.run_files import LIST

OPTIONS = (
    "attack=[gap,lira,trajectory]", "members.min_known=10", "shadow.models=4", "shadow.epochs=1",
    "attack.trajectory.distill_epochs=1",
)  # fmt: skip


def flips(file, drawn, times):
    """Flip a bit after another in a file, which is whole again in the end."""
    content = file.read_bytes()
    for _ in range(times):
        flipped = bytearray(content)
        flipped[drawn.randrange(len(content))] ^= 1 << drawn.randrange(8)
        file.write_bytes(flipped)
        yield
    file.write_bytes(content)


def refused(reads_the_same):
    """Return what a reader refuses a file with; without that, hold it to what was written."""
    try:
        assert reads_the_same()
    except CheckpointError as error:
        return str(error)


def values(folder):
    return [(audit.threat_model, repr(audit.rows), repr(audit.metrics)) for audit in load_audits(folder)]


def test_a_flipped_bit_changes_no_number_in_silence(run, attack, tmp_path, capsys):
    folder, logs, drawn = shutil.copytree(run(), tmp_path / "run"), tmp_path / "logs", random.Random(0)
    shutil.rmtree(folder / "attacks", ignore_errors=True)
    where = f"paths.log_dir={logs}"
    first = attack(folder, *OPTIONS, where)
    read, (audit,) = values(folder), (folder / "attacks").iterdir()
    for name in ("audit.json", LIST, "attacks.csv", "scores.npz"):
        for _ in flips(audit / name, drawn, 15):
            if (refusal := refused(lambda: values(folder) == read)) is not None:
                assert str(audit) in refusal
                assert "remove it" in refusal
            else:
                assert name != "audit.json"
    for _ in flips(audit / "audit.json", drawn, 1):
        assert report.main([str(folder)]) == 2
        assert "audit.json to be as it was written" in capsys.readouterr().err
    for kept_file in (drawn.choice(sorted(logs.rglob(kind))) for kind in ("shadow_*", "trajectories/*", "pool.json")):
        for _ in flips(kept_file, drawn, 1):
            status = main([f"run={folder}", *OPTIONS, where])
            assert str(kept_file) in capsys.readouterr().err.splitlines()[-1] if status else kept_file.suffix == ".json"
            assert values(folder) == read
        kept_file.unlink()
    assert attack(folder, *OPTIONS, where) == first


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_flipped_bit_in_any_place(tmp_path, dtype):
    file, array = tmp_path / "a.safetensors", np.random.default_rng(0).random((20, 3)).astype(dtype)
    keep(file, "logits", array)
    for _ in flips(file, random.Random(0), 300):
        if (refusal := refused(lambda: np.array_equal(kept(file, "logits", 20), array))) is not None:
            assert f"{file} to be as it was written" in refusal
            assert refusal.endswith("remove it and attack again.")
    assert np.array_equal(kept(file, "logits", 20, 3), array)


def test_a_file_of_an_older_version_is_read(tmp_path):
    array = np.ones((20, 3), np.float32)
    save_file({"logits": array}, tmp_path / "a.safetensors")
    assert np.array_equal(kept(tmp_path / "a.safetensors", "logits", 20), array)
    for num_samples, num_columns in ((19, None), (20, 4)):
        with pytest.raises(CheckpointError, match=f"finite logits of {num_samples} samples: remove it and attack again"):
            kept(tmp_path / "a.safetensors", "logits", num_samples, num_columns)
