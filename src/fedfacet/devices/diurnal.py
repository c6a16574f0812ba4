"""Devices that are on-line for a part of every day."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedfacet.arguments import check_within
from fedfacet.devices.base import Calendar, Devices, Profiles, lognormal_speeds
from fedfacet.rng import stream


@dataclass(eq=False, kw_only=True)
class DiurnalDevices(Devices):
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
    mean_seconds_per_sample: float = 0.015
    sigma: float = 0.6
    mean_down_mbps: float = 20.0
    mean_up_mbps: float = 5.0
    bandwidth_sigma: float = 0.6
    rho: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("period_hours", "mean_seconds_per_sample", "mean_down_mbps", "mean_up_mbps"):
            check_within(f"devices.{name}", getattr(self, name), "(0, 1e9]")
        check_within("devices.duty_cycle", self.duty_cycle, "(0, 1]")
        for name in ("sigma", "bandwidth_sigma"):
            check_within(f"devices.{name}", getattr(self, name), "[0, 3]")
        check_within("devices.rho", self.rho, "[-1, 1]")

    def profiles(self, num_clients: int) -> Profiles:
        """Return what was drawn."""
        means = (self.mean_seconds_per_sample, self.mean_down_mbps, self.mean_up_mbps)
        spread = {"sigma": self.sigma, "bandwidth_sigma": self.bandwidth_sigma, "rho": self.rho}
        return self._profiled(*lognormal_speeds(num_clients, self.seed, means=means, **spread))

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
