"""Arithmetic on named bundles of tensors."""

import hashlib
import itertools
import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedfacet.errors import BadUpdateError
from fedfacet.types import State

_BLOCK = 1 << 16
"""Entries of a tensor that are multiplied at a time."""

_SHORT = {torch.float16, torch.bfloat16}
"""In which sums overflow, or lose digits that a mean would have."""

_LARGEST_PRODUCT = 1e150
"""Far beyond what float32 entries come to, and small enough to be squared."""


def subtract(left: State, right: State) -> State:
    """Return ``left - right`` for the names of ``left``."""
    return dict(zip(left, torch._foreach_sub([*left.values()], [right[name] for name in left]), strict=True)) if left else {}


def add(left: State, right: State, *, scale: float = 1.0) -> State:
    """Return ``left + scale * right``; names that ``right`` lacks keep their tensor."""
    names = [name for name in left if name in right]
    if not names:  # the foreach kernels refuse empty lists
        return dict(left)
    sums = torch._foreach_add([left[n] for n in names], [right[n] for n in names], alpha=_scale(scale, left[names[0]]))
    return {**left, **dict(zip(names, sums, strict=True))}


def scaled(bundle: State, factor: float) -> State:
    """Return ``factor * bundle``."""
    return dict(zip(bundle, torch._foreach_mul(list(bundle.values()), factor), strict=True)) if bundle else {}


def weighted_mean(bundles: Iterable[tuple[State, float | tuple[float, State]]]) -> State:
    r"""Return :math:`\sum_i w_i b_i / \sum_i w_i`, adding up in the order given, without keeping the bundles.

    The mean has the dtypes of the first bundle. The mean of equal bundles is that bundle, without rounding.

    Args:
        bundles: pairs of a bundle and its weight; all bundles have the same names; the weights are positive. Or the weight
            comes with a bundle of these names: 1 at entries that have this weight, 0 at entries that have none, and these are
            0 in the bundle that is averaged. Then an entry's mean is over those that have it; it is 0 where none has it.
    """
    names, totals = list[str](), list[Tensor]()
    equal = list[float]()  # the weights of bundles that are all the same so far, not added up yet
    total_weight, bundles = 0.0, iter(bundles)
    for bundle, weight in bundles:
        if isinstance(weight, tuple) or (not names and any(tensor.dtype in _SHORT for tensor in bundle.values())):
            return _mean_otherwise(itertools.chain([(bundle, weight)], bundles))
        if not (names or equal):
            names, totals, equal = list(bundle), [tensor.clone() for tensor in bundle.values()], [weight]
        elif equal and all(map(torch.equal, totals, (bundle[name] for name in names))):
            equal.append(weight)
        else:
            first = [total.clone() for total in totals] if len(equal) > 1 else []
            for number, repeated in enumerate(equal):
                torch._foreach_add_(totals, first, alpha=repeated) if number else torch._foreach_mul_(totals, repeated)
            torch._foreach_add_(totals, [bundle[name] for name in names], alpha=weight)
            equal = []
        total_weight += weight
        del bundle  # or it would be held while the next is waited for
    if not equal and totals:
        torch._foreach_div_(totals, total_weight)
    return dict(zip(names, totals, strict=True))


def wide(bundle: State) -> State:
    """Return a bundle whose sums neither overflow nor lose digits: float32 in the place of shorter floats, else itself."""
    return {name: tensor.float() if tensor.dtype in _SHORT else tensor for name, tensor in bundle.items()}


def like(bundle: State, model: State) -> State:
    """Return a bundle in the dtypes of another that has its names."""
    return {name: tensor.to(model[name].dtype) for name, tensor in bundle.items()}


def _mean_otherwise(bundles: Iterable[tuple[State, float | tuple[float, State]]]) -> State:
    """Return the mean of bundles with short floats, which are added up as longer ones, or with weights by entry."""
    first, weight = next(bundles := iter(bundles))
    pairs = itertools.chain([(first, weight)], bundles)
    if not any(tensor.dtype in _SHORT for tensor in first.values()):
        return _mean_by_entry(pairs)  # type: ignore[arg-type]
    longer = ((wide(bundle), (w[0], wide(w[1])) if isinstance(w, tuple) else w) for bundle, w in pairs)
    return like(weighted_mean(longer), first)


def _mean_by_entry(bundles: Iterable[tuple[State, tuple[float, State]]]) -> State:
    names: list[str] = []
    totals: list[Tensor] = []
    weights: list[Tensor] = []
    for bundle, (weight, held) in bundles:
        if not names:
            names = list(bundle)
            totals = [bundle[name] * weight for name in names]
            weights = [held[name] * weight for name in names]
        else:
            torch._foreach_add_(totals, [bundle[name] for name in names], alpha=weight)
            torch._foreach_add_(weights, [held[name] for name in names], alpha=weight)
    return {name: total / weight.where(weight > 0, 1) for name, total, weight in zip(names, totals, weights, strict=True)}


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
    names, coefficients = list(bundles[0]), [float(one) for one in coefficients]
    if not names:  # the foreach kernels refuse empty lists
        return {}
    if all(torch.equal(bundle[name], bundles[0][name]) for bundle in bundles[1:] for name in names):
        # Coefficients of a mean add up to 1 but for rounding, and the mean of equal bundles is that bundle.
        return scaled(bundles[0], round(math.fsum(coefficients), 12))
    totals = torch._foreach_mul(list(wide(bundles[0]).values()), coefficients[0])
    for bundle, coefficient in zip(bundles[1:], coefficients[1:], strict=True):
        torch._foreach_add_(totals, [bundle[name] for name in names], alpha=_scale(coefficient, totals[0]))
    return like(dict(zip(names, totals, strict=True)), bundles[0])


def by_entry(bundles: Sequence[State], combine: Callable[[Tensor], Tensor]) -> State:
    """Return what a function makes of the bundles' values at each entry by itself, in the dtype of the first bundle.

    Args:
        bundles: m, one or more, of the same names and shapes.
        combine: takes the values at some entries, shape (B, m), and returns one for each, shape (B,).
    """
    combined = {}
    for name, like in bundles[0].items():
        flat = [bundle[name].reshape(-1) for bundle in bundles]
        combined[name] = torch.empty_like(flat[0])
        for start in range(0, len(flat[0]), _BLOCK):  # never a copy of all bundles at once
            block = slice(start, start + _BLOCK)
            combined[name][block] = combine(torch.stack([entries[block] for entries in flat], dim=1))
        combined[name] = combined[name].view(like.shape)
    return combined


def num_floats(bundle: State) -> int:
    """Return how many floating-point numbers a bundle holds."""
    return sum([tensor.numel() for tensor in bundle.values() if tensor.dtype.is_floating_point])


def all_finite(bundle: State) -> bool:
    """Tell whether no entry is NaN or infinite."""
    return all(map(is_finite, bundle.values()))


def is_finite(tensor: Tensor) -> bool:
    """Tell whether no entry is NaN or infinite."""
    # A sum of squares costs one pass without a temporary tensor; it is finite only if every entry is, and where it is not,
    # large entries may be the reason.
    if tensor.dtype in (torch.float32, torch.float64):
        flat = tensor if tensor.ndim == 1 else tensor.reshape(-1)
        if math.isfinite(torch.dot(flat, flat).item()):
            return True
    return not tensor.is_floating_point() or bool(tensor.isfinite().all())


def _scale(factor: float, like: Tensor) -> float:
    """Return what torch takes for a factor beyond a tensor's range, which it refuses: infinity."""
    beyond = like.is_floating_point() and abs(factor) > torch.finfo(like.dtype).max
    return math.copysign(math.inf, factor) if beyond else factor


def norm(bundle: State) -> float:
    """Return the l2 norm over all entries, summed in float64, in which the squares of large finite numbers do not overflow."""
    norms = torch._foreach_norm(list(bundle.values()), dtype=torch.float64) if bundle else ()
    return float(torch.linalg.vector_norm(torch.stack(norms))) if norms else 0.0


def travelling(module: nn.Module) -> State:
    """Return what of a module's ``state_dict`` travels and is saved: all of it but frozen parameters.

    Example:
        >>> network = nn.Sequential(nn.Linear(3, 5).requires_grad_(False), nn.BatchNorm1d(5, affine=False), nn.Linear(5, 2))
        >>> list(travelling(network))
        ['1.running_mean', '1.running_var', '1.num_batches_tracked', '2.weight', '2.bias']
    """
    frozen = {name for name, parameter in module.named_parameters(remove_duplicate=False) if not parameter.requires_grad}
    return {name: tensor for name, tensor in module.state_dict().items() if name not in frozen}


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
        sha.update(tensor.view(-1).view(torch.uint8).numpy().data)
    return sha.hexdigest()
