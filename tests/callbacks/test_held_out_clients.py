"""What is measured at clients that never take part, against models that plain torch trains and measures."""

import csv
import math
import statistics

import numpy as np
import pytest
import torch

from fedfacet import state
from fedfacet.assembly import federate
from fedfacet.build import build, load_data
from fedfacet.callbacks.evaluate_clients import ClientFairness
from fedfacet.config import compose_job, make
from fedfacet.data.federated import FederatedData
from fedfacet.data.held_out_clients import HeldOutClients
from fedfacet.errors import FedFacetError
from fedfacet.types import Partition

JOB = (
    "experiment=digits_gsc", "method=uniform", "model=mlp", "model.hidden=[8]", "optimizer.weight_decay=0", "optimizer.lr=0.3",
    "local.unit=epochs", "local.amount=1", "local.batch_size=1000", "federation.rounds=2", "federation.cohort_size=4",
    "partition.held_out_clients=0.25", "partition.local_holdout=0.25", "logger=[]", "engine.device=cpu",
)  # fmt: skip
"""Every client takes one step a round, on all of its samples; six of 24 never do."""


def job(*overrides):
    return compose_job("train", [*JOB, *overrides])[0]


@pytest.fixture(scope="module")
def model_of():
    config = job("callbacks=[]")
    data = load_data(config)

    def make_model(weights):
        model = make(config.model, num_classes=data.dataset.num_classes, input_shape=data.dataset.input_shape)
        model.load_state_dict(weights)
        return model

    return make_model


def accuracy(model, data, positions):
    batch = data.dataset.batch(positions)
    with torch.inference_mode():
        return (model.eval()(batch.x).argmax(dim=1) == batch.y).double().mean().item()


def one_step(model, data, positions, lr):
    """Train by hand."""
    batch = data.dataset.batch(positions)
    loss = torch.nn.functional.cross_entropy(model.train()(batch.x), batch.y)
    with torch.no_grad():
        for parameter, gradient in zip(model.parameters(), torch.autograd.grad(loss, list(model.parameters())), strict=True):
            parameter -= lr * gradient
    return model


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    config = job("callbacks=[client_fairness,personal_evaluate]")
    federation = build(config, tmp_path_factory.mktemp("run"))
    models = [federation.state.model]
    metrics = []
    for _ in range(2):
        metrics.append(federation.run_round().metrics)
        models.append(federation.state.model)
    return federation, load_data(config), models, metrics


def test_the_global_model_is_measured_on_their_samples(run, model_of):
    _, data, models, metrics = run
    never = data.held_out_clients
    assert len(never.numbers) == 6
    for model, measured in zip(models[1:], metrics, strict=True):
        new, ours = (
            [accuracy(model_of(model), data, positions) for positions in held]
            for held in (never.local_holdout, data.local_holdout)
        )
        wanted = {"acc_mean": statistics.fmean(new), "acc_worst": min(new), "acc_std": statistics.pstdev(new)}
        wanted |= {"num_clients": 6, "gap": statistics.fmean(ours) - statistics.fmean(new)}
        for name, value in wanted.items():
            assert measured[f"client_fairness/held_out_clients/{name}"] == pytest.approx(value), name
        assert measured["client_fairness/acc_mean"] == pytest.approx(statistics.fmean(ours))
        assert measured["client_fairness/num_clients"] == 18


def test_a_copy_that_they_train_is_measured_on_the_test_set_and_on_their_samples(run, model_of):
    _, data, models, metrics = run
    never = data.held_out_clients
    for before, measured in zip(models[:2], metrics, strict=True):
        copies = [one_step(model_of(before), data, positions, 0.3) for positions in never.partition.indices]
        of_test = [accuracy(copy, data, data.dataset.test) for copy in copies]
        own = [accuracy(copy, data, held) for copy, held in zip(copies, never.local_holdout, strict=True)]
        assert len(set(of_test)) > 1, "each has a model of its own"
        for split, values in (("personal_test", of_test), ("personal_holdout", own)):
            wanted = {"acc_mean": statistics.fmean(values), "acc_min": min(values), "acc_std": statistics.pstdev(values)}
            wanted["gap"] = measured[f"{split}/acc_mean"] - wanted["acc_mean"]
            for name, value in wanted.items():
                assert measured[f"{split}/held_out_clients/{name}"] == pytest.approx(value, abs=1e-9), (split, name)
        assert measured["personal_holdout/held_out_clients/num_clients"] == 6
        assert measured["personal/held_out_clients/num_diverged"] == 0


def test_models_of_clients_are_measured_with_what_they_would_be_sent(tmp_path, model_of):
    """``evaluate_clients``: the global model, its groups weighted as a held-out client's samples are distributed."""
    config = job("callbacks=evaluate_clients")
    data = load_data(config)
    federation = build(config, tmp_path)
    metrics = federation.run_round().metrics
    model = model_of(federation.state.model)
    groups = 2 * data.dataset.y + data.dataset.a
    of_group = [accuracy(model, data, data.dataset.test[groups[data.dataset.test] == group]) for group in range(4)]
    own = [
        float(np.average(of_group, weights=np.bincount(groups[client], minlength=4)))
        for client in data.held_out_clients.partition.indices
    ]
    assert metrics["test/held_out_clients/acc"] == pytest.approx(accuracy(model, data, data.dataset.test))
    assert metrics["test/held_out_clients/acc_worst_group"] == pytest.approx(min(of_group))
    assert metrics["test/held_out_clients/acc_own"] == pytest.approx(statistics.fmean(own))
    assert metrics["test/held_out_clients/acc_own_min"] == pytest.approx(min(own))
    assert metrics["test/held_out_clients/acc_own_max"] == pytest.approx(max(own))
    trained = [client.ravel() for client in (matrix.counts for matrix in data.matrices)]
    assert metrics["test/acc_own"] == pytest.approx(
        statistics.fmean(float(np.average(of_group, weights=counts)) for counts in trained)
    ), "of those that take part alone"


def test_measuring_changes_nothing(run, tmp_path):
    measured, _, models, _ = run
    plain = build(job("callbacks=[]"), tmp_path)
    plain.fit()
    assert state.digest(plain.state.model) == state.digest(models[-1])
    assert plain.state.participation_counts.tolist() == measured.state.participation_counts.tolist()
    assert measured.state.memory == plain.state.memory == {}


def test_a_federation_is_what_it_is_without_them(model_of):
    """Bit for bit that of a partition that does not have them."""
    data = load_data(job("callbacks=[]"))
    runs = []
    for one in (data, FederatedData(data.dataset, data.partition, data.val, data.local_holdout)):
        federation = federate(one, model_of(run_weights(model_of)), rounds=2, cohort_size=5)
        runs.append([federation.run_round() for _ in range(2)])
        assert federation.num_clients == 18
        runs[-1].append(state.digest(federation.state.model))
    assert runs[0][2] == runs[1][2]
    for ours, theirs in zip(runs[0][:2], runs[1][:2], strict=True):
        assert (ours.cohort, ours.metrics) == (theirs.cohort, theirs.metrics)


def run_weights(model_of):
    """Weights to start from."""
    config = job("callbacks=[]")
    data = load_data(config)
    model = make(config.model, num_classes=data.dataset.num_classes, input_shape=data.dataset.input_shape)
    generator = torch.Generator().manual_seed(0)
    return {name: 0.1 * torch.randn(tensor.shape, generator=generator) for name, tensor in model.state_dict().items()}


def test_a_run_writes_it_down_and_rounds_in_between_have_the_names(tmp_path):
    every = ("callbacks.client_fairness.every_n_rounds=3", "callbacks.personal_evaluate.every_n_rounds=3")
    chosen = "callbacks=[csv_log,client_fairness,personal_evaluate]"
    build(job(chosen, *every, "federation.rounds=4"), tmp_path).fit()
    with open(tmp_path / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    names = [name for name in rows[0] if "/held_out_clients/" in name]
    assert len(names) == 10 + 2 * 4 + 2
    for number, row in enumerate(rows, 1):
        assert all(math.isfinite(float(row[name] or "nan")) for name in names) == (number in (3, 4))


def test_without_them_there_are_no_such_columns(tmp_path):
    chosen = "callbacks=[client_fairness,personal_evaluate]"
    metrics = build(job(chosen, "partition.held_out_clients=0"), tmp_path).run_round().metrics
    assert not [name for name in metrics if "held_out_clients" in name]


def test_without_a_local_holdout_their_copies_are_measured_on_the_test_set_alone(tmp_path):
    metrics = build(job("callbacks=personal_evaluate", "partition.local_holdout=0"), tmp_path).run_round().metrics
    assert not [name for name in metrics if name.startswith("personal_holdout")]
    assert math.isfinite(metrics["personal_test/held_out_clients/acc_mean"])


def test_clients_that_hold_out_too_little_to_be_measured_are_refused(tiny_clients):
    clients = tiny_clients()
    never = HeldOutClients((1,), Partition((np.arange(2),)), (np.empty(0, np.int64),))
    held_out = (np.arange(2),)
    data = FederatedData(clients.dataset, clients.partition, clients.dataset.test[:0], held_out, held_out_clients=never)
    with pytest.raises(FedFacetError, match=r"nobody of partition\.held_out_clients does: set partition\.local_holdout=0\.2"):
        ClientFairness(data=data)


@pytest.mark.parametrize("method", ["fedpac", "scaffold", "feddyn", "ditto", "fedbn"])
def test_methods_that_keep_something_for_each_client_measure_them_too(method, tmp_path):
    """What a server or a client has of others' rounds, a client that never took part does not have."""
    given = () if method != "fedbn" else ("model=resnet8", "model.width=2")
    chosen = ("callbacks=[evaluate,personal_evaluate,client_fairness]", f"method={method}")
    config = compose_job("train", [*(one for one in JOB if not (given and one.startswith("model"))), *chosen, *given])[0]
    federation = build(config, tmp_path)
    for _ in range(2):
        metrics = federation.run_round().metrics
    assert 0 <= metrics["personal_holdout/held_out_clients/acc_min"] <= 1
    assert max(federation.state.memory, default=0) < 18
    assert len(federation.state.participation_counts) == 18


def test_where_clients_hold_parts_of_the_model_they_are_sent_all_of_it(tmp_path):
    options = ("model=scaler_cnn", "capacity=proportions", "submodel=heterofl", "callbacks=personal_evaluate")
    config = compose_job("train", [*(one for one in JOB if not one.startswith("model")), *options])[0]
    federation = build(config, tmp_path)
    federation.run_round()
    assert federation.sent(federation.state, 18).model is federation.state.model
    assert sum(federation.sent(federation.state, k).model is not federation.state.model for k in range(18)) > 1


@pytest.mark.parametrize("transforms", ["sign_flip", "label_flip", "clip"])
def test_bad_clients_are_among_those_that_take_part(transforms, tmp_path):
    """Client 0 of the renumbered ones flips; a held-out client never does."""
    federation = build(job("callbacks=personal_evaluate", f"transforms={transforms}"), tmp_path)
    assert math.isfinite(federation.run_round().metrics["personal_test/held_out_clients/acc_mean"])
    shown, known = federation.engine.clients.shown, federation.engine.clients.dataset
    never = np.concatenate(load_data(job()).held_out_clients.partition.indices)
    assert np.array_equal(shown.y[never], known.y[never])
