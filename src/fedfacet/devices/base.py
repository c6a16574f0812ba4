"""The contract of devices: how fast clients are, what a round costs them, and how long the server waits."""

import hashlib
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from fedfacet.arguments import Choice, Declared, Whole, Within
from fedfacet.rng import stream
from fedfacet.types import DEVICES, OVERCOMMIT, WAITING

BYTES_PER_FLOAT = 4
BYTES_PER_MEGABIT = 125_000.0
_WIDEST = 2.0  # standard deviations, beyond which jitter is cut off


@dataclass(frozen=True, slots=True, eq=False)
class Profiles:
    """What the devices of K clients are able to do.

    Attributes:
        seconds_per_sample: to train on a sample once (forward and backward), shape (K,), larger than 0.
        down: bytes per second from the server, shape (K,), larger than 0.
        up: bytes per second to the server, shape (K,), larger than 0.
        joules_per_sample: to train on a sample once, shape (K,), 0 or larger.
        joules_per_byte: to receive or send a byte, shape (K,), 0 or larger.
        battery_joules: what a full battery holds, shape (K,), larger than 0; infinite on the mains.
        charge_watts: joules per second that a battery gains, shape (K,), 0 or larger.
    """

    seconds_per_sample: NDArray[np.float64]
    down: NDArray[np.float64]
    up: NDArray[np.float64]
    joules_per_sample: NDArray[np.float64]
    joules_per_byte: NDArray[np.float64]
    battery_joules: NDArray[np.float64]
    charge_watts: NDArray[np.float64]

    def __post_init__(self) -> None:
        for field in fields(self):
            values_K = getattr(self, field.name)
            positive = field.name in ("seconds_per_sample", "down", "up", "battery_joules")
            fine_K = (values_K > 0 if positive else values_K >= 0) & (np.isfinite(values_K) | (field.name == "battery_joules"))
            if not fine_K.all():
                k = int(np.argmin(fine_K))
                least = "larger than 0" if positive else "0 or larger"
                raise ValueError(
                    f"Expected every client's `{field.name}` to be {least} and finite, but client {k} has {values_K[k]}: "
                    "fix the numbers of `devices`."
                )

    @property
    def digest(self) -> str:
        """The sha256 over all numbers, as hexadecimal text."""
        sha = hashlib.sha256()
        for field in fields(self):
            sha.update(np.ascontiguousarray(getattr(self, field.name), dtype="<f8").tobytes())
        return sha.hexdigest()


@dataclass(frozen=True, slots=True, eq=False)
class Calendar:
    """When each of K clients is on-line; the hours repeat after a period.

    Attributes:
        starts: per client the seconds at which it comes on-line, ascending.
        ends: per client the seconds at which it goes off-line, each behind its start and not behind the next one.
        periods: seconds after which each client's hours repeat, shape (K,).

    Raises:
        ValueError: if a client has no hours, or hours that overlap, are empty, lie outside the period, or are no numbers.
    """

    starts: tuple[NDArray[np.float64], ...]
    ends: tuple[NDArray[np.float64], ...]
    periods: NDArray[np.float64]

    def __post_init__(self) -> None:
        for k, (starts, ends, period) in enumerate(zip(self.starts, self.ends, self.periods.tolist(), strict=True)):
            if not len(starts) or len(starts) != len(ends):
                fault = f"{len(starts)} starts and {len(ends)} ends"
            elif not (np.isfinite(starts).all() and np.isfinite(ends).all() and math.isfinite(period)):
                fault = "times that are no finite numbers"
            elif not (starts[0] >= 0 and ends[-1] <= period and period > 0):
                fault = f"hours outside its period of {period:g} seconds"
            elif not (starts < ends).all():
                fault = "an interval that ends before it has begun"
            elif not (ends[:-1] <= starts[1:]).all():
                fault = "intervals that overlap or are not in order"
            else:
                continue
            raise ValueError(f"Expected on-line hours of every client, but client {k} has {fault}: fix the trace.")

    def left(self, client_id: int, clock: float) -> float:
        """Return for how many seconds a client stays on-line; 0 if it is off-line, infinite if it never goes off-line."""
        starts, ends, period = self.starts[client_id], self.ends[client_id], float(self.periods[client_id])
        at = clock % period
        number = int(np.searchsorted(starts, at, side="right")) - 1
        if number < 0 or at >= ends[number]:
            return 0.0
        until = float(ends[number])
        for step in range(1, len(starts) + 1):  # hours that follow without a gap are one
            laps, other = divmod(number + step, len(starts))
            if until != starts[other] + laps * period:
                return until - at
            until = float(ends[other]) + laps * period
        return math.inf

    def wait(self, client_id: int, clock: float) -> float:
        """Return the seconds until a client is on-line, 0 if it is."""
        if self.left(client_id, clock) > 0:
            return 0.0
        starts, period = self.starts[client_id], float(self.periods[client_id])
        at = clock % period
        number = int(np.searchsorted(starts, at, side="right"))
        return float(starts[number] - at) if number < len(starts) else float(starts[0] + period - at)


@dataclass(eq=False, kw_only=True)
class Devices(Declared, ABC):
    r"""What every option has: jitter, energy, and how long the server waits.

    A client k that trains on s samples and is sent and sends b bytes takes

    .. math:: b^\downarrow / r^\downarrow_k + s c_k f + b^\uparrow / r^\uparrow_k

    seconds, with c its seconds per sample, r its rates and f this round's jitter. A float has four bytes. A question that
    passes samples through the model costs ``forward_share`` of training on them. Clients compute side by side.

    Profiles are a function of ``seed``, which does not follow the run's seed, and jitter of the run's seed, the round and the
    client. Arguments that are out of range raise ``ValueError``.

    Args:
        deadline: seconds from the start of training until the server stops waiting, larger than 0; ``None`` for never. What
            clients are asked before does not count.
        on_late: ``"drop"`` updates behind the deadline; ``"partial"``: a client that would be late does as many of its steps as
            fit (one at least, or it is dropped), as the stragglers of FedProx do; or ``"wait"`` for everybody all the same.
        overcommit: how many clients are asked for each that is wanted, rounded up, 1 or larger; the first that arrive are
            taken. Oort has 1.1, FedScale 1.3.
        uplink: ``"parallel"``: everybody has a line of its own; or ``"sequential"``: the model goes out to all at the slowest
            one's pace, and one client after the other sends, first those that are ready first, as in FedCS.
        server_seconds: of every round, for aggregation, 0 or larger.
        forward_share: a forward pass as a part of training on a sample, in (0, 1]; a third is usual (FedScale).
        jitter: standard deviation of the computing speed over rounds, as a part of it, in [0, 0.4]; a normal distribution, cut
            off at two standard deviations.
        radio_jitter: the same of the rates.
        joules_per_sample: energy to train on a sample once, 0 or larger.
        joules_per_byte: energy to receive or send a byte, 0 or larger.
        battery_joules: of a full battery, with which each client begins; a client with less than a round takes is not
            available. ``None`` for the mains.
        charge_watts: joules per second that a battery gains, always, 0 or larger.
        seed: of the profiles, 0 or larger.
    """

    option_group = "devices."

    deadline: Annotated[float | None, Within("(0, 3.4e38]")] = None
    on_late: Annotated[str, Choice("wait", "drop", "partial")] = "drop"
    overcommit: Annotated[float, Within("[1, 1e6]")] = 1.0
    uplink: Annotated[str, Choice("parallel", "sequential")] = "parallel"
    server_seconds: Annotated[float, Within("[0, 3.4e38]")] = 0.0
    forward_share: Annotated[float, Within("(0, 1]")] = 1 / 3
    jitter: Annotated[float, Within("[0, 0.4]")] = 0.0
    radio_jitter: Annotated[float, Within("[0, 0.4]")] = 0.0
    joules_per_sample: Annotated[float, Within("[0, 3.4e38]")] = 0.0
    joules_per_byte: Annotated[float, Within("[0, 3.4e38]")] = 0.0
    battery_joules: Annotated[float | None, Within("(0, 3.4e38]")] = None
    charge_watts: Annotated[float, Within("[0, 3.4e38]")] = 0.0
    seed: Annotated[int, Whole(0)] = 0

    @property
    def provides(self) -> frozenset[str]:
        """What other parts may require, or cannot do with."""
        waits = self.deadline is not None or self.overcommit > 1 or self.uplink != "parallel"
        return frozenset([DEVICES, *[WAITING] * waits, *[OVERCOMMIT] * (self.overcommit > 1)])

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.deadline is None and self.on_late == "partial":
            raise ValueError(
                "Expected a `devices.deadline` for devices.on_late=partial, but got none: give the seconds, or take "
                "devices.on_late=drop, by which nobody is late then."
            )

    @abstractmethod
    def profiles(self, num_clients: int) -> Profiles:
        """Return what the clients' devices are able to do; the same whenever it is asked."""

    def calendar(self, num_clients: int) -> Calendar | None:
        """Return when clients are on-line; ``None`` for always."""
        return None

    def slowdown(self, seed: int, round: int, client_id: int) -> tuple[float, float]:
        """Return by what a client's seconds of computing and of transfers are multiplied in a round.

        That is one over the speed, which has mean 1.
        """
        if not self.jitter and not self.radio_jitter:
            return 1.0, 1.0
        low = ndtr(-_WIDEST)
        compute, radio = ndtri(low + (1 - 2 * low) * stream(seed, "device-jitter", round, client_id).random(2)).tolist()
        return 1 / (1 + self.jitter * compute), 1 / (1 + self.radio_jitter * radio)

    def _profiled(
        self, seconds_per_sample_K: NDArray[np.float64], down_mbps_K: NDArray[np.float64], up_mbps_K: NDArray[np.float64]
    ) -> Profiles:
        """Return profiles with the same energy for everybody."""
        same_K = np.ones(len(seconds_per_sample_K))
        battery = math.inf if self.battery_joules is None else self.battery_joules
        energy = (self.joules_per_sample, self.joules_per_byte, battery, self.charge_watts)
        rates = (BYTES_PER_MEGABIT * down_mbps_K, BYTES_PER_MEGABIT * up_mbps_K)
        return Profiles(seconds_per_sample_K, *rates, *(number * same_K for number in energy))
