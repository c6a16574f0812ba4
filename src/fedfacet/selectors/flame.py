"""FLAME: clients with large losses that are quick and have energy left."""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray

from fedfacet.arguments import Within
from fedfacet.records import RoundResult
from fedfacet.selectors.base import ClientSelector, Taxonomy, numbers, warn_of
from fedfacet.types import DEVICES, ClientUpdate, Facts, Query, SelectionContext, ServerState

log = logging.getLogger(__name__)

Floats = NDArray[np.float64]

_LEAST_SHARE = 1e-12
"""Of the energy budget: a device whose rounds take none would have an infinite utility, however small its loss."""


@dataclass(eq=False, kw_only=True)
class FlameSelector(ClientSelector):
    r"""Choose the clients of the highest utility, of loss, energy and time.

    Every member of a cohort reports its valuation :math:`v_k = \sqrt{n_k} \, \bar \ell_k` of the model that it is sent. The
    server keeps the last one, and the seconds :math:`T_k` after which the client's update arrived. A client that was heard has
    the utility (``utilities``)

    .. math:: U_k = v_k \, \log \frac{E_{max}}{E_k} \cdot \begin{cases} 1 & T_k \le T \\ \alpha \, T / T_k & \text{else.}
        \end{cases}

    :math:`E_k` is the energy that it has used: the joules of a round of its device (``RoundJoules``) times the number of rounds
    for which it was selected, of one round at least. Those with the highest :math:`U_k > 0` make the cohort. Before them come
    those never heard, in drawn order, whose round takes less than :math:`E_{max}`. So a client whose budget is spent is never
    chosen, and the cohort is smaller where too few are left; it may be empty (``termination=silence`` ends such a run). Ties
    are broken by the round's draw.

    Source: Cho et al., FLAME: Federated Learning Across Multi-device Environments, arXiv:2202.08922. The formula and the
    defaults are those of the authors' released code (``device_selection.py``); they were not checked against the paper. E_max
    is a tenth of a battery of 3,000 mAh at 3.7 V.

    Deviations: the code begins with :math:`E_k = 0`, by which it divides, and with a loss of 10 for everybody; here those
    never heard come first. Its factor of time jumps from 1 to alpha at T; this one does too. Its T_k are of profiles, these
    were observed; one that is not known is no longer than T. Several devices of one user are not held together, as data have
    no users. The code adds 60 J a round for sending and receiving, instead of ``devices.joules_per_byte``. Energy is that of
    whole rounds without jitter; what questions take, and what a client saves that is late or lost, is not counted. :math:`E_k`
    is at least 1e-12 of :math:`E_{max}`, for devices that use no energy. A valuation that is not finite has its client come
    last, and the log names it. A client that tells no finite joules, or negative ones, is never chosen.

    A round costs O(K log K), and one pass of the cohort's samples through the model, which the ledger counts. A client
    discloses the joules of a round once, and its valuation in every round for which it is selected.

    Args:
        valuation: asked of the cohort in every round.
        round_joules: asked once of everybody.
        max_joules: E_max, larger than 0; ``None`` for no budget, and then energy does not matter.
        preferred_seconds: T, larger than 0; ``None`` for no limit.
        slow_factor: alpha, in [0, 1].
    """

    # FLAME_C of the thesis' table 4.
    taxonomy = Taxonomy("limit client drain", "DSRT", ("θ", "loss", "time", "energy"), "utility", "ranking", "limited energy")

    sizes_itself = True
    requires = frozenset({DEVICES})

    valuation: Query
    round_joules: Query
    max_joules: Annotated[float | None, Within("(0, 3.4e38]")] = 3996.0
    preferred_seconds: Annotated[float | None, Within("(0, 3.4e38]")] = 30.0
    slow_factor: Annotated[float, Within("[0, 1]")] = 0.5

    def init(self, facts: Facts) -> ServerState:
        """Return what is known of clients, nothing so far.

        These are valuations, float64 of shape (K,), -inf where none was heard and inf where one was not finite; seconds,
        float64 of shape (K,), 0 where not known; and for how many rounds each was selected, int64 of shape (K,).
        """
        num_clients = facts.num_clients
        return {
            "valuations": torch.full((num_clients,), -torch.inf, dtype=torch.float64),
            "durations": torch.zeros(num_clients, dtype=torch.float64),
            "selected": torch.zeros(num_clients, dtype=torch.int64),
        }

    def select(self, server: ServerState, context: SelectionContext) -> list[int]:
        """Return those never heard, and then those of the highest utility, as far as their energy allows."""
        available = numbers(context.available)
        joules = context.ask_once(self.round_joules, context.available)
        joules_K = np.array([joules[client_id] for client_id in context.available], dtype=np.float64)
        if context.round == 1 and self.max_joules is not None and not joules_K.any():
            log.warning(
                "A round takes no device any energy, so selector.max_joules limits nobody: give devices.joules_per_sample and "
                "devices.joules_per_byte."
            )
        valuations_K = server["valuations"].numpy()[available]
        utilities_K = utilities(
            valuations_K,
            joules_K * np.maximum(server["selected"].numpy()[available], 1),
            server["durations"].numpy()[available],
            max_joules=self.max_joules,
            preferred_seconds=self.preferred_seconds,
            slow_factor=self.slow_factor,
        )
        order = np.lexsort((context.rng.random(len(available)), -utilities_K, np.isposinf(valuations_K)))
        cohort = [context.available[position] for position in order.tolist() if utilities_K[position] > 0][: context.num_slots]
        context.ask(self.valuation, cohort)
        return cohort

    def observe(
        self, server: ServerState, result: RoundResult, updates: Sequence[ClientUpdate], rng: np.random.Generator
    ) -> ServerState:
        """Keep valuations and durations of those whose updates arrived, and count who was selected."""
        valuations_K, durations_K, selected_K = (server[name].clone() for name in ("valuations", "durations", "selected"))
        selected_K[list(result.cohort)] += 1
        for receipt in result.receipts:
            valuations_K[receipt.client_id] = receipt.answers[self.valuation.name]
        for client_id, seconds in result.durations.items():
            durations_K[client_id] = seconds
        unusable = [receipt.client_id for receipt in result.receipts if not valuations_K[receipt.client_id].isfinite()]
        if unusable:
            valuations_K[unusable] = torch.inf
            warn_of(result.round, "valuations", unusable, len(result.receipts), "clients are not finite and come last")
        return {"valuations": valuations_K, "durations": durations_K, "selected": selected_K}


def utilities(
    valuations_K: Floats,
    joules_K: Floats,
    durations_K: Floats,
    *,
    max_joules: float | None,
    preferred_seconds: float | None,
    slow_factor: float,
) -> Floats:
    r"""Return the utilities of clients, shape (K,): 0 or less where they are not to be chosen.

    Infinite where a client was never heard. Where a valuation was not finite, that of a valuation of 1.

    Args:
        valuations_K: :math:`\sqrt{n} \, \bar \ell`, -inf where never heard, inf where not finite, shape (K,).
        joules_K: E_k, shape (K,).
        durations_K: seconds, 0 where not known, shape (K,).
        max_joules: E_max.
        preferred_seconds: T.
        slow_factor: alpha.

    Example:
        >>> valuations_K, joules_K, durations_K = np.array([2.0, 2.0]), np.array([100.0, 1000.0]), np.array([5.0, 60.0])
        >>> settings = {"max_joules": 1000.0, "preferred_seconds": 30.0, "slow_factor": 0.5}
        >>> utilities(valuations_K, joules_K, durations_K, **settings).round(3).tolist()
        [4.605, 0.0]
    """
    usable_K = np.isfinite(joules_K) & (joules_K >= 0)
    energy_K = np.ones(len(joules_K))
    if max_joules is not None:
        spent_K = np.maximum(np.where(usable_K, joules_K / max_joules, 1.0), _LEAST_SHARE)
        energy_K = np.maximum(-np.log(spent_K), 0.0)
    time_K = np.ones(len(joules_K))
    if preferred_seconds is not None:
        slow_K = durations_K > preferred_seconds
        time_K[slow_K] = slow_factor * preferred_seconds / durations_K[slow_K]
    worth_K = np.where(np.isfinite(valuations_K), valuations_K, 1.0) * energy_K * time_K
    found_K: Floats = np.where((valuations_K == -math.inf) & (energy_K > 0), math.inf, worth_K)
    return np.where(usable_K, found_K, 0.0)
