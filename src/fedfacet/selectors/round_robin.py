"""Round robin."""

from collections.abc import Sequence

import torch

from fedfacet.selectors.base import ClientSelector, Taxonomy, lowest, numbers
from fedfacet.types import Facts, SelectionContext, ServerState


class RoundRobinSelector(ClientSelector):
    """The clients asked least often go first, ties in random order.

    No client is asked again while another available one has been asked less often, so with everybody available the counts
    never differ by more than one (thesis section 5.5.4). The authors' code marks every client with a count of zero as used
    while more than the cohort size remain, which lets the counts drift apart by about 17 in 200 rounds; here they do not.
    """

    taxonomy = Taxonomy("selection fairness", "DSRT", ("θ",), "participation count", "ranking", "fixed rounds")

    def init(self, facts: Facts) -> ServerState:
        """Return how often each client has been asked: never."""
        return {"counts": torch.zeros(facts.num_clients, dtype=torch.int64)}

    def select(self, server: ServerState, context: SelectionContext) -> list[int]:
        """Return the available clients with the smallest counts."""
        available = numbers(context.available)
        counts_K, luck_K = server["counts"].numpy()[available], context.rng.random(len(available))
        return available[lowest(context.num_slots, luck_K, counts_K)].tolist()  # type: ignore[no-any-return]

    def remember(self, server: ServerState, cohort: Sequence[int]) -> ServerState:
        """Count who was asked, whether or not an update arrived."""
        asked = torch.tensor(cohort, dtype=torch.int64)
        return {"counts": server["counts"].index_add(0, asked, torch.ones_like(asked))}
