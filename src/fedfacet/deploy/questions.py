"""Queries on their way to a site: a class by its name, and plain arguments. A site looks the name up in its own FedFacet."""

import functools
import importlib
import inspect
import json
import pkgutil
from typing import Any

from fedfacet import methods
from fedfacet.clients import queries
from fedfacet.errors import ConfigError
from fedfacet.query import Query


@functools.cache
def known_queries() -> dict[str, type[Query]]:
    """Return the queries that there are, by the names of their classes."""
    modules = [
        importlib.import_module(f"{package.__name__}.{module.name}")
        for package in (queries, methods)
        for module in pkgutil.iter_modules(package.__path__)
    ]
    return {
        name: kind
        for module in modules
        for name, kind in vars(module).items()
        if inspect.isclass(kind) and issubclass(kind, Query) and kind.__module__ == module.__name__
    }


def to_plain(query: Any) -> dict[str, Any]:
    """Return a query as JSON.

    Raises:
        ConfigError: if its name and its arguments do not say all of it.
    """
    kind = type(query)
    arguments = {name: getattr(query, name, None) for name in inspect.signature(kind).parameters}
    plain = {"name": kind.__name__, "arguments": arguments}
    try:
        if known_queries().get(kind.__name__) is kind and vars(from_plain(json.loads(json.dumps(plain)))) == vars(query):
            return plain
    except (ConfigError, TypeError, ValueError):
        pass
    raise ConfigError(
        f"Expected a query of FedFacet's own whose arguments say all of it, but {kind.__name__} is none: choose another "
        "selector or aggregator for a federation of real sites."
    )


def from_plain(plain: Any) -> Query:
    """Return the query that a message tells of.

    Raises:
        ConfigError: if there is none of that name, or if it refuses its arguments.
    """
    try:
        kind, arguments = known_queries()[plain["name"]], dict(plain["arguments"])
        return kind(**arguments)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"Expected a query that this FedFacet has, but got {plain!r} ({error}).") from None
