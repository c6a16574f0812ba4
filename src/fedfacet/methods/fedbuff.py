"""FedBuff: clients train while the server goes on, in simulated seconds, and their updates are averaged by the buffer."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Annotated, Any

import numpy as np

from fedfacet import state
from fedfacet.aggregators.base import Aggregator
from fedfacet.arguments import Number, check_whole
from fedfacet.clock import Clock, Plan
from fedfacet.devices.schedule import Load, Schedule
from fedfacet.mechanism import Mechanism, Round
from fedfacet.records import FederationState
from fedfacet.types import ASYNCHRONOUS, DEVICES, PARTS, WAITING, Broadcast, ClientTask, ClientUpdate, ServerState, State


@dataclass(eq=False, kw_only=True)
class FedBuff(Aggregator):
    r"""Take K updates of clients that may have begun from older models, and move the model by their discounted mean.

    .. math:: w \leftarrow w + \frac{\eta}{K} \sum_k s(\tau_k) \Delta_k, \quad s(\tau) = (1 + \tau)^{-a}

    :math:`\Delta_k` is the client's weights minus the model that it was sent, and the staleness :math:`\tau_k` says how many
    rounds ago that was the current one. ``concurrency`` clients are at work at a time, and a round ends when
    K = ``federation.cohort_size`` of them have sent their updates, in the simulated seconds of ``devices``. A discount makes
    the step smaller, as the sum is divided by K and not by the sum of discounts. With ``weighting="samples"``, 1/K becomes the
    client's part of the buffer's samples. Where as many are at work as make a round, it is FedAvg, bit for bit.

    Source: Nguyen et al., Federated Learning with Buffered Asynchronous Aggregation, AISTATS 2022, arXiv:2106.06639,
    algorithm 1, with the staleness scaling :math:`1 / \sqrt{1 + \tau}` of its experiments. The rule was compared with
    FLSim, the simulator of the authors' group, and not with the paper's text.

    Deviations: there a client begins as soon as another has finished. Here those that take the places of a full buffer begin
    together, with the model that it has made, so that a selector chooses once per round. FLSim sums the discounted updates
    instead of dividing by K, and divides discounts by that of ``avg_staleness``, 1 by default: its learning rate is
    :math:`\eta / K` times that discount. Its exponent is at most 1, and no discount is its default. Buffers (running
    statistics) are discounted as parameters are.

    Args:
        concurrency: how many clients are at work at a time, between ``federation.cohort_size`` and the number of clients;
            ``None`` for twice ``federation.cohort_size``, or all clients if these are fewer.
        staleness_exponent: a, 0 or larger and finite; 0 for no discount.
        server_lr: eta, larger than 0.
    """

    provides = frozenset({ASYNCHRONOUS})
    requires = frozenset({DEVICES})

    excludes = MappingProxyType(
        {
            WAITING: "takes updates as they come: give devices.deadline=null devices.overcommit=1 devices.uplink=parallel",
            PARTS: "takes updates as they come: choose capacity=whole submodel=whole",
        }
    )

    concurrency: int | None = None
    staleness_exponent: Annotated[float, Number("0 or larger, and finite")] = 0.5
    server_lr: Annotated[float, Number("larger than 0")] = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.concurrency is not None:
            check_whole("aggregator.concurrency", self.concurrency)

    def mechanisms(self, clock: Clock | None, cohort_size: int, num_clients: int) -> list[Mechanism]:
        """Return rounds that take the updates of clients that are done first; none without a clock."""
        if clock is None:
            return []
        flights = AsyncSchedule(concurrency=self.at_work(cohort_size, num_clients), buffer=cohort_size)
        return [AsynchronousRounds(flights, clock)]

    def at_work(self, cohort_size: int, num_clients: int) -> int:
        """Return how many clients are at work at a time.

        Raises:
            ValueError: if ``concurrency`` is less than a buffer, or more than there are clients.
        """
        if self.concurrency is None:
            return min(2 * cohort_size, num_clients)
        if not cohort_size <= self.concurrency <= num_clients:
            raise ValueError(
                f"Expected `aggregator.concurrency` between federation.cohort_size={cohort_size} and the {num_clients} clients "
                f"of the federation, but got {self.concurrency}."
            )
        return self.concurrency

    def aggregate(self, server: ServerState, model: State, updates: Iterable[ClientUpdate]) -> tuple[ServerState, State]:
        """Return the model after a step."""
        moved = state.weighted_mean((self._discounted(update), self.weight(update)) for update in updates)
        return server, state.add(model, moved, scale=self.server_lr)

    def _discounted(self, update: ClientUpdate) -> State:
        """Return what of an update moves the model, times its discount."""
        sent = self.sent(update)
        return state.scaled(sent, (1 + update.staleness) ** -self.staleness_exponent) if update.staleness else sent


class AsyncSchedule:
    """So many clients are at work at a time; a round ends when so many of them have sent their updates.

    A round sends its model to clients that are free, until ``concurrency`` are at work, and takes the first ``buffer`` updates
    that arrive, ties by client number. Their clients were sent the model of this round or of an earlier one. What they train
    follows from the round in which they were sent it, so that a round stays a function of the saved state, and no update is
    computed before it is taken.

    Args:
        concurrency: how many clients are at work at a time, ``buffer`` or larger.
        buffer: how many updates make a round, 1 or larger.
    """

    def __init__(self, *, concurrency: int, buffer: int) -> None:
        self.concurrency = concurrency
        self.buffer = buffer

    def init(self) -> ServerState:
        """Return no orders, and no models (round -> model) that clients began from."""
        return {"orders": [], "models": {}}

    def free(self, server: ServerState, available: Sequence[int]) -> tuple[int, ...]:
        """Return those of the clients that are not at work."""
        at_work = {order["client"] for order in server["orders"]}
        return tuple(client_id for client_id in available if client_id not in at_work)

    def num_slots(self, server: ServerState, num_free: int) -> int:
        """Return how many clients are sent the model."""
        return min(self.concurrency - len(server["orders"]), num_free)

    def turn(
        self,
        server: ServerState,
        tasks: Sequence[ClientTask],
        plan: Plan,
        *,
        now: float,
        seed: int,
        memory: Mapping[int, State],
    ) -> tuple[ServerState, list[ClientTask], Plan]:
        """Send orders out, and take the updates that arrive first.

        Args:
            server: the orders under way.
            tasks: of the clients that are sent the model now; those that will not answer have none.
            plan: of all clients that are sent it.
            now: seconds of the clock.
            seed: of the run.
            memory: client -> what it kept.

        Returns:
            The orders that are left, the tasks whose updates arrive, those that were sent first in front, and how the round
            goes: of a client that began earlier only what was left of its work counts as time, and all of it as energy.
        """
        orders, models = list(server["orders"]), dict(server["models"])
        where = {client_id: position for position, client_id in enumerate(plan.client_ids)}
        for task in tasks:
            position = where[task.client_id]
            load = {part: float(getattr(plan.load, part)[position]) for part in ("download", "compute", "upload")}
            models[str(task.round)] = task.broadcast.model
            orders.append(
                {
                    "client": task.client_id,
                    "round": task.round,
                    "step_fraction": task.step_fraction,
                    "lr_factor": task.lr_factor,
                    "arrives": now + float(plan.schedule.arrivals[position]),
                    "joules": plan.joules[task.client_id],
                    **load,
                }
            )
        first = sorted(orders, key=lambda order: (order["arrives"], order["client"]))[: self.buffer]
        arriving = {order["client"] for order in first}
        taken = [order for order in orders if order["client"] in arriving]
        left = [order for order in orders if order["client"] not in arriving]
        arrived = [
            ClientTask(
                order["client"],
                order["round"],
                seed,
                Broadcast(models[str(order["round"])]),
                memory.get(order["client"], {}),
                order["step_fraction"],
                order["lr_factor"],
            )
            for order in taken
        ]
        needed = {str(order["round"]) for order in left}
        after = {"orders": left, "models": {round: model for round, model in models.items() if round in needed}}
        return after, arrived, _plan_of(taken, plan, now) if taken else plan


def _plan_of(taken: Sequence[Mapping[str, Any]], launched: Plan, now: float) -> Plan:
    """Return how the round goes that ends with the last of some orders; who was lost on the way has used its joules too."""
    arrivals = np.maximum(np.array([order["arrives"] for order in taken]) - now, 0.0)
    ids = np.array([order["client"] for order in taken], dtype=np.int64)
    upload = np.minimum([order["upload"] for order in taken], arrivals)
    compute = np.minimum([order["compute"] for order in taken], arrivals - upload)
    everybody = np.ones(len(taken), dtype=bool)
    never = np.full(len(taken), np.inf)
    schedule = Schedule(arrivals, everybody, float(arrivals.max()), int(np.lexsort((ids, arrivals))[-1]), arrivals)
    lost = {client_id: joules for client_id, joules in launched.joules.items() if not launched.finished[client_id]}
    return replace(
        launched,
        client_ids=tuple(ids.tolist()),
        finished={order["client"]: order["step_fraction"] for order in taken},
        load=Load(ids, arrivals - upload - compute, compute, upload, never),
        schedule=schedule,
        joules=lost | {order["client"]: order["joules"] for order in taken},
    )


@dataclass(frozen=True, eq=False)
class AsynchronousRounds(Mechanism):
    """Sends the model to clients that are free, and takes the updates that arrive first; goes with ``SimulatedDevices``."""

    flights: AsyncSchedule
    clock: Clock

    slot = "flights"
    rank = 50

    def init(self) -> ServerState:
        """Return no orders."""
        return self.flights.init()

    def available(self, round: Round) -> None:
        """Leave out who is at work."""
        known = round.before.slot(self.slot)
        round.available = self.flights.free(known, round.available)
        round.num_wanted = self.flights.num_slots(known, len(round.available))

    def dispatch(self, round: Round) -> None:
        """Send the orders out, and take in their place those whose updates arrive first."""
        assert round.plan is not None
        before, drawn = round.before, {"seed": round.seed, "round": round.number}
        now = before.slot("devices")["clock"] + self.clock.asking(round.queries.asked, **drawn)[0]
        known, given = before.slot(self.slot), {"now": now, "seed": round.seed, "memory": before.memory}
        round.notes[self.slot], round.tasks, round.plan = self.flights.turn(known, round.tasks, round.plan, **given)

    def incoming(self, round: Round, task: ClientTask, update: ClientUpdate) -> ClientUpdate:
        """Note down how many rounds ago the client's model was the current one."""
        return replace(update, staleness=round.number - task.round)

    def after(self, round: Round, new: FederationState) -> ServerState:
        """Measure ``train/staleness``, the mean of that, and return the orders that are left."""
        late = [round.number - task.round for task in round.tasks]
        round.metrics["train/staleness"] = sum(late) / len(late) if late else float("nan")
        left: ServerState = round.notes[self.slot]
        return left
