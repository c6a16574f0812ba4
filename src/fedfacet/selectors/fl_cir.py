"""FL-CIR: a bandit that learns clients' class shares from gradients, and composes cohorts in which classes are balanced."""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray

from fedfacet.arguments import Within
from fedfacet.records import RoundResult
from fedfacet.selectors.base import ClientSelector, Taxonomy, numbers, warn_of
from fedfacet.types import ClientUpdate, Facts, SelectionContext, ServerState, State

log = logging.getLogger(__name__)

Floats = NDArray[np.float64]


@dataclass(eq=False, kw_only=True)
class FLCIRSelector(ClientSelector):
    r"""Estimate each client's class shares, and add clients to the cohort so that its classes come nearest to balance.

    1. Learn. Let :math:`G_c = \|\partial L_c / \partial W_c\|^2`, with :math:`L_c` the mean cross entropy of the server's
       samples of class c under a client's model, and :math:`W_c` the head's row of that class. A client that holds many
       samples of a class leaves little to be learnt of it. With :math:`\rho_c = \sum_j G_c / G_j` its shares are estimated as

       .. math:: R_c = \frac{\exp(\beta / \rho_c)}{\sum_j \exp(\beta / \rho_j)}

       (without :math:`\beta`, :math:`R_c = 1 / \rho_c`), and :math:`\bar R_k` is the mean over the :math:`T_k` updates of
       client k so far.
    2. Select. Clients never seen come first, by lot. Of the others the first one has the largest

       .. math:: \hat r_k = \frac{1}{\mathrm{KL}(\bar R_k \,\|\, U)} + a \sqrt{\frac{3 \ln t}{2 T_k}}

       in round t, with U the uniform distribution, and each next one is the client with which the sum of the cohort's
       :math:`\bar R` has the smallest divergence from U. Those never seen count as nothing in the sum. Ties by lot.

    Since :math:`1 / \rho_c = G_c^{-1} / \sum_j G_j^{-1}` lies in [0, 1], shares differ by a factor of :math:`e^\beta` at most:
    R says which classes a client has more of, not how much more. Classes of no gradient at all share :math:`1 / \rho` equally.
    A client's estimate that is not finite is not learnt from, and named in the log.

    The server learns class shares without a question, from updates and samples of its own: no ``disclosure`` forbids that.

    Source: Yang et al., Federated Learning with Class Imbalance Reduction, EUSIPCO 2021, arXiv:2011.11266, as the thesis'
    table 4 and appendix A.1 describe it. It was compared with the authors' released code (``main.py``, ``LossRatio.py``), not
    with the paper. As in that code, :math:`L_c` is the loss of the samples of class c. Means forget nothing. All clients are
    seen once before any other is chosen.

    Deviations: G is the square of the head's row of class c without its bias, in the code the sum of the mean squares of all
    tensors. The code has :math:`R_c = 1 / \rho_c`, which is ``sharpness=null``. Its softmax is commented out. Its reward is
    one over the cross entropy of U and R, averaged over a client's rounds. The next client of a cohort is the one with the
    least such entropy. It has ``exploration=0.8`` and counts rounds from 0. It takes clients never seen in their order, here
    they come by lot.

    A round costs O(κ K Y) to select κ of K clients by Y classes, more than O(K log K), because every next client depends on
    those before: 1,000 of 10,000 clients of ten classes take 2 seconds. To learn, the server passes its samples through one
    model per update; ``server/samples`` counts them. Whole updates stay in memory until then. Checkpoints hold K (Y + 1)
    numbers. Clients are asked nothing.

    Args:
        sharpness: beta, larger than 0 and at most 1e3: how far shares are apart. ``None`` is for no softmax.
        exploration: a, 0 or larger: how much a client gains that was seen seldom.
    """

    taxonomy = Taxonomy("efficiency", "DSRT", ("θ",), "bandit on gradients of the server's samples", "ranking", "fixed rounds")

    sharpness: Annotated[float | None, Within("(0, 1e3]")] = 1.0
    exploration: Annotated[float, Within("[0, 1e9]")] = 1.0

    def init(self, facts: Facts) -> ServerState:
        """Return every client's mean shares, float64 of shape (K, Y) once there are any, and T, int64 of shape (K,)."""
        nothing = torch.zeros((0, 0), dtype=torch.float64)
        return {"shares": nothing, "times": torch.zeros(facts.num_clients, dtype=torch.int64)}

    def needs_updates(self, server: ServerState) -> bool:
        """Return ``True``."""
        return True

    def judges(self) -> str | None:
        """Return that gradients matter."""
        return "gradients"

    def select(self, server: ServerState, context: SelectionContext) -> list[int]:
        """Return those never seen, then the client of the largest index, then those that balance the cohort."""
        available = numbers(context.available)
        times_K = server["times"].numpy()[available]
        luck_K = context.rng.random(len(available))
        unseen = np.flatnonzero(times_K == 0)
        picked: list[int] = unseen[np.argsort(luck_K[unseen])][: context.num_slots].tolist()
        if len(picked) < context.num_slots:
            seen = np.flatnonzero(times_K > 0)
            shares_NY = server["shares"].numpy()[available[seen]]
            bonus_N = self.exploration * np.sqrt(1.5 * math.log(context.round) / times_K[seen])
            added = balanced_cohort(shares_NY, bonus_N, context.num_slots - len(picked), luck_K[seen])
            picked += seen[added].tolist()
        return [context.available[position] for position in picked]

    def observe(
        self,
        server: ServerState,
        result: RoundResult,
        updates: Sequence[ClientUpdate],
        rng: np.random.Generator,
        *,
        judge: Callable[[State], NDArray[np.float64]],
    ) -> ServerState:
        """Return the means with what this round's updates say of their clients' classes."""
        estimates, unusable = {}, []
        for update in updates:
            shares_Y = class_shares(judge(update.delta | update.buffers), self.sharpness)
            if np.isfinite(shares_Y).all():
                estimates[update.client_id] = torch.from_numpy(shares_Y)
            else:
                unusable.append(update.client_id)
        warn_of(result.round, "gradients", unusable, len(updates), "clients' models are not finite and teach nothing")
        if not estimates:
            return server
        clients = torch.tensor(list(estimates))
        new_NY = torch.stack(list(estimates.values()))
        times_K, shares_KY = server["times"].clone(), server["shares"].clone()
        if not shares_KY.numel():
            shares_KY = torch.zeros((len(times_K), new_NY.shape[1]), dtype=torch.float64)
        times_K[clients] += 1
        shares_KY[clients] += (new_NY - shares_KY[clients]) / times_K[clients, None]
        return {"shares": shares_KY, "times": times_K}


def class_shares(squares_Y: Floats, sharpness: float | None) -> Floats:
    r"""Return :math:`R_c \propto \exp(\beta / \rho_c)` with :math:`\rho_c = \sum_j G_c / G_j`, shape (Y,).

    It is NaN throughout if a gradient is not finite.

    Args:
        squares_Y: G, 0 or larger, shape (Y,).
        sharpness: beta; ``None`` for :math:`R_c = 1 / \rho_c`.

    Example:
        The second class has a third of the first one's gradient, so 1/rho is 1/4 and 3/4:

        >>> class_shares(np.array([3.0, 1.0]), np.log(9)).round(9).tolist()
        [0.25, 0.75]
    """
    if not np.isfinite(squares_Y).all():
        return np.full(len(squares_Y), np.nan)
    least = squares_Y.min()
    inverse_Y = least / squares_Y if least > 0 else (squares_Y == 0).astype(np.float64)
    inverse_Y = inverse_Y / inverse_Y.sum()
    if sharpness is None:
        return inverse_Y  # type: ignore[no-any-return]
    powers_Y = np.exp(sharpness * (inverse_Y - inverse_Y.max()))  # the largest is 1: none overflows, and not all underflow
    shares_Y: Floats = powers_Y / powers_Y.sum()
    return shares_Y


def divergence(shares_NY: Floats) -> Floats:
    """Return the Kullback-Leibler divergence of distributions from the uniform one, in nats, shape (N,).

    Args:
        shares_NY: 0 or larger, of any positive sum, shape (N, Y).

    Example:
        >>> divergence(np.array([[1.0, 1.0], [4.0, 0.0]])).round(6).tolist()
        [0.0, 0.693147]
    """
    p_NY = shares_NY / shares_NY.sum(axis=1, keepdims=True)
    terms_NY = p_NY * np.log(np.where(p_NY > 0, p_NY, 1.0))
    summed_N: Floats = np.maximum(terms_NY.sum(axis=1) + math.log(shares_NY.shape[1]), 0.0)
    return summed_N


def balanced_cohort(shares_NY: Floats, bonus_N: Floats, num_slots: int, luck_N: Floats) -> list[int]:
    """Return positions of clients: the one of the largest index first, then always the one that balances the sum best.

    Args:
        shares_NY: each client's class shares, shape (N, Y).
        bonus_N: what is added to 1 / KL for the first place, shape (N,).
        num_slots: 1 to N.
        luck_N: by which ties are broken, the smallest first, shape (N,).

    Example:
        The first is balanced by itself; the second and the third are together:

        >>> shares = np.array([[0.5, 0.5], [0.9, 0.1], [0.1, 0.9], [0.8, 0.2]])
        >>> balanced_cohort(shares, np.zeros(4), 3, np.arange(4.0))
        [0, 3, 2]
    """
    with np.errstate(divide="ignore"):
        index_N = 1 / divergence(shares_NY) + bonus_N
    picked = [int(np.lexsort((luck_N, -index_N))[0])]
    left = np.ones(len(shares_NY), dtype=bool)
    total_Y = np.zeros(shares_NY.shape[1])
    while len(picked) < num_slots:
        left[picked[-1]] = False
        total_Y = total_Y + shares_NY[picked[-1]]
        others = np.flatnonzero(left)
        divergence_M = divergence(total_Y + shares_NY[others])
        best = others[divergence_M == divergence_M.min()]
        picked.append(int(best[np.argmin(luck_N[best])]))
    return picked
