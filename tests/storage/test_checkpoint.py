import io
import json
import math
import os
import random
import signal
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedfacet import state
from fedfacet.errors import CheckpointError
from fedfacet.records import FederationState
from fedfacet.storage import checkpoint


@pytest.fixture
def path(tmp_path):
    """Of the last checkpoint of a run folder."""
    (tmp_path / "checkpoints").mkdir()
    return tmp_path / "checkpoints" / "last.ckpt"


def make_state(round=3, size=1000):
    return FederationState(
        round=round,
        model={
            "weight": torch.full((size,), float(round)),
            "count": torch.tensor(7),
            "half": torch.ones(2, dtype=torch.bfloat16),
        },
        memory={4: {"head": torch.arange(3.0)}, 1: {"head": torch.full((3,), float(round))}},
        disclosures={"heterogeneity": {0: [0.1, 0.2, 0.3], 11: None}},
        participation_counts=torch.tensor([1, 0, 2, 0, 1]),
        selector={"rotation": 2, "unit": torch.eye(3, dtype=torch.float64), "nothing": None},
        aggregator={},
        callbacks={"summary": {"best": {"test/acc": math.nan}, "text": "é"}},
        partition_digest="0a1b",
    )


CONFIG = {"seed": 1, "selector": {"_target_": "x"}, "threads": None, "tags": ["a"]}


def everything(value):
    """Return a value as comparable text, to the last bit."""
    if isinstance(value, torch.Tensor):
        return state.digest({"": value})
    if isinstance(value, dict):
        return repr({name: everything(entry) for name, entry in value.items()})
    return repr(value)


def write_sealed(path, content):
    """Write what bears a right sha256, whatever it is."""
    sealed = io.BytesIO()
    torch.save(content, sealed)
    checkpoint.write(path, sealed.getbuffer())


def raw(path):
    return torch.load(path, weights_only=True)


def test_what_is_saved_is_loaded(path):
    saved = make_state()
    checkpoint.save(path, saved, CONFIG)
    loaded, config = checkpoint.load(path)
    assert config == CONFIG
    for name in FederationState.__dataclass_fields__:
        assert everything(getattr(loaded, name)) == everything(getattr(saved, name)), name


def test_it_is_safe_to_load_for_anyone(path):
    checkpoint.save(path, make_state(), CONFIG)
    assert raw(path)["state"]["round"] == 3


def test_code_in_a_checkpoint_is_not_run(path, tmp_path):
    class Payload:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "owned"),)

    write_sealed(path, {"format": 2, "config": "{}", "state": Payload()})
    with pytest.raises(CheckpointError, match=r"last\.ckpt"):
        checkpoint.load(path)
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("value", [np.float64(0.5), np.int64(3), np.ones(2), object()])
@pytest.mark.parametrize("part", ["disclosures", "selector", "callbacks"])
def test_what_could_not_be_read_back_is_not_saved(path, part, value):
    bad = replace(make_state(), **{part: {"mine": {3: [1, value]}}})
    with pytest.raises(CheckpointError, match=rf"`{part}\.mine\.3\.1` is of the type {type(value).__name__}, which could not"):
        checkpoint.save(path, bad, CONFIG)
    assert not path.exists()


def test_a_state_that_holds_itself_or_is_too_deep_is_not_saved(path):
    endless: dict = {}
    endless["again"] = endless
    deep: list = []
    for _ in range(2000):
        deep = [deep]
    for held in (endless, deep):
        with pytest.raises(CheckpointError, match="could be read back, but its data is nested"):
            checkpoint.save(path, replace(make_state(), selector={"mine": held}), CONFIG)
    assert not path.exists()


def test_saving_again_replaces_and_leaves_nothing_else(path):
    for round in (1, 2):
        checkpoint.save(path, make_state(round), CONFIG)
    assert checkpoint.load(path)[0].round == 2
    assert [file.name for file in path.parent.iterdir()] == ["last.ckpt"]


def test_a_full_disk_leaves_the_old_one_and_no_half_of_the_new_one(path, monkeypatch):
    checkpoint.save(path, make_state(1), CONFIG)

    def full(_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            checkpoint.save(path, make_state(2), CONFIG)
    assert checkpoint.load(path)[0].round == 1
    assert [file.name for file in path.parent.iterdir()] == ["last.ckpt"]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_process_killed_while_saving_leaves_a_whole_one(path):
    checkpoint.save(path, make_state(0, size=200_000), CONFIG)
    for moment in (0.02, 0.05, 0.11, 0.17):
        if (pid := os.fork()) == 0:
            for round in range(1, 10_000):
                checkpoint.save(path, make_state(round, size=200_000), CONFIG)
            os._exit(1)
        time.sleep(moment)
        os.kill(pid, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
        loaded, _ = checkpoint.load(path)
        assert torch.equal(loaded.model["weight"], torch.full((200_000,), float(loaded.round)))


@pytest.mark.parametrize("kept", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_truncated_one_is_named(path, kept):
    checkpoint.save(path, make_state(), CONFIG)
    content = path.read_bytes()
    path.write_bytes(content[: int(kept * len(content))])
    with pytest.raises(CheckpointError, match=r"last\.ckpt to be a whole checkpoint.*truncated"):
        checkpoint.load(path)


@pytest.mark.parametrize("flips", [12, pytest.param(100, marks=pytest.mark.slow)])
def test_a_single_flipped_bit_is_refused_wherever_it_is(path, tmp_path, flips):
    checkpoint.save(path, make_state(), CONFIG)
    draw = random.Random(flips)
    for file in [path, *sorted((tmp_path / "clients" / "memory").iterdir())]:
        content = file.read_bytes()
        for _ in range(flips):
            damaged, bit = bytearray(content), draw.randrange(8 * len(content))
            damaged[bit // 8] ^= 1 << bit % 8
            file.write_bytes(damaged)
            with pytest.raises(CheckpointError, match=file.name):
                checkpoint.load(path)
        file.write_bytes(content)
    assert checkpoint.load(path)[0].round == 3


def test_a_missing_one_is_named(path):
    with pytest.raises(CheckpointError, match=r"last\.ckpt, but there is none"):
        checkpoint.load(path)


def test_one_of_the_format_before_is_told_from_a_damaged_one(path):
    torch.save({"format": 1, "config": "{}", "state": {}}, path)
    with pytest.raises(CheckpointError, match=r"format 2, but it has no sha256 at its end: it is of format 1, "):
        checkpoint.load(path)


@pytest.mark.parametrize("content", [{"state_dict": {}}, [1, 2], torch.zeros(2), {"format": 2, "config": "{}", "state": {}}])
def test_something_else_is_refused(path, content):
    write_sealed(path, content)
    with pytest.raises(CheckpointError, match="to be a whole checkpoint of format 2, but it"):
        checkpoint.load(path)


def nested(depth, value):
    for _ in range(depth):
        value = [value]
    return value


def bomb():
    value = [0]
    for _ in range(12):
        value = [value] * 10
    return value


def ring():
    value = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("round", -1), ("round", 10**24), ("round", 1e24), ("round", True), ("round", None), ("round", "3"),
        ("model", [torch.ones(2)]), ("model", {"weight": 1.0}), ("model", {1: torch.ones(2)}),
        ("memory", "0" * 63), ("memory", "../" * 21 + "x"), ("memory", {0: {}}), ("memory", "0" * 64),
        ("disclosures", {"loss": [1]}), ("disclosures", {"loss": {"0": 1}}),
        ("participation_counts", [1]), ("participation_counts", torch.ones(2)), ("participation_counts", torch.tensor(1)),
        ("callbacks", {"summary": None}), ("partition_digest", 7),
        ("selector", nested(200, 1)), ("aggregator", bomb()), ("scheduler", ring()), ("stranger", 1),
    ],
)  # fmt: skip
def test_a_state_that_no_run_saves_is_refused_though_its_sha256_is_right(path, part, value):
    checkpoint.save(path, make_state(), CONFIG)
    content = raw(path)
    content["state"][part] = value
    write_sealed(path, content)
    with pytest.raises(CheckpointError, match=r"last\.ckpt|index_0{64}\.txt"):
        checkpoint.load(path)


@pytest.mark.parametrize(
    "config",
    [
        "", "{", "null", "[]", None, 7, "[" * 100_000, '{"a": ' * 200 + "1" + "}" * 200, '{"federation": 3}',
        '{"callbacks": {"summary": 1}}', '{"engine": []}', "9" * 5000,
    ],
)  # fmt: skip
def test_a_configuration_that_no_run_has_is_refused(path, config):
    checkpoint.save(path, make_state(), CONFIG)
    write_sealed(path, raw(path) | {"config": config})
    with pytest.raises(CheckpointError, match=r"last\.ckpt"):
        checkpoint.load(path)


@pytest.mark.parametrize("left_out", sorted(checkpoint._ADDED))
def test_an_older_state_is_as_a_run_begins_where_it_lacks_a_part(path, left_out):
    checkpoint.save(path, make_state(), CONFIG)
    content = raw(path)
    content["state"].pop(left_out, None)  # a model without frozen weights has no digest of them
    write_sealed(path, content)
    assert everything(getattr(checkpoint.load(path)[0], left_out)) == everything(getattr(make_state(), left_out))


@pytest.mark.parametrize("left_out", sorted(checkpoint._PARTS - checkpoint._ADDED))
def test_a_state_that_lacks_a_part_is_refused(path, left_out):
    checkpoint.save(path, make_state(), CONFIG)
    content = raw(path)
    del content["state"][left_out]
    write_sealed(path, content)
    with pytest.raises(CheckpointError, match="its state lacks a part"):
        checkpoint.load(path)


def test_the_checkpoint_before_is_offered_where_it_is_whole(path):
    previous = path.with_name("previous.ckpt")
    checkpoint.save(previous, make_state(2), CONFIG)
    remedy = rf"the one before it is whole, so go on after round 2 with resume={previous}\.$"
    with pytest.raises(CheckpointError, match=remedy):
        checkpoint.load(path)
    checkpoint.save(path, make_state(3), CONFIG)
    assert checkpoint.load(path)[0].round == 3
    path.write_bytes(b"x" + path.read_bytes()[1:])
    with pytest.raises(CheckpointError, match=remedy):
        checkpoint.load(path)
    previous.write_bytes(b"x" + previous.read_bytes()[1:])
    with pytest.raises(CheckpointError, match="or start a new run"):
        checkpoint.load(path)


def test_what_the_configuration_is_does_not_matter_to_it(path):
    """It is text in there, and so no place for code."""
    checkpoint.save(path, make_state(), {"_target_": "os.system", "federation": {"rounds": 1}})
    assert json.loads(raw(path)["config"]) == checkpoint.load(path)[1]


@pytest.mark.parametrize(("folder", "given"), [("run", "resume={}"), ("a run, b=1", "\"resume='{}'\"")])
def test_the_hint_to_the_one_before_can_be_given_as_it_stands(tmp_path, folder, given):
    path = tmp_path / folder / "checkpoints" / "last.ckpt"
    checkpoint.save(path.with_name("previous.ckpt"), make_state(), CONFIG)
    path.write_bytes(b"damaged")
    with pytest.raises(CheckpointError) as refusal:
        checkpoint.load(path)
    assert str(refusal.value).endswith(f"with {given.format(path.with_name('previous.ckpt'))}.")
