"""What can be said of an image without knowing what it shows: its colours, texture and layout."""

import torch
from torch import Tensor
from torch.nn import functional as F

_STRIDES = (1, 2, 4)
_GRID = 4
# Of pixels in [0, 1]: less than this is as good as nothing, and keeps logarithms finite.
_DARK = 0.02


def image_statistics(pixels: Tensor) -> list[Tensor]:
    r"""Return views of images, each of shape (B, D), that tell apart how images were made and not what they show.

    - colours, of more channels than one: by how much every channel's share in the light exceeds an even one, and the logarithm
      of how colourful the image is;
    - texture: :math:`\log(\epsilon^2 + E)` of the mean square E of differences in luminance between pixels 1, 2 and 4 apart,
      across and along;
    - layout: the luminance, which is the mean of the channels, of 4 x 4 fields.

    Args:
        pixels: in [0, 1], shape (B, C, H, W).
    """
    luminance = pixels.mean(dim=1)
    flat = luminance.flatten(1)
    views = [F.adaptive_avg_pool2d(luminance, _GRID).flatten(1)]
    energies = []
    for stride in _STRIDES:
        for dim in (1, 2):
            if luminance.shape[dim] > stride:
                length = luminance.shape[dim] - stride
                difference = luminance.narrow(dim, stride, length) - luminance.narrow(dim, 0, length)
                energies.append(difference.square().flatten(1).mean(dim=1))
    if energies:
        views.append(torch.log(_DARK**2 + torch.stack(energies, dim=1)))
    if pixels.shape[1] > 1:
        light = flat.sum(dim=1, keepdim=True) + _DARK
        beyond = pixels - luminance[:, None]
        colourful = beyond.abs().mean(dim=1).flatten(1).sum(dim=1, keepdim=True)
        views.append(torch.cat([beyond.flatten(2).sum(dim=2) / light, torch.log(_DARK + colourful / light)], dim=1))
    return views
