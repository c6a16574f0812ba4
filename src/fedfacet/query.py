"""The contract of a query: what a server may ask a client, and what the answer costs."""

from abc import ABC, abstractmethod
from typing import Any

from torch import nn

from fedfacet.answer_form import ANYTHING, AnswerForm
from fedfacet.errors import ConfigError
from fedfacet.privacy.disclosure import UNDECLARED
from fedfacet.types import Answer, RoundNeeds


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
    def answer(self, context: Any) -> Answer:
        """Return the client's answer and what it cost; ``context`` is a ``QueryContext``, which exists where the data lives."""


def needs_of(context: Any) -> RoundNeeds:
    """Return what a round takes on a client's device, or refuse a client that has none."""
    needs: RoundNeeds | None = context.needs
    if needs is None:
        raise ConfigError("Expected clients with devices, but they have none: choose devices=uniform or another option.")
    return needs
