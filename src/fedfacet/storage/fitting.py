"""Whether a saved state is one of the federation that is to go on from it."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedfacet.errors import CheckpointError
from fedfacet.records import FederationState
from fedfacet.types import State


def check_fits(saved: FederationState, first: FederationState) -> None:
    """Hold a saved state to the state that the federation begins with.

    The model has the same names, shapes and types. So have the states of the parts, but that their numbers may be of another
    precision, and what is empty at first (``{}``, ``[]``, ``None``, a tensor without entries) may have grown.

    Args:
        saved: from elsewhere.
        first: before the federation's first round.

    Raises:
        CheckpointError: naming what does not fit.
    """
    if saved.data_digest != first.data_digest:
        raise CheckpointError(
            f"Expected a checkpoint of the data set with digest {first.data_digest[:12]}, but got one of "
            f"{saved.data_digest[:12]}: its files are others than those that the run was started on; bring these back, or "
            "start a new run."
        )
    if saved.partition_digest != first.partition_digest:
        raise CheckpointError(
            f"Expected a checkpoint of the partition with digest {first.partition_digest[:12]}, but got one of "
            f"{saved.partition_digest[:12]}: bring back the data set that the run was started on, or start a new run."
        )
    if saved.frozen_digest != first.frozen_digest:
        raise CheckpointError(
            f"Expected the frozen weights with digest {saved.frozen_digest[:12] or 'none'}, on which the run was started, but "
            f"got {first.frozen_digest[:12] or 'none'}: bring back the file that `model.weights` names, or start a new run."
        )
    clients = range(len(first.participation_counts))
    kept_by = {"memory": saved.memory} | {f"disclosures.{query}": answers for query, answers in saved.disclosures.items()}
    strangers = (f"{part} names client {id!r}" for part, kept in kept_by.items() for id in kept if id not in clients)
    fault = (
        misfit("model", saved.model, first.model, {}, exact=True)
        or misfit("participation_counts", saved.participation_counts, first.participation_counts, {}, exact=True)
        or next(strangers, None)
    )
    for part in ("selector", "aggregator"):
        fault = fault or misfit(part, getattr(saved, part), getattr(first, part), first.model)
    for name in first.slots:
        fault = fault or misfit(name, saved.slot(name), first.slots[name], first.model)
    if fault is None and (strange := sorted(saved.slots.keys() - first.slots.keys())):
        fault = f"state has {strange[0]!r}, which nothing here keeps"
    for name in first.callbacks.keys() & saved.callbacks.keys():  # a logger may have come or gone since
        fault = fault or misfit(f"callbacks.{name}", saved.callbacks[name], first.callbacks[name], {})
    if fault is not None:
        raise CheckpointError(
            f"Expected a checkpoint of this federation, but its {fault}: bring back the code and the settings that the run was "
            "started with, or start a new run."
        )


def misfit(where: str, saved: Any, first: Any, model: State, *, exact: bool = False) -> str | None:
    """Say what of a saved value differs from the first one in more than numbers; ``None`` if nothing does."""
    if first is None:
        return None
    if isinstance(first, Tensor):
        fits = isinstance(saved, Tensor) and saved.dim() == first.dim() and (saved.shape == first.shape or not first.numel())
        same = (lambda tensor: tensor.dtype) if exact else (lambda tensor: (tensor.is_floating_point(), tensor.is_complex()))
        return None if fits and same(saved) == same(first) else f"{where} is {_told(saved)} instead of {_told(first)}"
    if isinstance(first, Mapping):
        if not isinstance(saved, Mapping):
            return f"{where} is {_told(saved)} instead of a table"
        if first and saved.keys() != first.keys():
            return f"{where} has {_listed(saved)} instead of {_listed(first)}"
        like = first or {name: tensor for name, tensor in model.items() if name in saved}
        return next(
            (fault for key in like if (fault := misfit(f"{where}.{key}", saved[key], like[key], model, exact=exact))), None
        )
    number = isinstance(first, int | float) and not isinstance(first, bool)
    kinds = int | float if number else type(first)
    if number and isinstance(saved, int) and abs(saved) >= 2**63:
        return f"{where} is larger than what 64 bits hold"
    return None if isinstance(saved, kinds) and not (number and isinstance(saved, bool)) else f"{where} is {_told(saved)}"


def is_whole(value: Any) -> bool:
    """Tell whether a value is a tensor that has all its numbers, unlike a sparse one or one number many times over."""
    if not isinstance(value, Tensor) or value.layout is not torch.strided or value.is_meta or value.is_quantized:
        return False
    return value.untyped_storage().nbytes() >= value.numel() * value.element_size()


def _told(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of {value.dtype} and shape {tuple(value.shape)}"
    return f"of type {type(value).__name__}"


def _listed(table: Mapping[Any, Any]) -> str:
    names = [str(name) for name in list(table)[:5]]
    return f"{', '.join(names) or 'nothing'}{', ...' if len(table) > 5 else ''}"
