"""Which metric a run is judged by, and which are better when lower."""

from collections.abc import Iterable

_LOWER = {
    *("loss", "error", "err", "mse", "mae", "rmse", "mape", "nll", "bce", "crossentropy", "perplexity", "deviance"),
    *("brier", "ece", "hamming", "distance", "divergence"),
}


def lower_is_better(name: str) -> bool:
    """Tell whether less of a metric is better, by the words of its name; accuracy, F1 and the like are better when higher.

    Example:
        >>> [lower_is_better(name) for name in ("test/mse_worst_group", "val/module_loss", "val/f1", "test/acc")]
        [True, True, False, False]
    """
    return not _LOWER.isdisjoint(name.lower().replace("/", "_").replace("-", "_").split("_"))


def main_metric(names: Iterable[str]) -> str:
    """Return the metric that a run is judged by, without its split: the accuracy, or the first with a worst group.

    Args:
        names: all that the run measures.

    Example:
        >>> main_metric(["train/loss", "val/mse", "val/mse_worst_group"]), main_metric(["val/acc", "val/acc_worst_group"])
        ('mse', 'acc')
    """
    found = [name.partition("/")[2].removesuffix("_worst_group") for name in names if name.endswith("_worst_group")]
    return found[0] if found and "acc" not in found else "acc"
