"""Federated averaging with server momentum."""

from collections.abc import Iterable

from fedfacet import state
from fedfacet.aggregators.base import Aggregator
from fedfacet.arguments import check_within
from fedfacet.types import ClientUpdate, Facts, ServerState, State


class FedAvgM(Aggregator):
    r"""Average the updates, then take a heavy-ball step on the server.

    .. math:: m \leftarrow \beta m + \bar\Delta, \quad w \leftarrow w + \eta m, \quad m_0 = 0

    Source: Hsu et al., Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification,
    arXiv:1909.06335. The momentum has no factor (1 - beta): its steady gain is eta / (1 - beta), which is 2 for FedDiverse's
    beta = 0.95 and eta = 0.1. Momentum acts on trainable parameters only; floating-point buffers are averaged plainly, since
    a running variance that overshoots can turn negative.

    Args:
        momentum: beta in [0, 1); 0 with ``server_lr=1`` is FedAvg.
        server_lr: eta, larger than 0.
    """

    takes_mean = True

    def __init__(
        self, *, momentum: float = 0.95, server_lr: float = 0.1, weighting: str = "equal", buffers: str = "average"
    ) -> None:
        super().__init__(weighting=weighting, buffers=buffers)
        check_within("momentum", momentum, "[0, 1)")
        if not server_lr > 0:
            raise ValueError(f"Expected `server_lr` to be larger than 0, but got {server_lr}.")
        self.momentum = momentum
        self.server_lr = server_lr

    @property
    def entrywise(self) -> bool:
        """True."""
        return True

    def init(self, facts: Facts) -> ServerState:
        """Return a velocity m of zero."""
        return {"velocity": {}}

    def aggregate(self, server: ServerState, model: State, updates: Iterable[ClientUpdate]) -> tuple[ServerState, State]:
        """Return the velocity and the model after one server step."""
        delta, buffers = self.average(updates)
        velocity = state.add(delta, server["velocity"], scale=self.momentum)
        return {"velocity": velocity}, state.add(state.add(model, velocity, scale=self.server_lr), buffers)
