"""FedCS: as many clients as a round's deadline allows."""

import logging
import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedfacet import rng
from fedfacet.arguments import Within
from fedfacet.selectors.base import ClientSelector, Taxonomy
from fedfacet.types import DEVICES, Query, SelectionContext, ServerState

log = logging.getLogger(__name__)


@dataclass(eq=False, kw_only=True)
class FedCSSelector(ClientSelector):
    r"""Draw candidates, ask what a round takes them, and choose one after another while the round stays within the deadline.

    1. Of the K clients that are available, :math:`\lceil C K \rceil` candidates are drawn uniformly. Each tells the seconds to
       receive the model, to train and to send its update, :math:`t^D_k, t^{UD}_k, t^{UL}_k` (``Resources``).
    2. With S and :math:`\Theta` empty and 0 at first, the candidate that adds the least time is taken from the list
       (``chosen_by_deadline``):

       .. math:: x = \arg\min_k \; T_D(S \cup k) - T_D(S) + t^{UL}_k + \max(0, t^{UD}_k - \Theta).

       It joins S if :math:`T_o + T_D(S \cup x) + \Theta' < T_{round}`, where
       :math:`\Theta' = \Theta + t^{UL}_x + \max(0, t^{UD}_x - \Theta)` takes the place of :math:`\Theta`. T_D is the slowest
       download: the model goes out to all at once. This is repeated until no candidate is left.

    The cohort may have any number of clients, none among them; ``federation.cohort_size`` does not matter. Where clients send
    side by side (``devices.uplink=parallel``) a round takes no longer than is planned here.

    Source: Nishio and Yonetani, Client Selection for Federated Learning with Heterogeneous Resources in Mobile Edge, ICC 2019,
    arXiv:1804.08333, algorithm 3 and equations 3 and 4, as a public port of the method has them; neither these nor the defaults
    were checked against the paper.

    Deviations: the server knows nothing of jitter, as in the paper; a round of devices with jitter may end later than the
    deadline. Ties are broken by the round's draw. Updates are sent in the order in which clients are ready, not in that of
    selection; no order is faster. The seconds until clients have answered do not count. A client whose answer is not finite, or
    is negative, is not chosen.

    A round costs O((C K)^2), since what a candidate adds depends on those chosen before. Candidates disclose three numbers in
    every round.

    Args:
        resources: asked of the candidates in every round.
        deadline: :math:`T_{round}`, in seconds, larger than 0.
        candidates: C, in (0, 1].
        overhead: :math:`T_o`, the seconds of selection and aggregation, 0 or larger.
    """

    taxonomy = Taxonomy("limit round time", "DRT", ("θ", "time"), "time", "ranking", "fixed rounds, accuracy reached")

    sizes_itself = True
    requires = frozenset({DEVICES})

    resources: Query
    deadline: Annotated[float, Within("(0, 3.4e38]")] = 180.0
    candidates: Annotated[float, Within("(0, 1]")] = 0.1
    overhead: Annotated[float, Within("[0, 3.4e38]")] = 0.0

    def select(self, server: ServerState, context: SelectionContext) -> list[int]:
        """Return those that fit, in the order in which they were chosen."""
        number = math.ceil(self.candidates * len(context.available) - 1e-9)  # 0.07 of 100 comes to more than 7
        candidates = rng.draw(context.rng, context.available, number)
        answers = context.ask(self.resources, candidates)
        seconds_C3 = np.array([answers[client_id] for client_id in candidates], dtype=np.float64)
        # Candidates are in drawn order, so that the first of those that add alike is one by lot.
        cohort = [candidates[position] for position in chosen_by_deadline(seconds_C3, self.deadline - self.overhead)]
        if not cohort:
            log.warning(
                "Round %d: nobody trains: none of %d candidates is done within selector.deadline=%g, the quickest in %.4g.",
                *(context.round, number, self.deadline, self.overhead + np.min(seconds_C3.sum(axis=1))),
            )
        return cohort


def chosen_by_deadline(seconds_C3: NDArray[np.float64], deadline: float) -> list[int]:
    """Return the positions of those that fit, in the order in which they were chosen, as in step 2 of ``FedCSSelector``.

    Args:
        seconds_C3: of download, training and upload, of each candidate, shape (C, 3).
        deadline: seconds; a round ends before.

    Example:
        >>> seconds_C3 = np.array([[1.0, 1.0, 2.0], [2.0, 6.0, 2.0], [4.0, 4.0, 3.0]])
        >>> [chosen_by_deadline(seconds_C3, deadline) for deadline in (4, 12, 16)]
        [[], [0, 1], [0, 1, 2]]
    """
    usable_C = (np.isfinite(seconds_C3) & (seconds_C3 >= 0)).all(axis=1)
    left = np.flatnonzero(usable_C)
    chosen: list[int] = []
    download, busy = 0.0, 0.0
    while len(left):
        down, train, up = seconds_C3[left].T
        busy_after = np.maximum(busy, train) + up
        first = int(np.argmin(np.maximum(down - download, 0) + busy_after - busy))
        download_after = max(download, float(down[first]))
        if download_after + busy_after[first] < deadline:
            chosen.append(int(left[first]))
            download, busy = download_after, float(busy_after[first])
        left = np.delete(left, first)
    return chosen
