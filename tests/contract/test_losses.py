"""What every loss keeps to."""

import pytest
import torch

from fedfacet import rng, state
from fedfacet.clients.local_training import LocalTraining
from fedfacet.models.small_cnn import SmallCNN
from fedfacet.objectives.classification import ClassificationObjective
from fedfacet.types import Batch, Broadcast, ClientTask


@pytest.fixture
def loss(loss_option, make_part):
    return make_part("loss", loss_option)


def batch(y, a=None):
    y = torch.tensor(y)
    return Batch(torch.empty(len(y), 0), y, torch.zeros_like(y) if a is None else torch.tensor(a))


def draw(size=8, classes=3, scale=2.0):
    generator = torch.Generator().manual_seed(0)
    logits = scale * torch.randn(size, classes, generator=generator)
    return logits, batch(torch.randint(classes, (size,), generator=generator).tolist())


def test_it_is_a_scalar_with_a_gradient(loss):
    logits, samples = draw()
    value = loss(logits.requires_grad_(), samples)
    assert value.shape == ()
    assert value.dtype == torch.float32
    assert float(value.detach()) > 0
    value.backward()
    assert logits.grad.isfinite().all()
    assert logits.grad.any()


@pytest.mark.parametrize("scale", [1e-3, 1e2, 1e4])
def test_value_and_gradient_stay_finite(loss, scale):
    logits, samples = draw(scale=scale)
    value = loss(logits.requires_grad_(), samples)
    value.backward()
    assert value.isfinite()
    assert logits.grad.isfinite().all()


def test_it_is_a_mean_over_the_batch(loss):
    logits, samples = draw()
    twice = Batch(*(torch.cat([part, part]) for part in samples))
    torch.testing.assert_close(loss(torch.cat([logits, logits]), twice), loss(logits, samples))
    single = [loss(logits[i : i + 1], Batch(*(part[i : i + 1] for part in samples))) for i in range(len(logits))]
    torch.testing.assert_close(torch.stack(single).mean(), loss(logits, samples))


def test_right_and_sure_is_better_than_unsure_is_better_than_wrong(loss):
    right, unsure, wrong = (loss(torch.tensor([[x, 0.0]]), batch([0])) for x in (5.0, 0.0, -5.0))
    assert right < unsure < wrong
    assert right == pytest.approx(0, abs=0.05)


def test_a_step_along_the_gradient_helps(loss):
    logits, samples = draw()
    logits.requires_grad_()
    value = loss(logits, samples)
    value.backward()
    assert loss((logits - logits.grad).detach(), samples) < value


def test_order_does_not_matter(loss):
    logits, samples = draw()
    order = torch.tensor([3, 1, 7, 0, 6, 2, 5, 4])
    torch.testing.assert_close(loss(logits[order], Batch(*(part[order] for part in samples))), loss(logits, samples))


def test_it_does_the_same_in_two_parts(loss, loss_option, make_part, tiny_clients):
    """Two processes then take a part of a client's steps each, with a loss of their own."""

    def clients(of_steps):
        with rng.forked(0, "weights"):
            objective = ClassificationObjective(SmallCNN(2, (1, 4, 4), width=2, hidden=4), loss=of_steps)
        return tiny_clients(objective=objective, local=LocalTraining(batch_size=4))

    first, second = clients(loss), clients(make_part("loss", loss_option))
    start = Broadcast(state.clone(first.program.tensors))
    second.train(ClientTask(2, 1, 0, start))
    task = ClientTask(1, 2, 0, start)
    expected = first.train(task)
    for cut in range(1, expected.num_steps):
        update = second.train_part(task, first.train_part(task, None, cut), None)
        assert state.digest(update.delta) == state.digest(expected.delta)
        assert update.metrics == expected.metrics
