"""Holds mechanisms of the user's own to their contract, in the hooks of a chain."""

import difflib
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from torch import Tensor

from fedfacet.builtin import is_builtin
from fedfacet.checked_aggregate import watched
from fedfacet.errors import AggregationError, BadUpdateError
from fedfacet.mechanism import Chain, Fold, Mechanism, Round
from fedfacet.types import ClientTask, ClientUpdate, State

_POINTS = [name for name in vars(Mechanism) if not name.startswith("_")]


def checked_chain(mechanisms: Iterable[Mechanism]) -> Chain:
    """Return the chain of some mechanisms, in which mechanisms of the user's own are checked. Tests check ours.

    Raises:
        ValueError: as ``Chain``, or if a method of theirs has nearly the name of a point of the round.
    """
    chain = Chain(mechanisms)
    for one in chain.mechanisms:
        if not is_builtin(one):
            _check_names(one)
    chain.incoming = [hook if is_builtin(hook.__self__) else partial(_incoming, hook) for hook in chain.incoming]
    chain.merge = [hook if is_builtin(hook.__self__) else partial(_merge, hook) for hook in chain.merge]
    learning: list[tuple[str, Any]] = list(chain.after)
    chain.after = [(slot, hook if is_builtin(hook.__self__) else partial(_after, hook)) for slot, hook in learning]
    return chain


def _check_names(one: Mechanism) -> None:
    kind = type(one)
    for name in (name for name in dir(kind) if not name.startswith("_") and not hasattr(Mechanism, name)):
        if callable(getattr(kind, name)) and (meant := difflib.get_close_matches(name, _POINTS, 1, 0.85)):
            raise ValueError(
                f"Expected {kind.__name__} to have points of a mechanism, but no round calls its `{name}`: call it "
                f"`{meant[0]}`, or give it a name that is less alike."
            )


def _incoming(
    hook: Callable[[Round, ClientTask, ClientUpdate], Any], round: Round, task: ClientTask, update: ClientUpdate
) -> ClientUpdate | None:
    """Return what a mechanism makes of an update.

    Raises:
        BadUpdateError: if that is neither an update of the same tensors nor ``None``.
    """
    changed = hook(round, task, update)
    if changed is None:
        return None
    name = f"{type(hook.__self__).__name__}.incoming"  # type: ignore[attr-defined]
    if not isinstance(changed, ClientUpdate):
        raise BadUpdateError(
            f"Expected {name} to return an update, or None for one that does not count, but got {type(changed).__name__}: "
            "return `dataclasses.replace(update, delta=...)`."
        )
    for before, after in ((update.delta, changed.delta), (update.buffers, changed.buffers)):
        if other := _differing(before, after):
            raise BadUpdateError(f"Expected {name} to return tensors like the update's, but {other}: convert it.")
    return changed


def _differing(before: State, after: State) -> str | None:
    if keys := sorted(before.keys() ^ after.keys()):
        return f"{keys[0]!r} is {'new' if keys[0] in after else 'missing'}"
    for key, tensor in before.items():
        new: Any = after[key]
        if new is tensor:
            continue
        if not isinstance(new, Tensor) or new.shape != tensor.shape or new.dtype != tensor.dtype:
            came = f"{new.dtype} of shape {tuple(new.shape)}" if isinstance(new, Tensor) else type(new).__name__
            return f"{key!r} is {came} instead of {tensor.dtype} of shape {tuple(tensor.shape)}"
        if not bool(new.isfinite().all()):
            return f"{key!r} holds NaN or infinity"
    return None


def _merge(hook: Callable[[Round, Fold], Any], round: Round, inner: Fold) -> Fold:
    """Return what a mechanism makes of the merging, watched as an aggregator is.

    Raises:
        AggregationError: if that is no function.
    """
    name = f"{type(hook.__self__).__name__}.merge"  # type: ignore[attr-defined]
    fold = hook(round, inner)
    if not callable(fold):
        raise AggregationError(
            f"Expected {name} to return a function of state, model and updates, but got {type(fold).__name__}: define one "
            "that calls `inner`, and return it."
        )
    return partial(watched, fold, name)


def _after(hook: Callable[..., Any], round: Round, new: Any) -> Any:
    """Return a mechanism's next state.

    Raises:
        ValueError: if that is neither a mapping nor ``None``.
    """
    state = hook(round, new)
    if state is None or isinstance(state, dict):
        return state
    name = f"{type(hook.__self__).__name__}.after"  # type: ignore[attr-defined]
    raise ValueError(f"Expected {name} to return its next state, a dict, or None, but got {type(state).__name__}: fix it.")
