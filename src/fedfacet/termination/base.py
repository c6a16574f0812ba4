"""The contract of a termination: what ends a run before all its rounds are done."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

from fedfacet.types import RoundResult, ServerState


class Termination(ABC):
    """Look at every round, and say whether it is the last.

    A termination is immutable: its constructor takes hyperparameters, of which those out of range raise ``ValueError``, and its
    state goes in and comes out. A run never has more than ``federation.rounds`` rounds. The round that ends it is measured like
    the last one of any run, whatever ``every_n_rounds`` says.
    """

    needs_devices: bool = False
    """Whether it looks at the simulated clock, which only a run with ``devices`` has."""

    needs: frozenset[str] = frozenset()
    """What some part must give: ``PAYMENTS``, for one that looks at what selectors pay."""

    def init(self) -> ServerState:
        """Return the state before the first round: plain data. A resume holds a saved state to its names and types."""
        return {}

    @abstractmethod
    def observe(self, server: ServerState, result: RoundResult) -> tuple[ServerState, str | None]:
        """Return the next state, and in a few words why the run ends with this round; ``None`` where it goes on.

        Args:
            server: the state.
            result: of the round. Its metrics lack those that are due in another round.
        """

    def check(self, metrics: Mapping[str, float]) -> None:
        """Refuse rounds that do not measure what it looks at.

        Args:
            metrics: of a round, all of them; NaN where not measured.

        Raises:
            ConfigError: naming what is missing.
        """
