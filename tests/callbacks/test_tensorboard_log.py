import io
import math
import sys
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from fedfacet.callbacks.base import Callback
from fedfacet.callbacks.lightning_log import TensorBoardLog
from fedfacet.errors import ConfigError, Interrupted


class Score(Callback):
    def measure(self, federation, round):
        return {"test/acc": round / 10, "test/rare": 1.0 if round == 2 else math.nan}


def scalars(folder):
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="tensorboard is not installed"
    )
    events = accumulator.EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_the_round_is_the_step(tiny_federation, tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    tiny_federation(rounds=3, callbacks={"score": Score(), "tensorboard": TensorBoardLog(run_dir=tmp_path)}).fit()
    logged = scalars(tmp_path / "tensorboard")
    assert [step for step, _ in logged["test/acc"]] == [1, 2, 3]
    assert [value for _, value in logged["test/acc"]] == pytest.approx([0.1, 0.2, 0.3])
    assert logged["test/rare"] == [(2, 1.0)]
    assert "train/loss" in logged


def test_pictures_of_the_run_folder_are_shown(tiny_federation, tmp_path):
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="tensorboard is not installed"
    )
    drawn = np.random.default_rng(0).integers(0, 256, (4, 6, 3), dtype=np.uint8)
    Image.fromarray(drawn).save(tmp_path / "curves.png")
    tiny_federation(rounds=2, callbacks={"tensorboard": TensorBoardLog(run_dir=tmp_path)}).fit()
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    (shown,) = events.Images("curves")
    assert shown.step == 2
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(shown.encoded_image_string))), drawn)


def test_a_resumed_run_goes_on_and_replaces_what_was_beyond_the_checkpoint(tiny_federation, tmp_path, stop):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    first = tiny_federation(rounds=4, callbacks={"score": Score(), "tensorboard": TensorBoardLog(run_dir=tmp_path)})
    stop(first, after=3)
    with pytest.raises(Interrupted):
        first.fit()
    again = tiny_federation(rounds=4, callbacks={"score": Score(), "tensorboard": TensorBoardLog(run_dir=tmp_path)})
    again.restore(replace(again.state, round=2))  # the checkpoint was a round behind
    again.fit()
    assert [step for step, _ in scalars(tmp_path / "tensorboard")["test/acc"]] == [1, 2, 3, 4]


def test_without_the_package_it_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(ConfigError, match=r"pip install .fedfacet\[tensorboard\]"):
        TensorBoardLog(run_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []
