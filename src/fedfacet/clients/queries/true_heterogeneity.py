"""The true heterogeneity triplet, from attributes that a real client would not know."""

from fedfacet.clients.queries.base import Query, QueryContext
from fedfacet.clients.queries.counts import checked_epsilon, noisy_matrix
from fedfacet.clients.queries.noise import TRIPLET, CountNoise
from fedfacet.types import Answer


class TrueHeterogeneity(Query):
    """Ask for the triplet of the true interaction matrix: FedDiverse's ablation with known attributes.

    Source: FedDiverse (arXiv:2504.11216), table 7 (thesis, table 17), rows "known". Three floats leave the client.

    Args:
        epsilon: of Laplace noise on the counts that the triplet is computed of, as in ``noisy_matrix``; ``None`` for none.
        noise_multiplier: of Gaussian noise on them, as in ``CountNoise``; an epsilon of the run counts this one.
        max_norm: of the counts, as in ``CountNoise``.
    """

    name = "heterogeneity"
    kind = "triplet"
    form = TRIPLET
    reads = frozenset({"y", "a"})
    needs_model = False

    def __init__(
        self, *, epsilon: float | None = None, noise_multiplier: float | None = None, max_norm: float | None = None
    ) -> None:
        self.epsilon = checked_epsilon(epsilon, noise_multiplier)
        self.noise = CountNoise(noise_multiplier, max_norm)

    def counted(self, unit: str) -> float | None:
        """Return the noise multiplier of the counts; see ``Query.counted``."""
        return self.noise.counted(unit)

    def answer(self, context: QueryContext) -> Answer:
        """Return [class imbalance, attribute imbalance, spurious correlation]."""
        return Answer(value=list(noisy_matrix(context, self.epsilon, self.noise, self.name).triplet), floats_up=3, samples=0)
