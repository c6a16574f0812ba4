"""One client's local training: the only place where a federation takes gradient steps on the model (law 3)."""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedfacet import rng, state
from fedfacet.arguments import check_choice, check_whole
from fedfacet.clients.client_data import ClientData, augmentation_of
from fedfacet.clients.optimizers import (
    kept_optimizer,
    optimizer_to_keep,
    restore_optimizer,
    step_weight_of,
    with_learning_rate,
)
from fedfacet.clients.personal_memory import starting_weights, to_keep
from fedfacet.clients.workbench import Workbench
from fedfacet.types import ClientTask, ClientUpdate, State


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalTraining:
    """How much a client trains in a round, and on which batches.

    Attributes:
        unit: whether ``amount`` counts ``"epochs"`` or ``"steps"``.
        amount: local epochs or optimizer steps, 1 or larger.
        batch_size: 1 or larger; the last batch of an epoch may be short.
        sampling: ``"without_replacement"`` visits every sample once an epoch; ``"with_replacement"`` draws n_k samples anew
            each epoch (as FedDiverse's released code does).
        max_grad_norm: gradients are scaled down to this l2 norm; ``None`` for never.
        keep_optimizer: have a client's optimizer go on where it was after the client's last round (its momentum, say), instead
            of anew.

    Raises:
        ValueError: if a value is out of range.
    """

    unit: str = "epochs"
    amount: int = 1
    batch_size: int = 28
    sampling: str = "without_replacement"
    max_grad_norm: float | None = None
    keep_optimizer: bool = False

    def __post_init__(self) -> None:
        """Check the values."""
        check_choice("local.unit", self.unit, ("epochs", "steps"))
        check_whole("local.amount", self.amount)
        check_whole("local.batch_size", self.batch_size)
        check_choice("local.sampling", self.sampling, ("without_replacement", "with_replacement"))
        if self.max_grad_norm is not None and not self.max_grad_norm > 0:
            raise ValueError(f"Expected `local.max_grad_norm` to be larger than 0 or null, but got {self.max_grad_norm}.")

    def num_steps(self, num_samples: int) -> int:
        """Return how many optimizer steps a client with ``num_samples`` samples plans."""
        return self.amount if self.unit == "steps" else self.amount * math.ceil(num_samples / self.batch_size)

    def batches(self, num_samples: int, draw: Callable[[], np.random.Generator]) -> Iterator[NDArray[np.int64]]:
        """Yield positions of batches, epoch after epoch without end.

        Args:
            num_samples: n_k, 1 or larger.
            draw: makes the generator of their order; not called where all samples make one batch, in which they have none.
        """
        if num_samples < 1:
            raise ValueError("Expected a client to hold at least one sample, but it holds none: mend the partition.")
        replaced = self.sampling == "with_replacement"
        if num_samples <= self.batch_size and not replaced:
            yield from itertools.repeat(np.arange(num_samples))
        generator = draw()
        while True:
            order = generator.integers(num_samples, size=num_samples) if replaced else generator.permutation(num_samples)
            for start in range(0, num_samples, self.batch_size):
                yield order[start : start + self.batch_size]


@dataclass(frozen=True, slots=True, eq=False)
class HalfTrained:
    """A client's training that was put down between two steps, to be taken up by whoever has time.

    Attributes:
        num_steps: steps taken so far.
        weights: of the federated module.
        optimizer: the optimizer's state per parameter.
        generators: states of torch's generators, the CPU's first.
        loss_sum: over the samples seen so far.
        num_seen: samples seen so far.
    """

    num_steps: int
    weights: State
    optimizer: dict[int, dict[str, Any]]
    generators: list[Tensor]
    loss_sum: float
    num_seen: int


def train_client(bench: Workbench, data: ClientData, task: ClientTask, local: LocalTraining) -> ClientUpdate:
    """Train the broadcast model on one client's samples.

    Every draw comes from ``(task.seed, purpose, task.round, task.client_id)``, so the result depends on neither the order of
    clients nor on anything drawn before.

    Args:
        bench: where the training takes place.
        data: the client's samples.
        task: what to start from and how much of the work will be finished.
        local: how much work there is.

    Returns:
        The update, on the CPU, its tensors contiguous; ``metrics`` holds ``loss_sum`` (over the samples seen) and ``num_seen``.
    """
    update = train_part(bench, data, task, local)
    assert isinstance(update, ClientUpdate)  # nothing stopped it
    return update


def train_part(
    bench: Workbench,
    data: ClientData,
    task: ClientTask,
    local: LocalTraining,
    *,
    half: HalfTrained | None = None,
    stop: int | None = None,
) -> ClientUpdate | HalfTrained:
    """Do what ``train_client`` does, from where it was put down or up to where it shall be.

    Training may be put down after any step and taken up in another process; the update is the same bit for bit if the bench is
    ``divisible``.

    Args:
        bench: as in ``train_client``.
        data: as in ``train_client``.
        task: as in ``train_client``, the same for all parts.
        local: as in ``train_client``.
        half: what an earlier part put down; ``None`` to start.
        stop: put the training down after this many steps, counted from the client's first; fewer than it takes in all.

    Returns:
        The update, or what there is so far where ``stop`` is given.
    """
    bench.load(starting_weights(task))
    bench.train(True)
    objective, hooks = bench.objective, bench.hooks
    num_steps = planned_steps(local, len(data), task)
    draw = partial(rng.stream, task.seed, "batches", task.round, task.client_id)
    first, num_seen, loss_sum = 0, 0, 0.0
    losses: list[Tensor] = []  # read at the end: on an accelerator each look at a number waits for all that is under way
    sizes: list[int] = []
    with rng.forked(task.seed, "train", task.round, task.client_id, device=data.device):
        if hooks is not None:
            hooks.on_client_start(task.broadcast, task.memory)
        if bench.data_hooks is not None:
            with bench.looking():
                bench.data_hooks.before_steps(data.batches(), num_steps)
        optimizer = with_learning_rate(bench.fresh_optimizer(), task.lr_factor)
        if local.keep_optimizer:
            restore_optimizer(optimizer, kept_optimizer(task.memory))
        if half is not None:
            first, num_seen, loss_sum = half.num_steps, half.num_seen, half.loss_sum
            bench.load(half.weights)
            restore_optimizer(optimizer, half.optimizer)
            rng.set_states(half.generators, data.device)
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        last = num_steps if stop is None else stop
        for step, positions in enumerate(itertools.islice(local.batches(len(data), draw), first, last), first):
            for parameter in parameters:
                parameter.grad = None
            try:
                loss = bench.step(data.batch(positions, partial(augmentation_of, task, step)), step)
                loss.backward()  # type: ignore[no-untyped-call]
                if local.max_grad_norm is not None:
                    nn.utils.clip_grad_norm_(parameters, local.max_grad_norm)
                optimizer.step()
            except Exception as error:
                error.add_note(f"It happened to client {task.client_id} in round {task.round}, step {step + 1} of {num_steps}.")
                raise
            losses.append(loss.detach())
            sizes.append(len(positions))
        num_seen += sum(sizes)
        for value, size in zip(torch.stack(losses).tolist(), sizes, strict=True):
            loss_sum += value * size
        if stop is not None:
            state_of = optimizer.state_dict()["state"]
            return HalfTrained(stop, state.clone(bench.tensors), state_of, rng.get_states(data.device), loss_sum, num_seen)
        delta = state.subtract(bench.leaving(bench.parameters), task.broadcast.model)
        buffers = state.subtract(bench.leaving(bench.buffers), task.broadcast.model)
        if bench.data_hooks is not None:
            with bench.looking():
                bench.data_hooks.after_steps(data.batches())
        extras: State = {}
        memory: State = {}
        if hooks is not None:
            extras, memory = hooks.on_client_end(delta, num_steps)
        if bench.personal:
            memory = memory | to_keep(bench.tensors, bench.personal)
        if local.keep_optimizer:
            memory = memory | optimizer_to_keep(optimizer)
    return ClientUpdate(
        client_id=task.client_id,
        delta=delta,
        buffers=buffers,
        num_samples=len(data),
        num_steps=num_steps,
        step_weight=step_weight_of(optimizer, objective, num_steps),
        metrics={"loss_sum": loss_sum, "num_seen": num_seen},
        extras=extras,
        memory=memory,
    )


def planned_steps(local: LocalTraining, num_samples: int, task: ClientTask) -> int:
    """Return how many steps a client takes in a round, 1 at least."""
    return max(1, math.ceil(task.step_fraction * local.num_steps(num_samples)))
