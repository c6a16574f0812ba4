"""FedFacet: heterogeneity in federated learning, one Hydra option per method.

``fedfacet.train("selector=uniform")`` trains and returns a ``Run``, ``fedfacet.load_run(folder)`` returns that of a folder, and
``fedfacet.federate(...)`` makes a federation of real objects. ``dir(fedfacet)`` and ``__init__.pyi`` list the public names.
Importing the package costs nothing that is not used. ``fedfacet.round`` is the file to read first.
"""

import functools
import importlib
from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Load a public name from its module, once it is asked for."""
    if name not in _listed():
        raise AttributeError(f"module 'fedfacet' has no attribute {name!r}")
    return getattr(importlib.import_module(_listed()[name]), name)


def __dir__() -> list[str]:
    """List the public names."""
    return sorted({"__version__", *_listed()})


@functools.cache
def _listed() -> dict[str, str]:
    """Return public name -> module, read from the stub that type checkers read too."""
    import ast  # late: what is slow to import must not come before a command has its signals
    from pathlib import Path

    stub = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}
