"""The yaml files of a deployment: an operator's, and those that server and sites have agreed on."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml

from fedfacet.errors import ConfigError, first_line

Values = TypeVar("Values")


def table_of(file: Path) -> dict[str, Any]:
    """Return what a yaml file holds.

    Raises:
        ConfigError: if it is missing or holds no table.
    """
    try:
        table = yaml.safe_load(file.read_text(encoding="utf-8"))
        if not isinstance(table, dict):
            raise ValueError("it holds no table")
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"Expected a yaml file at {file}, but it cannot be read ({first_line(error)}): fix it.") from None
    return table


def made(of: type[Values], table: object, where: object) -> Values:
    """Make a dataclass of a table, whose keys are its fields.

    Raises:
        ConfigError: naming a key that is missing or not known, or a value that is refused.
    """
    if not isinstance(table, Mapping):
        raise ConfigError(f"Expected a table in {where}, but got {type(table).__name__}: see docs/deployment.md.")
    fields = {field.name: field for field in dataclasses.fields(of) if field.init}  # type: ignore[arg-type]
    nothing = dataclasses.MISSING
    needed = [name for name, field in fields.items() if field.default is nothing and field.default_factory is nothing]
    for fault, names in (("lacks", [n for n in needed if n not in table]), ("has", [n for n in table if n not in fields])):
        if names:
            raise ConfigError(f"Expected {where} to have the keys {', '.join(fields)}, but it {fault} `{names[0]}`: fix it.")
    try:
        return of(**table)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"Expected {where} to hold settings that go together, but got this: {first_line(error)}.") from None
