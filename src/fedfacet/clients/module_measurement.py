"""What a LightningModule of the user's own measures of itself, by its ``validation_step`` and ``test_step``."""

import logging
from collections.abc import Iterator, Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from fedfacet import rng
from fedfacet.clients.carried_state import PlainAttributes, same
from fedfacet.clients.client_data import ClientData
from fedfacet.clients.federated_module import Logits
from fedfacet.clients.own_module import Mean, OwnModule
from fedfacet.clients.trainer import Clients, ClientTrainer
from fedfacet.derived import derive
from fedfacet.errors import ConfigError, FedFacetError, fault_of
from fedfacet.metrics.direction import lower_is_better
from fedfacet.metrics.group_counts import group_key
from fedfacet.types import Batch, State

log = logging.getLogger(__name__)


def try_measuring(program: ClientTrainer, own: OwnModule, batch: Batch) -> None:
    """Have a module measure itself on a batch, and take note of the names, and of the attributes that change.

    Raises:
        ConfigError: naming the step that fails.
    """
    attributes = PlainAttributes(own.module)
    for split, kind in own.measuring_steps.items():
        before = attributes.now()
        with program.evaluating():
            try:
                own.measured[split] = tuple(own.epoch(kind, [batch]))
            except (FedFacetError, torch.OutOfMemoryError):
                raise
            except Exception as error:
                raise ConfigError(
                    f"Expected {type(own.module).__name__}.{kind}_step to measure a batch of {len(batch.x)} samples, which is "
                    f"x, y, a, but it fails at them ({fault_of(error)}): fix it."
                ) from error
        after = attributes.now()
        changed = {name: value for name, value in before.items() if name in after and not same(value, after[name])}
        attributes.restore(before)
        if new := sorted(changed.keys() - own.carried.keys()):
            log.warning(
                "Measuring %s by its %s_step changes %s, and FedFacet puts it back each time, so that no split learns of "
                "another.",
                type(own.module).__name__,
                kind,
                ", ".join(map(repr, new)),
            )
        own.carried |= changed


def measure_module(clients: Clients, model: State, split: str, indices: NDArray[np.int64]) -> dict[str, float]:
    """Return what the module logs of some samples, by its name without the split; NaN for what has no samples.

    Where the module predicts no classes, each value is returned for every group too, as ``NAME_group/y0_a1``, and as
    ``NAME_worst_group`` of the groups that have samples. Then no batch holds samples of two groups.

    Args:
        clients: with the module.
        model: the weights.
        split: ``"val"`` or ``"test"``.
        indices: of the samples, shape (n,).

    Raises:
        ConfigError: if the module logs other names than on the batch that was tried.
    """
    program, dataset = clients.program, clients.dataset
    own = program.own
    assert own is not None
    names, kind = own.measured[split], own.measuring_steps[split]
    program.load(derive(model, program.derived) if program.derived else model)
    groups = dataset.y[indices] * dataset.num_attributes + dataset.a[indices]
    precision = torch.autocast(clients.device.type, torch.bfloat16, enabled=program.autocast)
    with (
        program.evaluating(),
        precision,
        rng.forked(0, "module-measurement", device=clients.device, others=clients.draws_elsewhere),
    ):
        if program.logits is not Logits.NONE:
            return {name: mean.value for name, mean in _epoch(clients, own, kind, names, indices).items()}
        parts = {group: _epoch(clients, own, kind, names, indices[groups == group]) for group in np.unique(groups).tolist()}
        adds_up = own.adds_up(kind) and all(mean.adds_up for part in parts.values() for mean in part.values())
        whole = _sum(names, parts) if adds_up or len(parts) < 2 else _epoch(clients, own, kind, names, indices)
    numbers = {}
    for name in names:
        values = {group: part[name].value for group, part in parts.items()}
        worst = max if lower_is_better(name) else min
        numbers[name] = whole[name].value
        numbers[f"{name}_worst_group"] = worst(values.values(), default=float("nan"))
        for group in range(dataset.num_classes * dataset.num_attributes):
            numbers[f"{name}_group/{group_key(group, dataset.num_attributes)}"] = values.get(group, float("nan"))
    return numbers


def _epoch(
    clients: Clients, own: OwnModule, kind: str, names: tuple[str, ...], indices: NDArray[np.int64]
) -> Mapping[str, Mean]:
    if not len(indices):
        return {name: Mean(float("nan"), 0) for name in names}
    means = own.epoch(kind, _batches(clients, indices))
    if own.carried:
        PlainAttributes(own.module).restore(own.carried)
    if odd := sorted(means.keys() ^ set(names)):
        raise ConfigError(
            f"Expected {type(own.module).__name__}.{kind}_step to log the same names on every batch, but {odd[0]!r} is "
            f"{'new' if odd[0] in means else 'missing'}: log it always."
        )
    return means


def _batches(clients: Clients, indices: NDArray[np.int64]) -> Iterator[Batch]:
    return ClientData(clients.dataset, indices, clients.device, clients.memory_format).batches()


def _sum(names: tuple[str, ...], parts: Mapping[int, Mapping[str, Mean]]) -> dict[str, Mean]:
    """Return the means over all groups."""
    sums = {}
    for name in names:
        means = [part[name] for part in parts.values()]
        count = sum(mean.num_samples for mean in means)
        value = sum(mean.value * mean.num_samples for mean in means) / count if count else float("nan")
        sums[name] = Mean(value, count)
    return sums
