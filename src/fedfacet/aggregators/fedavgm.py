"""Federated averaging with server momentum."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from fedfacet import state
from fedfacet.aggregators.base import Aggregator
from fedfacet.arguments import Number, Within
from fedfacet.types import ClientUpdate, Facts, ServerState, State


@dataclass(eq=False, kw_only=True)
class FedAvgM(Aggregator):
    r"""Average the updates, then take a heavy-ball step on the server.

    .. math:: m \leftarrow \beta m + \bar\Delta, \quad w \leftarrow w + \eta m, \quad m_0 = 0

    Source: Hsu et al., Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification,
    arXiv:1909.06335. The momentum has no factor (1 - beta): its steady gain is eta / (1 - beta). That is 2 for beta = 0.95
    (FedDiverse) and eta = 0.1 (its released code; the paper prints none). Momentum acts on trainable parameters only;
    floating-point buffers are averaged plainly, since a running variance that overshoots can turn negative.

    Args:
        momentum: beta in [0, 1); 0 with ``server_lr=1`` is FedAvg.
        server_lr: eta, larger than 0.
    """

    takes_mean = True

    momentum: Annotated[float, Within("[0, 1)")] = 0.95
    server_lr: Annotated[float, Number("larger than 0")] = 0.1

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
