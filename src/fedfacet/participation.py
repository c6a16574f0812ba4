"""Who is able to take part, and how a client's round may end."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedfacet import rng as streams
from fedfacet.arguments import Choice, Declared, Whole, Within, check_within
from fedfacet.types import WEIGHTED_DRAWS


class Participation(Declared):
    """Which clients are away, drop out, or finish only a part of their work; these are always there and finish.

    Its methods draw from nothing but the generator they are given and keep no state, so that a round can be run again.
    Arguments that are out of range raise ``ValueError``.
    """

    needs: frozenset[str] = frozenset()
    """What some other part must give: ``WEIGHTED_DRAWS`` where clients have weights."""

    gives_weights: bool = False
    """Whether those who are available are to be drawn in proportion to ``log_weights``, which not every selector does."""

    def available(self, num_clients: int, rng: np.random.Generator) -> Sequence[int]:
        """Return the clients that could take part in this round, in ascending order; none at all is allowed."""
        return range(num_clients)

    def log_weights(self, num_clients: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """Return the logarithms of the weights by which clients are drawn, shape (num_clients,), up to a constant."""
        return np.zeros(num_clients)

    def outcome(self, client_id: int, draw: Callable[[], np.random.Generator]) -> float:
        """Return the part of the planned local steps that a selected client finishes.

        Args:
            client_id: of a selected client.
            draw: makes the generator of this client in this round; making one costs more than most answers need.

        Returns:
            1 for all of them, a fraction in (0, 1) for the first ceil(fraction * steps), 0 for a client that is sent the model
            and never answers.
        """
        return 1.0


def available_of(participation: Participation, num_clients: int, rng: np.random.Generator) -> Sequence[int]:
    """Ask who could take part.

    Raises:
        ValueError: if the answer is not clients' numbers in ascending order, each once.
    """
    available = participation.available(num_clients, rng)
    if isinstance(available, range) and available == range(num_clients):
        return available
    numbers = np.asarray(available)
    if not numbers.size:
        return ()
    whole = numbers.ndim == 1 and numbers.dtype.kind in "iu"
    if not whole or numbers[0] < 0 or numbers[-1] >= num_clients or (numbers[1:] <= numbers[:-1]).any():
        came = f"a mask of {numbers.size}: `np.flatnonzero` makes numbers of it" if numbers.dtype == bool else f"{available}"
        raise ValueError(
            f"Expected {type(participation).__name__}.available to return the numbers of clients, from 0 to {num_clients - 1}, "
            f"in ascending order and each once, but got {came}."
        )
    return [int(number) for number in numbers]


def log_weights_of(participation: Participation, num_clients: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Ask what weighs clients' chances.

    Raises:
        ValueError: if the answer is not a number for each client.
    """
    log_weights = participation.log_weights(num_clients, rng)
    if np.shape(log_weights) != (num_clients,) or np.isnan(log_weights).any():
        came = "NaN among them" if np.shape(log_weights) == (num_clients,) else f"the shape {np.shape(log_weights)}"
        raise ValueError(
            f"Expected {type(participation).__name__}.log_weights to return a number for each of {num_clients} clients, but "
            f"got {came}; -inf is for a client that is never drawn."
        )
    return log_weights


def outcome_of(participation: Participation, client_id: int, draw: Callable[[], np.random.Generator]) -> float:
    """Ask which part of its steps a client finishes.

    Raises:
        ValueError: if it is not between 0 and 1.
    """
    finished = participation.outcome(client_id, draw)
    check_within(f"{type(participation).__name__}.outcome", finished, "[0, 1]")
    return finished


@dataclass(eq=False, kw_only=True)
class CheckIn(Participation):
    """A number of clients, drawn uniformly anew for every round, check in with the server; the others are away.

    A selector asks and compares those alone: of a million clients, FedDiverse then learns about some thousand in a round
    instead of all in the first, and a round costs what its candidates cost. Where fewer clients check in than a round has
    places, all of them take part.

    Source: Bonawitz et al., Towards Federated Learning at Scale: System Design, MLSys 2019, arXiv:1902.01046, section 2.2.

    Args:
        num_clients: how many check in, 1 or larger; all do where there are no more.
    """

    option_group = "participation."

    num_clients: Annotated[int, Whole()] = 2000

    def available(self, num_clients: int, rng: np.random.Generator) -> tuple[int, ...]:
        """Return those who check in."""
        here = rng.choice(num_clients, size=min(self.num_clients, num_clients), replace=False)
        return tuple(np.sort(here).tolist())


@dataclass(eq=False, kw_only=True)
class DirichletParticipation(Participation):
    r"""Give clients probabilities :math:`p \sim \mathrm{Dir}(\gamma \mathbf{1}_K)` of taking part; with a small gamma few do.

    With ``mode: available``, ``available_fraction`` of the clients are able to take part in a round, drawn without replacement,
    each next one with a probability in proportion to p; any selector chooses among them. With ``cohort_size`` equal to their
    number it is p that selects. With ``mode: weights`` everybody is able to take part, and the selector draws in proportion to
    p, if it is one that draws (``uniform``, and the candidates of ``probe_fairness``); others are refused.

    The logarithms of p are drawn, so that no client's probability rounds to zero, however small :math:`\gamma`.

    Source: De Cesare et al., Federated Learning Beyond Uniform Participation, sections 2 and 3.3.

    Deviation: the released code draws p anew in every round (``redrawn: true``), which over many rounds makes all clients take
    part alike; the paper speaks of clients that are selected more often than others.

    Args:
        gamma: concentration, in (0, 1e9]; the paper takes 0.01, 0.1, 0.5, 1 and 10.
        redrawn: whether p is drawn anew in every round.
        mode: ``"available"`` or ``"weights"``.
        available_fraction: the part of all clients that are able to take part in a round, in (0, 1], rounded, one at least;
            only with ``mode: available``.
        seed: of p where it is drawn once; it does not follow the run's seed.
    """

    option_group = "participation."

    gamma: Annotated[float, Within("(0, 1e9]")] = 0.5
    redrawn: bool = False
    mode: Annotated[str, Choice("available", "weights")] = "available"
    available_fraction: Annotated[float, Within("(0, 1]")] = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.gives_weights = self.mode == "weights"
        self.needs = frozenset({WEIGHTED_DRAWS} if self.gives_weights else ())

    def available(self, num_clients: int, rng: np.random.Generator) -> tuple[int, ...]:
        """Return the clients that are able to take part."""
        if self.gives_weights:
            return tuple(range(num_clients))
        number = max(1, round(self.available_fraction * num_clients))
        # The largest of log p plus Gumbel noise are draws without replacement in proportion to p.
        luck_K = self.log_weights(num_clients, rng) + rng.gumbel(size=num_clients)
        return tuple(np.sort(np.argsort(-luck_K)[:number]).tolist())

    def log_weights(self, num_clients: int, rng: np.random.Generator) -> NDArray[np.float64]:
        r"""Return log p, up to a constant.

        p is a vector of independent gamma variables over their sum, and :math:`G_\gamma = G_{\gamma + 1} U^{1 / \gamma}`.
        """
        draw = rng if self.redrawn else streams.stream(self.seed, "participation", num_clients)
        return np.log(draw.standard_gamma(self.gamma + 1, num_clients)) + np.log1p(-draw.random(num_clients)) / self.gamma


@dataclass(eq=False, kw_only=True)
class Dropouts(Participation):
    """Each client is away, and each selected client drops out, with fixed probabilities, independently.

    Args:
        away_probability: that a client is not available in a round, in [0, 1].
        dropout_probability: that a selected client is sent the model and never answers, in [0, 1].
    """

    away_probability: Annotated[float, Within("[0, 1]")] = 0.0
    dropout_probability: Annotated[float, Within("[0, 1]")] = 0.1

    def available(self, num_clients: int, rng: np.random.Generator) -> tuple[int, ...]:
        """Return the clients that are not away."""
        return tuple(np.flatnonzero(rng.random(num_clients) >= self.away_probability).tolist())

    def outcome(self, client_id: int, draw: Callable[[], np.random.Generator]) -> float:
        """Return 0 for a client that drops out, else 1."""
        return 0.0 if draw().random() < self.dropout_probability else 1.0


@dataclass(eq=False, kw_only=True)
class Stragglers(Participation):
    """A selected client is, with a fixed probability, too slow for all its steps and finishes a uniform part of them.

    Source: the partial work of Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020, arXiv:1812.06127,
    section 5.2, where a straggler's work is uniform between one unit and all of it.

    Args:
        straggler_probability: in [0, 1].
        min_fraction: the smallest part a straggler finishes, in (0, 1].
    """

    straggler_probability: Annotated[float, Within("[0, 1]")] = 0.5
    min_fraction: Annotated[float, Within("(0, 1]")] = 0.1

    def outcome(self, client_id: int, draw: Callable[[], np.random.Generator]) -> float:
        """Return the finished part of the steps."""
        straggles, fraction = draw().random(2).tolist()
        return self.min_fraction + (1 - self.min_fraction) * fraction if straggles < self.straggler_probability else 1.0
