"""Steps of many clients side by side, recorded: the memory that they read and write stays where it is from round to round."""

import logging
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor, optim

from fedfacet.clients.recorded_steps import CannotRecordError, RecordedSteps, StepNumber
from fedfacet.clients.stack import Group, Stack, repeated

log = logging.getLogger(__name__)

TakeStep = Callable[[Stack, Sequence[Group], Sequence[Sequence[Tensor]], int, Tensor], None]
"""Takes a step of a stack on groups of batches and their draws, and adds the losses of all rows to the last argument."""


class RecordedStacks:
    """Stacks of the same number of rows in the same memory, and their recorded steps.

    A step is taken kernel by kernel when its kind is first seen, and recorded when it is seen again.

    Args:
        parameters: of the single model.
        make_optimizer: makes its optimizer, plain SGD.
        device: an accelerator.
        take: takes a step.
    """

    def __init__(
        self, parameters: Sequence[Tensor], make_optimizer: Callable[[], optim.Optimizer], device: torch.device, take: TakeStep
    ) -> None:
        self._parameters, self._make_optimizer, self._take = parameters, make_optimizer, take
        self._device = device
        self._steps = RecordedSteps(device)
        self._seen: Counter[Hashable] = Counter()
        self._memory: dict[int, _Memory] = {}  # by rows
        self._noted: dict[Hashable, list[Tensor]] = {}
        self._gave_up = False

    def begin(self, start: Sequence[Tensor], rows: int, lr_factor: float) -> tuple[Stack, Tensor]:
        """Return a stack of what is sent, of shape (1 or rows, ...) each, and zeros for the rows' summed losses."""
        if rows not in self._memory:
            self._memory[rows] = _Memory(start, rows, len(self._parameters), self._device)
        memory = self._memory[rows]
        for here, sent in zip(memory.tensors, start, strict=True):
            here.copy_(sent.expand_as(here))
        for moment in memory.moments:
            moment.fill_(-0.0)  # as in `Recordings`: what the first gradient is added to
        memory.loss_sum.zero_()
        memory.stacks.clear()
        return self.of(rows, rows, lr_factor), memory.loss_sum

    def of(self, rows: int, working: int, lr_factor: float) -> Stack:
        """Return the stack of the first so many rows."""
        memory = self._memory[rows]
        if working not in memory.stacks:
            optimizer = self._make_optimizer()
            for group in optimizer.param_groups:
                group["lr"] *= lr_factor
            stack = Stack([tensor[:working] for tensor in memory.tensors], self._parameters, optimizer)
            momentum = any(group["momentum"] for group in optimizer.param_groups)
            for leaf, moment in zip(stack.leaves, memory.moments, strict=True) if momentum else ():
                optimizer.state[leaf]["momentum_buffer"] = moment[:working]
            memory.stacks[working] = stack
        return memory.stacks[working]

    def notes_at(self, kind: Hashable, noted: Sequence[Tensor]) -> list[Tensor]:
        """Copy rows' notes to where recorded steps of this kind read them, and return them there."""
        here = self._noted.setdefault((kind, *(tensor.shape for tensor in noted)), [tensor.clone() for tensor in noted])
        for own, tensor in zip(here, noted, strict=True):
            own.copy_(tensor)
        return here

    def play(self, kind: Hashable, rows: int, stack: Stack, groups: Sequence[Group], drawn: Any, step: int) -> None:
        """Take a step of the stack: by its recording, or kernel by kernel where it has none."""
        memory = self._memory[rows]
        settings = [tuple((k, str(v)) for k, v in one.items() if k != "params") for one in stack.optimizer.param_groups]
        shapes = [(group.size, group.num_rows, isinstance(group.rows, slice)) for group in groups]
        kind = (kind, rows, len(stack.leaves[0]), *settings, *shapes)
        self._seen[kind] += 1
        if self._gave_up or self._seen[kind] == 1:
            self._take(stack, groups, drawn, step, memory.loss_sum)
            return
        inputs: list[Tensor] = []
        for group, draws in zip(groups, drawn, strict=True):
            where = [] if isinstance(group.rows, slice) else [group.rows]
            inputs += [*group.source, *where, *draws]
        num_draws = [len(draws) for draws in drawn]

        def take(*static: Tensor) -> None:
            left = iter(static)
            ours, theirs = [], []
            for group, number_drawn in zip(groups, num_draws, strict=True):
                source = tuple(next(left) for _ in group.source)
                where = group.rows if isinstance(group.rows, slice) else next(left)
                ours.append(group._replace(source=source, rows=where))
                theirs.append([next(left) for _ in range(number_drawn)])
            with StepNumber.watched() as number:
                self._take(stack, ours, theirs, number, memory.loss_sum)

        try:
            self._steps.play(kind, inputs, take, lambda: [*memory.tensors, *memory.moments, memory.loss_sum])
        except CannotRecordError as error:
            self._gave_up = True
            log.warning("%s: the steps of the stack are taken kernel by kernel.", error)
            self._take(stack, groups, drawn, step, memory.loss_sum)


class _Memory:
    """What lies still, for a number of rows."""

    def __init__(self, start: Sequence[Tensor], rows: int, num_parameters: int, device: torch.device) -> None:
        self.tensors = [repeated(tensor[0], rows) for tensor in start]
        self.moments = [torch.empty_like(tensor) for tensor in self.tensors[:num_parameters]]
        self.loss_sum = torch.zeros(rows, dtype=torch.float64, device=device)
        self.stacks: dict[int, Stack] = {}


def can_stand_still(optimizer: optim.Optimizer) -> bool:
    """Tell whether an optimizer's memory is a moment per parameter that -0.0 begins: SGD without dampening."""
    return type(optimizer) is optim.SGD and not any(group["dampening"] for group in optimizer.param_groups)
