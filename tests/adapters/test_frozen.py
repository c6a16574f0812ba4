import numpy as np
import pytest
import torch
from torch import nn

import fedfacet
from fedfacet import state
from fedfacet.adapters import Frozen
from fedfacet.clients.local_training import LocalTraining
from fedfacet.errors import CheckpointError, ConfigError
from fedfacet.models.mlp import MLP
from fedfacet.objectives.ditto import DittoObjective
from fedfacet.objectives.moon import MoonObjective
from fedfacet.personal import PersonalModel
from fedfacet.storage import checkpoint


@pytest.fixture
def data():
    """Return a function: a map of inputs -> 60 samples of two classes, dealt to three clients; no batch is short."""

    def dealt(features=lambda x: x):
        draw = np.random.default_rng(3)
        y = np.arange(90) % 2
        x = draw.normal(size=(90, 5)) + y[:, None]
        with torch.no_grad():
            x = features(torch.from_numpy(x).float()).numpy()
        dataset = fedfacet.dataset_from_arrays(x[:60], y[:60], test=(x[60:], y[60:]))
        return fedfacet.deal(dataset, fedfacet.IIDPartitioner(num_clients=3))

    return dealt


def network(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return MLP(2, (5,), hidden=(7,))


@pytest.fixture
def federation(data):
    def make(model, features=lambda x: x, **settings):
        local = LocalTraining(unit="steps", amount=3, batch_size=6)
        return fedfacet.federate(data(features), model, local=local, cohort_size=2, **settings)

    return make


def test_only_the_head_travels_and_it_learns_as_on_fixed_features(federation):
    """The same as logistic regression on what the frozen layers say, whose head is all of it."""
    model, plain, head = network(), network(), nn.Linear(7, 2)
    Frozen().fit(model)
    head.load_state_dict(plain.head.state_dict())
    ours, theirs = federation(model), federation(nn.Sequential(head), plain.features)
    for _ in range(3):
        result, expected = ours.run_round(), theirs.run_round()
        assert result.ledger == expected.ledger
        assert result.ledger.floats_down == result.ledger.floats_up == 2 * (7 * 2 + 2)
        assert result.metrics["test/acc"] == expected.metrics["test/acc"]
    assert list(ours.state.model) == ["head.weight", "head.bias"]
    for name, tensor in ours.state.model.items():
        torch.testing.assert_close(tensor, theirs.state.model[f"0{name.removeprefix('head')}"])
        assert not torch.equal(tensor, plain.state_dict()[name])
    frozen = {name: tensor for name, tensor in plain.state_dict().items() if name not in ours.state.model}
    assert ours.state.frozen_digest == state.digest(frozen)
    assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in frozen.items())


@pytest.mark.parametrize("objective", [DittoObjective, MoonObjective])
def test_a_client_keeps_no_frozen_weights(objective, federation):
    model = network()
    Frozen().fit(model)
    run = federation(objective(model, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1)))
    for _ in range(2):
        run.run_round()
    assert {tensor.numel() for kept in run.state.memory.values() for tensor in kept.values()} == {14, 2}


def test_personal_layers_are_those_that_are_trained(federation):
    model = network()
    Frozen().fit(model)
    run = federation(model, personal=PersonalModel().names(model))
    run.run_round()
    assert {name for kept in run.state.memory.values() for name in kept} == {"personal|head.weight", "personal|head.bias"}


def test_a_run_does_not_go_on_from_another_base(federation, tmp_path):
    def make(seed, frozen=True):
        model = network(seed)
        if frozen:
            Frozen().fit(model)
        return federation(model)

    file = tmp_path / "checkpoints" / "last.ckpt"
    first = make(0)
    first.run_round()
    checkpoint.save(file, first.state, {})
    saved = checkpoint.load(file)[0]
    make(0).restore(saved)
    with pytest.raises(CheckpointError, match=f"frozen weights with digest {first.state.frozen_digest[:12]}"):
        make(1).restore(saved)
    with pytest.raises(CheckpointError, match="but got none"):
        make(0, frozen=False).restore(saved)


def test_a_checkpoint_of_a_whole_model_says_nothing_of_it(federation, tmp_path):
    file = tmp_path / "checkpoints" / "last.ckpt"
    file.parent.mkdir()
    checkpoint.save(file, federation(network()).state, {})
    assert "frozen_digest" not in torch.load(file, weights_only=True)["state"]
    assert checkpoint.load(file)[0].frozen_digest == ""


def test_a_module_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match=r"MLP has none called 'classifier': name some of \w+, head"):
        Frozen(trained=["classifier"]).fit(network())
    with pytest.raises(ValueError, match="at least one module"):
        Frozen(trained=[])


def test_the_model_of_a_run_has_its_base(tmp_path):
    run = fedfacet.train(
        *("adapter=frozen", "selector=uniform", "federation.rounds=2", "model.width=4", "threads=1", "~callbacks.figures"),
        f"paths.output_dir={tmp_path / 'run'}",
    )
    model = run.model
    assert state.digest(state.travelling(model)) == run.summary["model_digest"]
    frozen = {name: tensor for name, tensor in model.state_dict().items() if name not in state.travelling(model)}
    assert state.digest(frozen) == run.summary["frozen_digest"]
    assert not (tmp_path / "run" / "model" / "adapter").exists()
