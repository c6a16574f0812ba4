"""The privacy that noise gives, by proof: an upper bound on epsilon."""

import functools
import math
import warnings

import numpy as np
from scipy.optimize import brentq
from scipy.stats import norm

from fedfacet.arguments import check_whole, check_within
from fedfacet.optional import required

_ORDERS = [*(1 + tenths / 10 for tenths in range(1, 100)), *range(11, 64), *range(64, 1025, 16)]
"""Of Rényi divergences; the best of them is taken, so that more can only lower the bound."""


def proven_epsilon(noise_multiplier: float, sampling_rate: float, steps: int, delta: float) -> float:
    r"""Return an :math:`\epsilon` for which some steps of noised sums are :math:`(\epsilon, \delta)`-differentially private.

    Every step takes each sample by itself with probability q, sums vectors of norm C at most, one per sample, and adds
    Gaussian noise of standard deviation z C to every entry. Neighbours differ by one sample, which is there or not.

    With q = 1 it is exact: T steps are one Gaussian mechanism with :math:`\mu = \sqrt{T} / z`, and

    .. math:: \delta(\epsilon) = \Phi(\mu / 2 - \epsilon / \mu) - e^\epsilon \Phi(-\mu / 2 - \epsilon / \mu)

    (Balle and Wang, ICML 2018, arXiv:1805.06530, theorem 8). With q < 1 it is a bound by Rényi divergences (Mironov et al.,
    2019, arXiv:1908.10530), which Opacus computes and turns into epsilon (Balle et al., AISTATS 2020, arXiv:1905.09982).

    Args:
        noise_multiplier: z, 0 or larger.
        sampling_rate: q in (0, 1].
        steps: T, 0 or larger.
        delta: in (0, 1).

    Returns:
        0 or larger; infinity without noise.

    Raises:
        ConfigError: if q < 1 and the package opacus is not installed.
        ValueError: if a value is out of range.

    Example:
        >>> round(proven_epsilon(noise_multiplier=1.0, sampling_rate=1.0, steps=1, delta=1e-5), 3)
        4.377
    """
    if not 0 <= noise_multiplier < math.inf:
        raise ValueError(f"Expected `noise_multiplier` to be 0 or larger and finite, but got {noise_multiplier}.")
    check_within("sampling_rate", sampling_rate, "(0, 1]")
    check_whole("steps", steps, 0)
    check_within("delta", delta, "(0, 1)")
    if steps == 0:
        return 0.0
    if noise_multiplier == 0:
        return math.inf
    if sampling_rate == 1:
        return _exact(math.sqrt(steps) / noise_multiplier, delta)
    return by_renyi(noise_multiplier, sampling_rate, steps, delta)


@functools.cache  # clients of one size that trained as often have one epsilon
def by_renyi(noise_multiplier: float, sampling_rate: float, steps: int, delta: float) -> float:
    """Return what Opacus' accountant says; the arguments are those of ``proven_epsilon``, whose noise is not 0.

    Raises:
        ConfigError: if the package is not installed.
    """
    required("opacus", extra="privacy", wanted_by="the epsilon of batches drawn at random")
    from opacus.accountants.analysis import rdp

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # that the best order is the first or the last: the bound holds all the same
        spent = rdp.compute_rdp(q=sampling_rate, noise_multiplier=noise_multiplier, steps=steps, orders=_ORDERS)
        epsilon, _ = rdp.get_privacy_spent(orders=_ORDERS, rdp=spent, delta=delta)
    return max(0.0, float(epsilon))


def _exact(mu: float, delta: float) -> float:
    """Return the least epsilon of one Gaussian mechanism."""

    def excess(epsilon: float) -> float:
        second = math.exp(min(700.0, epsilon + float(norm.logcdf(-mu / 2 - epsilon / mu))))
        return float(norm.cdf(mu / 2 - epsilon / mu)) - second - delta

    if excess(0.0) <= 0:
        return 0.0
    high = 1.0
    while excess(high) > 0:
        high *= 2
    found, step = float(brentq(excess, 0.0, high, xtol=1e-12)), 1e-12
    while excess(found) > 0:  # round up, never down
        found, step = found + step, 2 * step
    return found
