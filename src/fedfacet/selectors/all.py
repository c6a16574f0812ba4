"""Full participation."""

from fedfacet.selectors.base import ClientSelector, Taxonomy
from fedfacet.types import SelectionContext, ServerState


class AllSelector(ClientSelector):
    """Every available client takes part in every round; ``federation.cohort_size`` does not apply."""

    taxonomy = Taxonomy("selection fairness", "VRT", ("θ",), "-", "all", "-")

    takes_all = True

    def select(self, server: ServerState, context: SelectionContext) -> list[int]:
        """Return all available clients."""
        return list(context.available)
