"""Devices that are made up: all alike, drawn, or dealt in kinds."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np

from fedfacet.arguments import Within, check_within
from fedfacet.devices.base import BYTES_PER_MEGABIT, Calendar, Devices, Profiles
from fedfacet.rng import stream

_NEEDED = ("share", "seconds_per_sample", "down_mbps", "up_mbps")
_ENERGY = ("joules_per_sample", "joules_per_byte", "battery_joules", "charge_watts")


@dataclass(eq=False, kw_only=True)
class UniformDevices(Devices):
    """Give everybody the same device: a calibration, in which a selector that looks at speed has nothing to choose.

    Args:
        seconds_per_sample: to train on a sample once, larger than 0.
        down_mbps: megabits per second from the server, larger than 0.
        up_mbps: megabits per second to the server, larger than 0.
    """

    seconds_per_sample: Annotated[float, Within("(0, 1e9]")] = 0.015
    down_mbps: Annotated[float, Within("(0, 1e9]")] = 20.0
    up_mbps: Annotated[float, Within("(0, 1e9]")] = 5.0

    def profiles(self, num_clients: int) -> Profiles:
        """Return the same for everybody."""
        same_K = np.ones(num_clients)
        return self._profiled(self.seconds_per_sample * same_K, self.down_mbps * same_K, self.up_mbps * same_K)


@dataclass(eq=False, kw_only=True)
class LognormalDevices(Devices):
    r"""Draw seconds per sample and rates from lognormal distributions; a few clients are far slower than most.

    With standard normal z and z' of a client, its seconds are :math:`m e^{-\sigma z - \sigma^2 / 2}`, so that m is their mean,
    and its rates :math:`m' e^{\sigma' (\rho z + \sqrt{1 - \rho^2} z') - \sigma'^2 / 2}`.

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

    mean_seconds_per_sample: Annotated[float, Within("(0, 1e9]")] = 0.015
    sigma: Annotated[float, Within("[0, 3]")] = 0.6
    mean_down_mbps: Annotated[float, Within("(0, 1e9]")] = 20.0
    mean_up_mbps: Annotated[float, Within("(0, 1e9]")] = 5.0
    bandwidth_sigma: Annotated[float, Within("[0, 3]")] = 0.6
    rho: Annotated[float, Within("[-1, 1]")] = 0.0

    def profiles(self, num_clients: int) -> Profiles:
        """Return what was drawn."""
        z_K2 = np.array([stream(self.seed, "devices", client_id).standard_normal(2) for client_id in range(num_clients)])
        bandwidth_K = self.rho * z_K2[:, 0] + math.sqrt(1 - self.rho**2) * z_K2[:, 1]
        slowness_K = np.exp(-self.sigma * z_K2[:, 0] - self.sigma**2 / 2)
        rate_K = np.exp(self.bandwidth_sigma * bandwidth_K - self.bandwidth_sigma**2 / 2)
        return self._profiled(
            self.mean_seconds_per_sample * slowness_K, self.mean_down_mbps * rate_K, self.mean_up_mbps * rate_K
        )


@dataclass(eq=False, kw_only=True)
class DiurnalDevices(LognormalDevices):
    """Draw devices as ``lognormal`` does, each on-line for a part of every day that begins at an hour of its own.

    A client that goes off-line before its update has arrived is lost for the round. If nobody is on-line, the round passes
    until somebody is.

    Args:
        period_hours: after which everybody's hours repeat, larger than 0.
        duty_cycle: the part of the period for which a client is on-line, in (0, 1].
    """

    period_hours: Annotated[float, Within("(0, 1e9]")] = 24.0
    duty_cycle: Annotated[float, Within("(0, 1]")] = 0.5

    def calendar(self, num_clients: int) -> Calendar:
        """Return everybody's hours; those that pass midnight are two intervals."""
        period = 3600 * self.period_hours
        hours = [self._hours(client_id, period) for client_id in range(num_clients)]
        starts, ends = (tuple(np.array([one[side] for one in of]) for of in hours) for side in (0, 1))
        return Calendar(starts, ends, np.full(num_clients, period))

    def _hours(self, client_id: int, period: float) -> list[tuple[float, float]]:
        """Return when a client comes on-line and when it goes off-line."""
        start = period * stream(self.seed, "device-hours", client_id).random()
        end = start + period * self.duty_cycle
        if self.duty_cycle == 1:
            return [(0.0, period)]
        return [(start, end)] if end <= period else [(0.0, end - period), (start, period)]


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

    slowest: Annotated[float, Within("(0, 1e9]")] = 10.0
    fastest: Annotated[float, Within("(0, 1e9]")] = 100.0
    mean_mbps: Annotated[float, Within("(0, 1e9]")] = 1.4
    max_mbps: Annotated[float, Within("(0, 1e9]")] = 8.6
    min_mbps: Annotated[float, Within("(0, 1e9]")] = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
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


@dataclass(eq=False, kw_only=True)
class TierDevices(Devices):
    """Deal devices of a few kinds, in fixed shares of the clients and in a drawn order.

    The kinds of the yaml are examples and not measured, but for the battery: a tenth of 3000 mAh at 3.7 V, which is what the
    released code of FLAME (Cho et al., arXiv:2202.08922) lets training use.

    Args:
        tiers: name of a kind -> ``share`` (larger than 0; shares are divided by their sum), ``seconds_per_sample``,
            ``down_mbps``, ``up_mbps``, each larger than 0, and any of ``joules_per_sample``, ``joules_per_byte``,
            ``battery_joules`` and ``charge_watts``, which otherwise are those of all.
    """

    tiers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.tiers:
            raise ValueError("Expected `devices.tiers` to name one kind of device or more, but got none: add one.")
        for name, tier in self.tiers.items():
            known = (*_NEEDED, *_ENERGY)
            needed = ", ".join(_NEEDED)
            if not isinstance(tier, Mapping) or (lacking := [key for key in _NEEDED if key not in tier]):
                missing = lacking[0] if isinstance(tier, Mapping) else _NEEDED[0]
                raise ValueError(f"Expected `devices.tiers.{name}` to have {needed}, but {missing} is missing: add it.")
            if strangers := [key for key in tier if key not in known]:
                raise ValueError(
                    f"Expected `devices.tiers.{name}` to have none but {needed}, {', '.join(_ENERGY)}, but got {strangers[0]}: "
                    "leave it out."
                )
            for key, value in tier.items():
                if value is None and key == "battery_joules":
                    continue
                if isinstance(value, bool) or not isinstance(value, int | float):
                    raise ValueError(f"Expected `devices.tiers.{name}.{key}` to be a number, but got {value!r}: fix it.")
                positive = key in _NEEDED or key == "battery_joules"
                check_within(f"devices.tiers.{name}.{key}", value, "(0, 3.4e38]" if positive else "[0, 3.4e38]")

    def kinds(self, num_clients: int) -> list[str]:
        """Return the kind of each client's device; each kind's number is its share, rounded."""
        shares = np.cumsum([tier["share"] for tier in self.tiers.values()])
        ranks_K = stream(self.seed, "devices").permutation(num_clients)
        kinds_K = np.searchsorted(shares / shares[-1], (ranks_K + 0.5) / num_clients)
        return [list(self.tiers)[kind] for kind in kinds_K.tolist()]

    def profiles(self, num_clients: int) -> Profiles:
        """Return what each client's kind is able to do."""
        whole = {name: {key: getattr(self, key) for key in _ENERGY} | dict(tier) for name, tier in self.tiers.items()}
        of = [whole[kind] for kind in self.kinds(num_clients)]

        def column(key: str, factor: float = 1.0) -> Any:
            return factor * np.array([math.inf if one[key] is None else float(one[key]) for one in of])

        rates = (column(key, BYTES_PER_MEGABIT) for key in ("down_mbps", "up_mbps"))
        return Profiles(column("seconds_per_sample"), *rates, *map(column, _ENERGY))
