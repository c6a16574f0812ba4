"""The module that a federation learns: its tensors by name, its hooks, and its use by queries."""

import contextlib
import difflib
import functools
from collections.abc import Iterator, Set
from enum import Enum

import lightning as L
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

from fedfacet import state
from fedfacet.builtin import is_builtin
from fedfacet.clients.client_data import ClientData
from fedfacet.clients.hooks import ClientHooks, DataHooks, PredictHooks, client_hooks_of, federated_module
from fedfacet.clients.own_module import OwnModule
from fedfacet.derived import derived_of, other_names
from fedfacet.models.base import static_norms
from fedfacet.types import ClientEnd, ClientStart, State


class Logits(Enum):
    """What ``forward`` returns.

    Attributes:
        PER_CLASS: a logit per class, shape (B, Y).
        ONE: the logit of the second of two classes, shape (B,) or (B, 1). The first class has the logit 0.
        NONE: something else, so that only the module itself can measure what it learns.
    """

    PER_CLASS = "per class"
    ONE = "one"
    NONE = "none"


class FederatedModule:
    """The federated module of an objective.

    Args:
        objective: on its device already.
        personal: names of the module's tensors that stay with the client.
        precision: as in ``ClientTrainer``.
    """

    def __init__(self, objective: L.LightningModule, personal: Set[str], precision: str) -> None:
        self.objective = objective
        self.module = federated_module(objective)
        self.derived = derived_of(self.module)
        gathered = [f"{name}.{key}" for name in static_norms(self.module) for key in ("running_mean", "running_var")]
        self._followers = {*gathered, *(name for one in self.derived for name in one.names)}  # what clients do not send
        aliases = other_names(self.derived)
        named: State = dict(self.module.named_parameters(remove_duplicate=False))
        self.frozen: State = {name: tensor for name, tensor in named.items() if not tensor.requires_grad}
        self.parameters: State = {name: named[name] for name in named if name not in self.frozen.keys() | aliases}
        # Where buffers are, not what: a forward pass may put a new tensor in the place of an old one.
        self._buffer_slots = [
            (f"{prefix}.{key}" if prefix else key, module._buffers, key)
            for prefix, module in self.module.named_modules()
            for key, buffer in module._buffers.items()
            if buffer is not None and key not in module._non_persistent_buffers_set
        ]
        self._hidden = [
            (module._buffers, key, None if buffer is None else buffer.detach().clone())
            for module in objective.modules()
            for key, buffer in module._buffers.items()
            if key in module._non_persistent_buffers_set
        ]
        self.personal = personal - self.frozen.keys()
        self.client_hooks = client_hooks_of(objective)
        self.hooks = objective if isinstance(objective, ClientHooks) and self.client_hooks else None
        self.data_hooks = objective if isinstance(objective, DataHooks) else None
        self.own = None if is_builtin(objective) else OwnModule(objective)
        self.is_hooked = any(part is not None for part in (self.hooks, self.data_hooks, self.own))
        self.logits = Logits.PER_CLASS if self.own is None else Logits(self.own.logged.logits)
        self._both = False
        self.predict_hooks = objective if isinstance(objective, PredictHooks) else None
        self.autocast = precision == "bf16-mixed"
        self._training: bool | None = None

    def check_names(self, optimizer: Optimizer) -> None:
        """Refuse what would not be there: parameters that are learnt but not sent, and layers to keep that do not exist.

        Args:
            optimizer: of the objective.

        Raises:
            ValueError: naming it.
        """
        name, own = type(self.objective).__name__, set(map(id, self.objective.parameters()))
        for parameter in (parameter for group in optimizer.param_groups for parameter in group["params"]):
            if id(parameter) not in own:
                raise ValueError(
                    f"Expected the optimizer of {name} to have the module's own parameters, which are sent and saved, but it "
                    f"has another one, of shape {tuple(parameter.shape)}: make it an attribute of the module."
                )
        known = [*self.parameters, *(name for name, _, _ in self._buffer_slots), *self.frozen, *self._followers]
        if unknown := sorted(self.personal - set(known)):
            alike = [one for one in known if one.startswith(f"{unknown[0]}.")] or difflib.get_close_matches(unknown[0], known)
            suggested = ", ".join(map(repr, alike or known[:6]))
            raise ValueError(
                f"Expected `personal` to name tensors of the model, but got {unknown[0]!r}: name some of {suggested}."
            )
        for one in self.derived:
            together = [one.source, *one.names]
            stays = [name for name in together if name in self.personal]
            if one.source not in self.frozen and 0 < len(stays) < len(together):
                sent = next(name for name in together if name not in self.personal)
                raise ValueError(
                    f"Expected `personal` to name both or neither of {stays[0]!r} and {sent!r}, which are one tensor or follow "
                    "from each other, but only the first stays with the client: name both, or untie them."
                )

    @functools.cached_property
    def frozen_digest(self) -> str:
        """The sha256 of the parameters that nobody trains; empty without any."""
        return state.digest(self.frozen) if self.frozen else ""

    @property
    def hides_buffers(self) -> bool:
        """Whether some buffers are in no state dict, so that they cannot be carried elsewhere."""
        return bool(self._hidden)

    @property
    def divisible(self) -> bool:
        """Whether a client's training may be put down between two steps and taken up elsewhere."""
        persistent = {name for name, _, _ in self._buffer_slots}
        if self.own is not None and not self.own.is_plain:
            return False
        return all(name in persistent for name, _ in self.module.named_buffers()) and bool(
            getattr(self.objective, "divisible", False)
        )

    def does(self, hook: str) -> bool:
        """Tell whether a hook of the objective (``on_client_start``, say), or one that looks at the data, does anything."""
        return hook in self.client_hooks or self.data_hooks is not None

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Evaluate for a while, without gradients, and train again afterwards."""
        self.objective.eval()
        with torch.no_grad():
            yield
        self.objective.train()
        self._training = True

    def begin(self, start: ClientStart, data: ClientData, optimizer: Optimizer | None = None, batch_size: int = 1) -> None:
        """Call the hooks before the first step of a client, whose weights are loaded; its optimizer may have schedulers."""
        if self.own is not None:
            self.own.begin(optimizer, start.lr_factor, -(-len(data) // batch_size))
        if self.hooks is not None:
            self.hooks.on_client_start(start)
        if self.data_hooks is not None:
            with self.evaluating():
                self.data_hooks.before_steps(data.batches(), start.num_steps)

    def end(self, end: ClientEnd, data: ClientData) -> tuple[State, State, dict[str, float]]:
        """Return what a client sends beside its update, what it keeps, and what it has logged."""
        if self.data_hooks is not None:
            with self.evaluating():
                self.data_hooks.after_steps(data.batches())
        extras, memory = self.hooks.on_client_end(end) if self.hooks is not None else ({}, {})
        return extras, memory, self.own.end() if self.own is not None else {}

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of the client's model."""
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.autocast):
            z: Tensor = self.module(x) if self.predict_hooks is None else self.objective(x)
        return z if self.logits is not Logits.ONE else functional.pad(z.reshape(-1, 1), (1, 0))

    @contextlib.contextmanager
    def answering(self, both: bool = True) -> Iterator[None]:
        """Have a module of one logit return a logit per class while a query uses it, and not while it trains itself."""
        handle = None

        def with_first(_: nn.Module, __: object, z: Tensor) -> Tensor:  # no method: queries copy the module and its hooks
            return functional.pad(z.reshape(-1, 1), (1, 0)) if self._both else z

        if self.logits is Logits.ONE and both:
            handle = self.module.register_forward_hook(with_first)
        before, self._both = self._both, both
        try:
            yield
        finally:
            self._both = before
            if handle is not None:
                handle.remove()

    def expose(self) -> nn.Module:
        """Return the module for any use; its mode is set anew before the next training."""
        self._training = None
        return self.module

    def restore_trainable(self) -> None:
        """Make the trained parameters trainable again, after a query that may have frozen some.

        Raises:
            ValueError: if the module has other parameters now, which would not be trained.
        """
        named: State = dict(self.module.named_parameters(remove_duplicate=False))
        for name, tensor in (self.parameters | self.frozen).items():
            if named.get(name) is not tensor:
                raise ValueError(
                    f"Expected a model with the parameters that it had before the query, but {name!r} is another one or gone: "
                    "change `copy.deepcopy(context.model)`."
                )
            tensor.requires_grad_(name in self.parameters)


def compile_module(module: nn.Module) -> None:
    """Have torch compile a module's forward and backward pass."""
    on_gpu = any(parameter.is_cuda for parameter in module.parameters())
    module.compile(mode="reduce-overhead" if on_gpu else None)
    if on_gpu:  # the next replay of a CUDA graph overwrites what this one returned, and predictions are kept
        replay = module._compiled_call_impl
        module._compiled_call_impl = lambda *x, **more: replay(*x, **more).clone()  # type: ignore[misc]
