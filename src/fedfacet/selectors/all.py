"""Full participation."""

from types import MappingProxyType

from fedfacet.selectors.base import ClientSelector, Taxonomy
from fedfacet.types import ASYNCHRONOUS, OVERCOMMIT, SelectionContext, ServerState


class AllSelector(ClientSelector):
    """Every available client takes part in every round; ``federation.cohort_size`` does not apply."""

    taxonomy = Taxonomy("selection fairness", "VRT", ("θ",), "-", "all", "-")

    excludes = MappingProxyType(
        {
            OVERCOMMIT: "asks all: choose another one, such as uniform, or devices.overcommit=1",
            ASYNCHRONOUS: "asks all: choose another one, such as uniform",
        }
    )

    def select(self, server: ServerState, context: SelectionContext) -> list[int]:
        """Return all available clients."""
        return list(context.available)
