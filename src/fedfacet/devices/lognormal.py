"""Devices whose speeds have a long tail."""

from dataclasses import dataclass

from fedfacet.arguments import check_within
from fedfacet.devices.base import Devices, Profiles, lognormal_speeds


@dataclass(eq=False, kw_only=True)
class LognormalDevices(Devices):
    """Draw seconds per sample and rates from lognormal distributions; a few clients are far slower than most.

    Source: the lognormal mode of FedScale (Lai et al., ICML 2022, arXiv:2105.11367), which draws 5 ms for a forward pass with a
    tail of 0.6 and counts training on a sample as three of them.

    Deviation: rates are drawn too, and may go with the computing speed.

    Args:
        mean_seconds_per_sample: to train on a sample once, larger than 0.
        sigma: standard deviation of the logarithm of the seconds, in [0, 3].
        mean_down_mbps: megabits per second from the server, larger than 0.
        mean_up_mbps: megabits per second to the server, larger than 0.
        bandwidth_sigma: standard deviation of the logarithm of the rates, in [0, 3]; a client's two rates rise together.
        rho: correlation of the logarithms of computing speed and rates, in [-1, 1].
    """

    mean_seconds_per_sample: float = 0.015
    sigma: float = 0.6
    mean_down_mbps: float = 20.0
    mean_up_mbps: float = 5.0
    bandwidth_sigma: float = 0.6
    rho: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("mean_seconds_per_sample", "mean_down_mbps", "mean_up_mbps"):
            check_within(f"devices.{name}", getattr(self, name), "(0, 1e9]")
        for name in ("sigma", "bandwidth_sigma"):
            check_within(f"devices.{name}", getattr(self, name), "[0, 3]")
        check_within("devices.rho", self.rho, "[-1, 1]")

    def profiles(self, num_clients: int) -> Profiles:
        """Return what was drawn."""
        means = (self.mean_seconds_per_sample, self.mean_down_mbps, self.mean_up_mbps)
        spread = {"sigma": self.sigma, "bandwidth_sigma": self.bandwidth_sigma, "rho": self.rho}
        return self._profiled(*lognormal_speeds(num_clients, self.seed, means=means, **spread))
