"""LAG-PS: clients whose gradient may have changed by more than the model moves."""

import logging
import math
from collections.abc import Sequence

import numpy as np
import torch

from fedfacet import state
from fedfacet.arguments import check_whole, check_within
from fedfacet.errors import ConfigError
from fedfacet.selectors.base import ClientSelector, Taxonomy, named
from fedfacet.types import (
    STORED_GRADIENTS,
    SUMMED_GRADIENTS,
    ClientUpdate,
    Facts,
    Query,
    RoundResult,
    SelectionContext,
    ServerState,
    State,
)

log = logging.getLogger(__name__)


class LagSelector(ClientSelector):
    r"""Ask those clients whose last gradient is too old for the smoothness of their loss.

    Client m takes part in round t if it was never heard, or if

    .. math:: L_m^2 \lVert \hat w_m - w^t \rVert^2 > \frac{\xi}{\eta^2} \sum_{d=1}^{D} \lVert w^{t+1-d} - w^{t-d} \rVert^2

    with :math:`\hat w_m` the model that it was sent when it was last heard, :math:`L_m` a bound on how fast its gradient
    changes, and :math:`\eta` the clients' learning rate. The left side bounds the change of the gradient that the server has
    (``aggregator=lag`` goes on with it); the right side says how far the model has moved lately. A cohort may have any number
    of clients, none among them: ``federation.cohort_size`` does not apply, and ``termination=silence`` with few rounds may end
    a run long before it has converged. :math:`\xi = 0` asks everybody whose model is not the present one: gradient descent.

    :math:`L_m` is asked once, of a client that is available for the first time (``Smoothness``), or given. A client that
    answers NaN is asked to take part in every round, lest it stay with an old gradient for ever; the log names it.

    The server keeps the way of the model since each round in which somebody was heard last: at most K times the size of the
    trained parameters, beside those that ``aggregator=lag`` keeps and its ``max_memory_gb`` counts. A round costs as much as
    adding that many models.

    Source: Chen, Giannakis, Sun and Yin, LAG, NeurIPS 2018, arXiv:1805.09965, algorithm 2 (LAG-PS). D = 10 and
    :math:`\xi = 10 / D` are those of the authors' code; the paper was not read.

    Deviations: the paper's bound is :math:`\xi / (\alpha M)^2` for a sum of losses and steps :math:`\alpha = \eta / M`, which
    is this one if clients weigh the same. ``weighting=samples`` changes the steps, and not whom is asked.

    Args:
        smoothness: what clients are asked for.
        constants: :math:`L_m` of every client in order, 0 or larger; then nobody is asked. ``None`` to ask.
        xi: 0 or larger.
        window: D, 1 or larger.
        lr: :math:`\eta`, larger than 0.

    Raises:
        ValueError: if a value is out of range.
    """

    taxonomy = Taxonomy("efficiency", "VDSRT", ("θ", "smoothness"), "loss", "threshold", "fixed rounds, early stopping")

    needs = frozenset({STORED_GRADIENTS, SUMMED_GRADIENTS})
    sizes_itself = True
    needs_full_batch = True
    needs_change = True

    def __init__(
        self,
        *,
        smoothness: Query,
        constants: Sequence[float] | None = None,
        xi: float = 1.0,
        window: int = 10,
        lr: float = 0.01,
    ) -> None:
        for constant in constants or ():
            check_within("constants", constant, "[0, 3.4e38]")
        check_within("xi", xi, "[0, 3.4e38]")
        check_whole("window", window)
        check_within("lr", lr, "(0, 3.4e38]")
        self.smoothness = smoothness
        self.constants = None if constants is None else tuple(map(float, constants))
        self.xi = xi
        self.window = window
        self.lr = lr

    def init(self, facts: Facts) -> ServerState:
        """Return what is known of clients, nothing so far, and of the model's way.

        These are the names of the trained parameters; the rounds when clients were last heard, int64 of shape (K,), 0 for
        never; the way of the model since each of these rounds; its length, squared, float64 of shape (K,); and the squares of
        the last steps.

        Raises:
            ConfigError: if not every client has a constant.
        """
        if self.constants is not None and len(self.constants) != facts.num_clients:
            raise ConfigError(
                f"Expected `selector.constants` of all {facts.num_clients} clients, but got {len(self.constants)}: give one "
                "for each, or null to ask them."
            )
        return {
            "parameters": list(facts.parameters),
            "rounds": torch.zeros(facts.num_clients, dtype=torch.int64),
            "ways": {},
            "far": torch.zeros(facts.num_clients, dtype=torch.float64),
            "moved": [],
        }

    def select(self, server: ServerState, context: SelectionContext) -> list[int]:
        """Return those never heard and those whose gradient is too old, in ascending order."""
        smoothness, rounds, far = self._smoothness(context), server["rounds"].tolist(), server["far"].tolist()
        bound = self.xi / self.lr**2 * math.fsum(server["moved"])
        # Not `>`: a client whose smoothness is NaN is asked.
        return [k for k in context.available if not rounds[k] or not smoothness[k] ** 2 * far[k] <= bound]

    def observe(
        self,
        server: ServerState,
        result: RoundResult,
        updates: Sequence[ClientUpdate],
        rng: np.random.Generator,
        change: State,
    ) -> ServerState:
        """Note who was heard, and how far the model has moved since."""
        step = {name: change[name] for name in server["parameters"]}
        rounds_K = server["rounds"].clone()
        rounds_K[list(result.arrived)] = result.round
        heard = sorted(set(rounds_K.tolist()) - {0})
        ways = {round: state.add(server["ways"][round], step) if round < result.round else step for round in heard}
        far = {round: state.norm(way) ** 2 for round, way in ways.items()}
        return {
            "parameters": server["parameters"],
            "rounds": rounds_K,
            "ways": ways,
            "far": torch.tensor([far.get(round, 0.0) for round in rounds_K.tolist()], dtype=torch.float64),
            "moved": [*server["moved"], state.norm(step) ** 2][-self.window :],
        }

    def _smoothness(self, context: SelectionContext) -> dict[int, float]:
        """Return L_m of those who are available."""
        if self.constants is not None:
            return {k: self.constants[k] for k in context.available}
        known = set(context.disclosed.get(self.smoothness.name, {}))
        answers = context.ask_once(self.smoothness, context.available)
        if unusable := [k for k in context.available if k not in known and not math.isfinite(answers[k])]:
            log.warning(
                "Round %d: the smoothness of %d of %d clients is not finite, and they take part in every round: clients %s.",
                *(context.round, len(unusable), len(context.available), named(unusable)),
            )
        return answers
