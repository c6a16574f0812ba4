"""LightningModules of the user's own in a federation: what of their ``self.log`` is kept, and which parts need classes."""

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from fedfacet.callbacks.base import Callback
from fedfacet.callbacks.evaluate import Evaluate
from fedfacet.callbacks.module_metrics import ModuleMetrics
from fedfacet.clients.federated_module import Logits
from fedfacet.clients.trainer import Clients
from fedfacet.errors import ConfigError
from fedfacet.mechanisms.logged_values import LoggedValues
from fedfacet.types import Query

log = logging.getLogger(__name__)

_OF_THE_ROUND = frozenset({"loss", "num_steps"})


def logged_values(clients: Clients, *, is_private: bool) -> list[LoggedValues]:
    """Return the mechanism that keeps what clients log while they train, if they log anything.

    Args:
        clients: whose module was tried.
        is_private: whether clients may send nothing but noisy or allowed values, so that what they log is left out.
    """
    own = clients.program.own
    if own is None or not own.logged.train_names:
        return []
    if is_private:
        log.warning(
            "What %s.training_step gives to self.log is left out, as privacy or disclosure does not cover it.",
            type(clients.objective).__name__,
        )
        return []
    names = own.logged.train_names
    return [LoggedValues({f"train/{'module_' if name in _OF_THE_ROUND else ''}{name}": name for name in names})]


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


def check_needs_logits(
    clients: Clients,
    parts: Mapping[str, Any],
    callbacks: Mapping[str, Callback],
    asked: Iterable[tuple[Query, str]],
) -> None:
    """Refuse parts that look at predicted classes where the module predicts none, and a module that nothing can measure.

    Args:
        clients: whose module was tried.
        parts: ``"aggregator=fedavg"`` and so on -> part, of those that may judge models.
        callbacks: name -> callback.
        asked: the questions of parts, and who puts each.

    Raises:
        ConfigError: naming the part.
    """
    program, targets = clients.program, clients.dataset.targets
    if program.logits is not Logits.NONE:
        return
    assert program.own is not None
    module = type(program.objective).__name__
    lacks = "predicts no classes" if targets is None else "has numbers to predict, not classes"
    who = [name for query, name in asked if query.needs_model or (targets is not None and "y" in query.reads)]
    who += [name for name, part in parts.items() if part.judges is not None and part.judges() is not None]
    who += [f"callbacks.{name}" for name, callback in callbacks.items() if callback.needs_logits]
    if who:
        raise ConfigError(
            f"Expected a module whose `forward` returns a logit per class for {who[0]}, but {module} {lacks}: leave that part "
            "out, or choose another."
        )
