"""Full participation."""

from fedfacet.selectors.base import ClientSelector
from fedfacet.types import SelectionContext


class AllSelector(ClientSelector):
    """Every available client takes part in every round; ``federation.cohort_size`` does not apply."""

    def cohort_size(self, context: SelectionContext) -> int:
        """Return the number of available clients."""
        return len(context.available)

    def select(self, context: SelectionContext) -> list[int]:
        """Return all available clients."""
        return list(context.available)
