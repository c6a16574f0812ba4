"""The recurrent network: its sizes, its dropout, and clients that are trained with it."""

import pytest
import torch
from torch import nn

from fedfacet import rng, state
from fedfacet.clients.local_training import LocalTraining
from fedfacet.clients.trainer import Clients
from fedfacet.data.federated import partition_and_hold_out
from fedfacet.data.shakespeare import Shakespeare
from fedfacet.engines.vectorized import VectorizedEngine
from fedfacet.models.char_lstm import CharLSTM
from fedfacet.objectives.classification import ClassificationObjective
from fedfacet.partitioners.natural import NaturalPartitioner
from fedfacet.types import Broadcast, ClientTask


def made(**settings):
    with rng.forked(0, "weights"):
        return CharLSTM(80, (80,), **settings)


def rows(size=3, length=80):
    return torch.from_numpy(rng.stream(0, "rows").integers(80, size=(size, length))).to(torch.uint8)


@pytest.mark.parametrize("num_layers", [1, 2])
def test_parameters_are_those_of_an_embedding_lstms_and_a_head(num_layers):
    """An LSTM of input i and width h has 4 h (i + h + 2) parameters."""
    model = made(num_layers=num_layers)
    layers = 4 * 128 * (32 + 128 + 2) + (num_layers - 1) * 4 * 128 * (128 + 128 + 2)
    assert sum(parameter.numel() for parameter in model.parameters()) == 80 * 32 + layers + 128 * 80 + 80


def test_it_is_torchs_lstm_of_two_layers():
    """With the weights of one ``nn.LSTM`` of two layers, in evaluation, the last state is the same."""
    model = made(embedding_size=5, hidden_size=7).eval()
    stacked = nn.LSTM(5, 7, num_layers=2, batch_first=True)
    for number, layer in enumerate(model.layers):
        for name, parameter in layer.named_parameters():
            getattr(stacked, name.replace("_l0", f"_l{number}")).data.copy_(parameter.data)
    with torch.no_grad():
        expected = stacked(model.embedding(rows().long()))[0][:, -1]
        torch.testing.assert_close(model.features(rows()), expected)


def test_dropout_acts_in_training_only_and_on_every_layer():
    model = made(dropout=0.5)
    with rng.forked(0, "train"):
        features = model.train().features(rows(64))
    assert 0.4 < (features == 0).float().mean() < 0.6
    assert (model.eval().features(rows(64)) == 0).float().mean() < 0.01
    assert torch.equal(model(rows()), model(rows()))


def test_the_order_of_characters_matters():
    model = made().eval()
    assert not torch.allclose(model(rows()), model(rows().flip(1)))


@pytest.fixture(scope="module")
def clients(tmp_path_factory):
    root = tmp_path_factory.mktemp("plays")
    source = Shakespeare(root=str(root), num_roles=3)
    source.generate(None)
    dataset = source.load()
    partition, _ = partition_and_hold_out(dataset, NaturalPartitioner(label="role"))

    def make():
        objective = ClassificationObjective(made(embedding_size=4, hidden_size=8))
        local = LocalTraining(unit="steps", amount=4, batch_size=16)
        return Clients(objective, torch.optim.SGD, dataset, partition, local, [], torch.device("cpu"))

    return make


def test_a_role_is_trained_whether_in_one_go_or_in_two(clients):
    made = clients()
    task = ClientTask(1, 1, 0, Broadcast(state.clone(made.program.tensors)))
    whole = made.train(task)
    assert state.norm(whole.delta) > 0
    update = made.train_part(task, made.train_part(task, None, 2), None)
    assert state.digest(update.delta) == state.digest(whole.delta)


def test_the_engine_that_stacks_models_trains_roles_one_by_one_if_it_must(clients):
    made = clients()
    start = Broadcast(state.clone(made.program.tensors))
    tasks = [ClientTask(client_id, 1, 0, start) for client_id in range(3)]
    expected = [clients().train(task) for task in tasks]
    engine = VectorizedEngine(device="cpu")
    engine.setup(made)
    for update, other in zip(engine.run(tasks), expected, strict=True):
        for name, tensor in other.delta.items():
            torch.testing.assert_close(update.delta[name], tensor, rtol=1e-3, atol=1e-5)
    assert engine.fallback_reason is not None


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"input_shape": (3, 32, 32)}, r"rows of characters, but got inputs of shape \(3, 32, 32\)"),
        ({"input_shape": (0,)}, "rows of characters"),
        ({"num_layers": 3}, r"`model\.num_layers` 1 or 2, but got 32, 128 and 3"),
        ({"hidden_size": 0}, r"`model\.hidden_size`"),
        ({"dropout": 1.0}, r"`model\.dropout` in \[0, 1\), but got 1"),
    ],
)
def test_impossible_settings_are_refused(settings, said):
    with pytest.raises(ValueError, match=said):
        CharLSTM(**{"num_classes": 80, "input_shape": (80,)} | settings)
