"""What every model keeps to: features and a linear head, for any number of classes and inputs of some kind."""

import pytest
import torch
from torch import nn

from fedfacet import config, rng
from fedfacet.errors import ConfigError
from fedfacet.models.checks import check_inputs

BATCH_NORM = {
    "resnet8": True,
    "resnet50": True,
    "resnet50_gn": False,
    "mobilenet_v2_gn": False,
    "lenet": False,
    "mlp": False,
    "small_cnn": False,
}
"""Whether a model has it, where that is on purpose: FedBN would not differ from FedAvg without."""

KINDS = {
    "images": lambda size, side: torch.randn(size, 3, side, side, generator=torch.Generator().manual_seed(0)),
    "vectors": lambda size, side: torch.randn(size, side, generator=torch.Generator().manual_seed(0)),
    "tokens": lambda size, side: torch.randint(2, (size, side), generator=torch.Generator().manual_seed(0)),
}
"""How many, and their size -> inputs."""


@pytest.fixture
def make_model(model_option, node_of):
    """Return a function: number of classes, inputs that it is for -> model."""

    facts = {"vocabulary": 2} if model_option == "text_classifier" else {}  # which follows from a data set of texts

    def make(num_classes, x):
        with rng.forked(0, "weights"):
            return config.make(node_of("model", model_option), num_classes=num_classes, input_shape=x.shape[1:], **facts)

    return make


_TAKEN = {}


@pytest.fixture
def kinds(make_model, model_option):
    """The kinds of inputs that the model takes, found out once by trying."""
    if model_option not in _TAKEN:
        _TAKEN[model_option] = [make for make in KINDS.values() if _takes(make_model, make(2, 32))]
    assert _TAKEN[model_option], "it takes neither images nor vectors nor tokens"
    return _TAKEN[model_option]


def _takes(make_model, x):
    try:
        check_inputs(make_model(2, x), x, "model")
    except (ValueError, ConfigError):
        return False
    return True


@pytest.mark.parametrize(("num_classes", "side"), [(2, 32), (5, 28)])
def test_logits_are_the_head_of_the_features(make_model, kinds, num_classes, side):
    for make in kinds:
        x = make(3, side)
        model = make_model(num_classes, x).eval()
        with torch.no_grad():
            logits, features = model(x), model.features(x)
            assert logits.shape == (3, num_classes)
            assert features.ndim == 2
            torch.testing.assert_close(model.head(features), logits)
        assert isinstance(model.head, nn.Linear)


def test_samples_do_not_see_each_other(make_model, kinds, model_option):
    """No batch statistics: a sample's logits are the same in every batch, so that clients' batches do not leak into weights.

    A model made for batch normalisation keeps to it in evaluation only.
    """
    for make in kinds:
        x = make(4, 32)
        model = make_model(2, x).eval()
        with torch.no_grad():
            torch.testing.assert_close(model(x)[:2], model(x[:2]), rtol=1e-4, atol=1e-5)
        normalised = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
        assert bool(normalised) == BATCH_NORM.get(model_option, bool(normalised))


def test_it_trains(make_model, kinds):
    for make in kinds:
        x = make(4, 32)
        model = make_model(2, x).train()
        with rng.forked(0, "train"):
            nn.functional.cross_entropy(model(x), torch.tensor([0, 1, 0, 1])).backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_weights_depend_on_the_seed_alone(make_model, kinds):
    x = kinds[0](2, 32)
    first, again = make_model(2, x).state_dict(), make_model(2, x).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
