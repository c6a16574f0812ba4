"""Statistics of two settings that were run with the same seeds."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from fedfacet import rng
from fedfacet.arguments import check_choice

LEVEL = 0.05
"""A difference is significant where its corrected p-value is below this level; intervals cover 1 - LEVEL."""

POWER = 0.8
_MOST_SEEDS = 10_000
_EXACT_UP_TO = 20  # seeds, whose 1,048,576 signs are all tried
_RESAMPLES = 9_999

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class PairedDifference:
    r"""How far one setting is from another, seed by seed: :math:`d_s = a_s - b_s`.

    Attributes:
        n: number of pairs.
        mean: of the :math:`d_s`; NaN where a pair has no value.
        std: their sample standard deviation; NaN below two pairs.
        t_interval: 95 % confidence interval of the mean by Student's t; NaN below two pairs.
        bootstrap_interval: the same by the percentile bootstrap; too narrow below about ten pairs.
        p_t: two-sided p-value of the paired t test.
        p_permutation: two-sided p-value of the sign-flip permutation test, whose only assumption is that without a difference
            :math:`d_s` and :math:`-d_s` are equally likely. It is exact up to 20 pairs, and never below :math:`2^{1-n}`.
        seeds_needed: how many pairs the t test would need to separate a difference of this mean and this spread at level 0.05
            in 80 % of all repetitions; infinite above 10,000. The mean and the spread are guesses from the same few seeds, so
            this is a guess too.
    """

    n: int
    mean: float
    std: float
    t_interval: Interval
    bootstrap_interval: Interval
    p_t: float
    p_permutation: float
    seeds_needed: float

    def p(self, test: str) -> float:
        """Return the p-value of ``"permutation"`` or ``"t"``."""
        check_choice("test", test, ("permutation", "t"))
        return self.p_permutation if test == "permutation" else self.p_t


def paired_difference(a: Sequence[float], b: Sequence[float]) -> PairedDifference:
    """Compare two settings, whose values are in the order of the same seeds.

    Example:
        >>> found = paired_difference([91.0, 94.0, 93.0, 92.5], [90.0, 92.0, 90.0, 93.0])
        >>> found.mean, found.p_permutation
        (1.375, 0.25)
        >>> [round(bound, 2) for bound in found.t_interval], found.seeds_needed
        ([-1.0, 3.75], 12.0)
    """
    d_N = np.asarray(a, dtype=np.float64) - np.asarray(b, dtype=np.float64)
    n, nothing = len(d_N), (math.nan, math.nan)
    mean = float(d_N.mean()) if n else math.nan
    if n < 2 or not np.isfinite(d_N).all():
        return PairedDifference(n, mean, math.nan, nothing, nothing, math.nan, math.nan, math.nan)
    std = float(d_N.std(ddof=1))
    if std <= 1e-12 * abs(mean):  # all differences are the same one
        same, p_t = (mean, mean), float(mean == 0)
        return PairedDifference(n, mean, std, same, same, p_t, _permutation(d_N), math.inf if mean == 0 else 2.0)
    test = stats.ttest_1samp(d_N, 0.0)
    t_low, t_high = test.confidence_interval(1 - LEVEL)
    resampled = stats.bootstrap(
        (d_N,), np.mean, confidence_level=1 - LEVEL, n_resamples=_RESAMPLES, method="percentile", rng=rng.stream(0, "bootstrap")
    ).confidence_interval
    return PairedDifference(
        n,
        mean,
        std,
        (float(t_low), float(t_high)),
        (float(resampled.low), float(resampled.high)),
        float(test.pvalue),
        _permutation(d_N),
        _seeds_needed(abs(mean) / std),
    )


def sign_flip_p(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the p-value of the sign-flip permutation test, as ``PairedDifference`` has it."""
    d_N = np.asarray(a, dtype=np.float64) - np.asarray(b, dtype=np.float64)
    return _permutation(d_N) if len(d_N) > 1 and np.isfinite(d_N).all() else math.nan


def holm(p_values: Sequence[float]) -> list[float]:
    r"""Return Holm's corrected p-values, :math:`\max_{j \le i} \min(1, (m - j + 1)\, p_{(j)})` in the order given.

    Those below a level are true discoveries, all of them, with a probability of at least one minus the level. NaN stays NaN and
    does not count.

    Source: Holm, A Simple Sequentially Rejective Multiple Test Procedure, Scandinavian Journal of Statistics 6, 1979.

    Example:
        >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
        [0.03, 0.06, 0.06]
    """
    counted = sorted((p, position) for position, p in enumerate(p_values) if not math.isnan(p))
    corrected, largest = [math.nan] * len(p_values), 0.0
    for rank, (p, position) in enumerate(counted):
        largest = max(largest, min(1.0, (len(counted) - rank) * p))
        corrected[position] = largest
    return corrected


def smallest_p(n: int) -> float:
    """Return the smallest p-value that the permutation test of ``n`` pairs can have."""
    return 2.0 ** (1 - n) if n <= _EXACT_UP_TO else 2 / (_RESAMPLES + 1)


def _permutation(d_N: NDArray[np.float64]) -> float:
    """Return the p-value of all signs, or of 9,999 drawn ones.

    Sums of accuracies often tie, since images are counted. A tie counts in full, so the means are rounded to a billionth of the
    largest difference: floating point would break it, and the p-value would be too small.
    """
    scale = float(np.abs(d_N).max()) or 1.0
    if len(d_N) <= _EXACT_UP_TO:  # scipy lists the signs in Python, which takes 13 s for twenty seeds
        sums_P = np.zeros(1)
        for d in d_N / scale:
            sums_P = np.concatenate([sums_P + d, sums_P - d])
        means_P = np.abs(np.round(sums_P / len(d_N), 9))
        return float((means_P >= means_P[0]).mean())  # the first has all signs as they are

    def mean(signed: NDArray[np.float64], axis: int = -1) -> NDArray[np.float64]:
        return np.asarray(np.round(signed.mean(axis=axis) / scale, 9))

    drawn = stats.permutation_test(
        (d_N,), mean, permutation_type="samples", n_resamples=_RESAMPLES, rng=rng.stream(0, "permutation")
    )
    return float(drawn.pvalue)


def _seeds_needed(effect: float) -> float:
    """Return the smallest n at which the t test finds a difference of ``effect`` standard deviations with power 0.8."""
    quantiles_M = (np.arange(4_000) + 0.5) / 4_000

    def is_enough(n: int) -> bool:
        # The noncentral t's tails, as a mean over the measured spread; scipy's nct fails for few pairs and large effects.
        critical_M = stats.t.ppf(1 - LEVEL / 2, n - 1) * np.sqrt(stats.chi2.ppf(quantiles_M, n - 1) / (n - 1))
        shift = effect * math.sqrt(n)
        return bool((stats.norm.sf(critical_M - shift) + stats.norm.cdf(-critical_M - shift)).mean() >= POWER)

    low, high = 1, 2
    while not is_enough(high):
        low, high = high, 2 * high
        if low >= _MOST_SEEDS:
            return math.inf
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return float(high) if high <= _MOST_SEEDS else math.inf
