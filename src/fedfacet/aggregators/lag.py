"""Gradient descent with the last gradient of every client, however old it is."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fedfacet import state
from fedfacet.aggregators.base import Aggregator
from fedfacet.errors import ConfigError
from fedfacet.types import STORED_GRADIENTS, ClientUpdate, Facts, ServerState, State


@dataclass(eq=False, kw_only=True)
class LAG(Aggregator):
    r"""Move the model by the weighted average of every client's last update, those of former rounds included.

    .. math:: w \leftarrow w + \frac{\sum_m p_m \hat\Delta_m}{\sum_m p_m}

    with :math:`\hat\Delta_m` the last update that arrived from client m and the sums over all clients that were ever heard. If
    an update is one step on all of a client's samples, :math:`\hat\Delta_m = -\eta \nabla F_m(\hat w_m)`, this is the lazily
    aggregated gradient. The model moves in rounds without updates too. If everybody sends in every round, it is FedAvg, bit for
    bit.

    ``selector=lag`` says whom the server asks (LAG-PS), ``transforms=silence`` has clients themselves say nothing (LAG-WK). The
    aggregator goes with any other selector too: ``selector=round_robin`` is cyclic incremental aggregated gradient.

    The server keeps an update per client, K times the size of the trained parameters. Running statistics are no gradients: they
    move by the average over those that arrive, and stay where none do.

    Source: Chen, Giannakis, Sun and Yin, LAG: Lazily Aggregated Gradient for Communication-Efficient Distributed Learning,
    NeurIPS 2018, arXiv:1805.09965; the paper was not read.

    Deviations: the paper minimises a sum of losses by steps :math:`\alpha`; here it is their average by steps :math:`\eta`, so
    that :math:`\alpha = \eta / M` for equal weights. The average is made anew in every round, where the paper corrects a
    running sum, which would collect rounding errors.

    Args:
        max_memory_gb: 10^9 bytes that the clients' updates may take at the server, larger than 0; ``selector=lag`` keeps as
            much again at most.
    """

    gives = frozenset({STORED_GRADIENTS})
    goes_on = True

    max_memory_gb: float = 4.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.max_memory_gb < math.inf:
            raise ValueError(f"Expected `max_memory_gb` to be larger than 0, and finite, but got {self.max_memory_gb}.")

    def init(self, facts: Facts) -> ServerState:
        """Return what is known of clients: their last updates, and the weights of these.

        Raises:
            ConfigError: if all clients' updates need more memory than they may take.
        """
        needed = facts.num_clients * sum(facts.model[name].nbytes for name in facts.parameters) / 1e9
        if needed > self.max_memory_gb:
            raise ConfigError(
                f"Expected aggregator.max_memory_gb={self.max_memory_gb:g} to hold the last update of every client, but "
                f"{facts.num_clients} updates take {needed:.3g} GB: choose a smaller model, or raise it."
            )
        return {"deltas": {}, "weights": {}}

    def aggregate(self, server: ServerState, model: State, updates: Iterable[ClientUpdate]) -> tuple[ServerState, State]:
        """Return the updates that are the last ones now, and the model moved by their average."""
        deltas, weights = dict(server["deltas"]), dict(server["weights"])

        def noted() -> Iterator[tuple[State, float]]:
            for update in updates:
                deltas[update.client_id] = state.clone(update.delta)  # it may be a view of a whole stack's
                weights[update.client_id] = self.weight(update)
                yield update.buffers if self.buffers == "average" else {}, self.weight(update)

        buffers = state.weighted_mean(noted())
        moved = state.weighted_mean((deltas[client_id], weights[client_id]) for client_id in sorted(deltas))
        return {"deltas": deltas, "weights": weights}, state.add(model, moved | buffers)
