"""FedFacet: heterogeneity in federated learning, one Hydra option per method.

The public names live in their rooms (``fedfacet.selectors.feddiverse``, ``fedfacet.objectives.classification``, ...), so
that importing the package costs nothing that is not used. ``fedfacet.federation`` is the file to read first.
"""

__version__ = "0.1.0"
