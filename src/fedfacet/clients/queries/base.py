"""The contract of a query: what a server may ask a client, and what the answer costs."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from torch import nn
from torch.optim import Optimizer

from fedfacet import rng
from fedfacet.clients.client_data import ClientData
from fedfacet.types import Answer


@dataclass(frozen=True, slots=True)
class QueryContext:
    """What a client has at hand to answer a query.

    Attributes:
        data: its samples.
        model: the broadcast model, on the client's device; scratch space, free to be changed.
        make_optimizer: the client's usual optimizer for some parameters.
        batch_size: of its local training.
        seed: the run's seed.
        round: number of the round, counted from 1.
        client_id: position of the client in the partition.
    """

    data: ClientData
    model: nn.Module
    make_optimizer: Callable[[Iterable[nn.Parameter]], Optimizer]
    batch_size: int
    seed: int
    round: int
    client_id: int

    def stream(self, purpose: str, *keys: int) -> np.random.Generator:
        """Return the generator of a named draw of this client in this round."""
        return rng.stream(self.seed, purpose, self.round, self.client_id, *keys)


class Query(ABC):
    """A question to a client. Constructor arguments are hyperparameters; everything else comes with the context."""

    name: str
    """Under which the answers are remembered and logged."""

    needs_model: bool
    """Whether the client must be sent the global model to answer."""

    @abstractmethod
    def answer(self, context: QueryContext) -> Answer:
        """Return the client's answer and what it cost."""
