"""The updates that lie closest to the others."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from fedfacet import state
from fedfacet.aggregators.base import Aggregator
from fedfacet.arguments import Whole
from fedfacet.errors import ConfigError
from fedfacet.types import ClientUpdate, Facts, ServerState, State


@dataclass(eq=False, kw_only=True)
class Krum(Aggregator):
    r"""Average the m of n updates that lie closest to their neighbours; one of them for Krum, more for Multi-Krum.

    .. math::
        s(k) = \sum_{i \to k} \lVert \Delta_k - \Delta_i \rVert_2^2, \quad
        w \leftarrow w + \frac{\sum_{k \in S} p_k \Delta_k}{\sum_{k \in S} p_k}

    The first sum runs over the n - f - 2 updates that lie closest to client k's, and S are the m clients with the smallest
    :math:`s(k)`, with equal ones in the order of client numbers. All updates of a round are held at once; what is computed are
    their n x n inner products.

    Source: Blanchard et al., Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent, NeurIPS 2017,
    arXiv:1703.02757, section 4; Multi-Krum is of its section on experiments, with m = n for averaging.

    Deviations: the paper's workers send gradients. f may follow from the number of updates, which changes from round to round
    where clients drop out. Weights count among the updates that are kept, and not for the choice. The default m of
    ``aggregator=multi_krum``, n - f, is ours.

    Args:
        byzantine: f, how many updates of a round may be bad, 0 or larger; rounds with fewer than 2 f + 3 updates are refused.
            ``None`` for the most that n updates bear, (n - 3) / 2, rounded down; fewer than three are averaged then, since
            nobody can tell which is bad.
        keep: m, 1 or larger; ``None`` for n - f. With n or more it is FedAvg, bit for bit.
        buffers: ``"average"`` takes floating-point buffers for a part of the updates, or a bad client's would get in;
            ``"keep"`` leaves the server's untouched.
    """

    byzantine: Annotated[int | None, Whole(0)] = None
    keep: Annotated[int | None, Whole()] = 1

    def init(self, facts: Facts) -> ServerState:
        """Return nothing to remember.

        Raises:
            ConfigError: if not even all clients together are enough for ``byzantine``.
        """
        self._check_enough(facts.num_clients, "clients")
        return {}

    def aggregate(self, server: ServerState, model: State, updates: Iterable[ClientUpdate]) -> tuple[ServerState, State]:
        """Return nothing to remember, and the model moved by the updates that are kept.

        Raises:
            ConfigError: if there are too few updates.
        """
        updates = list(updates)
        number = len(updates)
        self._check_enough(number, "updates in a round")
        f = self.byzantine if self.byzantine is not None else max(0, (number - 3) // 2)
        keep = self.keep if self.keep is not None else number - f
        kept = updates if number < 3 or keep >= number else self._closest(updates, f, keep)
        return server, state.add(model, state.weighted_mean((self.sent(update), self.weight(update)) for update in kept))

    def _closest(self, updates: Sequence[ClientUpdate], f: int, keep: int) -> list[ClientUpdate]:
        # By client number, so that neither ties nor rounding depend on the order in which updates came.
        updates = sorted(updates, key=lambda update: update.client_id)
        gram = state.gram([self.sent(update) for update in updates])
        squared_norms = np.diag(gram)
        squares = squared_norms[:, None] + squared_norms - (gram + gram.T)
        np.fill_diagonal(squares, np.inf)  # nobody is a neighbour of itself
        scores = np.sort(squares, axis=1)[:, : len(updates) - f - 2].sum(axis=1)
        return [updates[position] for position in np.argsort(scores, kind="stable")[:keep]]

    def _check_enough(self, number: int, what: str) -> None:
        if self.byzantine is not None and number < (least := 2 * self.byzantine + 3):
            raise ConfigError(
                f"Expected at least {least} {what} for aggregator.byzantine={self.byzantine}, but got {number}: raise "
                "federation.cohort_size, or lower aggregator.byzantine."
            )
