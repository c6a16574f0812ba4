"""What an objective may offer to a client besides being a LightningModule; one without any of it trains all the same."""

import inspect
import logging
import weakref
from collections.abc import Iterable, Iterator
from typing import Protocol, runtime_checkable

import lightning as L
from torch import nn

from fedfacet import state
from fedfacet.builtin import is_builtin
from fedfacet.clients.own_module import takes_number
from fedfacet.types import Batch, ClientEnd, ClientStart, State

log = logging.getLogger(__name__)


@runtime_checkable
class ClientHooks(Protocol):
    """It takes note of a client's beginning, and sends or keeps something at its end."""

    def on_client_start(self, start: ClientStart) -> None:
        """Take note of the weights just loaded, what the server sent, and what the client kept."""

    def on_client_end(self, end: ClientEnd) -> tuple[State, State]:
        """Return what goes to the server along with the update, and what the client keeps."""


def client_hooks_of(objective: L.LightningModule) -> frozenset[str]:
    """Return which ``ClientHooks`` of an objective do anything: those that it declares as ``client_hooks``, or else both."""
    if not isinstance(objective, ClientHooks):
        return frozenset()
    declared: frozenset[str] = getattr(objective, "client_hooks", frozenset({"on_client_start", "on_client_end"}))
    return declared


@runtime_checkable
class DataHooks(Protocol):
    """It looks at all samples of its client; in eval mode, without gradients."""

    def before_steps(self, batches: Iterable[Batch], num_steps: int) -> None:
        """Look at them with the weights that the client starts from; ``num_steps`` is how many steps it will take."""

    def after_steps(self, batches: Iterable[Batch]) -> None:
        """Look at them with the weights that it ends with, before ``on_client_end``."""


@runtime_checkable
class PredictHooks(Protocol):
    """Its forward pass depends on what a client kept, not only on the weights: a personal model, or a mixture of models."""

    def before_predict(self, memory: State) -> None:
        """Have ``forward`` answer as the client would; ``memory`` is empty where the global model itself is measured."""


_UNCALLED = (
    "setup configure_model on_fit_start on_train_start on_train_epoch_start on_train_batch_start on_before_batch_transfer "
    "transfer_batch_to_device on_after_batch_transfer on_before_backward backward on_after_backward on_before_zero_grad "
    "optimizer_zero_grad on_before_optimizer_step configure_gradient_clipping optimizer_step lr_scheduler_step "
    "on_train_batch_end on_train_epoch_end on_train_end on_fit_end"
)
"""What Lightning's trainer calls while it trains, and a client's training does not."""


def check_objective(objective: L.LightningModule) -> None:
    """Refuse an objective that a client cannot train, and warn of what its training leaves out.

    Raises:
        ValueError: if it takes its optimizer's steps itself, or its ``training_step`` does not take a batch.
    """
    name = type(objective).__name__
    if not objective.automatic_optimization:
        raise ValueError(
            f"Expected {name} to leave the optimizer's steps to the client, but it has automatic_optimization = False: return "
            "the loss from `training_step`, and say what clips or repeats steps by `local=`."
        )
    takes_number(objective.training_step)
    own = [
        hook
        for hook in _UNCALLED.split()
        if not getattr(type(objective), hook).__module__.startswith(("lightning.", "fedfacet."))
    ]
    if own:
        log.warning(
            "A client's training calls training_step and the optimizer of %s, but not its %s: what they do is left out.",
            name,
            ", ".join(own),
        )
    for method, counter in _counters_read(type(objective)):
        log.warning(
            "%s.%s reads `self.%s`, which stays 0 while a client trains: leave it out, or count in a scheduler of "
            "`configure_optimizers` or of the federation.",
            name,
            method,
            counter,
        )


def _counters_read(kind: type) -> Iterator[tuple[str, str]]:
    """Yield the methods of the user's own that a client calls and that read what a Trainer counts, and what they read."""
    for method in dir(kind):
        function = inspect.unwrap(getattr(kind, method))
        code = getattr(function, "__code__", None)
        if code is None or method in _UNCALLED.split() or function.__module__.startswith(("lightning.", "fedfacet.", "torch.")):
            continue
        yield from ((method, counter) for counter in ("current_epoch", "global_step") if counter in code.co_names)


_FIRST_WEIGHTS: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()


def warn_of_reuse(module: nn.Module) -> None:
    """Warn where a federation begins with what became of a module in an earlier one, whose clients trained in it."""
    digest = state.digest(module.state_dict())
    if _FIRST_WEIGHTS.setdefault(module, digest) != digest:
        log.warning(
            "An earlier federation has had this %s, whose weights have changed since, and the new one begins with them: make a "
            "new one to begin anew.",
            type(module).__name__,
        )


def warn_of_optimizer(module: L.LightningModule) -> None:
    """Warn of an ``optimizer`` beside a module of the user's own, which has another."""
    if not is_builtin(module):
        log.warning(
            "%s trains with the optimizer of its configure_optimizers: `optimizer` is for queries that train something, and "
            "changes nothing else.",
            type(module).__name__,
        )


def federated_module(objective: L.LightningModule) -> nn.Module:
    """Return what the federation learns: the objective's ``model`` where that is all it has to learn, else the objective.

    What lay outside would drift from client to client and be in no checkpoint.
    """
    model = getattr(objective, "model", None)
    if isinstance(model, nn.Module) and len(model.state_dict()) == len(objective.state_dict()):
        return model
    return objective
