"""Many clients' local training side by side: the twin of ``Clients.train``, equal to it up to rounding.

A stack has one row per client of everything that training changes: parameters, buffers, the optimizer's moments; and of what
differs between clients: their notes and random draws. A step of all rows is ``torch.vmap`` over the objective's own
``training_step``, on the batches that ``Clients.train`` takes; the optimizer is the objective's own, put on the stacked
parameters. What cannot be stacked is refused.
"""

import contextlib
import operator
import warnings
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from fedfacet import rng, state
from fedfacet.clients.notes import NOTHING, notes_of
from fedfacet.clients.optimizers import single_optimizer
from fedfacet.clients.recorded_steps import can_record
from fedfacet.clients.resident_model import on_cpu
from fedfacet.clients.trainer import Clients
from fedfacet.clients.vectorized_layers import Draw, Recording, Replaying
from fedfacet.clients.vectorized_rows import Row, Rows
from fedfacet.clients.vectorized_stack import CannotStackError, Group, RecordedStacks, Stack, can_stand_still, repeated
from fedfacet.objectives.classification import step_weight_of
from fedfacet.types import Batch, ClientTask, ClientUpdate, State


class StackedTraining(nn.Module):
    """Trains clients side by side; a module only so that ``functional_call`` can put other tensors into the objective."""

    def __init__(self, clients: Clients) -> None:
        super().__init__()
        # torch computes an operation without a batching rule row by row, and advises against it.
        warnings.filterwarnings("ignore", "There is a performance drop because we have not yet implemented the batching rule")
        self.clients = clients
        self.rows = Rows(clients)
        self.objective = clients.program.objective
        tensors = clients.program.tensors
        distinct = {id(tensor): (name, tensor) for name, tensor in tensors.items()}.values()  # some may be tied
        trained = {name: tensor for name, tensor in distinct if tensor.requires_grad}
        buffers = {name: tensor for name, tensor in distinct if not isinstance(tensor, nn.Parameter)}
        self.trained = list(trained.values())
        self.names = [*trained, *buffers]
        slots = {id(tensors[name]): slot for slot, name in enumerate(self.names)}
        self._slots = {name: slots[id(tensor)] for name, tensor in tensors.items() if id(tensor) in slots}
        self._slot_of = slots
        prefix = "objective." if clients.program.module is self.objective else "objective.model."
        self._paths = [prefix + name for name in self.names]
        self._recorded: RecordedStacks | None = None
        self._draws: dict[int, list[Draw]] = {}  # per batch size
        self._notes = NOTHING
        self._aliased = True  # whether notes hold the model's own tensors, which one look tells
        self._differ: list[int] = []  # positions among the notes' slots that have another tensor in each row
        self._noted: list[Tensor] = []  # these tensors, stacked
        self._step_of_rows = torch.vmap(self._step_of_row, in_dims=(0, 0, 0, 0, None))

    def train_clients(self, tasks: Sequence[ClientTask]) -> list[ClientUpdate]:
        """Return what ``Clients.train`` returns for each of one round's tasks, of which there are 1 or more.

        Raises:
            CannotStackError: if something that a client does cannot be done for many at once.
        """
        alike: dict[object, list[Row]] = {}
        for row in self.rows.begin(tasks):
            alike.setdefault(row.kind, []).append(row)
        updates = {row.position: update for rows in alike.values() for row, update in self._train(rows)}
        return [updates[position] for position in range(len(tasks))]

    def _train(self, rows: Sequence[Row]) -> Iterator[tuple[Row, ClientUpdate]]:
        """Train clients of one kind, and yield their updates."""
        clients, lr_factor = self.clients, rows[0].task.lr_factor
        rows = sorted(rows, key=lambda row: -row.num_steps)
        owned = [clients.owned[row.task.client_id] for row in rows]
        batches = [clients.batches(row.task) for row in rows]
        num_seen = [0] * len(rows)
        picked: list[NDArray[np.int64]] = []
        augments = clients.dataset.augmentation is not None
        with self.started(rows):
            start = self.start_of(rows)
            whole, loss_sum = self._begin(start, rows[0], len(rows))
            stack = whole
            for step in range(rows[0].num_steps):
                working = [position for position, row in enumerate(rows) if row.num_steps > step]
                if self._recorded is None:
                    stack.narrow(len(working))
                else:
                    stack = self._recorded.of(len(rows), len(working), lr_factor)
                before, picked = picked, [next(batches[position]) for position in working]
                if augments or len(before) != len(picked) or not all(map(operator.is_, before, picked)):
                    samples = [owned[position][chosen] for position, chosen in zip(working, picked, strict=True)]
                    groups = self.groups(samples, [rows[position].task for position in working] if augments else None, step)
                drawn = [self.drawn(stack, group, rows, step) for group in groups]
                if self._recorded is None:
                    self.take_step(stack, groups, drawn, step, loss_sum)
                else:
                    self._recorded.play(self._kind_of(rows[0]), len(rows), stack, groups, drawn, step)
                for position, chosen in zip(working, picked, strict=True):
                    num_seen[position] += len(chosen)
            lr = float(stack.optimizer.param_groups[0]["lr"])
            weights = {
                number: step_weight_of(stack.optimizer, self.objective, number) for number in {r.num_steps for r in rows}
            }
            losses, program = loss_sum.tolist(), clients.program
            deltas, buffers = (self._differences(whole, start, own, len(rows)) for own in (program.parameters, program.buffers))
            for position, row in enumerate(rows):
                extras, memory = State(), State()
                if self.rows.has_end:
                    ended = {name: tensor[position] for name, tensor in self.values(whole, program.tensors).items()}
                    with self.noting(row):
                        extras, memory = self.rows.end(row, ended, deltas[position], lr, weights[row.num_steps])
                yield (
                    row,
                    ClientUpdate(
                        client_id=row.task.client_id,
                        delta=deltas[position],
                        buffers=buffers[position],
                        num_samples=len(owned[position]),
                        num_steps=row.num_steps,
                        step_weight=weights[row.num_steps],
                        metrics={"loss_sum": losses[position], "num_seen": num_seen[position]},
                        extras=extras,
                        memory=memory,
                    ),
                )

    def forward(self, batch: Batch, step: int) -> Tensor:
        """Return the objective's loss at the tensors that are in its modules now."""
        return self.clients.program.step(batch, step)

    @contextlib.contextmanager
    def started(self, rows: Sequence[Row]) -> Iterator[None]:
        """Give the objective the notes of some clients of one kind, and leave the global generators as they were."""
        clients, program, first = self.clients, self.clients.program, rows[0]
        program.train(True)
        if self.rows.takes_notes:
            self._notes = first.notes
            self._notes.attach()  # those of another kind of clients may stand there
            self._notes.put(first.noted)
        elif self._aliased:
            self._notes = notes_of(self.objective, program.module)
            self._aliased = bool(self._notes.aliases)
        noted = [*zip(*(row.noted for row in rows), strict=True)] if first.noted else []
        self._differ = [slot for slot, tensors in enumerate(noted) if any(tensor is not tensors[0] for tensor in tensors)]
        self._noted = [torch.stack([tensor.detach() for tensor in noted[slot]]) for slot in self._differ]
        with clients.forked(first.task):
            yield

    @contextlib.contextmanager
    def noting(self, row: Row) -> Iterator[None]:
        """Have the objective hold one client's notes for a while."""
        self._notes.attach()
        places = [self._notes.slots[number] for number in self._differ]
        before = [slot.tensor for slot in places]
        for number, slot in zip(self._differ, places, strict=True):
            slot.put(row.noted[number])
        try:
            yield
        finally:
            for slot, tensor in zip(places, before, strict=True):
                slot.put(tensor)

    def start_of(self, rows: Sequence[Row]) -> list[Tensor]:
        """Return what rows start from, one tensor per name: of shape (1, ...) where all start from the same."""
        program, own = self.clients.program, self.clients.program.tensors
        if all(row.start is rows[0].start for row in rows):
            sent = rows[0].start if program.resident is None else program.resident.upload(rows[0].start)
            return [sent[name].to(own[name])[None] for name in self.names]
        start = []
        for name in self.names:
            tensors = [row.start[name] for row in rows]
            same = all(tensor is tensors[0] for tensor in tensors)
            start.append((tensors[0][None] if same else torch.stack(tensors)).to(own[name]))
        return start

    def stack(self, start: Sequence[Tensor], rows: int) -> Stack:
        """Put copies of what was sent side by side."""
        return Stack([_spread(tensor, rows) for tensor in start], self.trained, single_optimizer(self.objective))

    def _begin(self, start: Sequence[Tensor], like: Row, rows: int) -> tuple[Stack, Tensor]:
        """Return a stack of what was sent to so many clients like one, and zeros for their losses."""
        lr_factor = like.task.lr_factor
        if can_record(self.clients.device) and can_stand_still(single_optimizer(self.objective)):
            if self._recorded is None:
                make_optimizer = partial(single_optimizer, self.objective)
                self._recorded = RecordedStacks(self.trained, make_optimizer, self.clients.device, self.take_step)
            shared = [slot for number, slot in enumerate(self._notes.slots) if number not in self._differ]
            shared = [slot for slot in shared if slot.tensor.device.type == self.clients.device.type]
            there = self._recorded.notes_at(self._kind_of(like), [*self._noted, *(slot.tensor.detach() for slot in shared)])
            self._noted = there[: len(self._noted)]
            for slot, tensor in zip(shared, there[len(self._noted) :], strict=True):
                slot.put(tensor)
            return self._recorded.begin(start, rows, lr_factor)
        stack = self.stack(start, rows)
        for group in stack.optimizer.param_groups:
            group["lr"] *= lr_factor
        return stack, torch.zeros(rows, dtype=torch.float64, device=self.clients.device)

    def _kind_of(self, row: Row) -> tuple[object, ...]:
        """Return what recorded steps have in common: also which notes each row has of its own, and which all share."""
        return (row.kind, *self._differ)

    def take_step(
        self, stack: Stack, groups: Sequence[Group], drawn: Sequence[Sequence[Tensor]], step: int, loss_sum: Tensor
    ) -> None:
        """Take a step of all rows at work; ``drawn`` has their draws per group."""
        self.backward(stack, groups, drawn, step, loss_sum)
        if self.clients.local.max_grad_norm is not None:
            stack.clip_gradients(self.clients.local.max_grad_norm)
        stack.optimizer.step()

    def backward(
        self, stack: Stack, groups: Sequence[Group], drawn: Sequence[Sequence[Tensor]], step: int, loss_sum: Tensor
    ) -> None:
        """Leave the gradients at the leaves and add the batches' summed losses to ``loss_sum``."""
        stack.optimizer.zero_grad(set_to_none=True)
        for group, draws in zip(groups, drawn, strict=True):
            where, batch = group.rows, self.batch_of(group)
            leaves = [leaf.detach()[where].requires_grad_() for leaf in stack.leaves]
            tensors = [*leaves, *(buffer[where] for buffer in stack.buffers)]
            noted = [tensor[where] for tensor in self._noted]
            losses, buffers = self._step_of_rows(tensors, batch, noted, [*draws], step)
            losses.sum().backward()  # type: ignore[no-untyped-call]
            loss_sum[where] += losses.detach().double() * batch.y.shape[1]
            for kept, buffer in zip(stack.buffers, buffers, strict=True):
                kept[where] = buffer.detach()
            for whole, part in zip(stack.leaves, leaves, strict=True):
                if len(groups) == 1:
                    whole.grad = part.grad
                elif part.grad is not None:
                    whole.grad = torch.zeros_like(whole) if whole.grad is None else whole.grad
                    whole.grad[where] = part.grad

    def drawn(self, stack: Stack, group: Group, rows: Sequence[Row], step: int) -> list[Tensor]:
        """Return what the rows of a group draw in a step, each tensor of shape (rows, ...).

        A client's generators are where its last step has left them.
        """
        if group.size not in self._draws:
            first = 0 if isinstance(group.rows, slice) else int(group.rows[0])
            tensors = [
                *(leaf.detach()[first].requires_grad_() for leaf in stack.leaves),
                *(one[first] for one in stack.buffers),
            ]
            noted, batch = [tensor[first] for tensor in self._noted], Batch(*(values[0] for values in self.batch_of(group)))
            self._draws[group.size] = self._record(tensors, noted, batch, step)
        draws, device = self._draws[group.size], self.clients.device
        if not draws:
            return []
        numbers = range(group.num_rows) if isinstance(group.rows, slice) else group.rows.tolist()
        of_rows = []
        for number in numbers:
            rng.set_states(self.rows.generators_of(rows[number]), device)
            of_rows.append([draw() for draw in draws])
            rows[number].generators = rng.get_states(device)
        return [torch.stack(parts) for parts in zip(*of_rows, strict=True)]

    def _record(self, tensors: Sequence[Tensor], noted: Sequence[Tensor], batch: Batch, step: int) -> list[Draw]:
        """Return what a step draws.

        Raises:
            CannotStackError: if it draws in a way that is not known.
        """
        device, recording, tensors = self.clients.device, Recording(), [*tensors]
        for slot in range(len(self.trained), len(tensors)):
            tensors[slot] = tensors[slot].detach().clone()  # the step may write to a buffer
        before = rng.get_states(device)
        with recording, self._holding(tensors, noted):
            functional_call(self, dict(zip(self._paths, tensors, strict=True)), (batch, step))
        after = rng.get_states(device)
        rng.set_states(before, device)
        for draw in recording.draws:
            draw()
        if not all(map(torch.equal, after, rng.get_states(device))):
            raise CannotStackError("Expected random draws whose numbers do not depend on the data, but a step has others")
        return recording.draws

    def _step_of_row(
        self, tensors: list[Tensor], batch: Batch, noted: list[Tensor], drawn: list[Tensor], step: int
    ) -> tuple[Tensor, list[Tensor]]:
        by_path = dict(zip(self._paths, tensors, strict=True))
        with self._holding(tensors, noted), Replaying(drawn):
            loss = functional_call(self, by_path, (batch, step))
        return loss, [by_path[path] for path in self._paths[len(self.trained) :]]

    @contextlib.contextmanager
    def _holding(self, tensors: Sequence[Tensor], noted: Sequence[Tensor]) -> Iterator[None]:
        """Have the objective's notes hold a row's tensors: the model's own, and those that differ between rows."""
        places = [
            (slot, tensors[self._slot_of[id(slot.tensor)]]) for slot in self._notes.aliases if id(slot.tensor) in self._slot_of
        ]
        places += [(self._notes.slots[number], tensor) for number, tensor in zip(self._differ, noted, strict=True)]
        before = [slot.tensor for slot, _ in places]
        try:
            for slot, tensor in places:
                slot.put(tensor)
            yield
        finally:
            for (slot, _), tensor in zip(places, before, strict=True):
                slot.put(tensor)

    def groups(
        self, samples: Sequence[NDArray[np.int64]], augmented: Sequence[ClientTask] | None = None, step: int = 0
    ) -> list[Group]:
        """Fetch a batch for every row, whose ``samples`` are positions in the data set.

        ``augmented`` holds per row the task whose draws of this step augment its images; ``None`` for images as they are.
        """
        device = self.clients.device
        rows_of: dict[int, list[int]] = {}
        for row, indices in enumerate(samples):
            rows_of.setdefault(len(indices), []).append(row)
        groups = []
        for size, rows in rows_of.items():
            indices = np.concatenate([samples[row] for row in rows])
            if augmented is not None:
                of_rows = [self.clients.batch(samples[row], augmented[row], step) for row in rows]
                source: tuple[Tensor, ...] = tuple(map(torch.cat, zip(*of_rows, strict=True)))
            elif self._recorded is not None and self.clients.shown.is_resident(device):
                numbers = torch.from_numpy(self.clients.shown.numbers(indices))
                source = ((numbers.pin_memory() if device.type == "cuda" else numbers).to(device, non_blocking=True),)
            else:
                source = tuple(self.clients.shown.batch(indices, device, self.clients.memory_format))
            where = slice(0, len(rows)) if len(rows_of) == 1 else torch.tensor(rows, device=device)
            groups.append(Group(where, len(rows), size, source))
        return groups

    def batch_of(self, group: Group) -> Batch:
        """Return a group's batches, shape (rows, size, ...)."""
        if len(group.source) == 1:
            batch = self.clients.shown.resident_batch(group.source[0], self.clients.memory_format)
        else:
            batch = Batch(*group.source)
        return Batch(*(values.view(group.num_rows, group.size, *values.shape[1:]) for values in batch))

    def values(self, stack: Stack, names: Iterable[str]) -> State:
        """Return tensors of a stack by name, leaving out those that training does not change."""
        return {name: stack.tensors[self._slots[name]] for name in names if name in self._slots}

    def _differences(self, stack: Stack, start: Sequence[Tensor], names: Iterable[str], rows: int) -> list[State]:
        """Return by how much some tensors that leave the clients have changed, per row, on the CPU."""
        leaving = [name for name in names if name in self._slots and name not in self.clients.program.personal]
        ended = self.values(stack, leaving)
        moved = on_cpu(state.subtract(ended, {name: start[self._slots[name]] for name in leaving}))
        if not moved:
            return [{} for _ in range(rows)]
        return [dict(zip(moved, row, strict=True)) for row in zip(*(tensor.unbind() for tensor in moved.values()), strict=True)]


def _spread(tensor: Tensor, rows: int) -> Tensor:
    return repeated(tensor[0], rows) if len(tensor) == 1 else tensor.clone(memory_format=torch.contiguous_format)
