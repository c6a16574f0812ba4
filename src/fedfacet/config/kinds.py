"""What a ``_target_`` of a configuration may name."""

import difflib
import importlib
import inspect
import sys
from typing import Any

from hydra.utils import get_object

from fedfacet.errors import ConfigError, fault_of

KINDS = {
    "dataset": "fedfacet.data.source.DatasetSource",
    "partition": "fedfacet.partitioners.base.Partitioner",
    "model": "torch.nn.Module",
    "adapter": "fedfacet.adapters.Adapter",
    "objective": "lightning.LightningModule",
    "correction": "fedfacet.corrections.Correction",
    "personal": "fedfacet.personal.PersonalLayers",
    "optimizer": "torch.optim.Optimizer",
    "scheduler": "fedfacet.schedulers.Scheduler",
    "disclosure": "fedfacet.privacy.disclosure.DisclosurePolicy",
    "server_data": "fedfacet.data.validation_of_server.ValidationOfServer",
    "privacy": "fedfacet.privacy.base.Privacy",
    "local": "fedfacet.clients.local_training.LocalTraining",
    "heterogeneity": "fedfacet.query.Query",
    "selector": "fedfacet.selectors.base.ClientSelector",
    "aggregator": "fedfacet.aggregators.base.Aggregator",
    "participation": "fedfacet.participation.Participation",
    "devices": "fedfacet.devices.base.Devices",
    "termination": "fedfacet.termination.Termination",
    "capacity": "fedfacet.capacities.Capacity",
    "submodel": "fedfacet.submodels.base.Submodel",
    "engine": "fedfacet.engines.base.Engine",
    "mechanisms.*": "fedfacet.mechanism.Mechanism",
    "transforms.*": "fedfacet.transforms.UpdateTransform",
    "callbacks.*": "fedfacet.callbacks.base.Callback",
    "logger.*": "fedfacet.callbacks.base.Callback",
    "deploy": "fedfacet.deploy.transport.Transport",
    "attack.*": "fedfacet.attacks.Attack",
}
"""Part of the configuration -> the class that its target is derived from."""

MADE_BY_FUNCTIONS = ("model", "objective", "dataset", "partition")
"""Parts that a function may make, such as ``torchvision.models.resnet18``; what it returns is seen when it is called."""


def find_target(path: str, name: Any) -> Any:
    """Return the class or function that a ``_target_`` names, if it may stand there.

    Nothing of Python's own library may: no part is of it, and some of it acts when it is called.

    Args:
        path: of the node in the configuration.
        name: its ``_target_``.

    Raises:
        ConfigError: saying what was expected.
    """
    if not isinstance(name, str) or "." not in name or name.partition(".")[0] in sys.stdlib_module_names:
        raise ConfigError(
            f"Expected `{path}._target_` to name a class or function of a module, such as my_module.MyClass, but got {name!r}: "
            "fix the name."
        )
    if fault := _fault_of(name):
        raise ConfigError(f"Expected `{path}._target_` to name a class or function, but got {name!r}: {fault}.")
    target = get_object(name)
    kind = KINDS.get(path) or KINDS.get(f"{path.rpartition('.')[0]}.*")
    if kind is not None and not (path in MADE_BY_FUNCTIONS and inspect.isfunction(target)):
        if not (inspect.isclass(target) and issubclass(target, get_object(kind))):
            raise ConfigError(f"Expected `{path}._target_` to name a class derived from {kind}, but got {name}: fix the name.")
        if inspect.isabstract(target):
            raise ConfigError(f"Expected `{path}._target_` to name a class with all methods, but got {name}: fix the name.")
    if path == "loss" and (not callable(target) or inspect.isclass(target) or str(name).startswith("torch.")):
        raise ConfigError(
            f"Expected `loss._target_` to name a function of logits and a batch, but got {name}: write one that calls it with "
            "batch.y."
        )
    return target


def _fault_of(name: str) -> str:
    """Return why a dotted name leads nowhere, and what to do about it; nothing where it leads somewhere."""
    parts = name.split(".")
    found: Any = None
    for length, part in enumerate(parts, start=1):
        whole = ".".join(parts[:length])
        if found is not None and hasattr(found, part):
            found = getattr(found, part)
            continue
        if found is not None and not inspect.ismodule(found):
            return f"{whole.rpartition('.')[0]} has no `{part}`: fix the name"
        try:
            found = importlib.import_module(whole)
        except ModuleNotFoundError as error:
            if error.name != whole:
                return f"{whole} needs the module {error.name}, which is not installed: install the package that has it"
            if found is None:
                return (
                    f"Python finds no module {whole}: install the package that has it, put the folder that holds {whole}.py on "
                    "PYTHONPATH, or fix the name"
                )
            nearest = ", ".join(difflib.get_close_matches(part, dir(found), 3))
            return f"{found.__name__} has no `{part}`{f', the nearest are {nearest}' if nearest else ''}: fix the name"
        except Exception as error:  # whatever a module may raise when it is imported
            return f"{whole} cannot be imported ({fault_of(error)}): fix the module"
    return ""
