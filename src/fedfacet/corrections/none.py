"""No correction."""

from fedfacet.corrections.base import Correction


class NoCorrection(Correction):
    """The loss as it is."""
