"""All selectors in the taxonomy of client selection: the thesis' table 4 for what there is."""

from collections.abc import Mapping
from typing import Any

from fedfacet.analysis.terminal import TextTable
from fedfacet.selectors.base import CHARACTERISTICS


def tables_of(taxonomies: Mapping[str, Mapping[str, Any]]) -> list[TextTable]:
    """Return the table of the fields of ``Taxonomy``, a row per selector."""
    columns = (
        *("selector", "policy", "client", "shared information"),
        *("value generation", "value interpretation", "termination condition"),
    )
    rows = [
        [name, *(", ".join(field) if isinstance(field, tuple) else field for field in fields.values())]
        for name, fields in taxonomies.items()
    ]
    return [TextTable("Selectors in the taxonomy of client selection (thesis, table 4)", columns, rows, words=True)]


def remarks() -> list[str]:
    """Return how to read the table."""
    letters = ", ".join(f"{letter} {meaning}" for letter, meaning in CHARACTERISTICS.items())
    return [
        f"client: what the method as published requires of clients: {letters}.",
        "θ: weights, |D|: number of samples. Here every run ends after federation.rounds.",
    ]
