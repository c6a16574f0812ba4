"""Has a callback measure a round, and holds one that is not ours to its contract."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, SupportsFloat

from fedfacet.callbacks.base import Callback
from fedfacet.ours import is_ours

if TYPE_CHECKING:
    from fedfacet.federation import Federation


def measured_by(part: Callback, federation: "Federation", round: int) -> Mapping[str, float]:
    """Return what ``part.measure`` does.

    Raises:
        ValueError: if a callback of the user's own writes to the model, or returns anything but numbers by name.
    """
    if is_ours(part):
        return part.measure(federation, round)
    name, model = f"{type(part).__name__}.measure", federation.state.model
    written = {key: tensor._version for key, tensor in model.items()}
    metrics = part.measure(federation, round)
    for key, tensor in model.items():
        if tensor._version != written[key]:
            raise ValueError(
                f"Expected {name} to leave the model as it is, but it has written to {key!r}: work on a copy, as in "
                "`federation.state.model[name].clone()`."
            )
    if not isinstance(metrics, Mapping):
        raise ValueError(
            f"Expected {name} to return its metrics by name, a dict of numbers, but got {type(metrics).__name__}: return {{}} "
            "where there are none."
        )
    return {key: _number(name, key, value) for key, value in metrics.items()}


def merged(measured: Mapping[str, Mapping[str, float]], known: Mapping[str, float]) -> dict[str, float]:
    """Put what callbacks have measured together, in their order.

    Args:
        measured: callback -> its metrics.
        known: what the round has measured itself.

    Raises:
        ValueError: if a name comes twice.

    Example:
        >>> merged({"evaluate": {"val/acc": 0.5}, "auc": {"val/auc": 0.7}}, {"train/loss": 1.0})
        {'val/acc': 0.5, 'val/auc': 0.7}
    """
    owners = dict.fromkeys(known, "the round itself")
    for part, metrics in measured.items():
        for metric in metrics:
            if metric in owners:
                raise ValueError(
                    f"Expected every metric to have a name of its own, but {owners[metric]} and the callback {part!r} both "
                    f"measure {metric!r}: give one of them another name."
                )
        owners |= dict.fromkeys(metrics, f"the callback {part!r}")
    return {metric: value for metrics in measured.values() for metric, value in metrics.items()}


def _number(name: str, key: Any, value: Any) -> float:
    """Return a metric as a float, also where it is a number of numpy's or a tensor of one element."""
    if isinstance(key, str) and isinstance(value, SupportsFloat):
        try:
            return float(value)
        except (TypeError, ValueError, RuntimeError):  # of an array or a tensor of more elements
            pass
    raise ValueError(
        f"Expected {name} to return numbers by name, but {key!r} is {type(value).__name__}: return one number for each name."
    )
