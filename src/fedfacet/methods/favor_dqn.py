"""Deep Q-learning, the double one: values of actions in a state, learnt from what followed on them.

A learner is plain data, as server parts keep it; every function returns a new one and changes nothing.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fedfacet.types import State

Learner = dict[str, Any]
"""``online`` and ``target``, two networks; ``mean`` and ``square``, Adam's moments of the gradients; ``steps`` taken so far."""

_DECAY, _SQUARE_DECAY, _EPSILON = 0.9, 0.999, 1e-8  # Adam's


class Transitions(NamedTuple):
    """B states, what was done in them, and what followed.

    Attributes:
        states: shape (B, D), float32.
        actions: which actions were taken, one or more in each state, shape (B, A), bool.
        rewards: shape (B,), float32.
        next_states: shape (B, D), float32.
        discounts: what the value of the next state counts, in [0, 1], 0 where the episode is over; shape (B,), float32.
    """

    states: Tensor
    actions: Tensor
    rewards: Tensor
    next_states: Tensor
    discounts: Tensor


def blank_learner(sizes: Sequence[int]) -> Learner:
    """Return a learner whose networks are 0 throughout: all actions are worth 0.

    Args:
        sizes: of the layers, the states' and the actions' numbers among them.
    """
    network = {}
    for layer, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        network[f"{layer}.weight"], network[f"{layer}.bias"] = torch.zeros(outputs, inputs), torch.zeros(outputs)
    copies = ({name: tensor.clone() for name, tensor in network.items()} for _ in range(3))
    return dict(zip(("online", "target", "mean", "square"), (network, *copies), strict=True)) | {"steps": 0}


def fresh_learner(sizes: Sequence[int], rng: np.random.Generator) -> Learner:
    r"""Return a learner whose two networks are one, drawn uniformly within :math:`\pm 1 / \sqrt{\text{inputs}}` of a layer."""
    learner = blank_learner(sizes)
    network = {}
    for layer, inputs in enumerate(sizes[:-1]):
        for name in (f"{layer}.weight", f"{layer}.bias"):
            bound = 1 / math.sqrt(inputs)
            drawn = rng.uniform(-bound, bound, size=tuple(learner["online"][name].shape))
            network[name] = torch.from_numpy(drawn.astype(np.float32))
    return learner | {"online": network, "target": {name: tensor.clone() for name, tensor in network.items()}}


def values(network: State, states: Tensor) -> Tensor:
    """Return what every action is worth in some states, shape (B, A): linear layers with ReLU between them.

    Args:
        network: its weights.
        states: shape (B, D).
    """
    last = len(network) // 2 - 1
    for layer in range(last + 1):
        states = functional.linear(states, network[f"{layer}.weight"], network[f"{layer}.bias"])
        states = states.relu() if layer < last else states
    return states


def double_targets(online: State, target: State, batch: Transitions) -> Tensor:
    r"""Return what the actions taken should be worth, shape (B,).

    .. math:: y = r + \gamma \, Q'\big(s', \arg\max_a Q(s', a)\big)

    with Q the online network, which chooses the next action, and Q' the target network, which says what that is worth.

    Source: van Hasselt et al., Deep Reinforcement Learning with Double Q-learning, AAAI 2016, arXiv:1509.06461.
    """
    best_B = values(online, batch.next_states).argmax(dim=1, keepdim=True)
    worth_B = values(target, batch.next_states).gather(1, best_B)[:, 0]
    return batch.rewards + batch.discounts * worth_B


def learnt(learner: Learner, batch: Transitions, *, lr: float, copy_every: int) -> Learner:
    """Return the learner after a step of Adam on the Huber loss between values and targets.

    Where several actions were taken in a state, each is held to the state's target, and the losses' mean is the state's. A
    step whose gradient is not finite is not taken.

    Args:
        learner: before the step.
        batch: B transitions, 1 or more.
        lr: Adam's learning rate, larger than 0.
        copy_every: after how many steps the target network becomes a copy of the online network, 1 or larger.
    """
    online: State = {name: tensor.clone().requires_grad_() for name, tensor in learner["online"].items()}
    with torch.no_grad():
        targets_B = double_targets(learner["online"], learner["target"], batch)
    with torch.enable_grad():
        errors_BA = functional.huber_loss(
            values(online, batch.states), targets_B[:, None].expand(batch.actions.shape), reduction="none"
        )
        taken_BA = batch.actions.float()
        loss = ((errors_BA * taken_BA).sum(dim=1) / taken_BA.sum(dim=1)).mean()
        gradients = dict(zip(online, torch.autograd.grad(loss, list(online.values())), strict=True))
    if not all(gradient.isfinite().all() for gradient in gradients.values()):
        return learner
    steps = learner["steps"] + 1
    after: Learner = {"online": {}, "target": learner["target"], "mean": {}, "square": {}, "steps": steps}
    for name, gradient in gradients.items():
        mean = torch.lerp(learner["mean"][name], gradient, 1 - _DECAY)
        square = torch.lerp(learner["square"][name], gradient.square(), 1 - _SQUARE_DECAY)
        scale = (square / (1 - _SQUARE_DECAY**steps)).sqrt() + _EPSILON
        after["online"][name] = learner["online"][name] - lr / (1 - _DECAY**steps) * mean / scale
        after["mean"][name], after["square"][name] = mean, square
    if steps % copy_every == 0:
        after["target"] = {name: tensor.clone() for name, tensor in after["online"].items()}
    return after
