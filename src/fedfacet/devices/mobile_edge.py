"""Devices of one mobile cell."""

from dataclasses import dataclass

import numpy as np

from fedfacet.arguments import check_within
from fedfacet.devices.base import Devices, Profiles
from fedfacet.rng import stream


@dataclass(eq=False, kw_only=True)
class MobileEdgeDevices(Devices):
    """Draw devices as in the simulation of FedCS: phones of unlike speed that share the channel of one base station.

    A client trains on a uniform number of samples a second and has one rate for both directions. Rates are exponential, those
    above the largest drawn again, those below the smallest raised to it. Clients send one after the other
    (``uplink: sequential``).

    Source: Nishio and Yonetani, Client Selection for Federated Learning with Heterogeneous Resources in Mobile Edge, ICC 2019,
    arXiv:1804.08333, section IV.

    Deviations: the paper computes rates from a model of an LTE cell, of which it gives mean and maximum; here they are drawn.
    The defaults were not checked against its text.

    Args:
        slowest: samples a second, larger than 0.
        fastest: samples a second, ``slowest`` or more.
        mean_mbps: megabits per second before the cut, larger than 0.
        max_mbps: the largest rate, larger than ``min_mbps``.
        min_mbps: the smallest rate, larger than 0.
    """

    slowest: float = 10.0
    fastest: float = 100.0
    mean_mbps: float = 1.4
    max_mbps: float = 8.6
    min_mbps: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("slowest", "fastest", "mean_mbps", "max_mbps", "min_mbps"):
            check_within(f"devices.{name}", getattr(self, name), "(0, 1e9]")
        for low, high in (("slowest", "fastest"), ("min_mbps", "max_mbps")):
            if getattr(self, low) > getattr(self, high):
                raise ValueError(
                    f"Expected `devices.{low}` to be {getattr(self, high)} or less, as `devices.{high}` is, but got "
                    f"{getattr(self, low)}."
                )

    def profiles(self, num_clients: int) -> Profiles:
        """Return what was drawn."""
        luck_K2 = np.array([stream(self.seed, "devices", client_id).random(2) for client_id in range(num_clients)])
        speed_K = self.slowest + (self.fastest - self.slowest) * luck_K2[:, 0]
        cut = -np.expm1(-self.max_mbps / self.mean_mbps)
        rate_K = np.maximum(-self.mean_mbps * np.log1p(-cut * luck_K2[:, 1]), self.min_mbps)
        return self._profiled(1 / speed_K, rate_K, rate_K)
