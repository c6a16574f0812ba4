"""Devices that are on-line for a part of every day."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedfacet.arguments import check_within
from fedfacet.devices.base import Calendar
from fedfacet.devices.lognormal import LognormalDevices
from fedfacet.rng import stream


@dataclass(eq=False, kw_only=True)
class DiurnalDevices(LognormalDevices):
    """Draw devices as ``lognormal`` does, each on-line for a part of every day that begins at an hour of its own.

    A client that goes off-line before its update has arrived is lost for the round. If nobody is on-line, the round passes
    until somebody is.

    Args:
        period_hours: after which everybody's hours repeat, larger than 0.
        duty_cycle: the part of the period for which a client is on-line, in (0, 1].
        mean_seconds_per_sample: as in ``lognormal``.
        sigma: as in ``lognormal``.
        mean_down_mbps: as in ``lognormal``.
        mean_up_mbps: as in ``lognormal``.
        bandwidth_sigma: as in ``lognormal``.
        rho: as in ``lognormal``.
    """

    period_hours: float = 24.0
    duty_cycle: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_within("devices.period_hours", self.period_hours, "(0, 1e9]")
        check_within("devices.duty_cycle", self.duty_cycle, "(0, 1]")

    def calendar(self, num_clients: int) -> Calendar:
        """Return everybody's hours; those that pass midnight are two intervals."""
        period = 3600 * self.period_hours
        starts: list[NDArray[np.float64]] = []
        ends: list[NDArray[np.float64]] = []
        for client_id in range(num_clients):
            start = period * stream(self.seed, "device-hours", client_id).random()
            end = start + period * self.duty_cycle
            if self.duty_cycle == 1:
                start, end = 0.0, period
            if end <= period:
                starts.append(np.array([start]))
                ends.append(np.array([end]))
            else:
                starts.append(np.array([0.0, start]))
                ends.append(np.array([end - period, period]))
        return Calendar(tuple(starts), tuple(ends), np.full(num_clients, period))
