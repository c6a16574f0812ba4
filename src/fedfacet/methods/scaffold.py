"""SCAFFOLD: control variates on both sides take the drift out of the clients' steps.

Source: Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020, arXiv:1910.06378,
algorithm 1.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from fedfacet import state
from fedfacet.aggregators.base import Aggregator
from fedfacet.arguments import Number
from fedfacet.corrections import Correction
from fedfacet.privacy.disclosure import UPDATE
from fedfacet.types import SUMMED_GRADIENTS, Broadcast, ClientEnd, ClientStart, ClientUpdate, Facts, ServerState, State

CONTROL, CHANGE = "scaffold/control", "scaffold/control_change"
"""Sent down: the server's control variate c. Sent up: by how much the client's own, c_k, has changed."""


class ScaffoldCorrection(Correction):
    r"""Add :math:`\langle c - c_k, w \rangle` to the loss, so that every gradient g becomes :math:`g + c - c_k`.

    After its steps a client replaces its control variate by the mean gradient that it met (option II of the paper),

    .. math:: c_k \leftarrow c_k - c - \frac{\Delta_k}{\eta \lVert a_k \rVert_1},

    with :math:`\eta` the learning rate of this round. It starts from :math:`c_k = 0` and stays in the client's memory.

    Deviation: the paper divides by the number of steps, which for plain SGD is :math:`\lVert a_k \rVert_1`
    (``ClientUpdate.step_weight``); with momentum the steps' gradients have these weights.
    """

    gives = frozenset({CHANGE})
    discloses: ClassVar[Mapping[str, str]] = {CHANGE: UPDATE}
    needs = frozenset({CONTROL, SUMMED_GRADIENTS})

    def __init__(self) -> None:
        super().__init__()
        self._server: State = {}
        self._own: State = {}
        self._drift: dict[str, Tensor] = {}

    def on_client_start(self, parameters: Mapping[str, Tensor], start: ClientStart) -> None:
        """Take note of both control variates."""
        zeros = {name: torch.zeros(tensor.shape, dtype=tensor.dtype) for name, tensor in parameters.items()}
        self._server = zeros | _of(CONTROL, start.broadcast.extras)
        self._own = zeros | _of(CONTROL, start.memory)
        drift = state.subtract(self._server, self._own)
        self._drift = {name: drift[name].to(tensor.device) for name, tensor in parameters.items() if name in drift}

    def forward(self, parameters: Mapping[str, Tensor]) -> Tensor | float:
        """Return the linear term."""
        products = [(parameters[name] * drift).sum() for name, drift in self._drift.items()]
        return torch.stack(products).sum() if products else 0.0

    def on_client_end(self, end: ClientEnd) -> tuple[State, State]:
        """Return by how much the client's control variate has changed, and the new one."""
        gradients = state.scaled(end.delta, -1 / (end.lr * end.step_weight))
        change = state.subtract(gradients, self._server)  # c_k + change is the new one
        return _named(CHANGE, change), _named(CONTROL, state.add(self._own, change))


@dataclass(eq=False, kw_only=True)
class Scaffold(Aggregator):
    r"""Average the updates, and keep the mean of all clients' control variates.

    .. math:: w \leftarrow w + \eta_g \bar\Delta, \qquad c \leftarrow c + \frac{1}{K} \sum_{k \in S} \delta_k,

    with :math:`\delta_k` the changes that arrived and K the size of the population, so that c is the mean of all :math:`c_k`.

    Args:
        server_lr: eta_g, larger than 0.
        weighting: of the updates, ``"equal"`` (the paper) or ``"samples"``; control variates always count the same.
    """

    gives = frozenset({CONTROL})
    needs = frozenset({CHANGE})

    server_lr: Annotated[float, Number("larger than 0")] = 1.0

    def init(self, facts: Facts) -> ServerState:
        """Return a control variate of zero, and the size of the population."""
        control = {name: torch.zeros_like(facts.model[name]) for name in facts.parameters}
        return {"control": control, "num_clients": facts.num_clients}

    def extras(self, facts: Facts) -> State:
        """Return tensors like the changes of the clients' control variates."""
        return _named(CHANGE, {name: facts.model[name] for name in facts.parameters})

    def broadcast(self, server: ServerState, model: State, client_id: int) -> Broadcast:
        """Return the model and the control variate."""
        return Broadcast(model, _named(CONTROL, server["control"]))

    def aggregate(self, server: ServerState, model: State, updates: Iterable[ClientUpdate]) -> tuple[ServerState, State]:
        """Return the control variate and the model after the round."""
        control = server["control"]

        def noted() -> Iterator[ClientUpdate]:
            nonlocal control
            for update in updates:
                control = state.add(control, _of(CHANGE, update.extras), scale=1 / server["num_clients"])
                yield update

        delta, buffers = self.average(noted())
        return {**server, "control": control}, state.add(state.add(model, delta, scale=self.server_lr), buffers)


def _named(prefix: str, bundle: State) -> State:
    return {f"{prefix}/{name}": tensor for name, tensor in bundle.items()}


def _of(prefix: str, bundle: State) -> State:
    return {name.removeprefix(f"{prefix}/"): tensor for name, tensor in bundle.items() if name.startswith(f"{prefix}/")}
