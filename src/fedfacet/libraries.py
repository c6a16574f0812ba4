"""torch and lightning, loaded in half of the time: importing this module before them is all that there is to do.

They make so many objects that are there to stay that Python's searches for garbage among them take a second. Here these rest
while the libraries load; afterwards what was left is exempt from them (``gc.freeze``) until the process ends.

Lightning needs two classes of torchmetrics. The package would load transformers, torchvision, scipy.signal and matplotlib for
others; so its ``__init__`` runs when somebody asks for one of these, and then with everything that it finds installed.
"""

import atexit
import gc
import importlib
import importlib.machinery
import logging
import sys
import threading
from collections.abc import Sequence
from types import ModuleType
from typing import Any

_alone = threading.RLock()


class _Deferred(ModuleType):
    """A module that is executed once somebody asks for a name that it does not have yet."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__all__":  # which Python and debuggers look for
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        with _alone:
            if type(self) is _Deferred:
                self.__class__ = ModuleType  # type: ignore[assignment]
                spec: Any = self.__spec__
                spec.loader.exec_module(self)
        return getattr(self, name)


def _deferred(name: str, within: Sequence[str] | None = None, **known: Any) -> _Deferred:
    """Have a module imported without being executed, with the names that it is known by until then.

    Args:
        name: of the module.
        within: the folders of its package.
        known: the names.
    """
    spec = importlib.machinery.PathFinder.find_spec(name, within)
    if spec is None:
        raise ImportError(name)
    module = _Deferred(name)
    facts = {"spec": spec, "loader": spec.loader, "file": spec.origin, "cached": spec.cached, "package": spec.parent}
    vars(module).update({f"__{name}__": fact for name, fact in facts.items()}, **known)
    if spec.submodule_search_locations is not None:
        module.__path__ = spec.submodule_search_locations
    sys.modules[name] = module
    return module


def _plot(*given: Any, **named: Any) -> Any:
    """Draw as torchmetrics does; matplotlib loads here."""
    module = sys.modules["torchmetrics.utilities.plot"]
    hasattr(module, "plot_curve")  # a name that it has once it is executed
    return module.plot_single_or_multi_val(*given, **named)


def _defer_torchmetrics() -> None:
    """Load of torchmetrics what Lightning asks for; where that does not lead to it, all of it loads, as without this."""
    try:
        package: Any = _deferred("torchmetrics", _logger=logging.getLogger("torchmetrics"))
        package.__version__ = importlib.import_module("torchmetrics.__about__").__version__
        plot = _deferred(
            "torchmetrics.utilities.plot",
            [f"{folder}/utilities" for folder in package.__path__],
            _AX_TYPE=object,
            _PLOT_OUT_TYPE=object,
            plot_single_or_multi_val=_plot,
        )
        package.utilities = importlib.import_module("torchmetrics.utilities")
        package.utilities.plot = plot
        package.Metric = importlib.import_module("torchmetrics.metric").Metric
        package.MetricCollection = importlib.import_module("torchmetrics.collections").MetricCollection
        package.functional = _deferred("torchmetrics.functional", package.__path__)
    except (ImportError, AttributeError):
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchmetrics"]:
            del sys.modules[name]


def _let_go() -> None:
    """Exempt nothing more, but search no oftener than the interpreter must when it ends.

    Triton, which torch loads, would report as leaked what is never collected.
    """
    gc.unfreeze()
    gc.disable()


_was_enabled = gc.isenabled()
gc.disable()
try:
    import torch  # noqa: F401

    if not {"torchmetrics", "lightning"} & sys.modules.keys():
        _defer_torchmetrics()
    import lightning  # noqa: F401
finally:
    gc.freeze()
    atexit.register(_let_go)
    if _was_enabled:
        gc.enable()
