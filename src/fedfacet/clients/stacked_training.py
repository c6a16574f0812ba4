"""Many clients' local training side by side: the twin of ``Clients.train``, equal to it up to rounding.

A stack has one row per client of everything that training changes: parameters, buffers, the optimizer's moments. A step of all
rows is ``torch.vmap`` over the objective's own ``training_step``, on the batches that ``Clients.train`` takes; the optimizer is
the objective's own, put on the stacked parameters. What cannot be stacked is refused.
"""

import contextlib
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn, optim
from torch.func import functional_call

from fedfacet import rng, state
from fedfacet.clients.optimizers import single_optimizer
from fedfacet.clients.probed_clients import same_tensors
from fedfacet.clients.program import Clients, step_weight_of
from fedfacet.objectives.classification import ClassificationObjective
from fedfacet.types import Batch, Broadcast, ClientStart, ClientTask, ClientUpdate, State

_ELEMENTWISE = (
    *(optim.SGD, optim.Adam, optim.AdamW, optim.Adagrad, optim.RMSprop),
    *(optim.Adadelta, optim.Adamax, optim.NAdam, optim.RAdam),
)
"""Optimizers that treat every number by itself, so that one on a stack is one per client; a subclass may do otherwise."""


class CannotStackError(Exception):
    """Says "Expected X, but Y", without a full stop; the clients can still be trained one after another."""


def complaint(error: Exception) -> str:
    """Return the first sentence of an error's message."""
    return str(error).partition("\n")[0].partition(". ")[0].rstrip(". ")


class _StartOfAll(ClientStart):
    """What is the same for all clients; how many steps each will take is not."""

    def __getattribute__(self, name: str) -> Any:
        """Return what is the same."""
        if name == "num_steps":
            raise CannotStackError("Expected a correction that does not ask how many steps a client takes, but it does")
        return super().__getattribute__(name)


class Group(NamedTuple):
    """The rows of a stack whose next batches have the same size, and these batches, shape (rows, size, ...)."""

    rows: slice | Tensor
    batch: Batch


class StackedTraining(nn.Module):
    """Trains clients side by side; a module only so that ``functional_call`` can put other tensors into the objective."""

    def __init__(self, clients: Clients) -> None:
        super().__init__()
        self.clients = clients
        self.objective = clients.program.objective
        tensors = clients.program.tensors
        distinct = {id(tensor): (name, tensor) for name, tensor in tensors.items()}.values()  # some may be tied
        trained = {name: tensor for name, tensor in distinct if tensor.requires_grad}
        buffers = {name: tensor for name, tensor in distinct if not isinstance(tensor, nn.Parameter)}
        self.trained = list(trained.values())
        self.names = [*trained, *buffers]
        slots = {id(tensors[name]): slot for slot, name in enumerate(self.names)}
        self._slots = {name: slots[id(tensor)] for name, tensor in tensors.items() if id(tensor) in slots}
        prefix = "objective." if clients.program.module is self.objective else "objective.model."
        self._paths = [prefix + name for name in self.names]
        self._step_of_rows = torch.vmap(self._step_of_row, in_dims=(0, 0, None))

    def train_clients(self, tasks: Sequence[ClientTask]) -> list[ClientUpdate]:
        """Return what ``Clients.train`` returns for each of one round's tasks, of which there are 1 or more.

        Raises:
            CannotStackError: if the clients do not start alike, or if a random number is drawn.
        """
        clients, local, start = self.clients, self.clients.local, common_start(tasks)
        owned = [clients.owned[task.client_id] for task in tasks]
        num_steps = [clients.num_steps(task) for task in tasks]
        batches = [clients.batches(task) for task in tasks]
        order = sorted(range(len(tasks)), key=lambda position: -num_steps[position])  # position in tasks of each row
        num_seen = [0] * len(tasks)
        loss_sum = torch.zeros(len(tasks), dtype=torch.float64, device=clients.device)
        picked: list[NDArray[np.int64]] = []
        augments = clients.dataset.augmentation is not None
        with self.started(tasks[0], start):
            stack = self.stack(start, len(tasks))
            for group in stack.optimizer.param_groups:
                group["lr"] *= tasks[0].lr_factor
            for step in range(num_steps[order[0]]):
                working = [position for position in order if num_steps[position] > step]
                stack.narrow(len(working))
                before, picked = picked, [next(batches[position]) for position in working]
                if augments or len(before) != len(picked) or not all(map(operator.is_, before, picked)):
                    samples = [owned[position][chosen] for position, chosen in zip(working, picked, strict=True)]
                    groups = self.groups(samples, [tasks[position] for position in working] if augments else None, step)
                self.backward(stack, groups, step, loss_sum)
                if local.max_grad_norm is not None:
                    _clip_gradients(stack.optimizer, local.max_grad_norm)
                stack.optimizer.step()
                for position, chosen in zip(working, picked, strict=True):
                    num_seen[position] += len(chosen)
        row_of = dict(zip(order, range(len(order)), strict=True))
        losses = loss_sum.tolist()
        deltas, buffers = (
            self._differences(stack, start, own) for own in (clients.program.parameters, clients.program.buffers)
        )
        weights = {number: step_weight_of(stack.optimizer, self.objective, number) for number in set(num_steps)}
        return [
            ClientUpdate(
                client_id=task.client_id,
                delta=deltas[row_of[position]],
                buffers=buffers[row_of[position]],
                num_samples=len(owned[position]),
                num_steps=num_steps[position],
                step_weight=weights[num_steps[position]],
                metrics={"loss_sum": losses[row_of[position]], "num_seen": num_seen[position]},
            )
            for position, task in enumerate(tasks)
        ]

    def forward(self, batch: Batch, step: int) -> Tensor:
        """Return the objective's loss at the tensors that are in its modules now."""
        program, objective = self.clients.program, self.objective
        if not isinstance(objective, ClassificationObjective):
            return program.step(batch, step)
        # A correction restrains the parameters that the objective has noted: have it note those in their place.
        noted, current = objective.trainable, dict(objective.model.named_parameters())
        objective.trainable = {name: current[name] for name in noted}
        try:
            return program.step(batch, step)
        finally:
            objective.trainable = noted

    def _step_of_row(self, tensors: list[Tensor], batch: Batch, step: int) -> tuple[Tensor, list[Tensor]]:
        by_path = dict(zip(self._paths, tensors, strict=True))
        loss = functional_call(self, by_path, (batch, step))
        return loss, [by_path[path] for path in self._paths[len(self.trained) :]]

    def backward(self, stack: "Stack", groups: Sequence[Group], step: int, loss_sum: Tensor) -> None:
        """Leave the gradients at the leaves and add the batches' summed losses to ``loss_sum``."""
        stack.optimizer.zero_grad(set_to_none=True)
        for rows, batch in groups:
            leaves = [leaf.detach()[rows].requires_grad_() for leaf in stack.leaves]
            losses, buffers = self._step_of_rows([*leaves, *(buffer[rows] for buffer in stack.buffers)], batch, step)
            losses.sum().backward()  # type: ignore[no-untyped-call]
            loss_sum[rows] += losses.detach().double() * batch.y.shape[1]
            for kept, buffer in zip(stack.buffers, buffers, strict=True):
                kept[rows] = buffer.detach()
            for whole, part in zip(stack.leaves, leaves, strict=True):
                if len(groups) == 1:
                    whole.grad = part.grad
                elif part.grad is not None:
                    whole.grad = torch.zeros_like(whole) if whole.grad is None else whole.grad
                    whole.grad[rows] = part.grad

    @contextlib.contextmanager
    def started(self, task: ClientTask, start: Broadcast) -> Iterator[None]:
        """Start the objective as for one client; draws are refused, since every client has numbers of its own."""
        program, device = self.clients.program, self.clients.device
        program.load(start.model)
        program.train(True)
        with self.clients.forked(task):
            before = [*rng.get_states(device), rng.get_other_states()]
            if program.hooks is not None:
                lr = single_optimizer(self.objective).param_groups[0]["lr"] * task.lr_factor
                program.hooks.on_client_start(_StartOfAll(start, {}, 0, lr, task.lr_factor))
            yield
            if not all(map(torch.equal, before, [*rng.get_states(device), rng.get_other_states()])):
                raise CannotStackError("Expected training without chance, but it draws random numbers")

    def stack(self, start: Broadcast, rows: int) -> "Stack":
        """Put copies of what was sent side by side."""
        optimizer = single_optimizer(self.objective)
        if type(optimizer) not in _ELEMENTWISE:
            name = type(optimizer).__name__
            raise CannotStackError(f"Expected an optimizer that treats every number by itself, but {name} may not")
        own = self.clients.program.tensors
        return Stack([start.model[name].to(own[name]) for name in self.names], rows, self.trained, optimizer)

    def groups(
        self, samples: Sequence[NDArray[np.int64]], augmented: Sequence[ClientTask] | None = None, step: int = 0
    ) -> list[Group]:
        """Fetch a batch for every row, whose ``samples`` are positions in the data set.

        ``augmented`` holds per row the task whose draws of this step augment its images; ``None`` for images as they are.
        """
        rows_of: dict[int, list[int]] = {}
        for row, indices in enumerate(samples):
            rows_of.setdefault(len(indices), []).append(row)
        groups = []
        for size, rows in rows_of.items():
            indices = np.concatenate([samples[row] for row in rows])
            if augmented is None:
                batch = self.clients.shown.batch(indices, self.clients.device, self.clients.memory_format)
            else:
                of_rows = [self.clients.batch(samples[row], augmented[row], step) for row in rows]
                batch = Batch(*map(torch.cat, zip(*of_rows, strict=True)))
            where = slice(0, len(rows)) if len(rows_of) == 1 else torch.tensor(rows, device=self.clients.device)
            groups.append(Group(where, Batch(*(values.view(len(rows), size, *values.shape[1:]) for values in batch))))
        return groups

    def values(self, stack: "Stack", names: Iterable[str]) -> State:
        """Return tensors of a stack by name, leaving out those that training does not change."""
        return {name: stack.tensors[self._slots[name]] for name in names if name in self._slots}

    def _differences(self, stack: "Stack", start: Broadcast, names: Iterable[str]) -> list[State]:
        """Return by how much some tensors have changed, per row."""
        ended = {name: tensor.cpu() for name, tensor in self.values(stack, names).items()}
        moved = state.subtract(ended, start.model)
        if not moved:
            return [{} for _ in range(len(stack.tensors[0]))]
        return [dict(zip(moved, row, strict=True)) for row in zip(*(tensor.unbind() for tensor in moved.values()), strict=True)]


class Stack:
    """Copies of a model side by side, the rows still at work first, and the optimizer of them all.

    Every row starts from ``start``: the values of ``parameters``, then of buffers. The ``optimizer`` of the single model gets
    the stacked parameters in place of its own.
    """

    def __init__(self, start: Sequence[Tensor], rows: int, parameters: Sequence[Tensor], optimizer: optim.Optimizer) -> None:
        self.tensors = [_repeated(tensor, rows) for tensor in start]
        self.buffers = self.tensors[len(parameters) :]
        self.optimizer = optimizer
        self.leaves = parameters
        self._replace_leaves(self.tensors[: len(parameters)], lambda moment: _repeated(moment, rows))

    def narrow(self, rows: int) -> None:
        """Leave all but the first rows as they are from now on."""
        if rows < len(self.leaves[0]):
            self._replace_leaves([leaf[:rows] for leaf in self.leaves], lambda moment: moment[:rows])
            self.buffers = [buffer[:rows] for buffer in self.buffers]

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


def common_start(tasks: Sequence[ClientTask]) -> Broadcast:
    """Return what all the clients start from; a ``CannotStackError`` says that it is not the same for all."""
    start = tasks[0].broadcast
    for task in tasks:
        sent = task.broadcast
        if not same_tensors(sent.model, start.model):
            raise CannotStackError("Expected clients that start from one and the same model, but they do not")
        if not same_tensors(sent.extras, start.extras):
            raise CannotStackError("Expected clients that are sent the same, but what comes with their model differs")
        if task.lr_factor != tasks[0].lr_factor:
            raise CannotStackError("Expected clients with one learning rate, but they have several")
        if task.memory:
            raise CannotStackError("Expected clients that keep nothing, but they have a memory")
    return start


def _repeated(tensor: Tensor, rows: int) -> Tensor:
    return tensor.expand(rows, *tensor.shape).clone(memory_format=torch.contiguous_format)


def _clip_gradients(optimizer: optim.Optimizer, max_norm: float) -> None:
    """Do what torch's ``clip_grad_norm_`` does, row by row."""
    gradients = [leaf.grad for group in optimizer.param_groups for leaf in group["params"] if leaf.grad is not None]
    norms = torch.stack([torch.linalg.vector_norm(gradient.reshape(len(gradient), -1), dim=1) for gradient in gradients])
    factors = (max_norm / (torch.linalg.vector_norm(norms, dim=0) + 1e-6)).clamp(max=1)
    for gradient in gradients:
        gradient *= factors.view(-1, *[1] * (gradient.dim() - 1))
