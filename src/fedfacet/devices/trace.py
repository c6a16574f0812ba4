"""Devices as they were measured elsewhere."""

import csv
import json
import math
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedfacet.devices.base import Calendar, Devices, Profiles
from fedfacet.errors import ConfigError
from fedfacet.rng import stream

_LARGEST_FILE = 2**30


@dataclass(eq=False, kw_only=True)
class TraceDevices(Devices):
    """Read devices, and when they are on-line, from files in the form of FedScale's.

    A client takes an entry of each file, the k-th of a drawn order; if there are fewer entries than clients, some are taken
    again.

    ``capacity`` has an entry per device: ``computation``, milliseconds of a forward pass per sample, and ``communication``,
    kilobits per second in both directions. Training on a sample counts as 1 / ``forward_share`` forward passes.
    ``availability`` has an entry per device: ``active`` and ``inactive``, the seconds at which it comes on-line and goes
    off-line, and ``finish_time``, after which they repeat.

    A file is ``.json`` (a list of entries, or an object of them), ``.csv`` (a line per device; in ``availability`` a line per
    interval, with the columns device, active, inactive, finish_time), or ``.pkl`` or without a suffix: a pickle as FedScale has
    it. A pickle may hold dicts, lists, tuples, texts and numbers alone. Anything else in it is refused by its name before
    any of its code runs.

    Source: Lai et al., FedScale, ICML 2022, arXiv:2105.11367, and its released code (``client.py``, ``client_manager.py``). The
    files themselves are not part of this package.

    Deviation: FedScale finds a client's interval by an index that only moves forward, which is wrong after the clock jumps;
    here it is looked up.

    Args:
        capacity: path of the file.
        availability: path of the file; ``None`` if everybody is always on-line.
    """

    capacity: str = ""
    availability: str | None = None

    def profiles(self, num_clients: int) -> Profiles:
        """Return what each client's entry says.

        Raises:
            ConfigError: if the file is missing, damaged, or holds something else.
        """
        if not self.capacity:
            raise ConfigError("Expected `devices.capacity` to name a file, but got none: give devices.capacity=FILE.")
        entries = [_numbers(entry, self.capacity) for entry in _entries(self.capacity, by_device=False)]
        taken = np.array([entries[i] for i in self._dealt("devices", len(entries), num_clients)])
        seconds_K = taken[:, 0] / 1000 / self.forward_share
        mbps_K = taken[:, 1] / 1000
        return self._profiled(seconds_K, mbps_K, mbps_K)

    def calendar(self, num_clients: int) -> Calendar | None:
        """Return each client's entry.

        Raises:
            ConfigError: as ``profiles``, or if an entry has no hours, or hours that overlap.
        """
        if self.availability is None:
            return None
        entries = [_hours(entry, self.availability) for entry in _entries(self.availability, by_device=True)]
        dealt = self._dealt("device-hours", len(entries), num_clients)
        starts, ends, periods = zip(*(entries[i] for i in dealt), strict=True)
        return Calendar(starts, ends, np.array(periods))

    def _dealt(self, purpose: str, num_entries: int, num_clients: int) -> list[int]:
        order = stream(self.seed, purpose).permutation(num_entries)
        return [int(order[client_id % num_entries]) for client_id in range(num_clients)]


class _PlainUnpickler(pickle.Unpickler):
    """Reads pickles of plain data; whatever else one names is refused before it is looked up."""

    def find_class(self, module: str, name: str) -> Any:
        raise ConfigError(
            f"Expected a trace of dicts, lists, tuples, texts and numbers, but it names {f'{module}.{name}'!r}, which may do "
            "anything on this machine: nothing of it was run; write the trace as json."
        )

    def persistent_load(self, pid: Any) -> Any:
        raise ConfigError("Expected a trace of plain data, but it refers to something outside: write the trace as json.")


def _entries(path: str, *, by_device: bool) -> list[Mapping[str, Any]]:
    """Return the entries of a file.

    Raises:
        ConfigError: if it is missing, too large, damaged or holds something else.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        raise ConfigError(f"Expected a trace at {path}, but there is no such file: check `devices`.")
    if file.stat().st_size > _LARGEST_FILE:
        raise ConfigError(f"Expected a trace of 1 GiB or less, but {path} is larger: take a part of it.")
    try:
        if file.suffix == ".json":
            found = json.loads(file.read_text(encoding="utf-8"))
        elif file.suffix == ".csv":
            with file.open(encoding="utf-8-sig", newline="") as lines:
                rows = list(csv.DictReader(lines))
            found = _by_device(rows) if by_device else rows
        else:
            with file.open("rb") as content:
                found = _PlainUnpickler(content).load()
    except ConfigError as error:
        raise ConfigError(f"{error} It is in {path}.") from None
    except Exception as error:  # whatever a damaged file makes of its reader
        raise ConfigError(f"Expected {path} to be a trace, but it cannot be read ({type(error).__name__}): fix it.") from None
    entries = list(found.values()) if isinstance(found, Mapping) else found
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, Mapping) for entry in entries):
        raise ConfigError(f"Expected {path} to hold an entry per device, but it holds something else or none: fix it.")
    return entries


def _by_device(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return an entry per device of a table with a line per interval."""
    devices: dict[Any, dict[str, Any]] = {}
    for row in rows:
        entry = devices.setdefault(row["device"], {"active": [], "inactive": [], "finish_time": row["finish_time"]})
        entry["active"].append(row["active"])
        entry["inactive"].append(row["inactive"])
    return list(devices.values())


def _numbers(entry: Mapping[str, Any], path: str) -> tuple[float, float]:
    """Return a device's milliseconds per forward pass and kilobits per second."""
    computation, communication = (_number(entry.get(key), key, path) for key in ("computation", "communication"))
    for key, value in (("computation", computation), ("communication", communication)):
        if not 0 < value < math.inf:
            raise ConfigError(
                f"Expected a trace whose `{key}` is finite and larger than 0 for every device, but {path} has {value}: leave "
                "that device out."
            )
    return computation, communication


def _hours(entry: Mapping[str, Any], path: str) -> tuple[Any, Any, float]:
    """Return when a device comes on-line, when it goes off-line, and after how many seconds that repeats."""
    lists = [entry.get(key) for key in ("active", "inactive")]
    if not all(isinstance(times, list | tuple) for times in lists):
        raise ConfigError(f"Expected lists `active` and `inactive` for every device, but {path} has others: fix it.")
    starts, ends = (np.array([_number(time, "active and inactive", path) for time in times or ()]) for times in lists)
    period = _number(entry.get("finish_time"), "finish_time", path)
    try:
        Calendar((starts,), (ends,), np.array([period]))
    except ValueError as error:
        fault = str(error).partition("but client 0 has ")[2].partition(": ")[0]
        raise ConfigError(
            f"Expected on-line hours of every device, but in {path} one has {fault}: leave that device out."
        ) from None
    return starts, ends, period


def _number(value: Any, key: str, path: str) -> float:
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            return float(value)
        except (ValueError, OverflowError):
            pass
    shown = repr(value[:40]) if isinstance(value, str) else f"a value of type {type(value).__name__}"
    raise ConfigError(f"Expected a number under `{key}` for every device, but {path} has {shown}: fix it.")
