"""What statistics say of images."""

import pytest
import torch

from fedfacet.clients.queries.clustered_heterogeneity import image_statistics


@pytest.fixture
def pixels():
    return torch.rand(5, 3, 12, 10, generator=torch.Generator().manual_seed(0))


def test_every_view_has_a_row_per_image_and_is_finite(pixels):
    for images in (pixels, pixels[:, :1], pixels[..., :1, :1], torch.zeros_like(pixels), torch.ones_like(pixels)):
        for view in image_statistics(images):
            assert view.shape[0] == 5
            assert torch.isfinite(view).all()


def test_layout_is_the_mean_of_fields(pixels):
    images = pixels[..., :8]
    layout = image_statistics(images)[0].view(5, 4, 4)
    assert layout[2, 1, 3] == pytest.approx(images[2, :, 3:6, 6:8].mean().item())


def test_texture_is_the_logarithm_of_differences(pixels):
    texture = image_statistics(pixels)[1]
    grey = pixels[1].mean(dim=0)
    across = (grey[:, 2:] - grey[:, :-2]).square().mean() + 0.02**2
    assert texture[1, 3] == pytest.approx(across.log().item())


def test_colours_do_not_depend_on_how_bright_an_image_is(pixels):
    """But for the little light that keeps black images finite."""
    bright, dark = (image_statistics(images)[2] for images in (pixels, pixels / 4))
    torch.testing.assert_close(bright, dark, atol=0.02, rtol=0)
    grey = image_statistics(pixels.mean(dim=1, keepdim=True).expand(-1, 3, -1, -1))[2]
    assert grey[:, :3].abs().max() < 1e-6
    assert (grey[:, 3] < bright[:, 3] - 1).all()
