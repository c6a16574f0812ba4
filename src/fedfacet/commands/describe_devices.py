"""What clients run on: how long a round takes each of them, who would be late, and who is on-line when; before any training."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedfacet.analysis.writers import Table
from fedfacet.build import build, settle
from fedfacet.clock import Clock
from fedfacet.commands import output_of
from fedfacet.commands.output import Output
from fedfacet.config import compose_job
from fedfacet.errors import ConfigError
from fedfacet.mechanisms.devices import SimulatedDevices

_FEW = 24  # clients that are listed one by one
_TIMES = 12  # of a period at which clients on-line are counted


def run(options: Sequence[str]) -> Output:
    """Return what a round takes every client, without jitter.

    Raises:
        ConfigError: if the options choose no devices.
    """
    output, settings = output_of(options)
    config, _ = compose_job("train", ["task=describe", *settings])
    settle(config)
    devices = build(config, Path(config.paths.output_dir)).find(SimulatedDevices)
    if devices is None:
        raise ConfigError(
            "Expected clients with devices, but devices=none has none: choose devices=lognormal or another option."
        )
    facts = described(devices.clock)
    return Output(output, facts, tables_of(facts))


def described(clock: Clock) -> dict[str, Any]:
    """Return the spread over clients, a record of each, and how many are on-line when, as JSON-able data."""
    nominal_K3 = clock.nominal()
    seconds = dict(zip(("download", "compute", "upload"), nominal_K3.T, strict=True)) | {"round": nominal_K3.sum(axis=1)}
    spread = {
        name: {"fastest": float(of_K.min()), "median": float(np.median(of_K)), "slowest": float(of_K.max())}
        for name, of_K in seconds.items()
    }
    deadline = clock.devices.deadline
    clients = [
        {
            "client": k,
            "samples": work.num_samples,
            **{name: float(of_K[k]) for name, of_K in seconds.items()},
            "late": deadline is not None and bool(seconds["round"][k] > deadline),
            "joules": float(clock.needed()[k]),
            "on_line": 1.0 if clock.calendar is None else _share(clock, k),
        }
        for k, work in enumerate(clock.work)
    ]
    return {
        "deadline": deadline,
        "on_late": clock.devices.on_late,
        "seconds": spread,
        "clients": clients,
        "hours": _hours(clock),
    }


def tables_of(facts: dict[str, Any]) -> list[Table]:
    """Return the tables that the description fits into."""
    spread, clients = facts["seconds"], facts["clients"]
    late = sum(client["late"] for client in clients)
    deadline = (
        "" if facts["deadline"] is None else f"; {late} of {len(clients)} would be later than {facts['deadline']:g} seconds"
    )
    rows = [
        [name, *(f"{one[which]:.4g}" for which in ("fastest", "median", "slowest")), f"{one['slowest'] / one['fastest']:.3g}"]
        for name, one in spread.items()
    ]
    shown = sorted(clients, key=lambda client: (client["round"], client["client"]))
    shown = shown if len(shown) <= _FEW else [*shown[: _FEW // 2], *shown[-_FEW // 2 :]]
    title = f"Clients from the fastest to the slowest{'' if len(shown) == len(clients) else ', both ends'}"
    tables = [
        Table(
            f"Seconds of a round of {len(clients)} clients, without jitter{deadline}",
            ["part", "fastest", "median", "slowest", "slowest / fastest"],
            rows,
        ),
        Table(
            title,
            ["client", "samples", "download", "compute", "upload", "round", "late", "joules", "on-line"],
            [
                [
                    str(client["client"]),
                    str(client["samples"]),
                    *(f"{client[name]:.4g}" for name in ("download", "compute", "upload", "round")),
                    "yes" if client["late"] else "no",
                    f"{client['joules']:.4g}",
                    f"{client['on_line']:.0%}",
                ]
                for client in shown
            ],
        ),
    ]
    if facts["hours"]:
        columns = ["hour", "clients on-line"]
        tables.append(Table("When clients are on-line", columns, [[f"{hour:g}", str(n)] for hour, n in facts["hours"]]))
    return tables


def _share(clock: Clock, client_id: int) -> float:
    """Return the part of its period for which a client is on-line."""
    assert clock.calendar is not None
    hours = clock.calendar.ends[client_id] - clock.calendar.starts[client_id]
    return float(hours.sum() / clock.calendar.periods[client_id])


def _hours(clock: Clock) -> list[list[float]]:
    """Return hours of the longest period, and how many clients are on-line then."""
    if clock.calendar is None:
        return []
    longest = float(clock.calendar.periods.max())
    times = [longest * step / _TIMES for step in range(_TIMES)]
    clients = range(clock.num_clients)
    return [[time / 3600, sum(clock.calendar.left(k, time) > 0 for k in clients)] for time in times]
