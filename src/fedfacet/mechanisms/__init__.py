"""The mechanisms of a round, each in a file: see ``fedfacet.round``."""
