"""The contract of a termination: what ends a run before all its rounds are done."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from difflib import get_close_matches

from fedfacet.errors import ConfigError
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


def check_validation(metric: str) -> None:
    """Refuse a metric that is none of the validation set, with a ``ValueError``."""
    if not metric.startswith(("val/", "personal_val/", "holdout/")):
        raise ValueError(
            f"Expected `termination.metric` to be one of the validation set, but got {metric!r}: the test set never chooses, "
            "and training does not say how well new samples are told, so take val/acc or val/acc_worst_group."
        )


def check_measured(metric: str, metrics: Mapping[str, float], name: str) -> None:
    """Refuse rounds that do not measure a metric, with a ``ConfigError``; ``name`` is the option's."""
    if metric not in metrics:
        nearest = get_close_matches(metric, metrics, n=4, cutoff=0.0)
        raise ConfigError(
            f"Expected rounds to measure {metric!r} for `{name}`, but they measure {', '.join(nearest)} and so on: set "
            "`termination.metric` to one of the validation set, or add the callback that measures it."
        )
