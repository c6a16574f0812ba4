"""The privacy that noise gives, by proof: an upper bound on epsilon."""

import contextlib
import functools
import math
import warnings
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr

from fedfacet.arguments import check_choice, check_whole, check_within
from fedfacet.optional import required

_ORDERS = [*(1 + tenths / 10 for tenths in range(1, 100)), *range(11, 64), *range(64, 1025, 16)]
"""Of Rényi divergences; the best of them is taken, so that more can only lower the bound."""

_LARGEST_OF_PRV = 50.0


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
    if math.isinf(noise_multiplier):
        raise ValueError(f"Expected `noise_multiplier` to be 0 or larger and finite, but got {noise_multiplier}.")
    return composed_epsilon([Mechanism(noise_multiplier, sampling_rate, steps)], delta)


class Mechanism(NamedTuple):
    """Some steps of noised sums, as in ``proven_epsilon``; an infinite noise multiplier is of what tells nothing."""

    noise_multiplier: float
    sampling_rate: float
    steps: int


def composed_epsilon(mechanisms: Iterable[Mechanism], delta: float, accountant: str = "rdp") -> float:
    r"""Return an :math:`\epsilon` of several mechanisms one after another, each chosen in view of what came before.

    What is not sampled is one Gaussian mechanism with :math:`\mu^2 = \sum_i T_i / z_i^2`, and exact where nothing is sampled.
    With ``accountant="rdp"`` Rényi divergences add up. ``"prv"`` composes privacy loss random variables by Fourier transforms
    (Gopi, Lee and Wutschitz, NeurIPS 2021, arXiv:2106.02848), and takes the upper end of what they leave open, 0.01. Then the
    smaller of both bounds is returned; it is that of Rényi above an epsilon of 50, where grids grow and nothing is promised.

    Args:
        mechanisms: in any order.
        delta: in (0, 1).
        accountant: ``"rdp"`` or ``"prv"``.

    Raises:
        ConfigError: if something is sampled and the package opacus is not installed.
        ValueError: if a value is out of range.

    Example:
        >>> answer, rounds = Mechanism(2.0, 1.0, 1), Mechanism(2.0, 1.0, 3)
        >>> composed_epsilon([answer, rounds], 1e-5) == proven_epsilon(2.0, 1.0, 4, 1e-5)
        True
    """
    return bound(mechanisms, delta, accountant)[0]


def bound(mechanisms: Iterable[Mechanism], delta: float, accountant: str) -> tuple[float, str]:
    """Return what ``composed_epsilon`` does, and which accountant gave it: ``"exact"``, ``"rdp"`` or ``"prv"``."""
    check_within("delta", delta, "(0, 1)")
    check_choice("accountant", accountant, ("rdp", "prv"))
    taken = Counter[tuple[float, float]]()
    for noise_multiplier, rate, steps in mechanisms:
        if not noise_multiplier >= 0:
            raise ValueError(f"Expected `noise_multiplier` to be 0 or larger, but got {noise_multiplier}.")
        check_within("sampling_rate", rate, "(0, 1]")
        check_whole("steps", steps, 0)
        if steps and not math.isinf(noise_multiplier):
            taken[noise_multiplier, rate] += steps
    if any(noise_multiplier == 0 for noise_multiplier, _ in taken):
        return math.inf, "exact"
    mu = math.hypot(*(math.sqrt(steps) / z for (z, rate), steps in sorted(taken.items()) if rate == 1))
    history = [Mechanism(z, rate, steps) for (z, rate), steps in sorted(taken.items()) if rate < 1]
    if not history:
        return (_exact(mu, delta) if mu else 0.0), "exact"
    required("opacus", extra="privacy", wanted_by="the epsilon of what is drawn at random")
    return _composed((*history, *([Mechanism(1 / mu, 1.0, 1)] if mu else [])), delta, accountant)


def by_renyi(noise_multiplier: float, sampling_rate: float, steps: int, delta: float) -> float:
    """Return what Opacus' accountant says of Rényi divergences; the arguments are those of ``proven_epsilon``, with noise.

    Raises:
        ConfigError: if the package is not installed.
    """
    required("opacus", extra="privacy", wanted_by="the epsilon of what is drawn at random")
    return _composed((Mechanism(noise_multiplier, sampling_rate, steps),), delta, "rdp")[0]


@functools.cache  # clients of one size that trained as often have one epsilon
def _composed(mechanisms: tuple[Mechanism, ...], delta: float, accountant: str) -> tuple[float, str]:
    from opacus.accountants import PRVAccountant
    from opacus.accountants.analysis import rdp

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # that the best order is the first or the last: the bound holds all the same
        spent = sum(_divergences(z, q) * steps for z, q, steps in mechanisms)
        epsilon = max(0.0, float(rdp.get_privacy_spent(orders=_ORDERS, rdp=spent, delta=delta)[0]))
        if accountant == "prv" and epsilon <= _LARGEST_OF_PRV:
            composed = PRVAccountant()
            composed.history = [tuple(mechanism) for mechanism in mechanisms]
            with contextlib.suppress(RuntimeError, ValueError):  # where its grid is too coarse, which it checks itself
                if math.isfinite(tighter := float(composed.get_epsilon(delta))):
                    return min(epsilon, max(0.0, tighter)), "prv"
    return epsilon, "rdp"


@functools.cache  # a tenth of a second, and the same in every round
def _divergences(noise_multiplier: float, sampling_rate: float) -> NDArray[np.float64]:
    """Return the Rényi divergences of one step, at ``_ORDERS``."""
    from opacus.accountants.analysis import rdp

    return np.asarray(rdp.compute_rdp(q=sampling_rate, noise_multiplier=noise_multiplier, steps=1, orders=_ORDERS))


def _exact(mu: float, delta: float) -> float:
    """Return the least epsilon of one Gaussian mechanism."""
    from scipy.optimize import brentq  # a fifth of a second to import, needed by private runs only

    def excess(epsilon: float) -> float:
        second = math.exp(min(700.0, epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))))
        return float(ndtr(mu / 2 - epsilon / mu)) - second - delta

    if excess(0.0) <= 0:
        return 0.0
    high = 1.0
    while excess(high) > 0:
        high *= 2
    found, step = float(brentq(excess, 0.0, high, xtol=1e-12)), 1e-12
    while excess(found) > 0:  # round up, never down
        found, step = found + step, 2 * step
    return found
