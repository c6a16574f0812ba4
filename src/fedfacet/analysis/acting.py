"""Runs -> whether a selector's mechanism acts: the share of places that differ from those of another run of the same seed."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from fedfacet.errors import ConfigError

LEAST = 0.05
"""A setting that differs in a smaller share of its places is not ranked: its mechanism hardly changes a cohort."""

Chosen = NDArray[np.bool_]
"""Who was selected when, shape (R, K): rounds x clients."""

Place = tuple[str, str]
"""(row, column)"""


@dataclass(frozen=True, slots=True)
class Acting:
    """How many of a run's places differ from those of a run that it is compared with.

    A place is a client in a round. Both attributes lie in [0, 1].

    Attributes:
        share: of the places that differ, as in ``acting``.
        chance: the share that would differ if the run drew cohorts of the same sizes uniformly and independently.
    """

    share: float
    chance: float


def acting(one_RK: Chosen, other_RK: Chosen) -> Acting:
    r"""Return the share of places in which two runs of one seed differ, over the rounds that both have.

    .. math:: 1 - \frac{\sum_t |A_t \cap B_t|}{\sum_t \max(|A_t|, |B_t|)}, \qquad
        1 - \frac{\sum_t |A_t| \, |B_t| / K}{\sum_t \max(|A_t|, |B_t|)}

    with the cohorts :math:`A_t` and :math:`B_t` of round t. The second one is what chance gives. Runs without any place do not
    differ.

    Source: none, since the measure is ours. Where B is the same selector with its mechanism off, drawing the same numbers,
    the share is 0 until the mechanism changes a cohort. From then on the models differ too, and so does all that follows.

    Args:
        one_RK: who was selected when.
        other_RK: the same of the other run, of as many clients.

    Example:
        Two of four places differ. By chance two of four clients share one with two others:

        >>> one = np.array([[1, 1, 0, 0], [1, 1, 0, 0]], dtype=bool)
        >>> acting(one, np.array([[1, 1, 0, 0], [0, 0, 1, 1]], dtype=bool))
        Acting(share=0.5, chance=0.5)
    """
    rounds = min(len(one_RK), len(other_RK))
    one_RK, other_RK = one_RK[:rounds], other_RK[:rounds]
    one_R, other_R = one_RK.sum(axis=1), other_RK.sum(axis=1)
    places = int(np.maximum(one_R, other_R).sum())
    if not places:
        return Acting(0.0, 0.0)
    both, expected = int((one_RK & other_RK).sum()), float(one_R @ other_R) / one_RK.shape[1]
    return Acting(1 - both / places, 1 - expected / places)


def compared(rows: Sequence[str], asked: str | None) -> tuple[str | None, list[str]]:
    """Return the row that others are compared with, and these others; ``None`` and none where nothing is compared.

    The row is the one that is asked for. Otherwise it is the first of the selector ``uniform``, or else of ``all``, and rows of
    the same selector are not compared.

    Raises:
        ConfigError: if there is no such row as is asked for.

    Example:
        >>> compared(["pow_d / fedavg", "uniform / fedavg", "uniform / fedavgm"], None)
        ('uniform / fedavg', ['pow_d / fedavg'])
    """
    if asked is not None:
        if asked not in rows:
            raise ConfigError(f"There is no row {asked!r} to compare with: name one of {', '.join(map(repr, rows))}.")
        return asked, [row for row in rows if row != asked]
    for name in ("uniform", "all"):
        alike = [row for row in rows if name in row.split(" / ")]
        if alike:
            return alike[0], [row for row in rows if row not in alike]
    return None, []


def acting_in(
    chosen: Mapping[Place, Mapping[int, Chosen]], baseline: str | None, rows: Sequence[str]
) -> dict[Place, dict[int, Acting]]:
    """Return (row, column) -> seed -> how much differs, for the seeds of which the ``baseline`` has a run of as many clients.

    Args:
        chosen: (row, column) -> seed -> who was selected when.
        baseline: a row.
        rows: those that are compared with it.
    """
    found: dict[Place, dict[int, Acting]] = {}
    for (row, column), by_seed in chosen.items():
        other = chosen.get((baseline or "", column), {})
        alike = [seed for seed in by_seed if seed in other and by_seed[seed].shape[1] == other[seed].shape[1]]
        if row in rows and alike:
            found[row, column] = {seed: acting(by_seed[seed], other[seed]) for seed in alike}
    return found


def not_ranked(found: Mapping[Place, Mapping[int, Acting]], baseline: str | None) -> Iterable[str]:
    """Yield a note on each setting that differs in fewer places than ``LEAST``, the mean over its seeds."""
    for (row, column), by_seed in found.items():
        share = fmean(one.share for one in by_seed.values())
        if share < LEAST:
            yield (
                f"`{row}` differs from `{baseline}` in {100 * share:.2g} % of its places on `{column}`, fewer than "
                f"{100 * LEAST:.0f} %: it selects as that row does, and is not ranked."
            )
