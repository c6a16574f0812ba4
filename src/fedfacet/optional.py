"""Packages that only some options need."""

import importlib
from types import ModuleType

from fedfacet.errors import ConfigError


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
