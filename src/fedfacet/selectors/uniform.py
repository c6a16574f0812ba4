"""Uniform random selection."""

from fedfacet import rng
from fedfacet.selectors.base import ClientSelector, Taxonomy
from fedfacet.types import WEIGHTED_DRAWS, SelectionContext, ServerState


class UniformSelector(ClientSelector):
    """Every set of available clients is equally likely, without replacement (McMahan et al., arXiv:1602.05629).

    Where ``participation=`` gives clients weights, each next one is drawn in proportion to them.
    """

    taxonomy = Taxonomy("selection fairness", "VRT", ("θ",), "-", "probability", "-")  # EqRep of the thesis' table 4

    provides = frozenset({WEIGHTED_DRAWS})

    def select(self, server: ServerState, context: SelectionContext) -> list[int]:
        """Return a sample of the available clients."""
        return rng.draw(context.rng, context.available, context.num_slots, context.log_weights)
