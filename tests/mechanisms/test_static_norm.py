"""Static batch norm: what is gathered is the statistics of all clients' samples together, and what it costs is counted."""

import numpy as np
import pytest
import torch
from torch import nn

from fedfacet import federate, state
from fedfacet.build import fresh_model
from fedfacet.clients.local_training import LocalTraining
from fedfacet.clients.queries.norm_statistics import NormStatistics
from fedfacet.config import compose_job, plain
from fedfacet.data.dataset import Dataset, InMemoryInputs
from fedfacet.data.federated import deal
from fedfacet.engines.vectorized import VectorizedEngine
from fedfacet.errors import BadUpdateError, ConfigError
from fedfacet.mechanisms.static_norm import StaticNorm, gathered
from fedfacet.models.scaler_cnn import ScalerCNN
from fedfacet.partitioners.base import Partitioner
from fedfacet.types import Partition

FLOATS = sum(1 + 2 * width for width in (2, 4, 8, 16))
"""Of an answer."""


class Uneven(Partitioner):
    """Two clients, of 5 samples and of 11."""

    def partition(self, y, a):
        return Partition((np.arange(5), np.arange(5, 16)))


@pytest.fixture(scope="module")
def data():
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (20, 1, 8, 8), generator=generator, dtype=torch.uint8)
    y = np.arange(20) % 2
    dataset = Dataset(
        inputs=InMemoryInputs(images), y=y, a=y * 0, train=np.arange(16), val=np.arange(16, 18), test=np.arange(18, 20),
        class_names=("no", "yes"), attribute_names=("none",), mean=(0.5,), std=(0.25,),
    )  # fmt: skip
    return deal(dataset, Uneven())


def run_of(data, **settings):
    torch.manual_seed(0)
    settings = {"model": ScalerCNN(2, (1, 8, 8), width=2, norm="static")} | settings
    given = {"mechanisms": [StaticNorm(norm_statistics=NormStatistics())], "callbacks": {}, "rounds": 2} | settings
    return federate(data, local=LocalTraining(batch_size=16), **given)


def inputs_of_norms(model, x):
    """What each norm is given where all norms use the batch's statistics: (samples and pixels, C)."""
    given = []
    for layer in model.backbone:
        if isinstance(layer, nn.BatchNorm2d):
            given.append(x.movedim(1, -1).flatten(0, 2))
            x = nn.functional.batch_norm(x, None, None, layer.weight, layer.bias, training=True)
        else:
            x = layer(x)
    return given


def test_statistics_of_two_clients_are_those_of_all_their_values_together(data):
    """In every layer; in the first one, which no norm comes before, those of a batch of all samples, as torch has them."""
    run = run_of(data)
    run.run_round()
    model = ScalerCNN(2, (1, 8, 8), width=2, norm="static")
    model.load_state_dict(run.state.model)  # eval mode has no scaler
    model.eval()
    of_clients = [data.dataset.batch(samples).x for samples in data.partition.indices]
    with torch.no_grad():
        layers = [torch.cat(parts) for parts in zip(*(inputs_of_norms(model, x) for x in of_clients), strict=True)]
        pooled = nn.BatchNorm2d(2, momentum=1.0)
        pooled(model.backbone[0](torch.cat(of_clients)))
    norms = [layer for layer in model.backbone if isinstance(layer, nn.BatchNorm2d)]
    for norm, values in zip(norms, layers, strict=True):
        torch.testing.assert_close(norm.running_mean, values.double().mean(dim=0).float(), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(norm.running_var, values.double().var(dim=0).float(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(norms[0].running_mean, pooled.running_mean, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(norms[0].running_var, pooled.running_var, rtol=1e-5, atol=1e-6)


def test_sums_by_hand():
    """Values 1 and 2 of one client, 3 and 6 of another: mean 3, squares 50, variance (50 - 36) / 3."""
    model = {"n.running_mean": torch.zeros(1), "n.running_var": torch.ones(1)}
    layers = [("n.running_mean", "n.running_var")]
    found = gathered(model, layers, [[2.0, 3.0, 5.0], [2.0, 9.0, 45.0]])
    assert found["n.running_mean"].tolist() == [3.0]
    assert found["n.running_var"].tolist() == pytest.approx([14 / 3])
    assert gathered(model, layers, []) == gathered(model, layers, [[0.0, 0.0, 0.0]]) == {}


def test_what_crosses_is_counted_and_clients_send_no_statistics(data):
    run = run_of(data)
    result = run.run_round()
    ledger = result.ledger
    model = run.state.model
    whole, parameters = state.num_floats(model), sum(model[name].numel() for name in run.facts.parameters)
    assert whole - parameters == FLOATS - 4
    assert (ledger.floats_down, ledger.floats_up) == (2 * whole, 2 * parameters)
    assert (ledger.query_floats_down, ledger.query_floats_up, ledger.query_samples) == (2 * whole, 2 * FLOATS, 16)
    assert [(line.query, line.floats_up) for line in result.disclosed] == [("norm_statistics", FLOATS)] * 2
    assert run.state.disclosures == {}


def test_training_neither_reads_nor_writes_statistics(data):
    """So that a run without them trains the same parameters; and with vectorized clients the same to rounding."""
    gathering, rare = run_of(data), run_of(data, mechanisms=[StaticNorm(norm_statistics=NormStatistics(), every_n_rounds=9)])
    stacked = run_of(data, engine=VectorizedEngine())
    for run in (gathering, rare, stacked):
        run.run_round()
    first = rare.state.model["backbone.2.running_mean"]
    assert not first.any(), "they are gathered in the last round"
    for run in (gathering, rare, stacked):
        run.run_round()
    assert state.digest(gathering.state.model) == state.digest(rare.state.model)
    for name, tensor in gathering.state.model.items():
        torch.testing.assert_close(tensor, stacked.state.model[name], rtol=0, atol=1e-4)


def test_a_list_of_another_length_is_no_answer(data):
    run = run_of(data)
    ask = run.engine.ask
    run.engine.ask = lambda query, tasks: (answer._replace(value=answer.value[1:]) for answer in ask(query, tasks))
    with pytest.raises(BadUpdateError, match=f"instead of \\({FLOATS},\\)"):
        run.run_round()


def test_halves_and_what_has_no_federation_are_refused(data):
    with pytest.raises(ConfigError, match=r"which model=StaticBatchNorm2d requires, .*: choose mechanisms=static_norm, or"):
        run_of(data, mechanisms=[])
    with pytest.raises(ConfigError, match="requires 'norm_statistics', which mechanisms=StaticNorm provides"):
        run_of(data, model=ScalerCNN(2, (1, 8, 8), width=2))
    with pytest.raises(ConfigError, match=r"The layer `backbone\.2` of static batch norm stays with clients"):
        run_of(data, personal=frozenset({"backbone.2.running_mean", "backbone.2.running_var"}))
    with pytest.raises(ConfigError, match="ScalerCNN has no layer of static batch norm"):
        NormStatistics().check(ScalerCNN(2, (1, 8, 8), width=2))
    settings = plain(compose_job("train", ["model=scaler_cnn", "model.norm=static", "mechanisms=static_norm"])[0])
    with pytest.raises(ConfigError, match=r"attack a run with another `model\.norm`"):
        fresh_model(settings, 0, 0)
