"""FedFacet: heterogeneity in federated learning, one Hydra option per method.

``fedfacet.train("selector=uniform")`` trains and returns a ``Run``, ``fedfacet.load_run(folder)`` returns that of a folder. The
other public names live in their rooms (``fedfacet.selectors.feddiverse``, ``fedfacet.objectives.classification``, ...), so that
importing the package costs nothing that is not used. ``fedfacet.federation`` is the file to read first.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedfacet.runs.run import Run as Run
    from fedfacet.runs.run import load_run as load_run
    from fedfacet.runs.run import train as train

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Load what the package offers itself, once it is asked for."""
    if name not in ("Run", "load_run", "train"):
        raise AttributeError(f"module 'fedfacet' has no attribute {name!r}")
    from fedfacet.runs import run

    return getattr(run, name)
