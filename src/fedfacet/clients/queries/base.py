"""The contract of a query: what a server may ask a client, and what the answer costs."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn
from torch.optim import Optimizer

from fedfacet import rng
from fedfacet.answer_form import ANYTHING, AnswerForm
from fedfacet.clients.client_data import ClientData
from fedfacet.clients.divided_training import HalfTrained
from fedfacet.privacy.disclosure import UNDECLARED
from fedfacet.types import Answer, RoundNeeds, State


def _cannot_train(num_steps: int) -> HalfTrained:
    raise RuntimeError("Expected a client that can be trained, but got a context without one: have `Clients` make it.")


@dataclass(frozen=True, slots=True)
class QueryContext:
    """What a client has at hand to answer a query.

    Attributes:
        data: its samples.
        model: the broadcast model, on the client's device; scratch space, whose trained weights are free to be changed.
        make_optimizer: the client's usual optimizer for some parameters.
        batch_size: of its local training.
        seed: the run's seed.
        round: number of the round, counted from 1.
        client_id: position of the client in the partition.
        weights: what the client's training of this round starts from, on the CPU; not to be written to.
        train_until: takes the first steps of that training, as many as it is given or all if there are fewer.
        looked_at: samples that go through the model before the first step, where the objective looks at them (FedPAC's does).
        needs: what a round takes on the client's device; ``None`` without devices.
        noise_seed: what noise on answers is drawn from; ``None`` for the run's seed.
        held_out: positions in the data set of what the client never trains on, shape (n,).
    """

    data: ClientData
    model: nn.Module
    make_optimizer: Callable[[Iterable[nn.Parameter]], Optimizer]
    batch_size: int
    seed: int
    round: int
    client_id: int
    weights: State = field(default_factory=dict)
    train_until: Callable[[int], HalfTrained] = _cannot_train
    looked_at: int = 0
    needs: RoundNeeds | None = None
    noise_seed: int | None = None
    held_out: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))

    def noise(self, purpose: str) -> np.random.Generator:
        """Return the generator of noise on an answer, which follows from the noise key where there is one."""
        seed = self.seed if self.noise_seed is None else self.noise_seed
        return rng.stream(seed, purpose, self.round, self.client_id)

    def stream(self, purpose: str, *keys: int) -> np.random.Generator:
        """Return the generator of a named draw of this client in this round."""
        return rng.stream(self.seed, purpose, self.round, self.client_id, *keys)


class Query(ABC):
    """A question to a client.

    Constructor arguments are hyperparameters, of which those out of range raise ``ValueError``; everything else comes with the
    context.
    """

    name: str
    """Under which the answers are remembered and logged."""

    kind: str = UNDECLARED
    """What the answer tells, of ``KINDS`` in ``fedfacet.privacy.disclosure``; no policy allows an undeclared one."""

    form: AnswerForm = ANYTHING
    """What its answer must be like; a client whose answer is not is away in the round."""

    reads: frozenset[str] = frozenset({"x", "y", "a"})
    """What of the client's samples it looks at: inputs, classes, attribute values."""

    epsilon: float | None = None
    """Of the noise that the client puts on its answer; ``None`` for none."""

    needs_model: bool
    """Whether the client must be sent the global model to answer."""

    floats_down: int = 0
    """How many numbers come with the question, besides the model."""

    starts_training: bool = False
    """Whether the client finds its answer by taking the first steps of its training of this round.

    They belong to its training where it is selected after all; only what the others did counts as the question's cost.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not hasattr(cls, "name"):
            raise TypeError(f"Expected a query with `name`, but {cls.__name__} has none: set it in the class.")

    def check(self, model: nn.Module) -> None:
        """Refuse a model that lacks what the answer takes.

        Raises:
            ConfigError: naming what is missing, and what does without.
        """

    def counted(self, unit: str) -> float | None:
        """Return the noise multiplier of the answer as a Gaussian mechanism, by which an epsilon can count it.

        That is the standard deviation of its noise over its sensitivity: the most that it differs by, in the l2 norm, between
        neighbours that differ by one ``unit``, whose data count or count for nothing.

        Args:
            unit: ``"sample"``, of a client whose number of samples is public; or ``"client"``, where zeros stand in the place
                of the answer.

        Returns:
            Infinity where neighbours answer the same; ``None`` without noise, or without a bound on the sensitivity.
        """
        return None

    @abstractmethod
    def answer(self, context: QueryContext) -> Answer:
        """Return the client's answer and what it cost."""
