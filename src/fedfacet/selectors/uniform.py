"""Uniform random selection."""

from fedfacet.selectors.base import ClientSelector
from fedfacet.types import SelectionContext


class UniformSelector(ClientSelector):
    """Every set of available clients is equally likely, without replacement (McMahan et al., arXiv:1602.05629)."""

    def select(self, context: SelectionContext) -> list[int]:
        """Return a uniform sample of the available clients."""
        return [int(k) for k in context.rng.choice(context.available, size=self.cohort_size(context), replace=False)]
