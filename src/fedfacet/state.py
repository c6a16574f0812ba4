"""Arithmetic on named bundles of tensors."""

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedfacet.errors import BadUpdateError
from fedfacet.types import State

_BLOCK = 1 << 16
"""Entries of a tensor that are multiplied at a time."""

_LARGEST_PRODUCT = 1e150
"""Far beyond what float32 entries come to, and small enough to be squared."""


def subtract(left: State, right: State) -> State:
    """Return ``left - right`` for the names of ``left``."""
    if not left:
        return {}
    return dict(zip(left, torch._foreach_sub(list(left.values()), [right[name] for name in left]), strict=True))


def add(left: State, right: State, *, scale: float = 1.0) -> State:
    """Return ``left + scale * right``; names that ``right`` lacks keep their tensor."""
    names = [name for name in left if name in right]
    if not names:  # the foreach kernels refuse empty lists
        return dict(left)
    scale = _scale(scale, left[names[0]])
    sums = torch._foreach_add([left[name] for name in names], [right[name] for name in names], alpha=scale)
    return {**left, **dict(zip(names, sums, strict=True))}


def scaled(bundle: State, factor: float) -> State:
    """Return ``factor * bundle``."""
    return dict(zip(bundle, torch._foreach_mul(list(bundle.values()), factor), strict=True)) if bundle else {}


def weighted_mean(bundles: Iterable[tuple[State, float]]) -> State:
    r"""Return :math:`\sum_i w_i b_i / \sum_i w_i`, adding up in the order given, without keeping the bundles.

    Args:
        bundles: pairs of a bundle and its weight; all bundles have the same names; the weights are positive.

    Returns:
        The mean, in the dtype of the first bundle; empty where no bundle came.
    """
    names: list[str] = []
    totals: list[Tensor] = []
    total_weight = 0.0
    for bundle, weight in bundles:
        if not totals:
            names = list(bundle)
            totals = list(torch._foreach_mul(list(bundle.values()), weight)) if names else []
        elif names:
            torch._foreach_add_(totals, [bundle[name] for name in names], alpha=weight)
        total_weight += weight
    if totals:
        torch._foreach_div_(totals, total_weight)
    return dict(zip(names, totals, strict=True))


def gram(bundles: Sequence[State]) -> NDArray[np.float64]:
    r"""Return the inner products :math:`\langle b_i, b_j \rangle` over all entries, shape (m, m), summed in float64.

    Args:
        bundles: m bundles of the same names and shapes.

    Raises:
        BadUpdateError: if a product is so large that arithmetic with it would overflow; float32 entries never are.
    """
    products = np.zeros((len(bundles), len(bundles)))
    for name in bundles[0]:
        flat = [bundle[name].reshape(-1) for bundle in bundles]
        for start in range(0, len(flat[0]), _BLOCK):  # never a copy of all bundles at once
            rows = torch.stack([entries[start : start + _BLOCK] for entries in flat]).double()
            with np.errstate(over="ignore", invalid="ignore"):
                products += (rows @ rows.T).numpy()
    if not np.abs(products).max(initial=0.0) <= _LARGEST_PRODUCT:
        raise BadUpdateError(
            f"Expected updates with inner products of at most {_LARGEST_PRODUCT:g}, but theirs are larger: lower the clients' "
            "learning rate."
        )
    return products


def combination(bundles: Sequence[State], coefficients: Iterable[float]) -> State:
    r"""Return :math:`\sum_i c_i b_i`, adding up in the order given.

    Args:
        bundles: one or more of the same names and shapes.
        coefficients: one per bundle, of any sign.
    """
    names = list(bundles[0])
    if not names:  # the foreach kernels refuse empty lists
        return {}
    first, *others = zip(bundles, map(float, coefficients), strict=True)
    totals = torch._foreach_mul([first[0][name] for name in names], first[1])
    for bundle, coefficient in others:
        torch._foreach_add_(totals, [bundle[name] for name in names], alpha=_scale(coefficient, totals[0]))
    return dict(zip(names, totals, strict=True))


def num_floats(bundle: State) -> int:
    """Return how many floating-point numbers a bundle holds."""
    return sum(tensor.numel() for tensor in bundle.values() if tensor.is_floating_point())


def all_finite(bundle: State) -> bool:
    """Tell whether no entry is NaN or infinite."""
    for tensor in bundle.values():
        # A sum of squares costs one pass without a temporary tensor; it is finite only if every entry is, and where it is not,
        # large entries may be the reason.
        if tensor.dtype in (torch.float32, torch.float64):
            flat = tensor.reshape(-1)
            if math.isfinite(torch.dot(flat, flat).item()):
                continue
        if tensor.is_floating_point() and not tensor.isfinite().all():
            return False
    return True


class FiniteCheck:
    """Tells whether bundles are finite; what many small tensors are views of is looked at once."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[Tensor, int]] = {}

    def __call__(self, bundle: State) -> bool:
        """Tell whether no entry of a bundle is NaN or infinite."""
        for name, tensor in bundle.items():
            base = tensor._base
            if base is None:
                if not all_finite({name: tensor}):
                    return False
                continue
            seen, version = self._seen.get(name, (None, 0))
            if seen is base and version == base._version:  # nobody has written to it since
                continue
            if all_finite({name: base}):
                self._seen[name] = base, base._version
            elif not all_finite({name: tensor}):
                return False
        return True


def misfit(what: str, bundle: object, expected: Mapping[str, Tensor], *, others: bool = False) -> str | None:
    """Say how a bundle that came from elsewhere differs from the names, shapes and dtypes of another; ``None`` if it does not.

    Args:
        what: the bundle's name, for the answer.
        bundle: what came; only a mapping of names to dense tensors can pass.
        expected: what its tensors must be like.
        others: whether it may hold tensors of other names besides.
    """
    if not isinstance(bundle, Mapping) or not all(isinstance(name, str) for name in bundle):
        return f"its {what} is {type(bundle).__name__} instead of tensors by name"
    if lacking := expected.keys() - bundle.keys():
        return f"its {what} lacks {min(lacking)!r}"
    for name, tensor in bundle.items():
        if not _is_plain(tensor):
            return f"{name!r} in its {what} is no dense tensor of real numbers, detached and with memory of its own"
        if name in expected:
            like = expected[name]
            if tensor.shape != like.shape:
                return f"{name!r} in its {what} has shape {tuple(tensor.shape)} instead of {tuple(like.shape)}"
            if tensor.dtype != like.dtype or tensor.device != like.device:
                return f"{name!r} in its {what} is {tensor.dtype} on {tensor.device} instead of {like.dtype} on {like.device}"
        elif not others:
            return f"its {what} holds {name!r}, which it must not"
    return None


def _is_plain(value: object) -> bool:
    """Tell whether all arithmetic in this project takes a value as a tensor."""
    return (
        isinstance(value, Tensor)
        and value.layout == torch.strided
        and not (value.is_complex() or value.is_quantized or value.is_nested or value.is_meta)
        and not (value.requires_grad or value.is_neg())
    )


def _scale(factor: float, like: Tensor) -> float:
    """Return what torch takes for a factor beyond a tensor's range, which it refuses: infinity."""
    beyond = like.is_floating_point() and abs(factor) > torch.finfo(like.dtype).max
    return math.copysign(math.inf, factor) if beyond else factor


def norm(bundle: State) -> float:
    """Return the l2 norm over all entries."""
    return float(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(list(bundle.values()))))) if bundle else 0.0


def clone(bundle: State, device: torch.device | str = "cpu") -> State:
    """Return a copy that shares no memory with ``bundle``."""
    return {name: tensor.detach().to(device, copy=True) for name, tensor in bundle.items()}


def digest(bundle: State) -> str:
    """Return the sha256 over names, shapes, dtypes and bytes, as hexadecimal text.

    Two bundles have the same digest exactly when they are equal bit for bit, in any order of names.
    """
    sha = hashlib.sha256()
    for name in sorted(bundle):
        tensor = bundle[name].detach().cpu().contiguous()
        sha.update(f"{name}|{tuple(tensor.shape)}|{tensor.dtype}|".encode())
        sha.update(tensor.view(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else np.empty(0).tobytes())
    return sha.hexdigest()
