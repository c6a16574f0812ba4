"""A client's training by recorded steps: the twin of ``Training``, equal to it bit for bit on the same accelerator.

A step is gathering the batch, forward and backward pass, clipping and the optimizer's step. It reads the batch, the client's
notes and the optimizer's moments where they lie, so these are copied there for each client.
"""

from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.optim import Optimizer

from fedfacet.clients.notes import NOTHING, notes_of
from fedfacet.clients.optimizers import kept_optimizer, restore_optimizer, settings_of, single_optimizer
from fedfacet.clients.recorded_steps import CannotRecordError, RecordedSteps, StepNumber, can_record
from fedfacet.clients.trainer import Clients, Training
from fedfacet.clients.vectorized_stack import can_stand_still, obstacle
from fedfacet.types import Batch, ClientTask, ClientUpdate

CHECKED = 2
"""How many clients are to be compared with ``Training`` for each shape of notes."""

_AT_ONCE = 256  # steps whose batches go to the accelerator together


class Recordings:
    """What the clients of a federation share: recorded steps, and the memory that these read and write.

    Args:
        clients: whose steps are recorded.

    Raises:
        CannotRecordError: if something is known that a recording cannot hold.
    """

    def __init__(self, clients: Clients) -> None:
        if known := _known_obstacle(clients):
            raise CannotRecordError(known)
        self.clients = clients
        self.optimizer = single_optimizer(clients.objective)
        self.steps = RecordedSteps(clients.device)
        self.takes_notes = clients.program.does("on_client_start")
        self.loss = torch.zeros((), dtype=torch.float64, device=clients.device)
        self.seen: Counter[Any] = Counter()  # clients by the shape of their notes
        self.begun = False  # whether any step has been taken
        self._last: Any = None
        self._noted: dict[Any, list[Tensor]] = {}  # where recorded steps read notes of some shape
        self._moments: list[tuple[Tensor, float]] = []  # of the optimizer, and what they are before a client's first step
        self.in_place = clients.dataset.augmentation is None and clients.shown.is_resident(clients.device)

    @property
    def is_new(self) -> bool:
        """Whether the last client is one of the first of its kind."""
        return self.seen[self._last] <= CHECKED

    def notes_at(self, shape: Any, tensors: list[Tensor]) -> list[Tensor]:
        """Copy a client's notes to where recorded steps read them, and return them there."""
        self.seen[shape] += 1
        self._last = shape
        if shape not in self._noted:
            self._noted[shape] = [self._own(tensor) for tensor in tensors]
        for here, tensor in zip(self._noted[shape], tensors, strict=True):
            if here is not tensor:
                here.copy_(tensor.detach())
        return self._noted[shape]

    def begin(self, optimizer: Optimizer) -> Optimizer:
        """Return the optimizer of recorded steps with the settings of a client's own, and without a memory."""
        ours, theirs = ([group["params"] for group in one.param_groups] for one in (self.optimizer, optimizer))
        if [[*map(id, group)] for group in ours] != [[*map(id, group)] for group in theirs]:
            raise CannotRecordError("Expected an optimizer of the same parameters in every round, but it has others")
        for mine, fresh in zip(self.optimizer.param_groups, optimizer.param_groups, strict=True):
            mine.update({name: value for name, value in fresh.items() if name != "params"})
        if not self._moments:
            self._make_moments()
        for moment, first in self._moments:
            moment.fill_(first)
        return self.optimizer

    def forget_unused(self) -> None:
        """Take the state of parameters that are no part of the loss from the optimizer, which would not have made it."""
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    unused = self.optimizer.state.pop(parameter, {}).values()
                    self._moments = [pair for pair in self._moments if not any(pair[0] is value for value in unused)]

    def written(self) -> list[Tensor]:
        """Return what a step writes to."""
        return [*self.clients.program.tensors.values(), *(moment for moment, _ in self._moments), self.loss]

    def _own(self, tensor: Tensor) -> Tensor:
        # One elsewhere (on the CPU) is not read by kernels of the accelerator, and need not stay where it is.
        return tensor.detach().clone() if tensor.device.type == self.clients.device.type else tensor

    def _make_moments(self) -> None:
        """Give the optimizer its state before the first step."""
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        if isinstance(self.optimizer, optim.SGD):
            if self.optimizer.param_groups[0]["momentum"]:
                # -0.0, since that and any number is this number, bit for bit; 0.0 and -0.0 would be 0.0.
                for parameter in parameters:
                    self.optimizer.state[parameter]["momentum_buffer"] = torch.full_like(parameter, -0.0)
        else:
            before = [parameter.detach().clone() for parameter in parameters]
            for parameter in parameters:
                parameter.grad = torch.zeros_like(parameter)
            self.optimizer.step()
            with torch.no_grad():
                torch._foreach_copy_(parameters, before)
        values = (value for state in self.optimizer.state.values() for value in state.values() if isinstance(value, Tensor))
        first = -0.0 if isinstance(self.optimizer, optim.SGD) else 0.0
        self._moments = [(value, first) for value in values]


class RecordedTraining(Training):
    """One client's training of one round by recorded steps.

    Args:
        recordings: of the federation's steps.
        clients: as in ``Training``.
        task: as in ``Training``.

    Raises:
        CannotRecordError: if a step cannot be recorded; the client is to be trained by ``Training``.
    """

    def __init__(self, recordings: Recordings, clients: Clients, task: ClientTask) -> None:
        super().__init__(clients, task)
        self.recordings = recordings
        self.optimizer = recordings.begin(self.optimizer)
        if clients.local.keep_optimizer:
            restore_optimizer(self.optimizer, kept_optimizer(task.memory))
        self.notes = notes_of(clients.objective, self.program.module) if recordings.takes_notes else NOTHING
        if self.notes.unmovable:
            raise CannotRecordError(f"Expected notes of clients that can be replaced, but {self.notes.unmovable} is in a tuple")
        self._noted = [slot.tensor for slot in self.notes.slots]
        self.notes.put(recordings.notes_at(self.notes.shape, self._noted))
        self._kind = (self.notes.shape, *settings_of(self.optimizer))

    def take_steps(self, stop: int) -> None:
        """Take the steps up to number ``stop``, counted from the client's first."""
        while self.step < stop:
            first, last = self.step, min(stop, self.step + _AT_ONCE)
            chosen = [self.indices[positions] for _, positions in zip(range(first, last), self.batches, strict=False)]
            losses = self._take(chosen)
            self.step, self.num_seen = last, self.num_seen + sum(map(len, chosen))
            for value, samples in zip(losses.tolist(), chosen, strict=True):
                self.loss_sum += value * len(samples)

    def finish(self) -> ClientUpdate:
        """Return what goes back to the server, with the notes that are the client's own."""
        self.notes.put(self._noted)
        return super().finish()

    def _take(self, chosen: list[Any]) -> Tensor:
        """Take a step for each batch of samples, and return the losses."""
        clients, recordings = self.clients, self.recordings
        losses = torch.empty(len(chosen), dtype=torch.float64, device=clients.device)
        batches = iter(self._numbers(chosen)) if recordings.in_place else None
        for number, samples in enumerate(chosen):
            inputs = [next(batches)] if batches else [*clients.batch(samples, self.task, self.step + number)]
            kind = (*self._kind, *(tuple(tensor.shape) for tensor in inputs))
            recordings.steps.play(kind, inputs, self._step, recordings.written)
            if not recordings.begun:
                recordings.begun = True
                recordings.forget_unused()
            losses[number].copy_(recordings.loss)
        return losses

    def _numbers(self, chosen: list[Any]) -> list[Tensor]:
        """Return each batch's positions, classes and attribute values, sent to the device in one transfer."""
        rows = [torch.from_numpy(self.clients.shown.numbers(samples)).flatten() for samples in chosen]
        together = torch.cat(rows)
        if self.clients.device.type == "cuda":
            together = together.pin_memory()
        sent = together.to(self.clients.device, non_blocking=True)
        return [part.view(3, -1) for part in torch.split(sent, [len(row) for row in rows])]

    def _step(self, *inputs: Tensor) -> None:
        """Take one step; its loss is left where the recordings have it."""
        clients = self.clients
        batch = clients.shown.resident_batch(inputs[0], clients.memory_format) if len(inputs) == 1 else Batch(*inputs)
        for parameter in self.parameters:
            parameter.grad = None
        with StepNumber.watched() as number:
            loss = self.program.step(batch, number)
        loss.backward()  # type: ignore[no-untyped-call]
        if clients.local.max_grad_norm is not None:
            nn.utils.clip_grad_norm_(self.parameters, clients.local.max_grad_norm)
        self.optimizer.step()
        self.recordings.loss.copy_(loss.detach())


def _known_obstacle(clients: Clients) -> str | None:
    """Say what is known that a recording cannot hold; ``None`` if nothing is."""
    if not can_record(clients.device):
        return f"Expected a CUDA device, but clients train on {clients.device}"
    if known := obstacle(clients):
        return known
    optimizer = single_optimizer(clients.objective)
    is_adam = type(optimizer) in (optim.Adam, optim.AdamW)
    if can_stand_still(optimizer) or (is_adam and all(group["capturable"] for group in optimizer.param_groups)):
        return None
    remedy = ": set optimizer.capturable=true" if is_adam else ""
    return f"Expected an optimizer that can be recorded, but {type(optimizer).__name__} cannot{remedy}"
