"""Ordered dropout against narrow models that are trained by themselves."""

import collections

import pytest
import torch
from torch import nn
from torch.nn import functional

from fedfacet.errors import ConfigError
from fedfacet.models.scaler_cnn import ScalerCNN
from fedfacet.models.small_cnn import SmallCNN
from fedfacet.objectives.ordered_dropout import OrderedDropoutObjective
from fedfacet.types import Batch

WIDTHS = (0.25, 0.5, 1.0)


@pytest.fixture(autouse=True)
def own_generator():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def images(size=8):
    return Batch(torch.randn(6, 1, size, size), torch.arange(6) % 3, torch.zeros(6, dtype=torch.int64))


def drawn_by(objective, batch):
    """Take one step's loss, and return it with the number that it draws."""
    before = torch.get_rng_state()
    number = int(torch.randint(len(objective.narrow) + 1, ()))
    torch.set_rng_state(before)
    objective.zero_grad()
    loss = objective.training_step(batch, 0)
    loss.backward()
    return loss.item(), number


@pytest.mark.parametrize("model", [ScalerCNN(3, (1, 8, 8), width=4, scaler=False), SmallCNN(3, (1, 8, 8))])
def test_a_step_is_that_of_a_model_with_the_first_channels(model):
    """Loss and gradients, with a linear layer on flattened maps too; the other channels get none."""
    objective, batch, seen = OrderedDropoutObjective(model, widths=WIDTHS), images(), set()
    for _ in range(12):
        loss, number = drawn_by(objective, batch)
        seen.add(number)
        if number == 2:
            continue
        sizes = {group: int(WIDTHS[number] * size) for group, size in model.channel_plan.sizes.items()}
        alone = model.narrowed(sizes)
        first = objective.narrow[number][1]
        alone.load_state_dict({name: tensor[first.get(name, ...)] for name, tensor in model.state_dict().items()})
        expected = functional.cross_entropy(alone(batch.x), batch.y)
        expected.backward()
        assert loss == pytest.approx(expected.item(), rel=1e-6)
        theirs = dict(alone.named_parameters())
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(parameter.grad[first.get(name, ...)], theirs[name].grad)
            assert parameter.grad.count_nonzero() == theirs[name].grad.count_nonzero()
    assert seen == {0, 1, 2}


def test_a_weak_client_draws_widths_up_to_its_own_as_often():
    whole = ScalerCNN(3, (1, 8, 8), width=8)
    half = whole.narrowed({group: size // 2 for group, size in whole.channel_plan.sizes.items()})
    objective = OrderedDropoutObjective(half, widths=WIDTHS, whole=whole)
    assert [network.widths for network, _ in objective.narrow] == [[2, 4, 8, 16]], "a quarter of the whole model"
    counts = collections.Counter(drawn_by(objective, images())[1] for _ in range(60))
    assert 15 < counts[0] < 45
    assert counts[0] + counts[1] == 60
    assert objective.state_dict().keys() == {f"model.{name}" for name in half.state_dict()}


def test_the_widest_teaches_the_drawn_one():
    model, batch = ScalerCNN(3, (1, 8, 8), width=4), images()
    objective = OrderedDropoutObjective(model, widths=(0.5, 1.0), distill=True)
    losses = dict(reversed(drawn_by(objective, batch)) for _ in range(8))
    z = objective.model(batch.x).detach()
    for number, narrow in ((0, objective._logits(0, batch.x).detach()), (1, z)):
        soft = -(z.softmax(dim=1) * narrow.log_softmax(dim=1)).sum(dim=1).mean()
        assert losses[number] == pytest.approx((functional.cross_entropy(z, batch.y) + soft).item(), rel=1e-6)


def test_what_it_cannot_do_is_refused():
    with pytest.raises(ConfigError, match=r"Linear has no `channel_plan`, whose channels objective=ordered_dropout orders"):
        OrderedDropoutObjective(nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"`objective\.widths` in \(0, 1\], but got 0"):
        OrderedDropoutObjective(ScalerCNN(3, (1, 8, 8)), widths=(0, 1))
