"""Clients of which some take part far more often than others."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedfacet import rng as streams
from fedfacet.arguments import check_choice, check_within
from fedfacet.participation.base import Participation
from fedfacet.types import WEIGHTED_DRAWS


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

    gamma: float = 0.5
    redrawn: bool = False
    mode: str = "available"
    available_fraction: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        check_within("participation.gamma", self.gamma, "(0, 1e9]")
        check_choice("participation.mode", self.mode, ("available", "weights"))
        check_within("participation.available_fraction", self.available_fraction, "(0, 1]")
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
