"""Devices that are all alike."""

from dataclasses import dataclass

import numpy as np

from fedfacet.arguments import check_within
from fedfacet.devices.base import Devices, Profiles


@dataclass(eq=False, kw_only=True)
class UniformDevices(Devices):
    """Give everybody the same device: a calibration, in which a selector that looks at speed has nothing to choose.

    Args:
        seconds_per_sample: to train on a sample once, larger than 0.
        down_mbps: megabits per second from the server, larger than 0.
        up_mbps: megabits per second to the server, larger than 0.
    """

    seconds_per_sample: float = 0.015
    down_mbps: float = 20.0
    up_mbps: float = 5.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("seconds_per_sample", "down_mbps", "up_mbps"):
            check_within(f"devices.{name}", getattr(self, name), "(0, 1e9]")

    def profiles(self, num_clients: int) -> Profiles:
        """Return the same for everybody."""
        same_K = np.ones(num_clients)
        return self._profiled(self.seconds_per_sample * same_K, self.down_mbps * same_K, self.up_mbps * same_K)
