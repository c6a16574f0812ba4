"""LAG: gradient descent that reuses the last gradient of a client where the present one has hardly changed."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedfacet import state
from fedfacet.aggregators.base import Aggregator
from fedfacet.answer_form import AnswerForm
from fedfacet.arguments import Number, Whole, Within, check_whole, check_within
from fedfacet.errors import ConfigError
from fedfacet.query import Query
from fedfacet.records import RoundResult
from fedfacet.selectors.base import ClientSelector, Taxonomy, warn_of
from fedfacet.transforms import UpdateTransform
from fedfacet.types import (
    CLIENT_GRADIENTS,
    DEVICES,
    STORED_GRADIENTS,
    SUMMED_GRADIENTS,
    Answer,
    ClientTask,
    ClientUpdate,
    Facts,
    SelectionContext,
    ServerState,
    State,
)

_LAST, _SEEN, _MOVED = "silence/last|", "silence/seen|", "silence/moved"


class Smoothness(Query):
    r"""Ask for the spectral norm of the Hessian of a client's loss, by power iteration.

    .. math::
        L_k = \lVert \nabla^2 F_k(\theta) \rVert_2, \quad
        F_k(\theta) = \frac{1}{n_k} \sum_{(x, y) \in D_k} -\log p_y(x; \theta) + \frac{\lambda}{2} \lVert \theta \rVert^2

    at the broadcast model, in eval mode, over all trainable parameters, with :math:`\lambda` the optimizer's ``weight_decay``.
    From a vector drawn at random, :math:`v \leftarrow H v / \lVert H v \rVert`; the answer is the last
    :math:`\lVert H v \rVert`, which is L_k at most. One float leaves the client. Every iteration passes the n_k samples through
    the model; the second derivatives that it takes besides are not counted. A client without samples answers NaN, as does one
    with a Hessian that is not finite.

    It bounds the change of the gradient everywhere only where the loss curves nowhere more than here: for logistic regression,
    whose curvature is largest where all classes are equally likely, that holds near the weights of 0. Elsewhere it is an
    estimate.

    Source: Chen, Giannakis, Sun and Yin, LAG, NeurIPS 2018, arXiv:1805.09965. The authors' code takes the smoothness of a
    client's loss for known: for logistic regression a quarter of the largest eigenvalue of :math:`X^\top X`, plus
    :math:`\lambda`.

    Deviation: a query estimates it. It is that of the cross entropy whatever ``loss`` the clients train on.

    Args:
        iterations: 1 or larger.
    """

    name = "smoothness"
    kind = "norm"
    form = AnswerForm(low=0, high=1e100, finite=False)
    reads = frozenset({"x", "y"})
    needs_model = True

    def __init__(self, *, iterations: int = 30) -> None:
        check_whole("iterations", iterations)
        self.iterations = iterations

    def check(self, model: nn.Module) -> None:
        """Refuse a compiled model, of which torch takes no second derivatives."""
        if model._compiled_call_impl is not None:
            raise ConfigError(
                "Expected a model of which torch takes second derivatives for the query `smoothness`, but `compile` is set: "
                "leave it false, or give `selector.constants`."
            )

    def answer(self, context: Any) -> Answer:
        """Return L_k."""
        context.model.eval()
        parameters = [parameter for parameter in context.model.parameters() if parameter.requires_grad]
        decay = context.make_optimizer(parameters).param_groups[0].get("weight_decay", 0.0)
        draws = context.stream("smoothness")
        vector = [
            torch.as_tensor(draws.standard_normal(tuple(part.shape)), dtype=part.dtype, device=part.device)
            for part in parameters
        ]
        largest = _norm(vector)
        for _ in range(self.iterations if len(context.data) else 0):
            if not 0 < largest < math.inf:
                break
            vector = _hessian_times(context, parameters, [part / largest for part in vector], decay)
            largest = _norm(vector)
        finite = math.isfinite(largest) and len(context.data) > 0
        return Answer(largest if finite else math.nan, floats_up=1, samples=self.iterations * len(context.data))


def _hessian_times(context: Any, parameters: list[nn.Parameter], vector: list[Tensor], decay: float) -> list[Tensor]:
    """Return the Hessian of the client's loss times a vector."""
    product = [decay * part for part in vector]
    for batch in context.data.batches():
        with torch.enable_grad():
            loss = functional.cross_entropy(context.model(batch.x).float(), batch.y, reduction="sum") / len(context.data)
            gradients = torch.autograd.grad(loss, parameters, create_graph=True, materialize_grads=True)
            along = torch.stack([(gradient * part).sum() for gradient, part in zip(gradients, vector, strict=True)]).sum()
            parts = torch.autograd.grad(along, parameters, materialize_grads=True)
        for total, part in zip(product, parts, strict=True):
            total += part
    return product


def _norm(vector: list[Tensor]) -> float:
    return float(np.sqrt(sum(part.double().square().sum().item() for part in vector)))


@dataclass(eq=False, kw_only=True)
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

    Source: Chen, Giannakis, Sun and Yin, LAG, NeurIPS 2018, arXiv:1805.09965, algorithm 2 (LAG-PS). Rule and defaults, D = 10
    and :math:`\xi = 10 / D`, are those of the authors' code. They were not compared with the paper's text.

    Deviations: the code's bound is :math:`\xi / (\alpha M)^2` for a sum of losses and steps :math:`\alpha = \eta / M`, which
    is this one if clients weigh the same. ``weighting=samples`` changes the steps, and not whom is asked. The code asks no
    client in its first D rounds and begins with gradients of ones. Here every client is asked in its first round, and the sum
    is over the steps so far.

    Args:
        smoothness: what clients are asked for.
        constants: :math:`L_m` of every client in order, 0 or larger; then no client is asked. ``None`` to ask.
        xi: 0 or larger.
        window: D, 1 or larger.
        lr: :math:`\eta`, larger than 0.
    """

    taxonomy = Taxonomy("efficiency", "VDSRT", ("θ", "smoothness"), "loss", "threshold", "fixed rounds, early stopping")

    requires = frozenset({STORED_GRADIENTS, SUMMED_GRADIENTS, CLIENT_GRADIENTS})
    sizes_itself = True

    smoothness: Query
    constants: Sequence[float] | None = None
    xi: Annotated[float, Within("[0, 3.4e38]")] = 1.0
    window: Annotated[int, Whole()] = 10
    lr: Annotated[float, Within("(0, 3.4e38]")] = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        for constant in self.constants or ():
            check_within("constants", constant, "[0, 3.4e38]")
        self.constants = None if self.constants is None else tuple(map(float, self.constants))

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
        answered = sorted(set(rounds_K.tolist()) - {0})
        ways = {round: state.add(server["ways"][round], step) if round < result.round else step for round in answered}
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
        unusable = [k for k in context.available if k not in known and not math.isfinite(answers[k])]
        reason = "clients is not finite, and they take part in every round"
        warn_of(context.round, "smoothness", unusable, len(context.available), reason)
        return answers


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
    NeurIPS 2018, arXiv:1805.09965. The rule is that of the authors' code, and was not compared with the paper's text.

    Deviations: the code minimises a sum of losses by steps :math:`\alpha`; here it is their average by steps :math:`\eta`, so
    that :math:`\alpha = \eta / M` for equal weights. A client that was never heard is left out of the average; in the code its
    gradient is a vector of ones.

    Args:
        max_memory_gb: 10^9 bytes that the clients' updates may take at the server, larger than 0; ``selector=lag`` keeps as
            much again at most.
    """

    provides = frozenset({STORED_GRADIENTS})

    max_memory_gb: Annotated[float, Number("larger than 0, and finite")] = 4.0

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

    def without_updates(self, server: ServerState, model: State) -> tuple[ServerState, State]:
        """Move the model by the average of the last updates, as in any other round."""
        return self.aggregate(server, model, ())


@dataclass(eq=False, kw_only=True)
class Silence(UpdateTransform):
    r"""Have a client send nothing if its update is about the one that it sent last.

    .. math::
        \lVert \Delta_m^t - \hat\Delta_m \rVert^2 \le \xi \sum_{d=1}^{D} \lVert w^{t+1-d} - w^{t-d} \rVert^2

    with :math:`\hat\Delta_m` the last update that the client sent, with which ``aggregator=lag`` goes on, and w the models that
    it was sent. A client that is silent has trained; 0 floats leave it, and it does not count as one that took part. With
    :math:`\xi = 0` it is silent if its update is the same bit for bit, which leaves gradient descent as it is.

    A client keeps the update that it sent last, the model that it was sent last, and D numbers. The right side needs no
    message: with ``selector=all`` a client sees every step of the model; one that was away takes the way that the model has
    gone since for one step.

    Source: Chen, Giannakis, Sun and Yin, LAG: Lazily Aggregated Gradient for Communication-Efficient Distributed Learning,
    NeurIPS 2018, arXiv:1805.09965, algorithm 1 (LAG-WK). Rule and defaults, D = 10 and :math:`\xi = 1 / D`, are those of the
    authors' code. They were not compared with the paper's text.

    Deviations: the code compares gradients, with :math:`\xi / (\alpha M)^2` on the right. An update is :math:`-\eta` times the
    gradient, and :math:`\alpha = \eta / M`, so that this is the same if clients weigh the same. In the code no client sends in
    the first D rounds; here every client sends in its first.

    Args:
        xi: 0 or larger.
        window: D, 1 or larger.
    """

    requires = frozenset({STORED_GRADIENTS, CLIENT_GRADIENTS})
    excludes = MappingProxyType(
        {DEVICES: "may send nothing, for which simulated rounds would wait: choose devices=none, or method=lag"}
    )

    xi: Annotated[float, Within("[0, 3.4e38]")] = 0.1
    window: Annotated[int, Whole()] = 10

    def apply(self, update: ClientUpdate, rng: np.random.Generator) -> ClientUpdate:
        """Return the update as it is: ``consider`` does it."""
        return update

    def consider(self, update: ClientUpdate, task: ClientTask) -> ClientUpdate:
        """Return the update, or a silent one without tensors; either remembers what the next round needs."""
        sent = {name: task.broadcast.model[name] for name in update.delta}
        seen, last = _of(_SEEN, task.memory), _of(_LAST, task.memory)
        moved = task.memory.get(_MOVED, torch.zeros(0, dtype=torch.float64))
        if seen:
            step = torch.tensor([state.norm(state.subtract(sent, seen)) ** 2], dtype=torch.float64)
            moved = torch.cat([moved, step])[-self.window :]
        memory = update.memory | _named(_SEEN, sent) | {_MOVED: moved}
        bound = self.xi * float(moved.sum())
        if last and state.norm(state.subtract(update.delta, last)) ** 2 <= bound:
            return replace(update, delta={}, buffers={}, extras={}, memory=memory | _named(_LAST, last), silent=True)
        return replace(update, memory=memory | _named(_LAST, update.delta))


def _of(prefix: str, memory: State) -> State:
    return {name.removeprefix(prefix): tensor for name, tensor in memory.items() if name.startswith(prefix)}


def _named(prefix: str, bundle: State) -> State:
    return {prefix + name: tensor for name, tensor in state.clone(bundle).items()}
