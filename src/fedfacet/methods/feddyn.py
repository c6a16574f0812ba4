"""FedDyn: dynamic regularisation, under which what all clients settle on is the optimum of their joint loss.

Source: Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021, arXiv:2111.04263, algorithm 1.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar

import torch
from torch import Tensor

from fedfacet import state
from fedfacet.aggregators.base import Aggregator
from fedfacet.corrections import Correction
from fedfacet.privacy.disclosure import UPDATE
from fedfacet.types import ClientEnd, ClientStart, ClientUpdate, Facts, ServerState, State

REGULARISED, SHIFTED = "feddyn/regularised_update", "feddyn/shifted_model"
"""What each half does for the other; neither sends anything besides updates and models."""

_GRADIENT = "feddyn/"
"""Before a tensor's name in a client's memory."""


class FedDynCorrection(Correction):
    r"""Add :math:`-\langle \lambda_k, w \rangle + \frac{\alpha}{2} \lVert w - w_g \rVert_2^2` to the loss.

    After its steps a client sets :math:`\lambda_k \leftarrow \lambda_k - \alpha \Delta_k`. It starts from
    :math:`\lambda_k = 0` and stays in the client's memory. Where a client minimises its loss exactly, :math:`\lambda_k` is the
    gradient of its own loss at what it has found.

    Args:
        alpha: of the regularisation, larger than 0; the paper takes 0.01 and 0.1.
    """

    gives = frozenset({REGULARISED})
    discloses: ClassVar[Mapping[str, str]] = {REGULARISED: UPDATE}
    needs = frozenset({SHIFTED})

    def __init__(self, *, alpha: float = 0.01) -> None:
        super().__init__()
        if not alpha > 0:
            raise ValueError(f"Expected `correction.alpha` to be larger than 0, but got {alpha}.")
        self.alpha = alpha
        self.curvature = alpha
        self._memory: State = {}
        self._anchor: dict[str, Tensor] = {}
        self._linear: dict[str, Tensor] = {}

    def on_client_start(self, parameters: Mapping[str, Tensor], start: ClientStart) -> None:
        """Take note of the weights that the client starts from, and of what it kept."""
        self._memory = start.memory
        self._anchor = {name: parameter.detach().clone() for name, parameter in parameters.items()}
        kept = {name: start.memory[_GRADIENT + name] for name in parameters if _GRADIENT + name in start.memory}
        self._linear = {name: tensor.to(parameters[name].device) for name, tensor in kept.items()}

    def forward(self, parameters: Mapping[str, Tensor]) -> Tensor | float:
        """Return the two terms; before any client has started there are none."""
        if not self._anchor:
            return 0.0
        terms = []
        for name, parameter in parameters.items():
            terms.append(self.alpha / 2 * (parameter - self._anchor[name]).square().sum())
            if name in self._linear:
                terms.append(-(self._linear[name] * parameter).sum())
        return torch.stack(terms).sum()

    def on_client_end(self, end: ClientEnd) -> tuple[State, State]:
        """Return nothing to send, and the new lambda_k."""
        before = {name: self._memory.get(_GRADIENT + name, torch.zeros_like(moved)) for name, moved in end.delta.items()}
        after = state.add(before, end.delta, scale=-self.alpha)
        return {}, {_GRADIENT + name: tensor for name, tensor in after.items()}


class FedDyn(Aggregator):
    r"""Average the updates, and move on by what all clients have moved so far.

    .. math:: h \leftarrow h - \frac{1}{K} \sum_{k \in S} \Delta_k, \qquad w \leftarrow w + \bar\Delta - h

    with K the size of the population. (The paper's h is alpha times this one, and divided by alpha where it is used.)

    Args:
        weighting: of the mean update, ``"equal"`` (the paper) or ``"samples"``.
    """

    gives = frozenset({SHIFTED})
    needs = frozenset({REGULARISED})

    def init(self, facts: Facts) -> ServerState:
        """Return h = 0 and the size of the population."""
        zeros = {name: torch.zeros_like(facts.model[name]) for name in facts.parameters}
        return {"h": zeros, "num_clients": facts.num_clients}

    def aggregate(self, server: ServerState, model: State, updates: Iterable[ClientUpdate]) -> tuple[ServerState, State]:
        """Return h and the model after the round."""
        h = server["h"]

        def noted() -> Iterator[ClientUpdate]:
            nonlocal h
            for update in updates:
                h = state.add(h, update.delta, scale=-1 / server["num_clients"])
                yield update

        delta, buffers = self.average(noted())
        after = state.add(state.add(model, delta | buffers), {name: h[name] for name in delta}, scale=-1.0)
        return {**server, "h": h}, after
