"""What every model keeps to: features and a linear head, for any number of classes and size of images."""

import pytest
import torch
from torch import nn

from fedfacet import config, rng

BATCH_NORM = {"resnet8", "resnet50"}
"""Models that have it on purpose: FedBN would not differ from FedAvg without."""

TEXT = {"char_lstm"}
"""Models of rows of characters instead of images."""


@pytest.fixture
def make_model(model_option, composed):
    def make(num_classes=2, input_shape=(3, 32, 32)):
        node = composed(f"model={model_option}").model
        input_shape = (input_shape[-1],) if model_option in TEXT else input_shape
        with rng.forked(0, "weights"):
            return config.make(node, num_classes=num_classes, input_shape=input_shape)

    return make


@pytest.fixture
def images(model_option):
    """Return a function: how many, their shape -> inputs; for a model of text, characters 0 and 1."""

    def make(size, shape=(3, 32, 32)):
        generator = torch.Generator().manual_seed(0)
        if model_option in TEXT:
            return torch.randint(2, (size, shape[-1]), generator=generator, dtype=torch.uint8)
        return torch.randn(size, *shape, generator=generator)

    return make


@pytest.mark.parametrize("num_classes", [2, 5])
@pytest.mark.parametrize("side", [32, 28])
def test_logits_are_the_head_of_the_features(make_model, images, num_classes, side):
    model = make_model(num_classes, (3, side, side)).eval()
    x = images(3, (3, side, side))
    with torch.no_grad():
        logits, features = model(x), model.features(x)
        assert logits.shape == (3, num_classes)
        assert features.ndim == 2
        torch.testing.assert_close(model.head(features), logits)
    assert isinstance(model.head, nn.Linear)


def test_samples_do_not_see_each_other(make_model, images, model_option):
    """No batch statistics: a sample's logits are the same in every batch, so that clients' batches do not leak into weights.

    A model made for batch normalisation keeps to it in evaluation only.
    """
    model = make_model().eval()
    with torch.no_grad():
        torch.testing.assert_close(model(images(4))[:2], model(images(4)[:2]), rtol=1e-4, atol=1e-5)
    normalised = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    assert bool(normalised) == (model_option in BATCH_NORM)


def test_it_trains(make_model, images):
    model = make_model().train()
    with rng.forked(0, "train"):
        nn.functional.cross_entropy(model(images(4)), torch.tensor([0, 1, 0, 1])).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_weights_hang_on_the_seed_alone(make_model):
    first, again = make_model().state_dict(), make_model().state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
