"""Normalised averaging."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Annotated

from fedfacet import state
from fedfacet.aggregators.base import Aggregator
from fedfacet.arguments import Choice, Number, Within
from fedfacet.types import ClientUpdate, Facts, ServerState, State

_LENGTH = "length|"
"""Before a tensor's name, what clients have walked per entry of it."""


@dataclass(eq=False, kw_only=True)
class FedNova(Aggregator):
    r"""Average the clients' steps instead of their distances, so that nobody counts for more by walking further.

    A client's update is a weighted sum of the gradients it met, :math:`\Delta_k = -\eta_c \sum_s a_{k,s} g_{k,s}`. Divided by
    :math:`\lVert a_k \rVert_1` it is a direction of the length of one step, and the server walks :math:`\tau_{\mathrm{eff}}` of
    these at once:

    .. math::
        \bar\Delta = \tau_{\mathrm{eff}} \sum_k p_k \frac{\Delta_k}{\lVert a_k \rVert_1}, \quad
        \tau_{\mathrm{eff}} = \sum_k p_k \lVert a_k \rVert_1, \quad
        m \leftarrow \beta m + \bar\Delta, \quad w \leftarrow w + \eta m, \quad m_0 = 0

    with :math:`\sum_k p_k = 1` over the clients whose update arrived. Where all clients take equally many steps,
    :math:`\bar\Delta` is the plain average, and FedNova is FedAvgM (FedAvg with ``momentum=0`` and ``server_lr=1``): in
    FedDiverse's federations of equal clients it differs from them by the participation of all clients alone. Where clients hold
    parts of the model, both sums run over an entry's holders.

    Source: Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization, NeurIPS 2020,
    arXiv:2007.07481, sections 4 and 5, and the authors' code for the server momentum (its ``gmf``, with eta = 1).

    Deviation: FedDiverse (arXiv:2504.11216; thesis, section 5.5.4) gives it the momentum of its FedAvgM, which is the default
    here; ``server_lr`` is its released code's. Its text puts beta in the wrong place; its released code puts tau_eff /
    ||a_k||_1 * n_k into an average that divides by the sum of these weights, so that tau_eff cancels. Its formula weights
    clients by |D_k| / |D|, its section 5.2 has "equally weighted clients"; the default is the second. The two differ where
    clients hold different numbers of samples, as in ``gai`` and ``spawrious4``.

    Args:
        momentum: beta in [0, 1).
        server_lr: eta, larger than 0; 1 in FedNova's own paper.
        tau_eff: ``"step_weights"`` averages the ||a_k||_1 (``ClientUpdate.step_weight``, from steps, local momentum and mu),
            ``"steps"`` the plain numbers of steps, as the authors' code does with a proximal term; it scales the step alone.
        weighting: of p_k, ``"equal"`` or ``"samples"``; FedNova's own paper weights by samples.
        buffers: ``"average"`` (by p_k, neither normalised nor with momentum) or ``"keep"``.
    """

    momentum: Annotated[float, Within("[0, 1)")] = 0.95
    server_lr: Annotated[float, Number("larger than 0")] = 0.1
    tau_eff: Annotated[str, Choice("step_weights", "steps")] = "step_weights"

    @property
    def entrywise(self) -> bool:
        """True."""
        return True

    def init(self, facts: Facts) -> ServerState:
        """Return a velocity m of zero."""
        return {"velocity": {}}

    def aggregate(self, server: ServerState, model: State, updates: Iterable[ClientUpdate]) -> tuple[ServerState, State]:
        """Return the velocity and the model after one server step."""
        walked = weights = 0.0

        def directions() -> Iterator[ClientUpdate]:
            nonlocal walked, weights
            for update in updates:
                weight = self.weight(update)
                length = update.step_weight if self.tau_eff == "step_weights" else update.num_steps
                walked += weight * length
                weights += weight
                update = replace(update, delta=state.scaled(update.delta, 1 / update.step_weight))
                yield update if update.mask is None else _noting(length, update, update.mask)

        mean, buffers = self.average(directions())
        if any(name.startswith(_LENGTH) for name in mean):
            delta = {name: tensor * mean[_LENGTH + name] for name, tensor in mean.items() if not name.startswith(_LENGTH)}
        else:
            delta = state.scaled(mean, walked / weights)
        velocity = state.add(delta, server["velocity"], scale=self.momentum)
        return {"velocity": velocity}, state.add(state.add(model, velocity, scale=self.server_lr), buffers)


def _noting(length: float, update: ClientUpdate, mask: State) -> ClientUpdate:
    """Return an update that has the length of the client's walk too, per entry, to be averaged over the same holders."""
    holders = {_LENGTH + name: mask[name] for name in update.delta}
    return replace(update, delta=update.delta | state.scaled(holders, length), mask=mask | holders)
