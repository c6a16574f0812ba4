"""HeteroFL's network: its numbers of parameters, and what its scaler does."""

import pytest
import torch
from torch import nn

from fedfacet.models.scaler_cnn import ScalerCNN, _Scaler


@pytest.mark.parametrize(
    ("num_classes", "shape", "numbers"),
    [
        (10, (3, 32, 32), {4: 6_666, 8: 25_418, 16: 99_210, 32: 391_946, 64: 1_558_026}),
        (100, (3, 32, 32), {8: 31_268, 16: 110_820, 32: 415_076, 64: 1_604_196}),
        (62, (1, 28, 28), {8: 28_654, 16: 105_630, 32: 404_734, 64: 1_583_550}),
        # What Flower's baseline prints for HeteroFL on MNIST.
        (10, (1, 28, 28), {8: 25_274, 16: 98_922, 32: 391_370, 64: 1_556_874}),
    ],
)
def test_numbers_of_parameters(num_classes, shape, numbers):
    for width, number in numbers.items():
        for norm in ("batch", "group", "running"):
            model = ScalerCNN(num_classes, shape, width=width, norm=norm)
            assert sum(parameter.numel() for parameter in model.parameters()) == number


def scaled_by(rate):
    scaler = _Scaler()
    scaler.rate = rate
    return scaler


@pytest.mark.parametrize("rate", [0.5, 0.25])
def test_in_front_of_a_batch_norm_a_scaler_scales_its_epsilon(rate):
    x, norm, scaled = torch.randn(8, 4, 5, 5), nn.BatchNorm2d(4), nn.BatchNorm2d(4, eps=1e-5 * rate**2)
    torch.testing.assert_close(norm(scaled_by(rate)(x)), scaled(x), rtol=0, atol=1e-6)


def test_a_part_scales_up_in_training_alone():
    whole = ScalerCNN(2, (3, 8, 8), width=8, norm="none")
    part = whole.narrowed({"conv1": 4, "conv2": 8, "conv3": 16, "conv4": 32})
    assert [layer.rate for layer in part.modules() if isinstance(layer, _Scaler)] == [0.5] * 4
    assert [layer.rate for layer in whole.modules() if isinstance(layer, _Scaler)] == [1.0] * 4
    x = torch.randn(2, 3, 8, 8)
    assert not torch.equal(part.train()(x), part.eval()(x))
    assert torch.equal(whole.train()(x), whole.eval()(x))


def test_group_norms_take_any_number_of_channels():
    for width in (1, 3, 5, 7, 13):
        assert ScalerCNN(2, (3, 8, 8), width=width)(torch.zeros(2, 3, 8, 8)).shape == (2, 2)


def test_refuses():
    for settings, part in (
        ({"width": 0}, "model.width"),
        ({"width": [4, 8]}, "or four"),
        ({"norm": "layer"}, "model.norm"),
    ):
        with pytest.raises(ValueError, match=part):
            ScalerCNN(2, (3, 8, 8), **settings)
    with pytest.raises(ValueError, match="8x8"):
        ScalerCNN(2, (3, 4, 8))
    with pytest.raises(ValueError, match="images"):
        ScalerCNN(2, (30,))
