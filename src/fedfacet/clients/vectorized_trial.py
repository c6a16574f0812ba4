"""Whether clients can be trained side by side, found out by doing it with two of them."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from fedfacet import rng
from fedfacet.clients.notes import obstacle
from fedfacet.clients.recorded_steps import complaint
from fedfacet.clients.vectorized_layers import Recording
from fedfacet.clients.vectorized_rows import Row
from fedfacet.clients.vectorized_stack import CannotStackError
from fedfacet.clients.vectorized_training import StackedTraining
from fedfacet.types import Batch, ClientTask, State

_TOLERANCE = 1e-2
"""Relative to the largest number: far above rounding (1e-3 in TF32), far below a term of the loss that has gone missing."""

_TOLERANCE_BF16 = 1e-1  # with bfloat16, which rounds by 4e-3 in every layer


def try_out(training: StackedTraining, task: ClientTask) -> float:
    """Take a step of two models, each by itself and side by side, and compare losses, gradients and buffers.

    The program is left with other weights. Return how many bytes of a sample's forward pass its backward pass needs.

    Raises:
        CannotStackError: if they differ, or if something is known to make clients differ later.
    """
    clients, program = training.clients, training.clients.program
    if known := obstacle(clients):
        raise CannotStackError(known)
    if clients.local.keep_optimizer:
        raise CannotStackError("Expected clients whose optimizers begin without a memory, but they keep theirs")
    indices = clients.owned[task.client_id]
    (group,) = training.groups([indices[:4], indices[-4:]])
    rows, watch = training.rows.begin([task, task]), _Watch(clients.device)
    rows[1].noted = [_moved(tensor) for tensor in rows[0].noted]
    rows[1].generators = training.rows.generators_of(Row(1, replace(task, round=task.round + 1), {}, 0))
    generators = [training.rows.generators_of(row) for row in rows]
    losses = torch.zeros(2, dtype=torch.float64, device=clients.device)
    with training.started(rows), watch, _rounding_least():
        drawn = rng.get_other_states()
        start = training.start_of(rows)
        stack = training.stack(start, 2)
        for leaf in stack.tensors[: len(training.trained)]:
            leaf[1] = _moved(leaf[1])  # away from the start, where a correction does not pull yet
        alone = []
        for number, row in enumerate(rows):
            model = {name: tensor[number] for name, tensor in training.values(stack, program.tensors).items()}
            batch = Batch(*(values[number] for values in training.batch_of(group)))
            rng.set_states(generators[number], clients.device)
            alone.append(_step_alone(training, row, row.start | model, batch, watch))
        if watch.random is not None:
            raise CannotStackError(f"Expected layers whose draws do not depend on the data, but those of {watch.random} may")
        try:
            training.backward(stack, [group], [training.drawn(stack, group, rows, 0)], 0, losses)
        except RuntimeError as error:
            fault = f"{watch.innermost} cannot be ({complaint(error)})"
            raise CannotStackError(f"Expected layers that can be stacked, but {fault}") from error
        if clients.draws_elsewhere and not torch.equal(drawn, rng.get_other_states()):
            raise CannotStackError("Expected draws by torch's generators, but a step draws by numpy's or Python's")
    if any(parameter.grad is not None for parameter in training.trained):
        raise CannotStackError("Expected a loss of the parameters in their modules, but it has some from elsewhere")
    for what, ours, theirs in (
        ("losses", [losses], [outcome[0] for outcome in alone]),
        ("gradients", [leaf.grad for leaf in stack.leaves], [outcome[1] for outcome in alone]),
        ("buffers", stack.buffers, [outcome[2] for outcome in alone]),
    ):
        if not _agree(ours, theirs, _TOLERANCE_BF16 if program.autocast else _TOLERANCE):
            raise CannotStackError(f"Expected clients that do not feel each other, but side by side their {what} differ")
    return sum(watch.kept.values()) / group.size


@contextlib.contextmanager
def _rounding_least() -> Iterator[None]:
    """Have a GPU compute in full single precision: TF32 alone can turn gradients of a deep network by a tenth."""
    settings: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn.conv)  # type: ignore[attr-defined]
    before = [setting.fp32_precision for setting in settings]
    for setting in settings:
        setting.fp32_precision = "ieee"
    try:
        yield
    finally:
        for setting, precision in zip(settings, before, strict=True):
            setting.fp32_precision = precision


def _moved(tensor: Tensor) -> Tensor:
    """Return other values of the same kind."""
    return 1.05 * tensor.detach() + 0.01 if tensor.is_floating_point() else tensor


def _step_alone(
    training: StackedTraining, row: Row, model: State, batch: Batch, watch: "_Watch"
) -> tuple[list[Tensor | None], list[Tensor | None], list[Tensor | None]]:
    """Return summed loss, gradients and buffers as ``Clients.train`` would find them."""
    program = training.clients.program
    program.load(model)
    program.objective.zero_grad(set_to_none=True)
    watch.kept.clear()  # what the last step kept is free again
    with training.noting(row), watch.recording, saved_tensors_hooks(watch.keep, lambda tensor: tensor):
        loss: Tensor = training(batch, 0)
    loss.backward()  # type: ignore[no-untyped-call]
    gradients = [parameter.grad for parameter in training.trained]
    program.objective.zero_grad(set_to_none=True)
    own = program.tensors
    buffers = [own[name].detach().clone() for name in training.names[len(training.trained) :]]
    return [loss.detach().double() * len(batch.y)], gradients, [*buffers]


class _Watch:
    """Notes, while entered, which module is at work, which one draws in an unknown way, and what a backward pass needs."""

    def __init__(self, device: torch.device) -> None:
        self.random: str | None = None
        self.recording = Recording()
        self._device = device
        self._inside: list[tuple[str, list[Tensor], int]] = []
        self.kept: dict[int, int] = {}
        self._handles = contextlib.ExitStack()

    @property
    def innermost(self) -> str:
        """What has been entered but not left."""
        return self._inside[-1][0] if self._inside else "its surroundings"

    def __enter__(self) -> "_Watch":
        """Start."""
        self._handles.enter_context(register_module_forward_pre_hook(self._enter))
        self._handles.enter_context(register_module_forward_hook(self._leave))
        return self

    def __exit__(self, *_: object) -> None:
        """Stop."""
        self._handles.close()

    def keep(self, tensor: Tensor) -> Tensor:
        """Note where a tensor's memory is and how large."""
        storage = tensor.untyped_storage()
        self.kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    def _enter(self, module: nn.Module, _: Any) -> None:
        no_layer = isinstance(module, StackedTraining)  # but the part of a step around the layers
        name = f"{type(module.objective).__name__}.training_step" if no_layer else type(module).__name__
        self._inside.append((name, rng.get_states(self._device), len(self.recording.draws)))

    def _leave(self, module: nn.Module, *_: Any) -> None:
        name, before, num_draws = self._inside.pop()
        unknown = len(self.recording.draws) == num_draws
        if unknown and self.random is None and not all(map(torch.equal, before, rng.get_states(self._device))):
            self.random = name


def _agree(together: Sequence[Tensor | None], alone: Sequence[Sequence[Tensor | None]], tolerance: float) -> bool:
    """Compare stacked tensors with those of each row."""
    pairs = [(ours, row, own) for row, owns in enumerate(alone) for ours, own in zip(together, owns, strict=True)]
    if any((ours is None) != (own is None) for ours, _, own in pairs):
        return False
    numbers = [
        (ours[row].float(), own.float()) for ours, row, own in pairs if ours is not None and own is not None and own.numel()
    ]
    scale = max((float(own.abs().max()) for _, own in numbers), default=0.0)
    return all(float((ours - own).abs().max()) <= tolerance * scale + 1e-6 for ours, own in numbers)
