import dataclasses
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from fedfacet import rng
from fedfacet.clients.client_data import ClientData
from fedfacet.clients.queries.base import QueryContext
from fedfacet.clients.queries.clustered_heterogeneity import ClusteredHeterogeneity
from fedfacet.data.digits import Digits
from fedfacet.errors import ConfigError
from fedfacet.models.small_cnn import SmallCNN
from fedfacet.partitioners.interaction_matrix import InteractionMatrixPartitioner

MATRICES = (
    [[18, 18], [2, 2]],
    [[18, 2], [18, 2]],
    [[18, 2], [2, 18]],
    [[2, 18], [18, 2]],
)
OF_ONE_COLOUR = ([[20, 0], [20, 0]], [[40, 0], [0, 0]])


@pytest.fixture(scope="module")
def context_of():
    """Return a function: client -> the context of a query to it; coloured digits, on a network without training."""
    partitioner = InteractionMatrixPartitioner([{"count": 1, "matrix": matrix} for matrix in (*MATRICES, *OF_ONE_COLOUR)])
    dataset = Digits().load(partitioner.demand)
    partition = partitioner.partition(dataset.y[dataset.train], dataset.a[dataset.train])

    def make(client_id, model=SmallCNN, *, seed=0):
        with rng.forked(seed, "weights"):
            network = model(2, dataset.input_shape)
        return QueryContext(
            data=ClientData(dataset, dataset.train[partition.indices[client_id]], torch.device("cpu")),
            model=network,
            make_optimizer=partial(torch.optim.SGD, lr=0.1, momentum=0.9),
            batch_size=28,
            seed=seed,
            round=1,
            client_id=client_id,
        )

    return make


@pytest.mark.parametrize("client_id", range(len(MATRICES)))
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_the_triplet_is_that_of_the_digits_colours(context_of, client_id, seed):
    """Skewed classes, colours, and both at once."""
    context = context_of(client_id, seed=seed)
    answer = ClusteredHeterogeneity().answer(context)
    assert answer.value == pytest.approx(list(context.data.interaction_matrix.triplet), abs=0.05)
    assert (answer.floats_up, answer.samples) == (3, 40 + 50 * 28)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3))])
@pytest.mark.parametrize("max_attributes", [2, 3])
def test_who_finds_no_attribute_gives_the_neutral_answer(context_of, seed, max_attributes):
    """Not the most extreme one there is."""
    context = context_of(len(MATRICES), seed=seed)
    imbalance = context.data.interaction_matrix.triplet.class_imbalance
    assert ClusteredHeterogeneity(max_attributes=max_attributes).answer(context).value == [imbalance, 0, 0]


@pytest.mark.parametrize("seed", range(3))
def test_a_single_class_of_one_colour_is_nearly_neutral(context_of, seed):
    """Digits of one class may fall into two halves, which pass for an attribute that is evenly mixed."""
    answer = ClusteredHeterogeneity().answer(context_of(len(MATRICES) + 1, seed=seed))
    assert answer.value == pytest.approx([1, 0, 0], abs=0.25)


def test_attribute_labels_are_not_read(context_of):
    context = context_of(2)
    data = context.data
    flipped = dataclasses.replace(data.dataset, a=np.zeros_like(data.dataset.a))
    blind = dataclasses.replace(context, data=dataclasses.replace(data, dataset=flipped))
    assert ClusteredHeterogeneity().answer(blind) == ClusteredHeterogeneity().answer(context)


def test_the_broadcast_model_itself_may_be_looked_at(context_of):
    context = context_of(3)
    answer = ClusteredHeterogeneity(bias_steps=0).answer(context)
    assert answer.value == pytest.approx(list(context.data.interaction_matrix.triplet), abs=0.05)
    assert answer.samples == 40


def test_the_number_of_values_is_what_an_even_mix_is_measured_by(context_of):
    """Two of four values, evenly mixed, are half way to one value alone."""
    value = ClusteredHeterogeneity(max_attributes=4).answer(context_of(2)).value
    assert value[1] == pytest.approx(0.5, abs=0.05)


class _Tokens(nn.Module):
    """A network of another kind: a linear layer applied to every row of pixels, as to words."""

    def __init__(self, num_classes, input_shape):
        super().__init__()
        self.rows = nn.Linear(24, 12)
        self.head = nn.Linear(12, num_classes)

    def features(self, x):
        return self.rows(x.permute(0, 2, 1, 3).flatten(2)).relu().mean(dim=1)

    def forward(self, x):
        return self.head(self.features(x))


def test_networks_of_other_kinds_answer_too(context_of):
    context = context_of(2, _Tokens)
    assert ClusteredHeterogeneity().answer(context).value == pytest.approx([0, 0, 0.531], abs=0.05)


def test_a_network_without_features_is_refused(small_cnn):
    """When the run is built, before anybody is asked."""
    message = r"Expected a model with `features\(x\)`, .* but Flatten lacks it: .*heterogeneity=true"
    with pytest.raises(ConfigError, match=message):
        ClusteredHeterogeneity().check(nn.Flatten())
    ClusteredHeterogeneity().check(small_cnn)


def test_the_model_is_left_without_hooks(context_of):
    context = context_of(0)
    ClusteredHeterogeneity(bias_steps=1).answer(context)
    assert not any(module._forward_hooks for module in context.model.modules())


@pytest.mark.parametrize(
    "wrong",
    [
        {"bias_steps": -1},
        {"depths": 0},
        {"reach": 1.1},
        {"max_attributes": 1},
        {"max_components": 0.5},
        {"q": 0},
        {"q": np.nan},
    ],
    ids=str,
)
def test_arguments_out_of_range_are_refused(wrong):
    with pytest.raises(ValueError, match=f"Expected `{next(iter(wrong))}`"):
        ClusteredHeterogeneity(**wrong)
