"""Traces of devices, as FedScale writes them, and hostile ones."""

import collections
import json
import math
import os
import pickle

import pytest

from fedfacet.devices.trace import TraceDevices
from fedfacet.errors import ConfigError

CAPACITY = {1: {"computation": 5.0, "communication": 2000.0}, 7: {"computation": 20, "communication": 500}}
HOURS = {
    "a": {"duration": 3, "active": [0, 50], "inactive": [10, 60.5], "finish_time": 100},
    "b": {"active": [5], "inactive": [9], "finish_time": 10},
}


@pytest.fixture
def made(tmp_path):
    """Return a function: what the files hold, and how they are written -> the devices."""

    def make(capacity=CAPACITY, hours=None, *, suffix=".json", **settings):
        paths = {}
        for name, content in (("capacity", capacity), ("availability", hours)):
            if content is not None:
                paths[name] = str(tmp_path / f"{name}{suffix}")
                if suffix == ".json":
                    (tmp_path / f"{name}.json").write_text(json.dumps(content))
                elif suffix == ".csv":
                    (tmp_path / f"{name}.csv").write_text(content)
                else:
                    (tmp_path / f"{name}{suffix}").write_bytes(pickle.dumps(content))
        return TraceDevices(**paths, **settings)

    return make


def test_fedscale_s_formula_of_a_completion_time(made):
    """Three times batch size, steps and milliseconds over 1000, and kilobits over kilobits per second, as in its client.py."""
    devices = made()
    profiles = devices.profiles(2)
    for k in range(2):
        computation, communication = profiles.seconds_per_sample[k] / 3 * 1000, profiles.up[k] * 8 / 1000
        assert {"computation": round(computation, 9), "communication": round(communication, 9)} in CAPACITY.values()
        batch_size, steps, bytes_ = 20, 5, 40_000
        theirs = 3 * batch_size * steps * computation / 1000 + 2 * (8 * bytes_ / 1000) / communication
        ours = profiles.seconds_per_sample[k] * batch_size * steps + bytes_ / profiles.down[k] + bytes_ / profiles.up[k]
        assert ours == pytest.approx(theirs, rel=1e-12)


@pytest.mark.parametrize("suffix", [".json", ".pkl", ""])
def test_all_forms_say_the_same(made, suffix):
    devices = made(CAPACITY, HOURS, suffix=suffix)
    assert sorted(devices.profiles(2).seconds_per_sample.tolist()) == pytest.approx([0.015, 0.06], rel=1e-12)
    assert sorted(devices.calendar(2).periods.tolist()) == [10, 100]


def test_tables(made):
    capacity = "computation,communication\n5,2000\n20,500\n"
    hours = "device,active,inactive,finish_time\na,0,10,100\na,50,60.5,100\nb,5,9,10\n"
    devices, other = made(capacity, hours, suffix=".csv"), made(CAPACITY, HOURS)
    assert devices.profiles(5).digest == other.profiles(5).digest
    assert [part.tolist() for part in devices.calendar(5).starts] == [part.tolist() for part in other.calendar(5).starts]


def test_more_clients_than_entries_take_them_again(made):
    of = made().profiles(5).seconds_per_sample.tolist()
    assert of[0] == of[2] == of[4] != of[1] == of[3]
    assert made(seed=1).calendar(3) is None


class Owned:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_hostile_pickles_are_refused_by_name_and_run_nothing(made, tmp_path):
    owned = str(tmp_path / "owned")
    for content, name in (
        (Owned(owned), r"(posix|nt)\.mkdir"),
        ({1: Owned(owned)}, r"(posix|nt)\.mkdir"),
        ({1: collections.OrderedDict(computation=1)}, r"collections\.OrderedDict"),
        ([{"computation": math.sqrt}], r"math\.sqrt"),
    ):
        devices = made(content, suffix=".pkl")
        with pytest.raises(ConfigError, match=rf"it names '{name}', which may do.*nothing of it was run.*capacity\.pkl"):
            devices.profiles(2)
    (tmp_path / "capacity.pkl").write_bytes(b"cos\nmkdir\n(V" + owned.encode() + b"\ntR.")
    with pytest.raises(ConfigError, match=r"it names 'os\.mkdir'"):
        TraceDevices(capacity=str(tmp_path / "capacity.pkl")).profiles(2)
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("content", [b"", b"\x80\x04", b"Vp\n.", b"Pid\n.", b"\x80\x04K\x01.", b"]\x94h\x00a."])
def test_damaged_pickles_are_refused(content, tmp_path):
    (tmp_path / "trace.pkl").write_bytes(content)
    with pytest.raises(ConfigError, match=r"trace\.pkl"):
        TraceDevices(capacity=str(tmp_path / "trace.pkl")).profiles(2)


@pytest.mark.parametrize(
    ("capacity", "fault"),
    [
        ({}, "an entry per device"),
        ({1: 3}, "an entry per device"),
        ([], "an entry per device"),
        ({1: {"computation": -5.0, "communication": 1.0}}, "`computation` is finite and larger than 0"),
        ({1: {"computation": 5.0, "communication": 0}}, "`communication` is finite and larger than 0"),
        ({1: {"computation": float("nan"), "communication": 1}}, "`computation` is finite"),
        ({1: {"computation": float("inf"), "communication": 1}}, "`computation` is finite"),
        ({1: {"communication": 1}}, "a number under `computation`"),
        ({1: {"computation": True, "communication": 1}}, "a number under `computation`"),
        ({1: {"computation": "fast", "communication": 1}}, "has 'fast'"),
        ({1: {"computation": 10**400, "communication": 1}}, "a number under `computation`"),
    ],
)
@pytest.mark.parametrize("suffix", [".json", ".pkl"])
def test_impossible_capacities_are_refused(made, capacity, fault, suffix):
    with pytest.raises(ConfigError, match=fault):
        made(capacity, suffix=suffix).profiles(3)


@pytest.mark.parametrize(
    ("entry", "fault"),
    [
        ({"active": [], "inactive": [], "finish_time": 10}, "0 starts and 0 ends"),
        ({"active": [1], "inactive": [float("nan")], "finish_time": 10}, "no finite numbers"),
        ({"active": [1, 2], "inactive": [4, 5], "finish_time": 10}, "overlap"),
        ({"active": [1], "inactive": [4]}, "a number under `finish_time`"),
        ({"active": 1, "inactive": [4], "finish_time": 10}, "lists `active` and `inactive`"),
    ],
)
def test_impossible_hours_are_refused(made, entry, fault):
    with pytest.raises(ConfigError, match=fault):
        made(CAPACITY, {"x": entry}).calendar(3)


def test_a_number_that_python_does_not_spell_out_is_refused(made):
    with pytest.raises(ConfigError, match="a number under `computation`"):
        made({1: {"computation": 10**9999, "communication": 1}}, suffix=".pkl").profiles(3)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"a trace at nowhere\.json"):
        TraceDevices(capacity="nowhere.json").profiles(3)
    with pytest.raises(ConfigError, match="to name a file"):
        TraceDevices().profiles(3)
