r"""Group fairness: how far apart a classifier's rates lie between groups of people.

With :math:`n_{ya\hat y}` the samples of class y and attribute value a that are classified as :math:`\hat y`, and p the
positive class, a group a has the rates

.. math::
    TPR_a = \frac{n_{pap}}{n_{pa\cdot}}, \quad
    FPR_a = \frac{\sum_{y \ne p} n_{yap}}{\sum_{y \ne p} n_{ya\cdot}}, \quad
    SEL_a = \frac{n_{\cdot ap}}{n_{\cdot a \cdot}}, \quad
    ACC_a = \frac{\sum_y n_{yay}}{n_{\cdot a \cdot}}, \quad
    PPV_{\hat y a} = \frac{n_{\hat y a \hat y}}{n_{\cdot a \hat y}}.

A rate of fewer than ``min_count`` samples is NaN, never 0 (fairlearn says 0). The spread of a rate is taken over the groups
that have it, and is NaN where fewer than two do. Counts add up over batches, clients and rounds; ratios do not (law 8).

Source: thesis, section 6.4 (equations 35 to 37) and table 21, whose well-calibration is ``calibration``.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri
from torch import Tensor
from torchmetrics import Metric

from fedfacet.arguments import check_choice, check_whole
from fedfacet.metrics.group_counts import NAN

Rates = NDArray[np.float64]

METHODS = ("between_groups", "to_reference", "to_overall")


def rates_of(counts_YAY: ArrayLike, positive_class: int, *, min_count: int = 1) -> dict[str, Rates]:
    """Return a classifier's rates in each group: ``tpr``, ``fpr``, ``sel``, ``acc``, each of shape (A,).

    Args:
        counts_YAY: samples by class, attribute value and predicted class, shape (Y, A, Y).
        positive_class: p, in 0 .. Y - 1.
        min_count: how many samples a rate needs, 1 or larger; it is NaN with fewer.

    Example:
        >>> rates = rates_of([[[30, 10], [20, 40]], [[5, 15], [25, 5]]], 1)
        >>> rates["tpr"].round(2).tolist(), rates["sel"].round(2).tolist()
        ([0.75, 0.17], [0.42, 0.5])
    """
    counts = np.asarray(counts_YAY, dtype=np.float64)
    others = np.arange(len(counts)) != positive_class
    return {
        "tpr": _ratio(counts[positive_class, :, positive_class], counts[positive_class].sum(axis=-1), min_count),
        "fpr": _ratio(counts[others, :, positive_class].sum(axis=0), counts[others].sum(axis=(0, 2)), min_count),
        "sel": _ratio(counts[:, :, positive_class].sum(axis=0), counts.sum(axis=(0, 2)), min_count),
        "acc": _accuracy(counts, min_count),
    }


def fairness_of(
    counts_YAY: ArrayLike,
    *,
    positive_class: int | None = 1,
    method: str = "between_groups",
    classes: str = "max",
    odds: str = "worst_case",
    min_count: int = 1,
) -> dict[str, float]:
    r"""Return all measures of a classifier's group fairness; 0 is fair, but for ``demographic_parity_ratio``, whose 1 is.

    ``equal_opportunity`` is the spread of TPR, ``predictive_equality`` of FPR, ``equalized_odds`` the larger of both,
    ``demographic_parity`` the spread of SEL and ``demographic_parity_ratio`` its smallest over its largest value,
    ``accuracy_parity`` the spread of ACC, ``calibration`` the largest spread of any :math:`PPV_{\hat y}`.
    ``discrimination_index`` is :math:`SEL_0 - SEL_1`, with its sign, of two groups; NaN for more.

    Args:
        counts_YAY: samples by class, attribute value and predicted class, shape (Y, A, Y).
        positive_class: p; ``None`` takes every class in turn for the positive one.
        method: ``"between_groups"``, the largest rate minus the smallest; ``"to_reference"``, the largest distance from group
            0's rate (thesis, equations 35 and 36); ``"to_overall"``, from the rate of everybody. For two groups the first two
            are the same.
        classes: ``"max"`` or ``"mean"`` of the classes, where every class is the positive one in turn. A class without the
            measure does not count.
        odds: ``"worst_case"`` or ``"mean"`` of the spreads of TPR and FPR.
        min_count: as in ``rates_of``.

    Raises:
        ValueError: if an argument is out of range, or the counts have another shape.
    """
    counts = np.asarray(counts_YAY, dtype=np.float64)
    if counts.ndim != 3 or counts.shape[0] != counts.shape[2] or not (counts >= 0).all():
        raise ValueError(f"Expected counts of shape (Y, A, Y), none of them negative, but got the shape {counts.shape}.")
    _check(len(counts), positive_class, method, classes, odds, min_count)
    spread = _SPREADS[method]

    def measures(positive: int) -> dict[str, float]:
        rates, overall = (rates_of(table, positive, min_count=min_count) for table in (counts, counts.sum(1, keepdims=True)))
        apart = {name: spread(rates[name], overall[name][0]) for name in ("tpr", "fpr", "sel")}
        both = [apart["tpr"], apart["fpr"]]
        selected = rates["sel"][~np.isnan(rates["sel"])]
        return {
            "equal_opportunity": apart["tpr"],
            "predictive_equality": apart["fpr"],
            "equalized_odds": NAN if any(map(math.isnan, both)) else (max(both) if odds == "worst_case" else sum(both) / 2),
            "demographic_parity": apart["sel"],
            "demographic_parity_ratio": _smallest_over_largest(selected),
        }

    each = [measures(positive) for positive in (range(len(counts)) if positive_class is None else (positive_class,))]
    found = {name: _over([one[name] for one in each], classes, smallest=name.endswith("ratio")) for name in each[0]}
    predicted = counts.sum(axis=0)
    right = np.stack([counts[c, :, c] for c in range(len(counts))])
    precisions = [_ratio(right[c], predicted[:, c], min_count) for c in range(len(counts))]
    all_precisions = [_ratio(right[c].sum(), predicted[:, c].sum(), min_count) for c in range(len(counts))]
    calibration = [spread(one, float(whole)) for one, whole in zip(precisions, all_precisions, strict=True)]
    accuracy, of_all = _accuracy(counts, min_count), _accuracy(counts.sum(1, keepdims=True), min_count)
    two = counts.shape[1] == 2 and positive_class is not None
    selection = rates_of(counts, positive_class, min_count=min_count)["sel"] if positive_class is not None else np.empty(0)
    return {
        **found,
        "accuracy_parity": spread(accuracy, float(of_all[0])),
        "calibration": _over(calibration, "max", smallest=False),
        "discrimination_index": float(selection[0] - selection[1]) if two else NAN,
    }


def newcombe_interval(successes: tuple[float, float], sizes: tuple[float, float], level: float = 0.95) -> tuple[float, float]:
    r"""Return an interval of :math:`p_1 - p_0`, of two proportions, by Newcombe's hybrid of Wilson's intervals.

    Source: Newcombe, Interval estimation for the difference between independent proportions, 1998, method 10.

    Args:
        successes: how many of each group.
        sizes: of how many; NaN comes back where one is 0.
        level: of confidence, in (0, 1).

    Example:
        >>> [round(end, 3) for end in newcombe_interval((10, 30), (40, 40))]
        [0.285, 0.653]
    """
    if min(sizes) <= 0:
        return NAN, NAN
    z = float(ndtri(0.5 + level / 2))
    (p_0, low_0, high_0), (p_1, low_1, high_1) = (_wilson(x, n, z) for x, n in zip(successes, sizes, strict=True))
    return (
        p_1 - p_0 - math.hypot(p_1 - low_1, high_0 - p_0),
        p_1 - p_0 + math.hypot(high_1 - p_1, p_0 - low_0),
    )


class FairnessMetric(Metric):
    """Counts samples by class, attribute value and predicted class; each class below computes one measure of these.

    Args:
        num_classes: Y, 2 or larger.
        num_attributes: A, 2 or larger.
        positive_class: as in ``fairness_of``, which the other arguments of that name are explained by too.
        method: as there.
        classes: as there.
        odds: as there.
        min_count: as there.
        kwargs: ``torchmetrics.Metric``'s.

    Raises:
        ValueError: if a value is out of range.
    """

    is_differentiable = False
    higher_is_better: bool | None = False
    full_state_update = False
    measure: ClassVar[str]
    """Its name in what ``fairness_of`` returns."""
    counts: Tensor

    def __init__(
        self,
        num_classes: int,
        num_attributes: int,
        *,
        positive_class: int | None = 1,
        method: str = "between_groups",
        classes: str = "max",
        odds: str = "worst_case",
        min_count: int = 1,
        **kwargs: Any,
    ) -> None:
        # A cached value would outlive `update_counts` and `merge_state`, which torchmetrics does not watch.
        super().__init__(**{"compute_with_cache": False} | kwargs)
        check_whole("num_classes", num_classes, 2)
        check_whole("num_attributes", num_attributes, 2)
        _check(num_classes, positive_class, method, classes, odds, min_count)
        self.num_classes, self.num_attributes = num_classes, num_attributes
        self.settings: Mapping[str, Any] = {
            "positive_class": positive_class, "method": method, "classes": classes, "odds": odds, "min_count": min_count,
        }  # fmt: skip
        zeros = torch.zeros(num_classes, num_attributes, num_classes, dtype=torch.int64)
        self.add_state("counts", default=zeros, dist_reduce_fx="sum")

    def update(self, preds: Tensor, target: Tensor, attribute: Tensor) -> None:
        """Count a batch: predicted classes (B,) or logits (B, Y), true classes (B,) and attribute values (B,).

        Raises:
            ValueError: if a label is out of range.
        """
        preds = preds.argmax(dim=1) if preds.ndim == 2 else preds
        shape = (self.num_classes, self.num_attributes, self.num_classes)
        for name, labels, size in zip(("target", "attribute", "preds"), (target, attribute, preds), shape, strict=True):
            if len(labels) and not 0 <= (lowest := int(labels.min())) <= (highest := int(labels.max())) < size:
                raise ValueError(f"Expected `{name}` in [0, {size}), but got values from {lowest} to {highest}.")
        cells = (target * self.num_attributes + attribute) * self.num_classes + preds
        self.counts += torch.bincount(cells, minlength=self.counts.numel()).view(shape)

    def update_counts(self, counts: Tensor) -> None:
        """Add counts that were made elsewhere (on a client, say), of shape (Y, A, Y)."""
        self._update_count += 1  # torchmetrics warns of values computed before any update
        self.counts += counts

    def compute(self) -> Tensor:
        """Return the measure, a scalar; NaN where too few groups have the rate."""
        value = fairness_of(self.counts.cpu().numpy(), **self.settings)[self.measure]
        return torch.tensor(value, dtype=torch.float32, device=self.counts.device)


class EqualOpportunityDifference(FairnessMetric):
    """How far the groups' true positive rates lie apart.

    Example:
        >>> metric = EqualOpportunityDifference(2, 2)
        >>> metric.update(torch.tensor([1, 0, 1, 1]), torch.tensor([1, 1, 1, 1]), torch.tensor([0, 0, 1, 1]))
        >>> metric.compute()
        tensor(0.5000)
    """

    measure = "equal_opportunity"


class EqualizedOddsDifference(FairnessMetric):
    """How far the groups' true positive rates, or their false positive rates, lie apart."""

    measure = "equalized_odds"


class PredictiveEqualityDifference(FairnessMetric):
    """How far the groups' false positive rates lie apart."""

    measure = "predictive_equality"


class DemographicParityDifference(FairnessMetric):
    """How far the groups' rates of being classified as positive lie apart."""

    measure = "demographic_parity"


class DemographicParityRatio(FairnessMetric):
    """The smallest rate of being classified as positive over the largest; the 80 % rule asks for 0.8 or more."""

    measure = "demographic_parity_ratio"
    higher_is_better = True


class AccuracyParityDifference(FairnessMetric):
    """How far the groups' accuracies lie apart."""

    measure = "accuracy_parity"


class CalibrationDifference(FairnessMetric):
    """How far the groups' precisions lie apart, of the class for which they lie farthest apart."""

    measure = "calibration"


class DiscriminationIndex(FairnessMetric):
    """How much more often group 0 is classified as positive than group 1, with its sign; NaN unless there are two groups."""

    measure = "discrimination_index"
    higher_is_better = None


def _check(num_classes: int, positive_class: int | None, method: str, classes: str, odds: str, min_count: int) -> None:
    if positive_class is not None and not 0 <= positive_class < num_classes:
        raise ValueError(
            f"Expected `positive_class` to be one of the {num_classes} classes, from 0, or null for every class in turn, but "
            f"got {positive_class}."
        )
    check_choice("method", method, METHODS)
    check_choice("classes", classes, ("max", "mean"))
    check_choice("odds", odds, ("worst_case", "mean"))
    check_whole("min_count", min_count)


def _ratio(numerator: ArrayLike, denominator: ArrayLike, min_count: int) -> Rates:
    above, below = np.asarray(numerator, np.float64), np.asarray(denominator, np.float64)
    return np.divide(above, below, out=np.full_like(below, NAN), where=below >= min_count)


def _accuracy(counts: Rates, min_count: int) -> Rates:
    return _ratio(np.einsum("yay->a", counts), counts.sum(axis=(0, 2)), min_count)


def _between(rates: Rates, overall: float) -> float:
    there = rates[~np.isnan(rates)]
    return float(there.max() - there.min()) if len(there) > 1 else NAN


def _to_reference(rates: Rates, overall: float) -> float:
    return _farthest(rates, rates[0])


def _farthest(rates: Rates, origin: float) -> float:
    there = rates[~np.isnan(rates)]
    return float(np.abs(there - origin).max()) if len(there) > 1 else NAN


_SPREADS: dict[str, Callable[[Rates, float], float]] = {
    "between_groups": _between,
    "to_reference": _to_reference,
    "to_overall": _farthest,
}


def _smallest_over_largest(rates: Rates) -> float:
    return NAN if len(rates) < 2 or not rates.max() else float(rates.min() / rates.max())


def _over(values: list[float], how: str, *, smallest: bool) -> float:
    """Return the worst or the mean of those classes that have a value."""
    there = [value for value in values if not math.isnan(value)]
    if not there:
        return NAN
    return float(sum(there) / len(there) if how == "mean" else min(there) if smallest else max(there))


def _wilson(successes: float, size: float, z: float) -> tuple[float, float, float]:
    """Return a proportion and Wilson's interval of it."""
    p = float(successes / size)
    middle = (p + z * z / (2 * size)) / (1 + z * z / size)
    half = z * math.sqrt(p * (1 - p) / size + z * z / (4 * size * size)) / (1 + z * z / size)
    return p, float(middle - half), float(middle + half)
