"""Which metrics are better when lower."""

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
