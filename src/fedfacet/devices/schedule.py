"""When updates arrive, and how long a server waits: pure functions of seconds, without clients, generators or states."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Work(NamedTuple):
    """What a client trains in a round.

    Attributes:
        num_samples: how many it holds (n_k).
        batch_size: samples of a step, but for the last step of an epoch.
        steps: how many it plans.
    """

    num_samples: int
    batch_size: int
    steps: int

    def samples(self, steps: int) -> int:
        """Return how many samples go through the model in the first steps, repetitions counted."""
        epochs, rest = divmod(steps, self._per_epoch)
        return epochs * self.num_samples + rest * min(self.batch_size, self.num_samples)

    def fitting(self, samples: float) -> int:
        """Return the largest number of planned steps for which no more samples are needed."""
        if samples >= self.samples(self.steps):
            return self.steps
        epochs, rest = divmod(max(samples, 0.0), max(self.num_samples, 1))
        return int(epochs) * self._per_epoch + int(rest // max(min(self.batch_size, self.num_samples), 1))

    @property
    def _per_epoch(self) -> int:
        return max(math.ceil(self.num_samples / self.batch_size), 1)


@dataclass(frozen=True, slots=True, eq=False)
class Load:
    """The seconds that each of C clients of a cohort needs.

    Attributes:
        client_ids: their numbers, shape (C,).
        download: to receive the model, shape (C,).
        compute: to train, shape (C,).
        upload: to send the update, shape (C,).
        lost: after which a client is gone if its update has not arrived, shape (C,); infinite for never.
    """

    client_ids: NDArray[np.int64]
    download: NDArray[np.float64]
    compute: NDArray[np.float64]
    upload: NDArray[np.float64]
    lost: NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """How a round goes.

    Attributes:
        arrivals: seconds until each client's update would have arrived, shape (C,).
        counted: whether it did arrive in time and was taken, shape (C,).
        seconds: until the server goes on.
        slowest: position of the counted client whose update came last; ``None`` if none did.
        stopped: seconds until each client ended its work, shape (C,).
    """

    arrivals: NDArray[np.float64]
    counted: NDArray[np.bool_]
    seconds: float
    slowest: int | None
    stopped: NDArray[np.float64]


def arrivals_of(load: Load, uplink: str) -> NDArray[np.float64]:
    r"""Return the seconds until each client's update has arrived, shape (C,).

    With ``"parallel"`` these are the sums of its three parts. With ``"sequential"`` the channel is shared, as in FedCS (Nishio
    and Yonetani 2019, equations 3 and 4): all download at the slowest one's pace, and then one client after the other sends,

    .. math:: \Theta \leftarrow \Theta + t^{UL}_k + \max(0, t^{UD}_k - \Theta).

    Deviation: FedCS sends in the order of selection; here those that are ready first send first, ties by client number, so
    that the order of a cohort does not matter. No order is faster. A client that is lost before it is ready does not send.
    """
    if uplink == "parallel":
        return load.download + load.compute + load.upload
    begun = float(load.download.max(initial=0.0))
    arrivals, busy = np.full(len(load.compute), math.inf), 0.0
    for position in np.lexsort((load.client_ids, load.compute)).tolist():
        if load.lost[position] >= begun + load.compute[position]:
            busy = max(busy, float(load.compute[position])) + float(load.upload[position])
            arrivals[position] = begun + busy
    return arrivals


def schedule(load: Load, *, uplink: str, deadline: float | None, wanted: int | None) -> Schedule:
    """Return who is counted and how long the server waits.

    It waits until every client has arrived or is lost, the deadline has passed, or so many as are wanted have arrived.

    Args:
        load: of the cohort.
        uplink: ``"parallel"`` or ``"sequential"``.
        deadline: seconds; ``None`` for none.
        wanted: how many updates are taken, the first, ties by client number; ``None`` for all.
    """
    latest = math.inf if deadline is None else deadline
    arrivals = arrivals_of(load, uplink)
    counted = (arrivals <= load.lost) & (arrivals <= latest)
    if wanted is not None and counted.sum() > wanted:
        order = np.lexsort((load.client_ids, np.where(counted, arrivals, math.inf)))
        counted[order[wanted:]] = False
    slowest = int(np.lexsort((load.client_ids, np.where(counted, arrivals, -1.0)))[-1]) if counted.any() else None
    if wanted is not None and counted.sum() == wanted:
        seconds = float(arrivals[counted].max(initial=0.0))
    else:
        seconds = float(np.minimum(np.where(counted, arrivals, load.lost), latest).max(initial=0.0))
    stopped = np.where(counted, arrivals, np.minimum(load.lost, seconds))
    return Schedule(arrivals, counted, seconds, slowest, stopped)
