"""FAVOR: an agent learns by double deep Q-learning which clients bring the model to its target soonest."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController
from torch import Tensor

from fedfacet import state
from fedfacet.arguments import Whole, Within
from fedfacet.confusion import accuracy_of
from fedfacet.errors import CheckpointError, ConfigError
from fedfacet.methods import favor_dqn as dqn
from fedfacet.records import RoundResult
from fedfacet.selectors.base import ClientSelector, Taxonomy, numbers, warn_of
from fedfacet.storage import checkpoint
from fedfacet.types import ClientUpdate, Facts, SelectionContext, ServerState, State

log = logging.getLogger(__name__)

Floats = NDArray[np.float64]

_threads = cache(ThreadpoolController)  # it looks for thread pools among all loaded libraries, which takes milliseconds

_BASE = 64.0
_FITTED_TO = 10


@dataclass(eq=False, kw_only=True)
class FavorSelector(ClientSelector):
    r"""Select the clients whose actions a Q-network values most, in the state of all weights that the server has seen.

    1. In the first round everybody is selected. The principal components of their weights, Q of them, are kept for good.
    2. The state s has Q numbers of the global model and of each client's last model: its weights, less their mean in the first
       round, along the components. A client that never took part has the initial model's.
    3. The places go to the clients of the largest Q(s, k), a network with two hidden layers. While the agent learns, each place
       is drawn at random instead with probability :math:`\epsilon`. Ties by lot; NaN comes last, and is named in the log.
    4. A round's reward is :math:`r = 64^{\text{acc} - \Omega} - 1`, of the new model's accuracy on the server's samples: below
       0 until the target is reached, so that fewer rounds are better. With the state s' after it,

       .. math:: y = r + \gamma \, Q'\big(s', \arg\max_k Q(s', k)\big), \quad y = r \text{ where the target is reached}

       is what the selection was worth; after each round the network takes one step of Adam on a batch of the last
       ``capacity`` rounds (``methods/favor_dqn.py``).

    An agent needs many episodes. An episode is a run, and each goes on from the last one's agent. The paper's training selects
    one client a round, which is one action, and ends an episode at the target:

    .. code-block:: python

        import fedfacet

        settings = ["experiment=digits_gsc", "method=favor", "federation.rounds=30"]
        training = [*settings, "federation.cohort_size=1", "termination=accuracy"]
        agent = "null"
        for seed in range(30):
            agent = fedfacet.train(*training, f"seed={seed}", f"selector.agent={agent}").folder
        fedfacet.train(*settings, f"selector.agent={agent}", "selector.learns=false", "server_data=none")

    A run reads its agent from the other run's last checkpoint when it starts, and when it is resumed; so that run has to stay.
    Networks, Adam's moments, memory and components go on; the state of the weights is this run's own. A sweep cannot do this,
    since its runs do not wait for one another. Nor can one run have several episodes, since each starts from a new model.

    Source: Wang et al., Optimizing Federated Learning on Non-IID Data with Reinforcement Learning, INFOCOM 2020, as the
    thesis' table 4 and appendix A.1 describe it, and public notes on it (reward, principal components, double DQN of 2 x 512
    units, one client an action while training). Neither the algorithm nor the defaults were checked against the paper. The
    notes also name targets: 0.99 on MNIST, 0.85 on FashionMNIST, 0.55 on CIFAR-10.

    Deviations: with more than one client a round, each whose update arrived is an action that was taken, and their losses are
    averaged. The updates of the first round are averaged into the model as any other's. All coordinates are divided by the
    weights' standard deviation along the first component, for the network's sake. The components are those of at most ten
    times as many updates, drawn. The loss is Huber's, by the notes the squared error; they also put the network's outputs
    through a softmax.

    With K clients, d parameters, Q components and H units, the network has about K Q H weights. Checkpoints hold Q d numbers of
    the components, four times the network, and 2 K Q numbers for each round in the memory. A round costs O(K Q H) to select,
    ``batch_size`` times as much to learn, and Q d for every update: the method's own price, as its state is everybody's
    weights. 100 clients take 110 MB, and 400 bytes for each parameter. 10,000 clients with the defaults would take 11 GB; with
    ``components=2 hidden=64 capacity=50`` they take 40 MB. All updates of the first round are in memory at once. Clients are
    asked nothing.

    Args:
        agent: folder of a run of selector=favor with as many clients, this model, and the same components, hidden and capacity;
            ``None`` for a new agent.
        learns: whether the agent explores and learns. If not, it needs no samples of the server, but ``agent``.
        target: Omega in (0, 1].
        components: Q, 1 or larger; K where that is less.
        hidden: H, 1 or larger.
        discount: gamma in [0, 1].
        lr: of Adam, in (0, 1].
        batch_size: rounds that a step learns from, 1 or larger.
        capacity: rounds in the memory, 1 or larger.
        copy_every: steps after which Q' becomes Q, 1 or larger.
        exploration: epsilon before the first step, in [0, 1].
        exploration_decay: what is left of it after a step, in (0, 1].
        exploration_least: where that ends, in [0, 1].
    """

    taxonomy = Taxonomy(
        "efficiency", "DSRT", ("θ",), "reinforcement learning on the server's samples", "ranking", "accuracy reached"
    )

    agent: str | None = None
    learns: bool = True
    target: Annotated[float, Within("(0, 1]")] = 0.9
    components: Annotated[int, Whole()] = 100
    hidden: Annotated[int, Whole()] = 512
    discount: Annotated[float, Within("[0, 1]")] = 0.9
    lr: Annotated[float, Within("(0, 1]")] = 0.001
    batch_size: Annotated[int, Whole()] = 32
    capacity: Annotated[int, Whole()] = 300
    copy_every: Annotated[int, Whole()] = 10
    exploration: Annotated[float, Within("[0, 1]")] = 0.5
    exploration_decay: Annotated[float, Within("(0, 1]")] = 0.99
    exploration_least: Annotated[float, Within("[0, 1]")] = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.learns and self.agent is None:
            raise ValueError("Expected an `agent` that has learnt for learns=false, but got none: give the folder of its run.")

    def init(self, facts: Facts) -> ServerState:
        """Return components, the mean of the weights, everybody's coordinates (the global model's first), agent and memory.

        Raises:
            ConfigError: if ``agent`` names no run, or one of other clients, another model or other settings.
        """
        num_clients = facts.num_clients
        size = min(self.components, num_clients)
        model = {name: facts.model[name] for name in facts.parameters}
        width = (num_clients + 1) * size
        blank: ServerState = {
            "components": {name: torch.zeros(size, *tensor.shape) for name, tensor in model.items()},
            "mean": {name: tensor.float() for name, tensor in model.items()},
            "fitted": False,
            "weights": torch.zeros(num_clients + 1, size),
            "learner": dqn.blank_learner((width, self.hidden, self.hidden, num_clients)),
            "states": torch.zeros(self.capacity, width),
            "next_states": torch.zeros(self.capacity, width),
            "actions": torch.zeros(self.capacity, num_clients, dtype=torch.bool),
            "rewards": torch.zeros(self.capacity),
            "seen": 0,
        }
        if self.agent is None:
            return blank
        learnt = _agent_of(self.agent, blank)
        if not learnt["fitted"]:
            return learnt
        start_Q = coordinates(learnt["components"], state.subtract(model, learnt["mean"]))
        return learnt | {"weights": start_Q.repeat(num_clients + 1, 1)}

    def needs_updates(self, server: ServerState) -> bool:
        """Return ``True``."""
        return True

    def judges(self) -> str | None:
        """Return that classes matter, if it learns."""
        return "classes" if self.learns else None

    def select(self, server: ServerState, context: SelectionContext) -> list[int]:
        """Return the clients of the largest values, and some at random while the agent learns; everybody in round 1."""
        if context.round == 1:
            return list(context.available)
        available = numbers(context.available)
        values_K = dqn.values(server["learner"]["online"], server["weights"].reshape(1, -1))[0].numpy()[available]
        lost_K = np.isnan(values_K)
        warn_of(context.round, "values", available[lost_K].tolist(), len(available), "clients are NaN, and rank last")
        order = np.lexsort((context.rng.random(len(available)), -values_K, lost_K))
        explored = int(context.rng.binomial(context.num_slots, self._exploration(server)))
        best, others = np.split(order, [context.num_slots - explored])
        drawn = context.rng.choice(others, size=explored, replace=False) if explored else others[:0]
        return [context.available[position] for position in (*best.tolist(), *drawn.tolist())]

    def observe(
        self,
        server: ServerState,
        result: RoundResult,
        updates: Sequence[ClientUpdate],
        rng: np.random.Generator,
        *,
        change: State,
        judge: Callable[[State], NDArray[np.int64]] | None = None,
    ) -> ServerState:
        """Return the coordinates after a round, and an agent that has learnt from it."""
        if not updates:
            return server
        if not server["fitted"]:
            if len(updates) < 2:  # there is nothing to compare: wait for more
                return server | {"mean": state.add(server["mean"], {name: change[name] for name in server["mean"]})}
            server = self._fitted(server, updates, rng)
        before, components = server["weights"], server["components"]
        after = before.clone()
        for update in updates:
            after[1 + update.client_id] = before[0] + coordinates(components, update.delta)
        after[0] += coordinates(components, change)
        server = server | {"weights": after}
        if judge is None or result.round == 1:  # in which nobody was chosen
            return server
        accuracy = accuracy_of(judge(change))
        actions_K = torch.zeros(len(before) - 1, dtype=torch.bool)
        actions_K[[update.client_id for update in updates]] = True
        row = {"states": before.flatten(), "actions": actions_K, "next_states": after.flatten()}
        row["rewards"] = torch.tensor(reward(accuracy, self.target))
        return self._taught(_remembered(server, row), rng)

    def _exploration(self, server: ServerState) -> float:
        """Return the probability that a place is drawn at random."""
        if not self.learns:
            return 0.0
        steps: int = server["learner"]["steps"]
        return max(self.exploration * self.exploration_decay**steps, self.exploration_least)

    def _fitted(self, server: ServerState, updates: Sequence[ClientUpdate], rng: np.random.Generator) -> ServerState:
        """Return the state with components of these updates, everybody at the model that was sent, and a fresh agent."""
        size = server["weights"].shape[1]
        chosen = np.sort(rng.permutation(len(updates))[: _FITTED_TO * size])
        deltas = [updates[i].delta for i in chosen]
        shift = state.combination(deltas, np.full(len(deltas), 1 / len(deltas)))
        components = {name: tensor.clone() for name, tensor in server["components"].items()}
        for q, coefficients in enumerate(principal_coefficients(state.gram(deltas), size)):
            for name, tensor in state.combination(deltas, coefficients).items():
                components[name][q] = tensor
        start_Q = -coordinates(components, shift)
        learner = server["learner"]
        if self.learns:
            learner = dqn.fresh_learner((server["weights"].numel(), self.hidden, self.hidden, len(server["weights"]) - 1), rng)
        return server | {
            "components": components,
            "mean": state.add(server["mean"], shift),
            "fitted": True,
            "weights": start_Q.repeat(len(server["weights"]), 1),
            "learner": learner,
        }

    def _taught(self, server: ServerState, rng: np.random.Generator) -> ServerState:
        """Return the state after the agent has taken a step on rounds drawn from its memory."""
        known = min(server["seen"], self.capacity)
        rows = torch.from_numpy(rng.choice(known, size=min(self.batch_size, known), replace=False))
        rewards = server["rewards"][rows]
        batch = dqn.Transitions(
            states=server["states"][rows],
            actions=server["actions"][rows],
            rewards=rewards,
            next_states=server["next_states"][rows],
            discounts=self.discount * (rewards < 0),  # at the target the episode is over
        )
        return server | {"learner": dqn.learnt(server["learner"], batch, lr=self.lr, copy_every=self.copy_every)}


def reward(accuracy: float, target: float) -> float:
    """Return what a round is worth: 0 at the target, above it more, below it less but more than -1.

    Example:
        >>> [reward(accuracy, 0.5) for accuracy in (0.0, 0.5, 1.0)]
        [-0.875, 0.0, 7.0]
    """
    return math.pow(_BASE, accuracy - target) - 1


def principal_coefficients(gram_MM: Floats, size: int) -> Floats:
    r"""Return what to multiply vectors with so that their sums are principal components, shape (at most ``size``, M).

    With :math:`C` the result and X the vectors as rows, the rows of C X are orthogonal, of length :math:`1 / \sigma`, and in
    the order of the variances of X along them, the largest first; :math:`\sigma` is the standard deviation along the first.
    There are fewer where the vectors lie in fewer dimensions, and none where they are all alike.

    Args:
        gram_MM: the vectors' inner products, which are not centred, shape (M, M).
        size: how many at most.

    Example:
        >>> X = np.array([[2.0, 0.0], [0.0, 0.0], [-2.0, 0.0], [0.0, 0.0]])
        >>> (principal_coefficients(X @ X.T, 2) @ X).round(6).tolist()
        [[0.707107, 0.0]]
    """
    centred_MM = gram_MM - gram_MM.mean(axis=0) - gram_MM.mean(axis=1, keepdims=True) + gram_MM.mean()
    with _threads().limit(limits=1):  # threads would have sums differ from machine to machine
        variances_M, directions_MM = np.linalg.eigh(centred_MM)
    order = np.argsort(-variances_M, kind="stable")[:size]
    order = order[variances_M[order] > 1e-10 * max(gram_MM.trace(), 1e-200)]
    if not len(order):
        return np.empty((0, len(gram_MM)))
    directions_QM = directions_MM[:, order].T
    largest_Q = np.abs(directions_QM).argmax(axis=1)
    directions_QM = directions_QM * np.sign(np.take_along_axis(directions_QM, largest_Q[:, None], axis=1))
    directions_QM = directions_QM - directions_QM.mean(axis=1, keepdims=True)
    scale = np.sqrt(variances_M[order[0]] / len(gram_MM))
    coefficients_QM: Floats = directions_QM / np.sqrt(variances_M[order])[:, None] / scale
    return coefficients_QM


def coordinates(components: State, change: State) -> Tensor:
    """Return the inner products of a change of the weights with every component, shape (Q,); other names do not count."""
    products = (tensor.flatten(1) @ change[name].flatten().float() for name, tensor in components.items())
    return sum(products, torch.zeros(()))


def _remembered(server: ServerState, row: Mapping[str, Tensor]) -> ServerState:
    """Return the state with a round in its memory, in the place of the oldest one if that is full."""
    memory = {name: server[name].clone() for name in row}
    for name, tensor in row.items():
        memory[name][server["seen"] % len(memory[name])] = tensor
    return server | memory | {"seen": server["seen"] + 1}


def _agent_of(folder: str, blank: ServerState) -> ServerState:
    """Return the selector's state in a run's last checkpoint.

    Raises:
        ConfigError: if there is none, or it is not like the one of this run.
    """
    path = Path(folder).expanduser() / "checkpoints" / "last.ckpt"
    if not path.is_file():
        raise ConfigError(
            f"Expected `selector.agent` to name the folder of a run of selector=favor, but there is no {path}: give another, "
            "or bring it back."
        )
    try:
        learnt = checkpoint.verified(path)[0]["selector"]
    except CheckpointError as error:
        raise ConfigError(f"Expected `selector.agent` to have a whole checkpoint ({error}): give another run.") from None
    fault = None
    if not isinstance(learnt, dict) or learnt.keys() != blank.keys():
        fault = "is of another selector"
    elif not _alike(learnt["actions"][:1], blank["actions"][:1]):
        fault = f"has {learnt['actions'].shape[-1]} clients instead of {blank['actions'].shape[-1]}"
    elif not _alike(learnt["mean"], blank["mean"]):
        fault = "has another model"
    elif not _alike(learnt, blank):
        fault = "has other settings of `components`, `hidden` or `capacity`"
    if fault is not None:
        raise ConfigError(f"Expected `selector.agent` to name a run that is like this one, but {folder} {fault}: give another.")
    return {**learnt}


def _alike(value: Any, like: Any) -> bool:
    """Tell whether two values have the same names, shapes and types."""
    if isinstance(like, dict):
        return isinstance(value, dict) and value.keys() == like.keys() and all(_alike(value[name], like[name]) for name in like)
    if isinstance(like, Tensor):
        return isinstance(value, Tensor) and value.shape == like.shape and value.dtype == like.dtype
    return type(value) is type(like)
