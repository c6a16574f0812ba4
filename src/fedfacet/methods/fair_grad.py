"""FairGrad, the gradient-based form of F3: clients step down their loss and the server's measure of unfairness.

Source: Kanaparthy et al., PAKDD 2023, arXiv:2109.02351 (the paper of F3), section 3.2 and algorithm 2. The loss that
replaces unfairness, and beta, are those of the authors' code (magnetar-iiith/F3, FairGrad.py).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from fedfacet import state
from fedfacet.aggregators.base import Aggregator
from fedfacet.arguments import Choice, Whole, Within
from fedfacet.mechanism import Mechanism, Round
from fedfacet.objectives.classification import ClassificationObjective
from fedfacet.types import Batch, Broadcast, ClientStart, ClientUpdate, Facts, ServerState, State

GRADIENT, BETA = "fair_grad/gradient", "fair_grad/beta"
"""Sent down: the gradient of unfairness, a tensor per trainable parameter under this prefix, and beta, float64."""


class FairGradObjective(ClassificationObjective):
    r"""Step along :math:`\beta g + (1 - \beta) G`, with g the gradient of the batch's loss and G that of the server.

    The loss is :math:`\beta \ell + (1 - \beta) \langle G, w \rangle`, which has this gradient. Where the server sends none, it
    is :math:`\ell` (``aggregator=fair_grad`` sends it).

    Arguments are those of ``ClassificationObjective``.
    """

    _gradient: State | None = None
    _beta = 1.0

    @property
    def requires(self) -> frozenset[str]:
        """The gradient and beta, and what the correction needs."""
        return super().requires | {GRADIENT, BETA}

    def on_client_start(self, start: ClientStart) -> None:
        """Take note of the gradient and of beta."""
        super().on_client_start(start)
        sent = start.broadcast.extras
        self._beta = float(sent.get(BETA, 1.0))
        self._gradient = None
        if BETA in sent:
            named = ((name, sent[f"{GRADIENT}/{name}"], parameter) for name, parameter in self.trainable.items())
            self._gradient = {name: tensor.to(parameter) for name, tensor, parameter in named}

    def training_loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the loss of a batch and the linear term."""
        loss = super().training_loss(logits, batch)
        if self._gradient is None:
            return loss
        products = [(self.trainable[name] * tensor).sum() for name, tensor in self._gradient.items()]
        return self._beta * loss + (1 - self._beta) * torch.stack(products).sum()


@dataclass(eq=False, kw_only=True)
class FairGrad(Aggregator):
    r"""Average the updates of clients that step along :math:`\beta g + (1 - \beta) G`.

    G is the gradient of unfairness at the round's model, on samples of the server's:

    .. math:: G = \nabla_w \max_c \Bigl( \max_a \ell_{ca}(w) - \min_a \ell_{ca}(w) \Bigr)

    Here :math:`\ell_{ca}` is the mean cross entropy of attribute value a, over the positive class (c = 1) or the others
    (c = 0). With ``"equal_opportunity"`` only c = 1 counts. A group without samples is left out. Where no c has two groups, G
    is 0. The model is in eval mode.

    Deviations: the paper finds G in each local epoch, at the client's weights. Here it is found once a round, so
    ``local.unit=epochs local.amount=1`` is algorithm 2 with E = 1, where the paper's runs have 2 and 4. The authors' code skips
    G in the first epoch, and before each later one it takes steps on the server's samples. Algorithm 2 does neither. Its error
    rates have no gradient, so the code takes losses, as here. The paper stops early on the server's samples.

    Args:
        beta: in [0, 1], 0.7 in the authors' code; 1 is FedAvg, and no gradient is found.
        measure: ``"equalized_odds"`` (algorithm 2) or ``"equal_opportunity"``.
        positive_class: of these.
        weighting: ``"samples"`` (the paper) or ``"equal"`` (its code).
    """

    provides = frozenset({GRADIENT, BETA})

    beta: Annotated[float, Within("[0, 1]")] = 0.7
    measure: Annotated[str, Choice("equalized_odds", "equal_opportunity")] = "equalized_odds"
    positive_class: Annotated[int, Whole(0)] = 1
    weighting: str = "samples"

    def judges(self) -> str | None:
        """Return that groups matter for the model that is sent; nothing for a beta of 1."""
        return "groups_of_sent" if self.beta < 1 else None

    def mechanisms(self, clock: Any, cohort_size: int, num_clients: int) -> Sequence[Mechanism]:
        """Return what finds the gradient before clients are sent it."""
        return [UnfairnessGradient(self)] if self.beta < 1 else []

    def init(self, facts: Facts) -> ServerState:
        """Return a gradient of 0, before the first round."""
        return {"gradient": {name: torch.zeros_like(facts.model[name]) for name in facts.parameters}}

    def broadcast(self, server: ServerState, model: State, client_id: int) -> Broadcast:
        """Return the model, the gradient and beta; only the model for a beta of 1."""
        if self.beta == 1:
            return Broadcast(model)
        named = {f"{GRADIENT}/{name}": tensor for name, tensor in server["gradient"].items()}
        return Broadcast(model, {**named, BETA: torch.tensor(self.beta, dtype=torch.float64)})

    def aggregate(self, server: ServerState, model: State, updates: Iterable[ClientUpdate]) -> tuple[ServerState, State]:
        """Return the gradient as it is, and the averaged model."""
        delta, buffers = self.average(updates)
        return server, state.add(model, {**delta, **buffers})


@dataclass(frozen=True, eq=False)
class UnfairnessGradient(Mechanism):
    """Finds the gradient of unfairness at a round's model, on the server's samples, once the cohort is known."""

    aggregator: FairGrad

    rank = 44

    def plan(self, round: Round) -> None:
        """Set the gradient that the round's clients are sent."""
        if round.aggregator is self.aggregator and round.evaluator is not None:  # in first rounds of FedAvg none is sent
            found = round.evaluator.unfairness_gradient(self.aggregator.measure, self.aggregator.positive_class)
            round.server = {**round.server, "gradient": found}
