"""What every option of devices keeps to."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from fedfacet import config

CONF = Path(__file__).parents[2] / "conf"


@pytest.fixture
def made(node_of, tmp_path):
    """Return a function: option, other values of its keys -> the devices; no devices are none at all."""
    file = tmp_path / "trace.json"
    file.write_text(json.dumps([{"computation": 5 * (k + 1), "communication": 900 + k} for k in range(4)]))

    def make(option, **changed):
        node = node_of("devices", option)
        if "_target_" not in node or changed.keys() - node.keys():
            pytest.skip("it has no such setting")
        node.update({"capacity": str(file)} if "capacity" in node else {})
        node.update(changed)
        return config.make(node)

    return make


@pytest.mark.parametrize("num_clients", [1, 2, 7, 40])
def test_profiles_and_hours_are_a_function_of_the_seed(devices_option, made, num_clients):
    one, other = made(devices_option), made(devices_option)
    profiles, calendar = one.profiles(num_clients), one.calendar(num_clients)
    assert profiles.digest == one.profiles(num_clients).digest == other.profiles(num_clients).digest
    assert len(profiles.down) == len(profiles.battery_joules) == num_clients
    if calendar is not None:
        again = other.calendar(num_clients)
        assert all(np.array_equal(left, right) for left, right in zip(calendar.starts, again.starts, strict=True))
        assert len(calendar.periods) == num_clients
    if num_clients == 40 and len(set(profiles.down.tolist())) > 1:
        assert made(devices_option, seed=1).profiles(num_clients).digest != profiles.digest


def test_jitter_is_a_function_of_seed_round_and_client(devices_option, made):
    steady, shaky = made(devices_option, jitter=0.0, radio_jitter=0.0), made(devices_option, jitter=0.4, radio_jitter=0.2)
    assert steady.slowdown(0, 1, 2) == (1.0, 1.0)
    drawn = {shaky.slowdown(seed, round, k) for seed in (0, 1) for round in (1, 2) for k in range(50)}
    assert len(drawn) == 200
    assert shaky.slowdown(1, 2, 3) == made(devices_option, jitter=0.4, radio_jitter=0.2).slowdown(1, 2, 3)
    for factor, sigma in zip(zip(*drawn, strict=True), (0.4, 0.2), strict=True):
        speed = 1 / np.array(factor)
        assert (np.abs(speed - 1) <= 2 * sigma).all()
        assert abs(speed.mean() - 1) < 3 * sigma / math.sqrt(200)


BAD = [
    ("deadline", 0), ("deadline", -1), ("deadline", math.nan), ("on_late", "partial"), ("on_late", "hope"),
    ("overcommit", 0.9), ("overcommit", math.nan), ("uplink", "none"), ("server_seconds", -1), ("forward_share", 0),
    ("jitter", 0.5), ("radio_jitter", -0.1), ("joules_per_sample", -1), ("battery_joules", 0), ("charge_watts", math.nan),
    ("seed", -1), ("seconds_per_sample", 0), ("down_mbps", -1), ("up_mbps", math.nan), ("sigma", 4), ("rho", 1.1),
    ("mean_up_mbps", 0), ("duty_cycle", 0), ("duty_cycle", 1.1), ("period_hours", 0), ("slowest", 101), ("min_mbps", 9),
    ("tiers", {}), ("tiers", {"a": {"share": 1}}), ("tiers", {"a": 3}),
    ("tiers", {"a": {"share": 0, "seconds_per_sample": 1, "down_mbps": 1, "up_mbps": 1}}),
    ("tiers", {"a": {"share": 1, "seconds_per_sample": 1, "down_mbps": 1, "up_mbps": 1, "weight": 2}}),
    ("tiers", {"a": {"share": 1, "seconds_per_sample": "fast", "down_mbps": 1, "up_mbps": 1}}),
]  # fmt: skip


def test_what_is_out_of_range_is_refused(devices_option, node_of, made):
    settings = node_of("devices", devices_option)
    for key, value in BAD:
        if key in settings:
            with pytest.raises(ValueError, match="devices"):
                assert not made(devices_option, **{key: value}), f"{key}={value} was taken"


def test_each_of_them_is_a_setting_of_some_option(node_of):
    """Or a value above would be tried by nobody."""
    options = (file.stem for file in (CONF / "devices").glob("*.yaml"))
    settings = [node_of("devices", option) for option in options]
    assert [key for key, _ in BAD if not any(key in one for one in settings)] == []
