"""FedBuff: clients train while the server goes on, and their updates are averaged by the buffer."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from fedfacet import state
from fedfacet.aggregators.base import Aggregator
from fedfacet.arguments import Number, check_whole
from fedfacet.types import ClientUpdate, ServerState, State


@dataclass(eq=False, kw_only=True)
class FedBuff(Aggregator):
    r"""Take K updates of clients that may have begun from older models, and move the model by their discounted mean.

    .. math:: w \leftarrow w + \frac{\eta}{K} \sum_k s(\tau_k) \Delta_k, \quad s(\tau) = (1 + \tau)^{-a}

    :math:`\Delta_k` is the client's weights minus the model that it was sent, and the staleness :math:`\tau_k` says how many
    rounds ago that was the current one. ``concurrency`` clients are at work at a time, and a round ends when
    K = ``federation.cohort_size`` of them have sent their updates, in the simulated seconds of ``devices``. A discount makes
    the step smaller, as the sum is divided by K and not by the sum of discounts. With ``weighting="samples"``, 1/K becomes the
    client's part of the buffer's samples. Where as many are at work as make a round, it is FedAvg, bit for bit.

    Source: Nguyen et al., Federated Learning with Buffered Asynchronous Aggregation, AISTATS 2022, arXiv:2106.06639,
    algorithm 1, with the staleness scaling :math:`1 / \sqrt{1 + \tau}` of its experiments; not checked against the paper.
    Deviation: there a client begins as soon as another has finished. Here those that take the places of a full buffer begin
    together, with the model that it has made, so that a selector chooses once per round. Buffers (running statistics) are
    discounted as parameters are.

    Args:
        concurrency: how many clients are at work at a time, between ``federation.cohort_size`` and the number of clients;
            ``None`` for twice ``federation.cohort_size``, or all clients if these are fewer.
        staleness_exponent: a, 0 or larger and finite; 0 for no discount.
        server_lr: eta, larger than 0.
    """

    concurrency: int | None = None
    staleness_exponent: Annotated[float, Number("0 or larger, and finite")] = 0.5
    server_lr: Annotated[float, Number("larger than 0")] = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.concurrency is not None:
            check_whole("aggregator.concurrency", self.concurrency)

    def at_work(self, cohort_size: int, num_clients: int) -> int:
        """Return how many clients are at work at a time.

        Raises:
            ValueError: if ``concurrency`` is less than a buffer, or more than there are clients.
        """
        if self.concurrency is None:
            return min(2 * cohort_size, num_clients)
        if not cohort_size <= self.concurrency <= num_clients:
            raise ValueError(
                f"Expected `aggregator.concurrency` between federation.cohort_size={cohort_size} and the {num_clients} clients "
                f"of the federation, but got {self.concurrency}."
            )
        return self.concurrency

    def aggregate(self, server: ServerState, model: State, updates: Iterable[ClientUpdate]) -> tuple[ServerState, State]:
        """Return the model after a step."""
        moved = state.weighted_mean((self._discounted(update), self.weight(update)) for update in updates)
        return server, state.add(model, moved, scale=self.server_lr)

    def _discounted(self, update: ClientUpdate) -> State:
        """Return what of an update moves the model, times its discount."""
        sent = self.sent(update)
        return state.scaled(sent, (1 + update.staleness) ** -self.staleness_exponent) if update.staleness else sent
