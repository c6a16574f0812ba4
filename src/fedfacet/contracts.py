"""A menu of contracts, seconds against a reward, from which each client chooses what is best for it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Menu:
    r"""What the server offers: item m promises training within ``seconds[m]`` and is paid ``rewards[m]``.

    A client of type :math:`\theta` has :math:`\theta R_m - C(f_m)` of it, with :math:`C(f) = c f^2`, the energy of a processor
    at speed f. Types lie between ``lowest`` and ``highest``, which everybody knows; each is its client's secret.

    Args:
        seconds: of the items, descending, shape (M,).
        speeds: f of the items, the fastest item's seconds over an item's own, in (0, 1], ascending.
        rewards: R of the items, larger than 0, ascending.
        lowest: the least type, larger than 0.
        highest: the largest type.
        unit_cost: c, larger than 0.
    """

    seconds: tuple[float, ...]
    speeds: tuple[float, ...]
    rewards: tuple[float, ...]
    lowest: float
    highest: float
    unit_cost: float

    def utilities(self, type_: float) -> Floats:
        """Return what each item is worth to a client of a type, shape (M,)."""
        found: Floats = type_ * np.array(self.rewards) - self.unit_cost * np.square(self.speeds)
        return found

    def choice(self, type_: float, seconds: float) -> int | None:
        """Return the item that is worth most to a client, of those that its device is quick enough for; ``None`` for nothing.

        Args:
            type_: of the client.
            seconds: that a round's training takes it.
        """
        best = None
        utilities = self.utilities(type_)
        for item, most in enumerate(self.seconds):
            if seconds <= most and utilities[item] >= (0 if best is None else utilities[best]):
                best = item
        return best


def menu_of(seconds: Sequence[float], items: int, *, lowest: float, highest: float, unit_cost: float) -> Menu:
    r"""Return the cheapest menu in which each type is best off with an item of its own, and loses nothing by it.

    Item m of M asks for the :math:`(1 - (m - 1) / M)` quantile of the clients' seconds: the first is for the slowest, the last
    for the quickest M-th. It is meant for types from :math:`\theta_m = lo + (m - 1) (hi - lo) / M` on:

    .. math:: R_1 = C(f_1) / \theta_1, \quad R_m = R_{m-1} + \big( C(f_m) - C(f_{m-1}) \big) / \theta_m.

    So type :math:`\theta_1` gains nothing by item 1 (individual rationality), type :math:`\theta_m` is as well off with item m
    as with the one before, and no type is better off with another's (incentive compatibility).

    Source: Kang et al., Incentive Mechanism for Reliable Federated Learning, IEEE Internet of Things Journal 2019; the menu is
    that of arXiv:1905.07479 as it is remembered. It was not checked against the papers.

    Args:
        seconds: that a round's training takes each client, 0 or larger and finite, at least one.
        items: M, 1 or larger.
        lowest: lo, larger than 0.
        highest: hi, larger than ``lowest``.
        unit_cost: c, larger than 0.

    Example:
        >>> menu = menu_of([1.0, 2.0, 4.0, 4.0], 2, lowest=0.5, highest=1.0, unit_cost=1.0)
        >>> menu.seconds, menu.speeds, menu.rewards
        ((4.0, 2.0), (0.5, 1.0), (0.5, 1.5))
        >>> [menu.choice(type_, 2.0) for type_ in (0.5, 0.7, 0.8)], menu.choice(0.8, 3.0), menu.choice(0.8, 5.0)
        ([0, 0, 1], 0, None)
    """
    shares = 1 - np.arange(items) / items
    quantiles = np.quantile(np.asarray(seconds, dtype=np.float64), shares, method="inverted_cdf")
    speeds = [float(quantiles[-1] / most) if most > 0 else 1.0 for most in quantiles]
    types = lowest + (highest - lowest) * np.arange(items) / items
    costs = unit_cost * np.square(speeds)
    rewards = np.cumsum(np.diff(costs, prepend=0.0) / types)
    return Menu(tuple(quantiles.tolist()), tuple(speeds), tuple(rewards.tolist()), lowest, highest, unit_cost)


def budgeted(rewards: Sequence[float], budget: float) -> list[int]:
    """Return the positions of those who can be paid out of a budget, when each in turn is taken if what is left suffices.

    Example:
        >>> budgeted([4.0, 3.0, 3.0, 1.0], 8.0)
        [0, 1, 3]
    """
    taken, spent = [], 0.0
    for position, reward in enumerate(rewards):
        if spent + reward <= budget:
            taken.append(position)
            spent += reward
    return taken
