"""The simulated clock of a federation: what its rounds take on devices, in seconds, joules and bytes.

It draws nothing but the jitter of a round's clients and keeps nothing: what survives a round goes in and comes out.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fedfacet.devices.base import BYTES_PER_FLOAT, Devices, Profiles
from fedfacet.devices.schedule import Load, Schedule, Work, schedule
from fedfacet.errors import CheckpointError, ConfigError
from fedfacet.records import Ledger
from fedfacet.types import RoundNeeds, ServerState

_MARGIN = 1e-6
"""Seconds that are waited besides, lest rounding leave the clock just before a client comes on-line, for ever."""


class Asked(NamedTuple):
    """What a client did in a round to answer questions.

    Attributes:
        floats_down: sent to it for that alone; 0 for a client of the cohort, which gets the model anyway.
        floats_up: of its answers.
        samples: that it passed through a model, but for those with which it began its training.
    """

    floats_down: int = 0
    floats_up: int = 0
    samples: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """How a round will go, known before anybody trains.

    Attributes:
        client_ids: the cohort.
        finished: client -> the part of its steps that it finishes and that counts; 0 where its update does not.
        load: their seconds.
        schedule: when they arrive.
        late: how many updates do not count because of devices.
        joules: client -> what it uses in training.
    """

    client_ids: tuple[int, ...]
    finished: Mapping[int, float]
    load: Load
    schedule: Schedule
    late: int
    joules: Mapping[int, float]

    @property
    def durations(self) -> dict[int, float]:
        """Client -> seconds until its update arrived, of those that are counted."""
        arrived = zip(self.client_ids, self.schedule.arrivals.tolist(), self.schedule.counted.tolist(), strict=True)
        return {client_id: seconds for client_id, seconds, counted in arrived if counted}


class Clock:
    """Clients' devices, and what their rounds take.

    Args:
        devices: of the clients.
        work: what each client plans to train in a round.
        profiles: what the devices are like by what else the federation does to them; ``None`` for as they are.
        floats_down: of a model, as it is sent to a client.
        floats_up: of an update.
        cohort_size: how many updates a round wants.

    Raises:
        ConfigError: if the deadline is too early for everybody.
        ValueError: if devices have impossible numbers.
    """

    def __init__(
        self,
        devices: Devices,
        work: Sequence[Work],
        *,
        floats_down: int,
        floats_up: int,
        cohort_size: int,
        profiles: Profiles | None = None,
    ) -> None:
        self.devices = devices
        self.work = list(work)
        self.num_clients = len(self.work)
        self.cohort_size = cohort_size
        self.profiles = profiles if profiles is not None else devices.profiles(self.num_clients)
        self.calendar = devices.calendar(self.num_clients)
        self._samples_K = np.array([work.samples(work.steps) for work in self.work])
        self._bytes = BYTES_PER_FLOAT * floats_down, BYTES_PER_FLOAT * floats_up
        self._check_deadline()

    def init(self) -> ServerState:
        """Return the clock before the first round: seconds, joules used so far, what batteries lack (K,), and whose."""
        lacking_K = torch.zeros(self.num_clients, dtype=torch.float64)
        return {"clock": 0.0, "joules": 0.0, "lacking": lacking_K, "profiles": self.profiles.digest}

    def check(self, server: ServerState) -> None:
        """Refuse a saved clock of other devices, as where the file of a trace has changed.

        Raises:
            CheckpointError: saying so.
        """
        if server.get("profiles") != self.profiles.digest:
            raise CheckpointError(
                "Expected a checkpoint of the same `devices`, but they have other numbers now: bring the trace back as it was, "
                "or start a new run."
            )

    def nominal(self) -> NDArray[np.float64]:
        """Return each client's seconds of download, computing and upload in a round without jitter, shape (K, 3)."""
        of = self.profiles
        return np.stack([self._bytes[0] / of.down, self._samples_K * of.seconds_per_sample, self._bytes[1] / of.up], axis=1)

    def needed(self) -> NDArray[np.float64]:
        """Return the joules of each client's round, shape (K,)."""
        return self._samples_K * self.profiles.joules_per_sample + sum(self._bytes) * self.profiles.joules_per_byte

    def needs(self) -> list[RoundNeeds]:
        """Return what each client knows of its own device: what a round without jitter takes."""
        return list(itertools.starmap(RoundNeeds, zip(*self.nominal().T.tolist(), self.needed().tolist(), strict=True)))

    def available(self, server: ServerState, available: Sequence[int]) -> tuple[int, ...]:
        """Return those of the clients that are on-line, and whose battery has a round's energy."""
        charged_K = self._charged(server)
        return tuple(
            k for k in available if charged_K[k] and (self.calendar is None or self.calendar.left(k, server["clock"]) > 0)
        )

    def num_slots(self, wanted: int, num_available: int) -> int:
        """Return how many clients are asked for that many updates."""
        return min(self._asked(wanted), num_available)

    def plan(
        self,
        server: ServerState,
        finished: Mapping[int, float],
        floats: Mapping[int, tuple[int, int]],
        *,
        seed: int,
        round: int,
    ) -> Plan:
        """Return how a round will go.

        Args:
            server: the clock before the round.
            finished: client of the cohort -> the part of its steps that its participation lets it finish; 0 for a client that
                is lost when it has the model.
            floats: client -> how many it is sent and how many it sends.
            seed: of the run.
            round: its number.
        """
        cohort = tuple(finished)
        ids = np.array(cohort, dtype=np.int64)
        factors_C2 = np.array([self.devices.slowdown(seed, round, k) for k in cohort]).reshape(-1, 2)
        bytes_C2 = BYTES_PER_FLOAT * np.array([floats[k] for k in cohort], dtype=np.float64).reshape(-1, 2)
        download, upload = (
            bytes_C2[:, way] / rate_K[ids] * factors_C2[:, 1]
            for way, rate_K in enumerate((self.profiles.down, self.profiles.up))
        )
        pace = self.profiles.seconds_per_sample[ids] * factors_C2[:, 0]
        steps = [math.ceil(finished[k] * self.work[k].steps) for k in cohort]
        deadline = self.devices.deadline if self.devices.on_late != "wait" else None
        if deadline is not None and self.devices.on_late == "partial":
            left = deadline - download - upload
            steps = [
                min(planned, max(self.work[k].fitting(seconds / one), min(planned, 1)))
                for k, planned, seconds, one in zip(cohort, steps, left.tolist(), pace.tolist(), strict=True)
            ]
        compute = pace * np.array([self.work[k].samples(done) for k, done in zip(cohort, steps, strict=True)], dtype=np.float64)
        lost = np.array([self.calendar.left(k, server["clock"]) if self.calendar is not None else math.inf for k in cohort])
        gone = np.array(steps, dtype=np.int64) == 0
        load = Load(ids, download, compute, upload, np.where(gone, np.minimum(lost, download * (1 - 1e-12)), lost))
        beyond = len(cohort) > self._asked(self.cohort_size)  # more are asked on purpose, as in pre-training
        wanted = self.cohort_size if self.devices.overcommit > 1 and not beyond else None
        planned = schedule(load, uplink=self.devices.uplink, deadline=deadline, wanted=wanted)
        parts = {
            k: _part(done, self.work[k].steps, finished[k]) if counted else 0.0
            for k, done, counted in zip(cohort, steps, planned.counted.tolist(), strict=True)
        }
        late = sum(parts[k] == 0 and finished[k] > 0 for k in cohort)
        return Plan(cohort, parts, load, planned, late, self._joules(cohort, load, planned, pace, bytes_C2))

    def advance(
        self, server: ServerState, plan: Plan, asked: Mapping[int, Asked], ledger: Ledger, *, seed: int, round: int
    ) -> tuple[ServerState, dict[str, float]]:
        """Return the clock after a round, and the round's metrics ``sim/...``.

        ``sim/seconds`` of the round are ``sim/ask``, until the slowest answer is there, ``sim/download``, ``sim/compute`` and
        ``sim/upload`` of the last client that was counted, and ``sim/wait``: for the channel, for those that are late or lost,
        for the server itself, and for somebody to come on-line. ``sim/clock`` is their sum so far. ``sim/joules`` were used by
        clients, ``sim/bytes_down`` and ``sim/bytes_up`` crossed. ``sim/late`` counts updates that devices kept from counting,
        and ``sim/dead`` clients whose battery has less than a round's energy now.

        Args:
            server: the clock before the round.
            plan: how the round went.
            asked: client -> what it did to answer questions.
            ledger: what crossed.
            seed: of the run.
            round: its number.
        """
        of = self.profiles
        ask, joules_K = self.asking(asked, seed=seed, round=round)
        for k, joules in plan.joules.items():
            joules_K[k] += joules
        slowest = plan.schedule.slowest
        parts = [
            0.0 if slowest is None else float(part[slowest])
            for part in (plan.load.download, plan.load.compute, plan.load.upload)
        ]
        idle = self._idle(server) if not plan.client_ids else 0.0
        wait = max(plan.schedule.seconds - sum(parts), 0.0) + self.devices.server_seconds + idle
        seconds = math.fsum([ask, *parts, wait])
        lacking_K = server["lacking"].numpy() + joules_K - seconds * of.charge_watts
        after = {
            **server,
            "clock": server["clock"] + seconds,
            "joules": server["joules"] + math.fsum(joules_K.tolist()),
            "lacking": torch.from_numpy(np.minimum(np.maximum(lacking_K, 0.0), of.battery_joules)),
        }
        return after, {
            "sim/seconds": seconds,
            "sim/clock": after["clock"],
            "sim/ask": ask,
            **dict(zip(("sim/download", "sim/compute", "sim/upload"), parts, strict=True)),
            "sim/wait": wait,
            "sim/joules": math.fsum(joules_K.tolist()),
            "sim/bytes_down": BYTES_PER_FLOAT * (ledger.floats_down + ledger.query_floats_down),
            "sim/bytes_up": BYTES_PER_FLOAT * (ledger.floats_up + ledger.query_floats_up),
            "sim/late": plan.late,
            "sim/dead": int((~self._charged(after)).sum()),
        }

    def asking(self, asked: Mapping[int, Asked], *, seed: int, round: int) -> tuple[float, NDArray[np.float64]]:
        """Return the seconds until the slowest answer is there, and the joules of each client's answers, shape (K,)."""
        of, ask, joules_K = self.profiles, 0.0, np.zeros(self.num_clients)
        for k, (floats_down, floats_up, samples) in asked.items():
            compute, radio = self.devices.slowdown(seed, round, k)
            passed = samples * self.devices.forward_share
            crossed = [BYTES_PER_FLOAT * floats for floats in (floats_down, floats_up)]
            travel = radio * (crossed[0] / of.down[k] + crossed[1] / of.up[k])
            ask = max(ask, float(travel + compute * passed * of.seconds_per_sample[k]))
            joules_K[k] += passed * of.joules_per_sample[k] + sum(crossed) * of.joules_per_byte[k]
        return ask, joules_K

    def summary(self, server: ServerState) -> dict[str, float]:
        """Return what a run has taken so far."""
        return {
            "hours": server["clock"] / 3600,
            "joules": server["joules"],
            "dead": int((~self._charged(server)).sum()),
            "slowest_over_fastest": float(self.nominal().sum(axis=1).max() / self.nominal().sum(axis=1).min()),
        }

    def table(self) -> list[dict[str, float]]:
        """Return a row per client: its profile, and the seconds of its round without jitter."""
        longer = {"down": "down_bytes_per_second", "up": "up_bytes_per_second"}
        columns = {longer.get(of.name, of.name): getattr(self.profiles, of.name) for of in fields(self.profiles)}
        columns |= dict(zip(("download_seconds", "compute_seconds", "upload_seconds"), self.nominal().T, strict=True))
        rows = zip(*(values_K.tolist() for values_K in columns.values()), strict=True)
        return [{"client": k, **dict(zip(columns, row, strict=True))} for k, row in enumerate(rows)]

    def _asked(self, wanted: int) -> int:
        return math.ceil(Fraction(str(self.devices.overcommit)) * wanted)  # 1.1 * 10 are 11, not 12

    def _charged(self, server: ServerState) -> NDArray[np.bool_]:
        """Tell whose battery has a round's energy, shape (K,)."""
        charged_K: NDArray[np.bool_] = self.profiles.battery_joules - server["lacking"].numpy() >= self.needed()
        return charged_K

    def _idle(self, server: ServerState) -> float:
        """Return the seconds until a client is on-line with energy enough; 0 if one is, or never will be."""
        if self.available(server, range(self.num_clients)):
            return 0.0
        of, clock = self.profiles, server["clock"]
        lacking_K = np.maximum(self.needed() - (of.battery_joules - server["lacking"].numpy()), 0.0)
        waits = []
        for k in np.flatnonzero(self.needed() <= of.battery_joules).tolist():
            if lacking_K[k] > 0 and not of.charge_watts[k]:
                continue
            charging = float(lacking_K[k] / of.charge_watts[k]) * (1 + 1e-9) if lacking_K[k] > 0 else 0.0
            waits.append(charging + (self.calendar.wait(k, clock + charging) if self.calendar is not None else 0.0))
        return min(waits) + _MARGIN if waits else 0.0

    def _joules(
        self, cohort: Sequence[int], load: Load, planned: Schedule, pace: NDArray[np.float64], bytes_C2: NDArray[np.float64]
    ) -> dict[int, float]:
        """Return what each client of a cohort uses: as far as it got, with a whole upload or none."""
        ids, of = load.client_ids, self.profiles
        received = np.clip(planned.stopped / np.maximum(load.download, 1e-300), 0, 1)
        computing = np.clip(planned.stopped - load.download, 0, load.compute)
        bytes_C = bytes_C2[:, 0] * received + bytes_C2[:, 1] * planned.counted
        joules_C = computing / pace * of.joules_per_sample[ids] + bytes_C * of.joules_per_byte[ids]
        return dict(zip(cohort, joules_C.tolist(), strict=True))

    def _check_deadline(self) -> None:
        """Refuse a deadline that nobody can meet, in the best of rounds."""
        devices = self.devices
        if devices.deadline is None or devices.on_late == "wait":
            return
        nominal_K3 = self.nominal()
        if devices.on_late == "partial":
            ones_K = np.array([work.samples(1) / work.samples(work.steps) for work in self.work])
            nominal_K3[:, 1] *= ones_K
        best = np.array([1 / (1 + 2 * jitter) for jitter in (devices.radio_jitter, devices.jitter, devices.radio_jitter)])
        fastest = float((nominal_K3 * best).sum(axis=1).min())
        if fastest > devices.deadline:
            raise ConfigError(
                f"Expected a `devices.deadline` that somebody can meet, {fastest:.4g} seconds or more, but got "
                f"{devices.deadline:g}: raise it, or train less by `local.amount`."
            )


def _part(done: int, planned: int, asked: float) -> float:
    """Return the part of the steps of which a client makes ``done`` steps, ceil(part * planned)."""
    return asked if math.ceil(asked * planned) == done else (done - 0.5) / planned
