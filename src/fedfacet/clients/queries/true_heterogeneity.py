"""The true heterogeneity triplet, from attributes that a real client would not know."""

from fedfacet.clients.queries.base import Query, QueryContext
from fedfacet.clients.queries.counts import NoisyMatrix
from fedfacet.clients.queries.noise import TRIPLET
from fedfacet.types import Answer


class TrueHeterogeneity(NoisyMatrix, Query):
    """Ask for the triplet of the true interaction matrix: FedDiverse's ablation with known attributes.

    Source: FedDiverse (arXiv:2504.11216), table 4 (thesis, table 17), rows "known". Three floats leave the client.

    Args:
        epsilon: of Laplace noise on the counts that the triplet is computed of, as in ``NoisyMatrix``; ``None`` for none.
        noise_multiplier: of Gaussian noise on them, as in ``CountNoise``; an epsilon of the run counts this one.
        max_norm: of the counts, as in ``CountNoise``.
    """

    name = "heterogeneity"
    kind = "triplet"
    form = TRIPLET

    def answer(self, context: QueryContext) -> Answer:
        """Return [class imbalance, attribute imbalance, spurious correlation]."""
        return Answer(value=list(self.matrix(context).triplet), floats_up=3, samples=0)
