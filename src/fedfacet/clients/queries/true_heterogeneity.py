"""The true heterogeneity triplet, from attributes that a real client would not know."""

from fedfacet.clients.queries.base import Query, QueryContext
from fedfacet.types import Answer


class TrueHeterogeneity(Query):
    """Ask for the triplet of the true interaction matrix: FedDiverse's ablation with known attributes.

    Source: FedDiverse (arXiv:2504.11216), table 7 (thesis, table 17), rows "known". Three floats leave the client.
    """

    name = "heterogeneity"
    needs_model = False

    def answer(self, context: QueryContext) -> Answer:
        """Return [class imbalance, attribute imbalance, spurious correlation]."""
        return Answer(value=list(context.data.interaction_matrix.triplet), floats_up=3, samples=0)
