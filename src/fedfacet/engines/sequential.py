"""The reference engine."""

from fedfacet.engines.base import Engine


class SequentialEngine(Engine):
    """Run the clients one after another."""
