"""Which parts are the package's own, or a library's, and which the user's."""

import builtins
import dis
import inspect
import types
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn


def is_builtin(part: object) -> bool:
    """Tell whether a part's class is of this package, whose tests hold it to its contract, or somebody else's."""
    return type(part).__module__.startswith("fedfacet.")


_LIBRARIES = {"fedfacet", "torch", "torchvision", "timm", "peft", "lightning"}
"""Packages whose layers and functions draw from torch's generators alone, and whose layers keep no state in attributes."""

_HARMLESS = {"builtins", "math", "torch", "typing", "fedfacet"}
"""Packages of which code may name anything without drawing from numpy's or Python's generators."""

_READS_NAMES = {"__import__", "compile", "eval", "exec", "getattr", "globals", "vars"}
_PLAIN = (bool, int, float, complex, str, bytes, type(None), Tensor)


def of_library(part: object) -> bool:
    """Tell whether a function or an object is of this package or of a library that it knows."""
    function = getattr(part, "func", part)
    return _package(function if inspect.isroutine(function) else type(part)) in _LIBRARIES


def draws_by_torch(part: object) -> bool:
    """Tell whether a function or a module is known to draw from torch's generators alone.

    A user's own is if all code that it holds or inherits names nothing but torch, plain values and other such code. Its
    registered submodules are judged by themselves.
    """
    if not of_library(part):
        return _leads_nowhere(part, set())
    hooks = (part._forward_hooks, part._forward_pre_hooks, part._backward_hooks) if isinstance(part, nn.Module) else ()
    return _leads_nowhere(hooks, set())  # which the user may have registered


def _package(value: object) -> str:
    """Return the package of a module, a class or a routine."""
    name = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
    return str(name).partition(".")[0]


def _leads_nowhere(value: object, seen: set[int]) -> bool:
    """Tell whether what an attribute, a default or a name in code stands for leads to no generators but torch's."""
    if isinstance(value, _PLAIN) or id(value) in seen:
        return True
    seen.add(id(value))
    inside: Iterable[Any]
    if isinstance(value, Mapping | list | tuple | set | frozenset):
        inside = value.values() if isinstance(value, Mapping) else value
    elif isinstance(value, nn.Module):
        kinds = [kind for kind in type(value).__mro__ if _package(kind) not in _LIBRARIES | {"builtins"}]
        inside = [vars(value), *(used for kind in kinds for name, used in vars(kind).items() if name != "__init__")]
    elif isinstance(value, staticmethod | classmethod | types.MethodType):
        inside = [value.__func__]
    elif isinstance(value, property):
        inside = [value.fget, value.fset]
    elif isinstance(value, types.FunctionType) and _package(value) not in _HARMLESS:
        inside = _named_in(value)
    elif isinstance(value, types.ModuleType | type) or inspect.isroutine(value):
        return _package(value) in _HARMLESS
    else:
        return _package(type(value)) in _HARMLESS - {"builtins"}
    return all(_leads_nowhere(one, seen) for one in inside)


def _named_in(function: types.FunctionType) -> list[object]:
    """Return all that a function may use beside its arguments; what it imports or looks up by name is an unknown object."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    used: list[Any] = [function.__defaults__, function.__kwdefaults__]
    used += [cell.cell_contents for name, cell in cells if name != "__class__"]
    codes = [function.__code__]
    for code in codes:
        codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
        for step in dis.get_instructions(code):
            if step.opname.startswith("IMPORT") or step.argval in _READS_NAMES:
                used.append(object())
            elif step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                used.append(function.__globals__.get(step.argval, getattr(builtins, step.argval, None)))
    return used
