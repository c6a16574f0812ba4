"""How clients that are trained side by side begin and end: each with its own notes, layers and random numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedfacet import rng
from fedfacet.clients.divided_training import same_tensors
from fedfacet.clients.notes import NOTHING, Notes, notes_of
from fedfacet.clients.optimizers import single_optimizer
from fedfacet.clients.personal_memory import own_model, to_keep
from fedfacet.clients.trainer import Clients
from fedfacet.clients.vectorized_stack import CannotStackError
from fedfacet.types import ClientEnd, ClientStart, ClientTask, State


@dataclass(eq=False)
class Row:
    """One client among those that are trained side by side.

    Attributes:
        position: of its task.
        task: its order.
        start: what it starts from, its own layers included.
        num_steps: how many steps it takes.
        notes: what the objective has noted of it.
        noted: the tensors of these notes.
        kind: what it shares with the clients that it can be stacked with.
        generators: the states of its random generators.
    """

    position: int
    task: ClientTask
    start: State
    num_steps: int
    notes: Notes = NOTHING
    noted: Sequence[Tensor] = ()
    kind: tuple[Any, ...] = ()
    generators: list[Tensor] | None = None


class Rows:
    """Begins and ends clients for a stack.

    Args:
        clients: whose objective takes note of each.
    """

    def __init__(self, clients: Clients) -> None:
        self.clients = clients
        program = clients.program
        self.takes_notes = program.does("on_client_start")
        self._ends = program.does("on_client_end")
        self.has_end = self._ends or bool(program.personal)

    def begin(self, tasks: Sequence[ClientTask]) -> list[Row]:
        """Begin clients, and return one row for each task."""
        clients = self.clients
        rows = [
            Row(position, task, own_model(task.broadcast.model, task.memory), clients.num_steps(task), kind=(task.lr_factor,))
            for position, task in enumerate(tasks)
        ]
        if self.takes_notes and not (_begin_alike(tasks) and self._begin_together(rows)):
            for row in rows:
                self._begin(row, ClientStart)
        return rows

    def generators_of(self, row: Row) -> list[Tensor]:
        """Return the states of a client's generators before its first step."""
        if row.generators is None:
            with self.clients.forked(row.task):
                row.generators = rng.get_states(self.clients.device)
        return row.generators

    def end(self, row: Row, ended: State, delta: State, lr: float, step_weight: float) -> tuple[State, State]:
        """Return what a client sends beside its update, and what it keeps.

        Args:
            row: the client, whose notes the objective has.
            ended: its tensors after its last step, on its device.
            delta: what it sends of them.
            lr: its learning rate.
            step_weight: of its update.
        """
        program, extras, memory = self.clients.program, State(), State()
        if self._ends:
            with torch.no_grad():
                torch._foreach_copy_([program.tensors[name] for name in ended], list(ended.values()))
            end = ClientEnd(delta, row.num_steps, lr, step_weight)
            extras, memory, _ = program.end(end, self.clients.data(row.task.client_id))
        if program.personal:
            memory = memory | to_keep(ended, program.personal)
        return extras, memory

    def _begin_together(self, rows: Sequence[Row]) -> bool:
        """Have the objective take note of what all clients start from; return whether that is all that it looks at."""
        first = rows[0]
        if self.clients.program.data_hooks is not None:
            return False
        try:
            self._begin(first, _StartOfAll)
        except _LooksAtClientError:
            return False
        assert first.generators is not None
        with self.clients.forked(first.task):
            drew = not all(map(torch.equal, first.generators, rng.get_states(self.clients.device)))
        for row in rows:
            row.notes, row.noted, row.kind, row.generators = first.notes, first.noted, first.kind, None
        return not drew

    def _begin(self, row: Row, start: type[ClientStart]) -> None:
        """Have the objective take note of one client."""
        clients, program, task = self.clients, self.clients.program, row.task
        program.load(row.start)
        program.train(True)
        with clients.forked(task):
            lr = float(single_optimizer(clients.objective).param_groups[0]["lr"] * task.lr_factor)
            begins = start(task.broadcast, dict(task.memory), row.num_steps, lr, task.lr_factor)
            program.begin(begins, clients.data(task.client_id))
            row.generators = rng.get_states(clients.device)
        notes = notes_of(clients.objective, program.module)
        if notes.unmovable:
            raise CannotStackError(f"Expected notes of clients that can be replaced, but {notes.unmovable} is in a tuple")
        row.notes, row.noted, row.kind = notes, [slot.tensor for slot in notes.slots], (task.lr_factor, notes.shape)


class _LooksAtClientError(Exception):
    """What is noted of one client does not hold for another."""


class _StartOfAll(ClientStart):
    """What is the same for all clients; how many steps each will take is not."""

    def __getattribute__(self, name: str) -> Any:
        """Return what is the same."""
        if name == "num_steps":
            raise _LooksAtClientError
        return super().__getattribute__(name)


def _begin_alike(tasks: Sequence[ClientTask]) -> bool:
    """Tell whether all clients are sent the same and keep nothing."""
    first = tasks[0]
    return all(
        not task.memory
        and task.lr_factor == first.lr_factor
        and (
            task.broadcast is first.broadcast
            or (
                same_tensors(task.broadcast.model, first.broadcast.model)
                and same_tensors(task.broadcast.extras, first.broadcast.extras)
            )
        )
        for task in tasks
    )
