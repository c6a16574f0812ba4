"""An objective on a client's desk: its weights loaded, its modes set, its optimizer fresh."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any, Protocol, runtime_checkable

import lightning as L
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fedfacet.clients.optimizers import single_optimizer
from fedfacet.types import Batch, Broadcast, State


@runtime_checkable
class ClientHooks(Protocol):
    """What an objective may offer besides being a LightningModule; one without trains all the same."""

    def on_client_start(self, broadcast: Broadcast, memory: State) -> None:
        """Take note of the weights just loaded, what the server sent, and what the client kept."""

    def on_client_end(self, delta: State, num_steps: int) -> tuple[State, State]:
        """Return what goes to the server along with the update, and what the client keeps."""


@runtime_checkable
class DataHooks(Protocol):
    """What an objective may offer that looks at all samples of its client; in eval mode, without gradients."""

    def before_steps(self, batches: Iterable[Batch], num_steps: int) -> None:
        """Look at them with the weights that the client starts from; ``num_steps`` is how many steps it will take."""

    def after_steps(self, batches: Iterable[Batch]) -> None:
        """Look at them with the weights that it ends with, before ``on_client_end``."""


def federated_module(objective: L.LightningModule) -> nn.Module:
    """Return what the federation learns: the objective's ``model`` where that is all it has to learn, else the objective.

    What lay outside would drift from client to client and be in no checkpoint.
    """
    model = getattr(objective, "model", None)
    if isinstance(model, nn.Module) and len(model.state_dict()) == len(objective.state_dict()):
        return model
    return objective


class Workbench:
    """An objective made ready to be trained for one client after another: what is looked up once instead of per client.

    Args:
        objective: on its device already; scratch space, whose weights are overwritten by every client's.
        precision: ``"32-true"``, or ``"bf16-mixed"`` for bfloat16 wherever torch's autocast deems it safe.
        compile: have torch compile the federated module's forward and backward pass; on a GPU as CUDA graphs, since there the
            steps of small networks wait for their kernels to be launched one by one.
        personal: names of the federated module's tensors that stay with the client.
    """

    def __init__(
        self,
        objective: L.LightningModule,
        *,
        precision: str = "32-true",
        compile: bool = False,
        personal: Set[str] = frozenset(),
    ) -> None:
        objective.trainer = None  # of an earlier life; `self.log` would look for it
        self.objective = objective
        self.module = federated_module(objective)
        # Tied parameters under all their names, or the names that stay behind would overwrite the others when weights are
        # loaded.
        self._all_parameters: State = dict(self.module.named_parameters(remove_duplicate=False))
        self.parameters: State = {name: tensor for name, tensor in self._all_parameters.items() if tensor.requires_grad}
        # Where buffers are, not what: a forward pass may put a new tensor in the place of an old one.
        self._places = [
            (f"{prefix}.{key}" if prefix else key, module._buffers, key)
            for prefix, module in self.module.named_modules(remove_duplicate=False)
            for key, buffer in module._buffers.items()
            if buffer is not None and key not in module._non_persistent_buffers_set
        ]
        self._hidden = [
            (module._buffers, key, None if buffer is None else buffer.detach().clone())
            for module in objective.modules()
            for key, buffer in module._buffers.items()
            if key in module._non_persistent_buffers_set
        ]
        self.hooks = objective if isinstance(objective, ClientHooks) else None
        self.data_hooks = objective if isinstance(objective, DataHooks) else None
        self.autocast = precision == "bf16-mixed"
        self.personal = personal
        self._training: bool | None = None
        self._optimizer: Optimizer | None = None
        self._groups: list[dict[str, Any]] = []
        if compile:
            on_gpu = any(parameter.is_cuda for parameter in self.module.parameters())
            self.module.compile(mode="reduce-overhead" if on_gpu else None)

    @property
    def tensors(self) -> State:
        """The module's parameters and buffers."""
        return self._all_parameters | self._persistent_buffers if self._places else self._all_parameters

    @property
    def buffers(self) -> State:
        """The floating-point ones among the buffers."""
        return {name: tensor for name, tensor in self._persistent_buffers.items() if tensor.is_floating_point()}

    def leaving(self, tensors: State) -> State:
        """Return what of some tensors leaves the client, on the CPU, in the usual memory order, however weights are kept."""
        return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items() if name not in self.personal}

    @property
    def _persistent_buffers(self) -> State:
        return {name: tensor for name, of_module, key in self._places if (tensor := of_module[key]) is not None}

    @property
    def divisible(self) -> bool:
        """Whether a client's training may be put down between two steps and taken up elsewhere."""
        persistent = {name for name, _, _ in self._places}
        return all(name in persistent for name, _ in self.module.named_buffers()) and bool(
            getattr(self.objective, "divisible", False)
        )

    def load(self, weights: State) -> None:
        """Copy ``weights`` into the module's parameters and buffers, in place; those in no state dict are as at first again."""
        for buffers, key, first in self._hidden:
            buffers[key] = None if first is None else first.clone()
        if tensors := self.tensors:
            with torch.no_grad():
                torch._foreach_copy_(list(tensors.values()), [weights[name] for name in tensors])

    def train(self, mode: bool) -> None:
        """Set the objective to training or evaluation; free of charge if it is there already."""
        if self._training is not mode:
            self.objective.train(mode)
            self._training = mode

    @contextlib.contextmanager
    def looking(self) -> Iterator[None]:
        """Evaluate for a while, without gradients, and train again afterwards."""
        self.train(False)
        with torch.no_grad():
            yield
        self.train(True)

    def forward(self, x: Tensor) -> Tensor:
        """Return the module's output."""
        with self._precision(x.device):
            return self.module(x)  # type: ignore[no-any-return]

    def step(self, batch: Batch, step: int) -> Tensor:
        """Return the loss of one training step."""
        if not self.autocast:
            return take_loss(self.objective.training_step(batch, step))
        with self._precision(batch.x.device):
            return take_loss(self.objective.training_step(batch, step))

    def _precision(self, device: torch.device) -> torch.autocast:
        return torch.autocast(device.type, torch.bfloat16, enabled=self.autocast)

    def fresh_optimizer(self) -> Optimizer:
        """Return the objective's optimizer without a memory of other clients.

        Where making one anew would make the same again, the last one is reset instead, which takes a third of the time.
        """
        if self._optimizer is None or not getattr(self.objective, "optimizer_is_fixed", False):
            self._optimizer = single_optimizer(self.objective)
            self._groups = [
                {key: value for key, value in group.items() if key != "params"} for group in self._optimizer.param_groups
            ]
            return self._optimizer
        self._optimizer.state.clear()
        for group, settings in zip(self._optimizer.param_groups, self._groups, strict=True):
            group.update(settings)
        return self._optimizer

    def lend(self) -> nn.Module:
        """Return the module to somebody who may do with it what they like."""
        self._training = None
        return self.module


def take_loss(output: object) -> Tensor:
    """Return the loss out of what a ``training_step`` returned: a tensor, or a mapping with the key ``loss``."""
    loss = output["loss"] if isinstance(output, Mapping) else output
    if not isinstance(loss, Tensor):
        raise ValueError(f"Expected `training_step` to return a loss, but got {type(loss).__name__}.")
    return loss
