"""What an objective may offer to a client besides being a LightningModule; one without any of it trains all the same."""

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

import lightning as L
from torch import nn

from fedfacet.types import Batch, ClientEnd, ClientStart, State


@runtime_checkable
class ClientHooks(Protocol):
    """It takes note of a client's beginning, and sends or keeps something at its end."""

    def on_client_start(self, start: ClientStart) -> None:
        """Take note of the weights just loaded, what the server sent, and what the client kept."""

    def on_client_end(self, end: ClientEnd) -> tuple[State, State]:
        """Return what goes to the server along with the update, and what the client keeps."""


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


def federated_module(objective: L.LightningModule) -> nn.Module:
    """Return what the federation learns: the objective's ``model`` where that is all it has to learn, else the objective.

    What lay outside would drift from client to client and be in no checkpoint.
    """
    model = getattr(objective, "model", None)
    if isinstance(model, nn.Module) and len(model.state_dict()) == len(objective.state_dict()):
        return model
    return objective
