"""Clients that train while the server goes on: rounds of asynchronous aggregation, in the seconds of the simulated clock.

It draws nothing and keeps nothing: the orders under way, and the models that they began from, go in and come out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedfacet.clock import Plan
from fedfacet.devices.schedule import Load, Schedule
from fedfacet.types import Broadcast, ClientTask, ServerState, State


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
