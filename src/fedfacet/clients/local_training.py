"""One client's local training: the only place where a federation takes gradient steps on the model (law 3)."""

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import lightning as L
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from fedfacet import rng, state
from fedfacet.clients.client_data import ClientData
from fedfacet.types import Broadcast, ClientTask, ClientUpdate, State


@runtime_checkable
class ClientHooks(Protocol):
    """What an objective may offer besides being a LightningModule; one without trains all the same."""

    def on_client_start(self, broadcast: Broadcast, memory: State) -> None:
        """Take note of the weights just loaded, what the server sent, and what the client kept."""

    def on_client_end(self, delta: State, num_steps: int) -> tuple[State, State]:
        """Return what goes to the server along with the update, and what the client keeps."""


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

    Raises:
        ValueError: if a value is out of range.
    """

    unit: str = "epochs"
    amount: int = 1
    batch_size: int = 28
    sampling: str = "without_replacement"
    max_grad_norm: float | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        if self.unit not in ("epochs", "steps"):
            raise ValueError(f"Expected `local.unit` to be 'epochs' or 'steps', but got {self.unit!r}.")
        for name in ("amount", "batch_size"):
            if not isinstance(value := getattr(self, name), int) or value < 1:
                raise ValueError(f"Expected `local.{name}` to be a whole number, 1 or larger, but got {value!r}.")
        if self.sampling not in ("without_replacement", "with_replacement"):
            raise ValueError(
                f"Expected `local.sampling` to be 'without_replacement' or 'with_replacement', but got {self.sampling!r}."
            )
        if self.max_grad_norm is not None and not self.max_grad_norm > 0:
            raise ValueError(f"Expected `local.max_grad_norm` to be larger than 0 or null, but got {self.max_grad_norm}.")

    def num_steps(self, num_samples: int) -> int:
        """Return how many optimizer steps a client with ``num_samples`` samples plans."""
        return self.amount if self.unit == "steps" else self.amount * math.ceil(num_samples / self.batch_size)

    def batches(self, num_samples: int, generator: np.random.Generator) -> Iterator[NDArray[np.int64]]:
        """Yield positions of batches, epoch after epoch without end; ``num_samples`` is 1 or larger."""
        if num_samples < 1:
            raise ValueError("Expected a client to hold at least one sample, but it holds none: mend the partition.")
        while True:
            if self.sampling == "without_replacement":
                order = generator.permutation(num_samples)
            else:
                order = generator.integers(num_samples, size=num_samples)
            for start in range(0, num_samples, self.batch_size):
                yield order[start : start + self.batch_size]


def federated_module(objective: L.LightningModule) -> nn.Module:
    """Return what the federation learns: the objective's ``model`` where that is all it has to learn, else the objective.

    What lay outside would drift from client to client and be in no checkpoint.
    """
    model = getattr(objective, "model", None)
    if isinstance(model, nn.Module) and len(model.state_dict()) == len(objective.state_dict()):
        return model
    return objective


def train_client(objective: L.LightningModule, data: ClientData, task: ClientTask, local: LocalTraining) -> ClientUpdate:
    """Train the broadcast model on one client's samples.

    Every draw comes from ``(task.seed, purpose, task.round, task.client_id)``, so the result depends on neither the order of
    clients nor on anything drawn before.

    Args:
        objective: scratch space that is used for one client after another; its weights are overwritten first.
        data: the client's samples.
        task: what to start from and how much of the work will be finished.
        local: how much work there is.

    Returns:
        The update, on the CPU. ``metrics`` holds ``loss_sum`` (over the samples seen) and ``num_seen``.
    """
    module = federated_module(objective)
    load_weights(module, task.broadcast.model)
    objective.trainer = None  # of an earlier life; `self.log` would look for it
    objective.train()
    planned = local.num_steps(len(data))
    num_steps = max(1, math.ceil(task.step_fraction * planned))
    generator = rng.stream(task.seed, "batches", task.round, task.client_id)
    loss_sum = torch.zeros((), device=data.device)
    num_seen = 0
    with rng.forked(task.seed, "train", task.round, task.client_id, device=data.device):
        if isinstance(objective, ClientHooks):
            objective.on_client_start(task.broadcast, task.memory)
        optimizer = single_optimizer(objective)
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        for step, positions in enumerate(itertools.islice(local.batches(len(data), generator), num_steps)):
            optimizer.zero_grad(set_to_none=True)
            loss = take_loss(objective.training_step(data.batch(positions), step))
            loss.backward()  # type: ignore[no-untyped-call]
            if local.max_grad_norm is not None:
                nn.utils.clip_grad_norm_(parameters, local.max_grad_norm)
            optimizer.step()
            loss_sum += loss.detach() * len(positions)
            num_seen += len(positions)
        delta, buffers = _difference(module, task.broadcast.model)
        extras: State = {}
        memory: State = {}
        if isinstance(objective, ClientHooks):
            extras, memory = objective.on_client_end(delta, num_steps)
    return ClientUpdate(
        client_id=task.client_id,
        delta=delta,
        buffers=buffers,
        num_samples=len(data),
        num_steps=num_steps,
        step_weight=_step_weight(optimizer, objective, num_steps),
        metrics={"loss_sum": float(loss_sum), "num_seen": num_seen},
        extras=extras,
        memory=memory,
    )


def load_weights(module: nn.Module, weights: State) -> None:
    """Copy ``weights`` into the module's parameters and buffers, in place."""
    own = module.state_dict(keep_vars=True)
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(weights[name])


def single_optimizer(objective: L.LightningModule) -> Optimizer:
    """Return the optimizer of an objective that has exactly one.

    Raises:
        ValueError: if ``configure_optimizers`` returns anything else.
    """
    optimizer = objective.configure_optimizers()
    if not isinstance(optimizer, Optimizer):
        raise ValueError(
            f"Expected {type(objective).__name__}.configure_optimizers to return one optimizer, but got "
            f"{type(optimizer).__name__}: schedulers and several optimizers have no meaning within a client's round."
        )
    return optimizer


def take_loss(output: object) -> Tensor:
    """Return the loss out of what a ``training_step`` returned: a tensor, or a mapping with the key ``loss``."""
    loss = output["loss"] if isinstance(output, Mapping) else output
    if not isinstance(loss, Tensor):
        raise ValueError(f"Expected `training_step` to return a loss, but got {type(loss).__name__}.")
    return loss


def _difference(module: nn.Module, start: State) -> tuple[State, State]:
    # Tied parameters under all their names, or the names that stay behind would overwrite the others when weights are loaded.
    parameters = module.named_parameters(remove_duplicate=False)
    trainable = {name: parameter.detach().cpu() for name, parameter in parameters if parameter.requires_grad}
    buffers = {name: buffer.cpu() for name, buffer in module.named_buffers() if name in start and buffer.is_floating_point()}
    return state.subtract(trainable, start), state.subtract(buffers, start)


def _step_weight(optimizer: Optimizer, objective: L.LightningModule, num_steps: int) -> float:
    """Return ||a_k||_1: with gradients all equal to 1, the distance walked divided by the learning rate.

    Source: FedNova (Wang et al., NeurIPS 2020, arXiv:2007.07481), section 4. SGD with momentum rho and a proximal term of
    strength mu is linear in its gradients, so running it once on scalars gives the sum of their weights. Other optimizers
    count their steps.
    """
    group = optimizer.param_groups[0]
    if not isinstance(optimizer, SGD) or group["nesterov"] or group["dampening"]:
        return float(num_steps)
    mu = getattr(getattr(objective, "correction", None), "proximal_strength", 0.0)
    velocity = walked = 0.0
    for _ in range(num_steps):
        velocity = group["momentum"] * velocity + 1 - group["lr"] * mu * walked
        walked += velocity
    return walked
