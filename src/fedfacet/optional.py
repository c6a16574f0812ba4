"""Packages that only some options need."""

import importlib
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from fedfacet.errors import ConfigError

if TYPE_CHECKING:
    from pandas import DataFrame


def required(package: str, *, extra: str, wanted_by: str) -> ModuleType:
    """Import a package that is an optional dependency.

    Args:
        package: its name.
        extra: of fedfacet, which installs it.
        wanted_by: what needs it, for the message.

    Raises:
        ConfigError: if it is not installed, or lacks something itself.

    Example:
        >>> required("no_such_package", extra="timm", wanted_by="model=timm")
        Traceback (most recent call last):
        fedfacet.errors.ConfigError: Expected the package no_such_package for model=timm, but it cannot be imported (No module
        named 'no_such_package'): run `pip install "fedfacet[timm]"`, or `pip install -e ".[timm]"` in a clone.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ConfigError(
            f"Expected the package {package} for {wanted_by}, but it cannot be imported ({error}): run `pip install "
            f'"fedfacet[{extra}]"`, or `pip install -e ".[{extra}]"` in a clone.'
        ) from None


def frame_of(rows: Sequence[Mapping[str, Any]]) -> "DataFrame":
    """Return the rows of a run as a ``pandas.DataFrame``, one row a round, with the rounds as its index.

    Raises:
        ConfigError: if pandas is not installed.
    """
    pandas = required("pandas", extra="pandas", wanted_by="a DataFrame (`metrics` has the same rows as dicts)")
    frame = pandas.DataFrame(list(rows))
    return frame.set_index("round") if len(frame) else frame
