"""Copies of a model side by side, the optimizer of them all, and their recorded steps."""

import logging
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, optim

from fedfacet.clients.optimizers import settings_of
from fedfacet.clients.recorded_steps import CannotRecordError, RecordedSteps, StepNumber
from fedfacet.clients.trainer import Clients

log = logging.getLogger(__name__)

_ELEMENTWISE = (
    *(optim.SGD, optim.Adam, optim.AdamW, optim.Adagrad, optim.RMSprop),
    *(optim.Adadelta, optim.Adamax, optim.NAdam, optim.RAdam),
)
"""Optimizers that treat every number by itself, so that one on a stack is one per client; a subclass may do otherwise."""


class CannotStackError(Exception):
    """Says "Expected X, but Y", without a full stop; the clients can still be trained one after another."""


class Group(NamedTuple):
    """The rows of a stack whose next batches have the same size, and these batches.

    Attributes:
        rows: which they are, all or by number.
        num_rows: how many.
        size: of each batch.
        source: a batch of all rows' samples one after another; or their positions, classes and attribute values, int64 of shape
            (3, num_rows size), where the inputs are on the device.
    """

    rows: slice | Tensor
    num_rows: int
    size: int
    source: tuple[Tensor, ...]


class Stack:
    """Copies of a model side by side, the rows still at work first, and the optimizer of them all.

    Args:
        tensors: the rows' start, each of shape (rows, ...): those of ``parameters``, then buffers; training writes to them.
        parameters: of the single model.
        optimizer: of the single model; it gets the stacked parameters in place of its own.

    Raises:
        CannotStackError: if the optimizer may mix numbers.
    """

    def __init__(self, tensors: Sequence[Tensor], parameters: Sequence[Tensor], optimizer: optim.Optimizer) -> None:
        if type(optimizer) not in _ELEMENTWISE:
            name = type(optimizer).__name__
            raise CannotStackError(f"Expected an optimizer that treats every number by itself, but {name} may not")
        self.tensors = list(tensors)
        self.buffers = self.tensors[len(parameters) :]
        self.optimizer = optimizer
        self.leaves = parameters
        rows = len(self.tensors[0])
        self._replace_leaves(self.tensors[: len(parameters)], lambda moment: repeated(moment, rows))

    def narrow(self, rows: int) -> None:
        """Leave all but the first rows as they are from now on."""
        if rows < len(self.leaves[0]):
            self._replace_leaves([leaf[:rows] for leaf in self.leaves], lambda moment: moment[:rows])
            self.buffers = [buffer[:rows] for buffer in self.buffers]

    def clip_gradients(self, max_norm: float) -> None:
        """Do what torch's ``clip_grad_norm_`` does, row by row."""
        gradients = [leaf.grad for group in self.optimizer.param_groups for leaf in group["params"] if leaf.grad is not None]
        norms = torch.stack([torch.linalg.vector_norm(gradient.reshape(len(gradient), -1), dim=1) for gradient in gradients])
        factors = (max_norm / (torch.linalg.vector_norm(norms, dim=0) + 1e-6)).clamp(max=1)
        for gradient in gradients:
            gradient *= factors.view(-1, *[1] * (gradient.dim() - 1))

    def _replace_leaves(self, tensors: Sequence[Tensor], convert: Callable[[Tensor], Tensor]) -> None:
        """Have the optimizer work on other tensors, in whose memory it will write."""
        leaves = [tensor.detach().requires_grad_() for tensor in tensors]
        successors = dict(zip(map(id, self.leaves), leaves, strict=True))
        for group in self.optimizer.param_groups:
            predecessors = [parameter for parameter in group["params"] if parameter.requires_grad]
            group["params"] = [successors[id(parameter)] for parameter in predecessors]
            for old, new in zip(predecessors, group["params"], strict=True):
                # A moment has its parameter's shape. The step count has not; it is that of all rows at work.
                for name, value in self.optimizer.state.pop(old, {}).items():
                    is_moment = name != "step" and isinstance(value, Tensor) and value.shape == old.shape
                    self.optimizer.state[new][name] = convert(value) if is_moment else value
        self.leaves = leaves


def repeated(tensor: Tensor, rows: int) -> Tensor:
    """Return so many copies, one beside the other."""
    return tensor.expand(rows, *tensor.shape).clone(memory_format=torch.contiguous_format)


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
        shapes = [(group.size, group.num_rows, isinstance(group.rows, slice)) for group in groups]
        kind = (kind, rows, len(stack.leaves[0]), *settings_of(stack.optimizer), *shapes)
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


def obstacle(clients: Clients) -> str | None:
    """Say what keeps clients from being trained in the same memory, one beside or after another; ``None`` if nothing does."""
    program = clients.program
    for known, text in (
        (len(clients.programs) > 1, "Expected clients with models of one shape, but they have several"),
        (clients.compile, "Expected a model that torch runs as it is, but it is compiled"),
        (program.hides_buffers, "Expected a model whose buffers are all in its state dict, but some are `persistent=False`"),
        (
            not program.divisible,
            f"Expected an objective that is `divisible`, but {type(clients.objective).__name__} does not say that it is",
        ),
        (clients.privacy is not None, "Expected gradients of batches, but those of privacy=dp_sgd are taken sample by sample"),
    ):
        if known:
            return text
    return None
