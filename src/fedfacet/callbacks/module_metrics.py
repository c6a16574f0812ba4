"""What a LightningModule of the user's own measures of the global model."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedfacet.callbacks.base import Callback, Measurement
from fedfacet.callbacks.evaluate import Evaluate
from fedfacet.clients.federated_module import Logits
from fedfacet.clients.trainer import Clients
from fedfacet.errors import ConfigError
from fedfacet.federation import Federation


@dataclass(eq=False, kw_only=True)
class ModuleMetrics(Measurement):
    """Measure what the module logs in its ``validation_step`` and its ``test_step``; a federation adds it beside ``Evaluate``.

    One step stands in for the other where a module has only one. What a module logs as ``val_f1``, ``val/f1`` or ``f1`` is the
    metric ``val/f1``; where others measure ``val/loss``, it is ``val/module_loss``. Where the module predicts no classes,
    nothing else measures it, and each metric comes per group too: ``val/f1_worst_group`` and ``val/f1_group/y0_a0``. The worst
    is the smallest value, or the largest where ``metrics.direction.lower_is_better`` knows the name.

    Args:
        splits: name -> positions of samples.
        taken: metrics that others measure.
    """

    name: ClassVar[str] = "evaluate"

    splits: Mapping[str, NDArray[np.int64]]
    taken: frozenset[str] = frozenset()

    def measure(self, federation: Federation, round: int) -> Mapping[str, float]:
        """Return what the module logs of the current global model."""
        numbers = {}
        for split, positions in self.splits.items():
            indices = positions if self.is_due(federation, round) else positions[:0]
            for name, value in federation.engine.measure_module(federation.state.model, split, indices).items():
                numbers[f"{split}/{'module_' if f'{split}/{name}' in self.taken else ''}{name}"] = value
        return numbers

    def main_metric(self, federation: Federation) -> str:
        """Return by which metric a run is judged: the first that the module logs if it predicts no classes, or ``acc``."""
        program = federation.engine.clients.program
        names = program.own.measured.values() if program.own is not None and program.logits is Logits.NONE else ()
        return next((name for logged in names for name in logged), "acc")


def with_own_metrics(clients: Clients, callbacks: Mapping[str, Callback]) -> dict[str, Callback]:
    """Return callbacks with what the module measures of itself, beside ``Evaluate``, or in its place without classes.

    Raises:
        ConfigError: if nothing could measure the module.
    """
    own, predicts = clients.program.own, clients.program.logits is not Logits.NONE
    wanted = {name: callback for name, callback in callbacks.items() if type(callback) is Evaluate}
    if own is None or not wanted or (predicts and not own.measured):
        return dict(callbacks)
    if not own.measured:
        raise ConfigError(
            f"Expected {type(own.module).__name__} to return a logit per class from `forward`, or to log in `validation_step`, "
            "but it does neither: add one, or give callbacks={}."
        )
    name, evaluate = next(iter(wanted.items()))
    splits = {split: positions for split, positions in evaluate.splits.items() if split in own.measured}
    names = evaluate.metric_names if predicts else ()
    taken = frozenset(f"{split}/{metric}" for split in splits for metric in names)
    added = ModuleMetrics(every_n_rounds=evaluate.every_n_rounds, splits=splits, taken=taken)
    kept = {key: callback for key, callback in callbacks.items() if predicts or key not in wanted or evaluate.metrics}
    return {**kept, "module" if predicts else name: added}
