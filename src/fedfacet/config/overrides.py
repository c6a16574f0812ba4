"""Overrides read off a command line, and written for one."""

import functools
from collections.abc import Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException


@functools.lru_cache(maxsize=4096)
def parsed(override: str) -> Override:
    """Return an override as Hydra reads it; not to be changed.

    Raises:
        HydraException: if it is none.
    """
    try:
        return OverridesParser.create().parse_override(override)
    except RecursionError:
        raise HydraException(f"{override[:40]}... is nested too deeply") from None


def override_of(key: str, value: object) -> str:
    """Return the override from which Hydra reads a value as it is, quoted only where it must be."""
    text = str(value)
    try:
        read = parsed(f"{key}={text}")
        if not read.is_sweep_override() and read.value() == text:
            return f"{key}={text}"
    except HydraException:
        pass
    escaped = text.replace("'", "\\'")
    return f"{key}='{escaped}'"


def value_of(key: str, overrides: Sequence[str]) -> str | None:
    """Return the value that a command line gives a key, without quotes; ``None`` where it gives none, or null."""
    given = [override for override in overrides if override.startswith(f"{key}=")]
    try:
        read = [parsed(override) for override in given]
    except HydraException:
        return None  # compose_job says what is wrong
    values = [override.value() for override in read if not override.is_sweep_override()]
    return str(values[-1]) if values and values[-1] not in (None, "") else None
