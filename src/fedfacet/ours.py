"""Which parts are the package's own, or a library's, and which the user's."""

import inspect


def is_ours(part: object) -> bool:
    """Tell whether a part's class is of this package, whose tests hold it to its contract, or somebody else's."""
    return type(part).__module__.startswith("fedfacet.")


_DRAW_BY_TORCH = {"fedfacet", "torch", "torchvision", "timm", "peft", "lightning"}


def draws_by_torch(part: object) -> bool:
    """Tell whether a function or an object is known to draw from torch's generators alone; a user's own may use others."""
    function = getattr(part, "func", part)
    module = getattr(function, "__module__", None) if inspect.isroutine(function) else type(part).__module__
    return str(module).partition(".")[0] in _DRAW_BY_TORCH
