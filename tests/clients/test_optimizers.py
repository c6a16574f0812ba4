"""A client's optimizer that goes on where it was; the rest is tested with local training."""

import copy
from functools import partial

import pytest
import torch
from torch import nn, optim
from torch.optim.optimizer import register_optimizer_step_pre_hook

from fedfacet import state
from fedfacet.clients.optimizers import kept_optimizer, optimizer_to_keep, restore_optimizer


def steps(model, optimizer, batches):
    for x in batches:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize(
    "make",
    [
        partial(optim.SGD, lr=0.1),
        partial(optim.SGD, lr=0.1, momentum=0.9, nesterov=True),
        partial(optim.Adam, lr=0.1, amsgrad=True),
        partial(optim.AdamW, lr=0.1),
        partial(optim.RMSprop, lr=0.1, momentum=0.5, centered=True),
    ],
)
def test_going_on_is_never_having_stopped(make):
    batches = torch.randn(6, 4, 3, generator=torch.Generator().manual_seed(0))
    whole, part = nn.Linear(3, 2), nn.Linear(3, 2)
    part.load_state_dict(whole.state_dict())
    steps(whole, make(whole.parameters()), batches)
    first = make(part.parameters())
    steps(part, first, batches[:3])
    kept = optimizer_to_keep(first)
    second = make(part.parameters())
    restore_optimizer(second, kept_optimizer({"personal|weight": torch.ones(1)} | kept))
    steps(part, second, batches[3:])
    assert all(map(torch.equal, whole.parameters(), part.parameters()))


def test_what_is_kept_does_not_change_any_more():
    model = nn.Linear(3, 2)
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    steps(model, optimizer, torch.ones(1, 4, 3))
    kept = optimizer_to_keep(optimizer)
    before = copy.deepcopy(kept)
    steps(model, optimizer, torch.ones(1, 4, 3))
    restored = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    restore_optimizer(restored, kept_optimizer(kept))
    steps(model, restored, torch.ones(1, 4, 3))
    assert sorted(kept) == ["optimizer|0|momentum_buffer", "optimizer|1|momentum_buffer"]
    assert state.digest(kept) == state.digest(before)


def test_nothing_kept_is_a_fresh_optimizer():
    assert kept_optimizer({}) == {}
    assert optimizer_to_keep(optim.SGD(nn.Linear(3, 2).parameters(), lr=0.1, momentum=0.9)) == {}


def test_state_that_is_no_tensor_is_refused():
    model = nn.Linear(3, 2)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    optimizer.state[model.weight]["calls"] = 3
    with pytest.raises(ValueError, match=r"state is tensors for `local.keep_optimizer`, but the calls of SGD is 3"):
        optimizer_to_keep(optimizer)


@pytest.mark.parametrize("how", ["a hook", "a hook on every optimizer", "another step in its place"])
def test_whoever_watches_steps_sees_all_from_the_next_client_on(tiny_federation, how):
    federation, seen = tiny_federation(), []
    federation.run_round()  # before anybody watches
    optimizer, handle = federation.engine.clients.program.optimizer, None
    if how == "a hook":
        handle = optimizer.register_step_post_hook(lambda *_: seen.append(1))
    elif how == "a hook on every optimizer":
        handle = register_optimizer_step_pre_hook(lambda *_: seen.append(1))
    else:
        step = optimizer.step
        optimizer.step = lambda: (seen.append(1), step())
    try:
        result = federation.run_round()
    finally:
        if handle is not None:
            handle.remove()
    assert len(seen) == result.metrics["train/num_steps"] > 0
