"""FedPAC's clients against training written out, and their statistics against numpy."""

import copy
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedfacet import rng, state
from fedfacet.clients.local_training import LocalTraining
from fedfacet.corrections import ProximalCorrection
from fedfacet.methods.fedpac import FedPAC, FedPACObjective
from fedfacet.models.resnet8 import ResNet8
from fedfacet.models.small_cnn import SmallCNN
from fedfacet.storage import checkpoint
from fedfacet.types import Batch, Broadcast, ClientTask

SMALL, RESNET = partial(SmallCNN, width=2, hidden=4), partial(ResNet8, width=1)
CENTROIDS = torch.tensor([[1.0, -1.0, 0.5, 0.0], [0.0, 2.0, 0.0, 1.0]])


@pytest.fixture
def make_clients(tiny_clients):
    """Return a function that makes clients of a tiny federation with FedPAC's objective."""

    def make(*, model=SMALL, local=None, lr=0.1, momentum=0.9, correction=None, **settings):
        with rng.forked(0, "weights"):
            objective = FedPACObjective(
                model(2, (1, 4, 4)),
                correction=correction,
                optimizer=partial(torch.optim.SGD, lr=lr, momentum=momentum, weight_decay=0.01),
                **settings,
            )
        return tiny_clients(objective=objective, local=local or LocalTraining(amount=3, batch_size=8))

    return make


def start_of(clients, *, centroids=None, known=(1, 1)):
    extras = (
        {} if centroids is None else {"fedpac/centroids": centroids, "fedpac/known": torch.tensor(known, dtype=torch.float)}
    )
    return Broadcast(state.clone(clients.program.tensors), extras)


def written_out(clients, task, *, head_steps, alignment, targets, head_lr=0.1, lr=0.1):
    """Train as a tutorial would: an optimizer for the head while the body has no gradients, then the other way round."""
    model = copy.deepcopy(clients.objective.model)
    model.load_state_dict(task.broadcast.model)
    model.train()
    data, num_steps, order = clients.data(task.client_id), clients.num_steps(task), clients.batches(task)
    head, body = list(model.head.parameters()), list(model.backbone.parameters())
    optimizers = {
        True: torch.optim.SGD(head, lr=head_lr, momentum=0.9, weight_decay=0.01),
        False: torch.optim.SGD(body, lr=lr, momentum=0.9, weight_decay=0.01),
    }
    for step in range(num_steps):
        of_head = step < head_steps
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        for parameter in head if of_head else body:
            parameter.requires_grad_(True)
        batch = data.batch(next(order))
        features = model.features(batch.x)
        loss = functional.cross_entropy(model.head(features), batch.y)
        if not of_head and targets is not None:
            loss = loss + alignment * (features - targets[batch.y]).square().mean()
        optimizers[of_head].zero_grad()
        loss.backward()
        optimizers[of_head].step()
    return model.state_dict()


@pytest.mark.parametrize("model", [SMALL, RESNET], ids=["small", "resnet"])
@pytest.mark.parametrize(("head_share", "head_steps"), [(0.5, 3), (1 / 6, 1), (0.9, 5)])
@pytest.mark.parametrize("centroids", [None, CENTROIDS], ids=["first round", "later"])
def test_it_is_the_training_written_out(make_clients, model, head_share, head_steps, centroids):
    """Head first, body then, each with momentum and weight decay of its own; the features drawn towards all clients'."""
    clients = make_clients(model=model, head_share=head_share, alignment=0.7, head_lr=0.05)
    task = ClientTask(1, 2, 0, start_of(clients, centroids=centroids))
    update = clients.train(task)
    assert update.num_steps == 6
    expected = written_out(clients, task, head_steps=head_steps, alignment=0.7, targets=centroids, head_lr=0.05)
    ours = state.add(task.broadcast.model, update.delta | update.buffers)
    for name, tensor in expected.items():
        if tensor.is_floating_point():
            torch.testing.assert_close(ours[name], tensor, rtol=1e-5, atol=1e-6)


def test_first_the_head_moves_then_the_body(make_clients):
    clients = make_clients()
    task = ClientTask(0, 1, 0, start_of(clients))
    half = clients.train_part(task, None, 3)
    for name, tensor in half.weights.items():
        assert torch.equal(tensor, task.broadcast.model[name]) == (not name.startswith("head.")), name
    whole = state.add(task.broadcast.model, clients.train(task).delta)
    for name in ("head.weight", "head.bias"):
        torch.testing.assert_close(whole[name], half.weights[name])
    assert not torch.equal(whole["backbone.0.weight"], task.broadcast.model["backbone.0.weight"])


@pytest.mark.parametrize(
    ("head_share", "num_steps", "head_steps"),
    [(0.29, 100, 29), (1 / 49, 49, 1), (0.7, 10, 7), (0.28, 100, 28), (0.29, 99, 28), (1 - 1e-12, 6, 5), (0.9, 1, 0)],
)
def test_steps_of_the_head_are_counted_whatever_rounding_does(make_clients, head_share, num_steps, head_steps):
    """The share of the steps, rounded down; one is left for the body."""
    clients = make_clients(head_share=head_share, local=LocalTraining(unit="steps", amount=num_steps, batch_size=8))
    task = ClientTask(0, 1, 0, start_of(clients))
    names = ("head.weight", "backbone.0.weight")
    moved = []
    for step in (head_steps, head_steps + 1):
        weights = clients.train_part(task, None, step).weights if step else task.broadcast.model
        moved.append([not torch.equal(weights[name], task.broadcast.model[name]) for name in names])
    assert moved == [[head_steps > 0, False], [head_steps > 0, True]]


def test_a_single_step_is_the_bodys(make_clients):
    clients = make_clients(local=LocalTraining(unit="steps", amount=1))
    update = clients.train(ClientTask(0, 1, 0, start_of(clients)))
    assert {name for name, tensor in update.delta.items() if not tensor.any()} == {"head.weight", "head.bias"}


def test_a_proximal_term_does_not_move_what_is_frozen(make_clients):
    clients = make_clients(correction=ProximalCorrection(mu=1.0))
    task = ClientTask(0, 1, 0, start_of(clients))
    half = clients.train_part(task, None, 3)
    whole = state.add(task.broadcast.model, clients.train(task).delta)
    torch.testing.assert_close(whole["head.weight"], half.weights["head.weight"])
    plain = make_clients().train(task)
    assert state.digest(plain.delta) != state.digest(clients.train(task).delta)


def statistics_of(model, data):
    """FedPAC's, sample by sample."""
    model.eval()
    with torch.no_grad():
        batch = data.batch(np.arange(len(data)))
        features, y = model.features(batch.x).double().numpy(), batch.y.numpy()
    means, shares = np.zeros((2, features.shape[1])), np.zeros(2)
    variance = 0.0
    for k in np.unique(y):
        of_class = features[y == k]
        shares[k] = len(of_class) / len(y)
        means[k] = of_class.mean(axis=0)
        variance += shares[k] * np.trace(of_class.T @ of_class) / len(of_class) - shares[k] ** 2 * (means[k] ** 2).sum()
    return means, shares, variance / len(y)


@pytest.mark.parametrize("model", [SMALL, RESNET], ids=["small", "resnet"])
def test_the_statistics_are_the_papers(make_clients, model):
    clients = make_clients(model=model)
    for client_id in range(4):
        task = ClientTask(client_id, 1, 0, start_of(clients))
        update = clients.train(task)
        probe = copy.deepcopy(clients.objective.model)
        probe.load_state_dict(task.broadcast.model)
        means, shares, variance = statistics_of(probe, clients.data(client_id))
        sent = update.extras
        assert sent["fedpac/means"].numpy() == pytest.approx(shares[:, None] * means, rel=1e-5, abs=1e-6)
        assert sent["fedpac/variance"].item() == pytest.approx(variance, rel=1e-5)
        assert sent["fedpac/counts"].tolist() == (shares * len(clients.data(client_id))).round().tolist()
        probe.load_state_dict(state.add(task.broadcast.model, update.delta | update.buffers))
        after, _, _ = statistics_of(probe, clients.data(client_id))
        assert sent["fedpac/centroids"].numpy() == pytest.approx(after, rel=1e-4, abs=1e-5)
        assert (after != means).any()


def test_looking_at_the_samples_moves_no_running_statistics(make_clients):
    clients = make_clients(model=RESNET)
    task = ClientTask(0, 1, 0, start_of(clients))
    before = state.clone(clients.program.tensors)
    clients.program.load(task.broadcast.model)
    with clients.program.evaluating():
        clients.objective.before_steps(clients.data(0).batches(), 4)
    assert state.digest(dict(clients.program.tensors)) == state.digest(before)
    assert clients.objective.training


def test_a_class_without_a_global_mean_is_drawn_to_the_clients_own(make_clients):
    clients = make_clients(alignment=5.0, momentum=0.0)
    task = ClientTask(1, 1, 0, start_of(clients, centroids=CENTROIDS, known=(1, 0)))
    probe = copy.deepcopy(clients.objective.model)
    probe.load_state_dict(task.broadcast.model)
    means, _, _ = statistics_of(probe, clients.data(1))
    targets = torch.stack([CENTROIDS[0], torch.tensor(means[1], dtype=torch.float32)])
    own = clients.train(task)
    extras = start_of(clients, centroids=targets).extras
    given = clients.train(ClientTask(1, 1, 0, Broadcast(task.broadcast.model, extras)))
    for name, tensor in own.delta.items():
        torch.testing.assert_close(tensor, given.delta[name], rtol=1e-4, atol=1e-6)


def test_divided_between_processes_a_client_does_the_same(make_clients):
    clients, other = make_clients(head_lr=0.3), make_clients(head_lr=0.3)
    task = ClientTask(2, 2, 0, start_of(clients, centroids=CENTROIDS))
    other.train(ClientTask(1, 1, 0, task.broadcast))
    expected = clients.train(task)
    for cut in range(1, expected.num_steps):
        update = other.train_part(task, clients.train_part(task, None, cut), None)
        for name in ("delta", "extras"):
            assert state.digest(getattr(update, name)) == state.digest(getattr(expected, name)), (cut, name)


def test_without_rounds_head_and_body_are_trained_together():
    """Under a plain Trainer."""
    with rng.forked(0, "weights"):
        objective = FedPACObjective(SmallCNN(2, (1, 4, 4), width=2, hidden=4))
    batch = Batch(
        torch.rand(4, 1, 4, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 0, 1]), torch.zeros(4)
    )
    objective.training_step(batch, 0).backward()
    assert all(parameter.grad is not None for parameter in objective.parameters())
    assert set(objective.state_dict()) == {f"model.{name}" for name in objective.model.state_dict()}


def test_rounds_with_the_aggregator_resume_exactly(make_clients, tiny_federation, tmp_path):
    def make():
        return tiny_federation(clients=make_clients(), aggregator=FedPAC(), cohort_size=3, rounds=4)

    whole, part = make(), make()
    told = [repr(whole.run_round().metrics) for _ in range(4)]
    for _ in range(2):
        part.run_round()
    checkpoint.save(tmp_path / "checkpoints" / "last.ckpt", part.state, {})
    resumed = make()
    resumed.restore(checkpoint.load(tmp_path / "checkpoints" / "last.ckpt")[0])
    assert [repr(resumed.run_round().metrics) for _ in range(2)] == told[2:]
    assert state.digest(resumed.state.model) == state.digest(whole.state.model)
    heads = whole.state.aggregator["heads"]
    assert {k: state.digest(head) for k, head in resumed.state.aggregator["heads"].items()} == {
        k: state.digest(head) for k, head in heads.items()
    }
    assert len({state.digest(head) for head in heads.values()}) == len(heads)


def test_what_is_sent_is_counted(make_clients, tiny_federation):
    federation = tiny_federation(clients=make_clients(), aggregator=FedPAC(), cohort_size=4)
    size, statistics, means = state.num_floats(federation.state.model), 2 * 2 * 4 + 2 + 1, 2 * 4 + 2
    first, second = federation.run_round().ledger, federation.run_round().ledger
    assert (first.floats_up, second.floats_up) == (4 * (size + statistics),) * 2
    assert (first.floats_down, second.floats_down) == (4 * size, 4 * (size + means))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alignment": -1.0}, r"Expected `objective\.alignment` to be 0 or larger, but got -1"),
        ({"head_share": 0.0}, r"Expected `objective\.head_share` in \(0, 1\), but got 0"),
        ({"head_share": 1.0}, r"Expected `objective\.head_share` in \(0, 1\)"),
        ({"head_lr": 0.0}, r"Expected `objective\.head_lr` to be larger than 0 or null, but got 0"),
        ({"model": nn.Linear(2, 2)}, "Expected a model with `features` and a linear `head` .* but Linear has none"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        FedPACObjective(**{"model": SmallCNN(2, (1, 4, 4))} | settings)
