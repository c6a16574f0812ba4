"""Where a run's numbers come from: the machine and the versions, and the objects of a script as settings."""

import functools
import hashlib
import inspect
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence, Set
from enum import Enum
from importlib.metadata import version
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from torch import nn

from fedfacet import __version__

_LONGEST = 100
"""Entries of a list that settings show; of longer ones they have a digest."""

_DEEPEST = 4
"""So deep are objects within objects described."""


def facts_of(seed: int, settled: Mapping[str, Any], partition_digest: str, device: torch.device, engine: str) -> dict[str, Any]:
    """Return what a summary says about where a run's numbers come from."""
    on_gpu = device.type == "cuda"
    return {
        "seed": seed,
        "partition_digest": partition_digest,
        "engine": engine,
        "threads": torch.get_num_threads(),
        **{name: settled[name] for name in ("memory_format", "precision", "compile")},
        "hardware": {
            "device": torch.cuda.get_device_name(device) if on_gpu else platform.machine(),
            "cpu_count": os.cpu_count(),
            "cpu": _cpu(),
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),  # by which torch picks its kernels
            "system": platform.system(),
        },
        "versions": {"fedfacet": __version__, "python": platform.python_version()}
        | {name: version(name) for name in ("torch", "torchvision", "lightning", "numpy")},
        "git_commit": commit_of(Path(__file__)),
    }


def parameters_of(model: nn.Module) -> dict[str, int]:
    """Return how many parameters a model has, and how many of them are trained."""
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    return {"trainable": sum(size for size, trained in sizes if trained), "total": sum(size for size, _ in sizes)}


def _cpu() -> str:
    """Return which processor this is, by vendor, family and model where Linux tells: one of another family rounds otherwise."""
    try:
        first = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n", 1)[0]
    except OSError:
        return platform.processor()
    fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in first.splitlines())}
    known = [f"{name} {fields[name]}" for name in ("cpu family", "model") if name in fields]
    return ", ".join([fields.get("vendor_id", platform.machine()), *known])


@functools.cache
def commit_of(file: Path) -> str | None:
    """Return the commit of the checkout that a file lies in, with ``+`` where it has changes, or ``None``.

    It is asked for once, since what this process runs was read when it began. An installed package may lie in the checkout of
    another project, whose commit says nothing.
    """
    if not (file.parents[2] / ".git").exists():
        return None
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*"],
            cwd=file.parent,
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return described.stdout.strip()


def settings_of(part: Any, depth: int = 0) -> Any:
    """Return an object as settings: the name of its class, and its arguments as far as it keeps them as attributes.

    Example:
        >>> from fedfacet.aggregators.fedavg import FedAvg
        >>> settings_of(FedAvg(weighting="samples"))
        {'_target_': 'fedfacet.aggregators.fedavg.FedAvg', 'weighting': 'samples', 'buffers': 'average'}
        >>> settings_of(functools.partial(torch.optim.SGD, lr=0.1))
        {'_target_': 'torch.optim.sgd.SGD', '_partial_': True, 'lr': 0.1}
    """
    if isinstance(part, np.generic | Enum):
        part = part.item() if isinstance(part, np.generic) else part.name
    if part is None or isinstance(part, bool | int | float):
        return "nan" if part != part else part  # which equals nothing, not even itself
    if isinstance(part, str | Path):
        return str(part).replace("${", "$ {")  # which would be a reference to other settings
    if isinstance(part, torch.Tensor | np.ndarray):
        array = np.ascontiguousarray(part.detach().cpu().numpy() if isinstance(part, torch.Tensor) else part)
        return f"{array.dtype}{array.shape} {hashlib.sha256(array.tobytes()).hexdigest()[:12]}"
    if isinstance(part, functools.partial):
        arguments = {str(position): value for position, value in enumerate(part.args)} | part.keywords
        return {"_target_": _name(part.func), "_partial_": True, **_each(arguments, depth)}
    if isinstance(part, Mapping):
        return _each(part, depth)
    if isinstance(part, Sequence | Set):
        entries = [settings_of(one, depth + 1) for one in (sorted(part, key=str) if isinstance(part, Set) else part)]
        return entries if len(entries) <= _LONGEST else f"{len(entries)} entries {_digest(entries)}"
    if isinstance(part, type) or inspect.isroutine(part):
        return _name(part)
    known = dict(part.hparams) if isinstance(part, L.LightningModule) else {}
    try:
        names = list(inspect.signature(type(part)).parameters)
    except (TypeError, ValueError):  # of C
        names = []
    for name in names if depth < _DEEPEST else ():
        if (attribute := next((one for one in (name, f"_{name}") if one in _held_by(part)), None)) is not None:
            known.setdefault(name, getattr(part, attribute))
    # Samples have digests of their own, and networks the shapes of their weights.
    known = {key: value for key, value in known.items() if not (_is_of_data(value) or isinstance(value, nn.Module))}
    return {"_target_": _name(type(part)), **_each(known, depth)}


def settings_of_optimizer(made: Any) -> Any:
    """Return the class and the arguments of an optimizer, or of the first in what ``configure_optimizers`` returns."""
    while isinstance(made, Sequence | Mapping) and made:
        made = made.get("optimizer") if isinstance(made, Mapping) else made[0]
    if not isinstance(made, torch.optim.Optimizer):
        return {"_target_": _name(type(made))}
    return {"_target_": _name(type(made)), **_each(made.defaults, 1)}


def _each(values: Mapping[Any, Any], depth: int) -> dict[str, Any]:
    return {str(key): settings_of(value, depth + 1) for key, value in values.items()}


def _held_by(part: Any) -> Set[str]:
    slots = {name for kind in type(part).__mro__ for name in getattr(kind, "__slots__", ())}
    return {*getattr(part, "__dict__", {}), *(name for name in slots if hasattr(part, name))}


def _is_of_data(value: Any) -> bool:
    return type(value).__module__.startswith("fedfacet.data.")


def _name(kind: Any) -> str:
    return f"{getattr(kind, '__module__', '')}.{getattr(kind, '__qualname__', type(kind).__qualname__)}"


def _digest(entries: Sequence[Any]) -> str:
    return hashlib.sha256(repr(entries).encode()).hexdigest()[:12]
