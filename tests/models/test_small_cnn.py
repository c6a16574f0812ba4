import pytest
import torch

from fedfacet.models.small_cnn import SmallCNN


@pytest.mark.parametrize("shape", [(3, 8, 8), (1, 28, 28), (3, 5, 9), (3, 4, 4)])
def test_shapes(shape):
    model = SmallCNN(5, shape, width=4, hidden=6)
    x = torch.randn(2, *shape)
    assert model.features(x).shape == (2, 6)
    assert torch.equal(model(x), model.head(model.features(x)))
    assert model(x).shape == (2, 5)


def test_the_main_jobs_size():
    """3 * 16 * 9 + 16, 16 * 32 * 9 + 32, 32 * 2 * 2 * 64 + 64, 64 * 2 + 2."""
    model = SmallCNN(2, (3, 8, 8))
    assert sum(parameter.numel() for parameter in model.parameters()) == 448 + 4640 + 8256 + 130


@pytest.mark.parametrize("settings", [{"width": 0}, {"hidden": 0}, {"input_shape": (3, 3, 8)}, {"input_shape": (30,)}])
def test_impossible_sizes_are_refused(settings):
    with pytest.raises(ValueError, match=r"Expected `model\.width` and `model\.hidden`"):
        SmallCNN(**{"num_classes": 2, "input_shape": (3, 8, 8)} | settings)
