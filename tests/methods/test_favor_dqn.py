import numpy as np
import pytest
import torch
from torch import nn

from fedfacet import rng
from fedfacet.methods import favor_dqn as dqn

SIZES = (5, 7, 7, 3)

# Three states in a row, of which the last ends the episode; action 0 goes on for -1, action 1 ends it for -3.
CHAIN = {
    (0, 0): (-1.0, 1),
    (0, 1): (-3.0, None),
    (1, 0): (-1.0, 2),
    (1, 1): (-3.0, None),
    (2, 0): (4.0, None),
    (2, 1): (-3.0, None),
}
GAMMA = 0.5
Q = [[-0.5, -3.0], [1.0, -3.0], [4.0, -3.0]]


def linear(table):
    """Return a network that looks the values up in a table of a row per state, which are coded one-hot."""
    return {"0.weight": torch.tensor(table).T.contiguous(), "0.bias": torch.zeros(len(table[0]))}


def chain(pairs):
    eye, rows = torch.eye(3), [CHAIN[pair] for pair in pairs]
    return dqn.Transitions(
        states=torch.stack([eye[state] for state, _ in pairs]),
        actions=torch.stack([torch.eye(2, dtype=torch.bool)[action] for _, action in pairs]),
        rewards=torch.tensor([reward for reward, _ in rows]),
        next_states=torch.stack([eye[following or 0] for _, following in rows]),
        discounts=torch.tensor([0.0 if following is None else GAMMA for _, following in rows]),
    )


def test_the_chains_values_are_their_own_targets():
    """Bellman's equation."""
    batch = chain(list(CHAIN))
    targets = dqn.double_targets(linear(Q), linear(Q), batch)
    assert targets.tolist() == [Q[state][action] for state, action in CHAIN]


def test_one_network_chooses_and_the_other_says_what_it_is_worth():
    """The online network prefers action 1 in state 1, which the target network gives 7; its own best would be 9."""
    online, target = linear([[0.0, 0.0], [1.0, 2.0], [0.0, 0.0]]), linear([[0.0, 0.0], [9.0, 7.0], [0.0, 0.0]])
    assert dqn.double_targets(online, target, chain([(0, 0)])).tolist() == [-1.0 + GAMMA * 7.0]


def test_it_learns_the_chain():
    learner = dqn.fresh_learner((3, 16, 2), rng.stream(0, "unused"))
    batch = chain(list(CHAIN))
    for _ in range(1500):
        learner = dqn.learnt(learner, batch, lr=0.01, copy_every=20)
    assert dqn.values(learner["online"], torch.eye(3)).numpy() == pytest.approx(np.array(Q), abs=0.05)
    assert learner["steps"] == 1500


def test_a_step_is_torchs_adam_on_torchs_network():
    draw = rng.stream(1, "unused")
    learner = dqn.fresh_learner(SIZES, draw)
    network = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 7), nn.ReLU(), nn.Linear(7, 3))
    network.load_state_dict({f"{2 * int(name[0])}{name[1:]}": tensor.clone() for name, tensor in learner["online"].items()})
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(3):
        states, following, rewards = (torch.from_numpy(draw.normal(size=n).astype(np.float32)) for n in ((4, 5), (4, 5), 4))
        actions = torch.tensor([[True, False, False], [True, True, False], [False, False, True], [True, True, True]])
        batch = dqn.Transitions(states, actions, rewards, following, torch.full((4,), 0.9))
        targets = dqn.double_targets(learner["online"], learner["target"], batch)
        losses = torch.stack(
            [
                nn.functional.huber_loss(z[own], y.expand(int(own.sum())))
                for z, own, y in zip(network(states), actions, targets, strict=True)
            ]
        )
        optimizer.zero_grad()
        losses.mean().backward()
        optimizer.step()
        learner = dqn.learnt(learner, batch, lr=0.01, copy_every=2)
    expected = list(network.state_dict().values())
    for mine, its in zip(learner["online"].values(), expected, strict=True):
        assert torch.allclose(mine, its, atol=1e-6)


def test_the_target_follows_every_so_many_steps_and_nothing_is_changed_in_place():
    learner = dqn.fresh_learner((3, 4, 2), rng.stream(0, "unused"))
    seen = [learner]
    for _ in range(4):
        seen.append(dqn.learnt(seen[-1], chain([(0, 0)]), lr=0.1, copy_every=2))
    assert torch.equal(
        learner["target"]["0.weight"], dqn.fresh_learner((3, 4, 2), rng.stream(0, "unused"))["target"]["0.weight"]
    )
    follows = [torch.equal(one["target"]["1.bias"], one["online"]["1.bias"]) for one in seen]
    assert follows == [True, False, True, False, True]


def test_a_gradient_that_is_not_finite_is_not_followed():
    learner = dqn.fresh_learner((3, 4, 2), rng.stream(0, "unused"))
    batch = chain([(0, 0)])
    assert dqn.learnt(learner, batch._replace(rewards=torch.tensor([torch.nan])), lr=0.1, copy_every=1) is learner


def test_a_blank_learner_finds_all_actions_alike():
    learner = dqn.blank_learner(SIZES)
    assert dqn.values(learner["online"], torch.ones(2, 5)).tolist() == [[0.0] * 3] * 2
