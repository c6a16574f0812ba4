"""Augmentation against torchvision's own transforms, told to draw the same."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision.transforms import RandomResizedCrop, v2
from torchvision.transforms.v2 import functional

from fedfacet import rng
from fedfacet.data.augmentation import CropAndFlip, ZoomTurnAndFlip


def images(count, height, width, seed=0):
    return torch.from_numpy(rng.stream(seed, "images").integers(256, size=(count, 3, height, width)).astype(np.uint8))


@given(st.integers(1, 4), st.integers(1, 9), st.integers(1, 9), st.integers(0, 5), st.integers(0, 99))
def test_every_result_is_a_shift_with_black_edges_maybe_mirrored(count, height, width, padding, seed):
    pixels = 1 + images(count, height, width) // 2
    changed = CropAndFlip(padding=padding)(pixels, np.random.default_rng(seed))
    assert changed.shape == pixels.shape
    assert changed.dtype == torch.uint8
    for before, after in zip(pixels, changed, strict=True):
        padded = functional.pad(before, [padding])
        shifts = [
            shifted
            for top in range(2 * padding + 1)
            for left in range(2 * padding + 1)
            for crop in (functional.crop(padded, top, left, height, width),)
            for shifted in (crop, functional.horizontal_flip(crop))
        ]
        assert any(torch.equal(after, shifted) for shifted in shifts)


def test_all_shifts_and_both_directions_are_equally_likely():
    """3 x 3 shifts x 2 directions of an image without symmetry, 500 times each; chi square with 17 degrees of freedom."""
    pixel = torch.zeros(9_000, 1, 4, 4, dtype=torch.uint8)
    pixel[:, :, 1, 1], pixel[:, :, 1, 2] = 1, 2
    changed = CropAndFlip(padding=1)(pixel, np.random.default_rng(0))
    counts = np.unique(changed.flatten(1).numpy(), axis=0, return_counts=True)[1]
    assert len(counts) == 18
    assert ((counts - 500) ** 2 / 500).sum() < 40.8, "the 0.1 % quantile"


def test_what_is_given_is_not_written_to():
    for augmentation in (CropAndFlip(), ZoomTurnAndFlip(0.5)):
        pixels = images(3, 8, 8)
        augmentation(pixels, np.random.default_rng(0))
        assert torch.equal(pixels, images(3, 8, 8))


@pytest.mark.parametrize("augmentation", [CropAndFlip(), ZoomTurnAndFlip(0.6), ZoomTurnAndFlip(0.8, 1.2)])
def test_everything_random_comes_from_the_generator(augmentation):
    before = torch.get_rng_state()
    results = [augmentation(images(4, 16, 16), np.random.default_rng(seed)) for seed in (1, 1, 2)]
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])
    assert torch.equal(torch.get_rng_state(), before)


class Told:
    """A generator that draws what it is told: angle and mirror of a turn."""

    def __init__(self, angle, mirrored):
        self.angle, self.mirrored = angle, mirrored

    def uniform(self, low, high, size):
        return np.full(size, {1.0: 1.0, np.log(4 / 3): 0.0}.get(high, self.angle))

    def random(self, size):
        return np.zeros(size) if isinstance(size, tuple) else np.full(size, 0.0 if self.mirrored else 1.0)


@pytest.mark.parametrize("angle", [-10.0, 0.0, 7.5])
@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("shape", [(24, 24), (18, 30)])
def test_a_turn_is_torchvisions(angle, mirrored, shape):
    """A smooth image, turned and mirrored, agrees but for rounding; where torchvision fills with black there is black."""
    y, x = torch.meshgrid(torch.linspace(0, 3, shape[0]), torch.linspace(0, 2, shape[1]), indexing="ij")
    pixels = (120 + 60 * torch.sin(x) + 60 * torch.cos(y)).round().to(torch.uint8)[None, None]
    ours = ZoomTurnAndFlip(1.0)(pixels, Told(angle, mirrored)).float()
    theirs = functional.rotate(pixels.float(), angle, interpolation=v2.InterpolationMode.BILINEAR)
    theirs = functional.horizontal_flip(theirs) if mirrored else theirs
    black = functional.rotate(torch.ones_like(pixels).float(), angle) == 0
    black = functional.horizontal_flip(black) if mirrored else black
    assert black.any() == (angle != 0)
    assert not black.any() or (ours[black] == 0).float().mean() > 0.8, "but for its rim"
    inner = (..., slice(4, -4), slice(4, -4))
    assert (ours[inner] - theirs[inner]).abs().max() <= 1


def test_boxes_are_distributed_like_torchvisions():
    """Mean and deviation of areas and ratios of 20,000 boxes, where large boxes have to be drawn again."""
    for smallest, largest in ((0.6, 1.0), (0.8, 1.2)):
        boxes = ZoomTurnAndFlip(smallest, largest)._boxes(20_000, 64, 64, np.random.default_rng(0))
        area, ratio = boxes[:, 2] * boxes[:, 3], np.log(boxes[:, 2] / boxes[:, 3])
        assert (np.abs(boxes[:, :2]) + boxes[:, 2:] <= 1 + 1e-12).all(), "inside the image"
        with rng.forked(0, "boxes"):
            drawn = np.array(
                [RandomResizedCrop.get_params(images(1, 64, 64)[0], [smallest, largest], [3 / 4, 4 / 3]) for _ in range(2_000)]
            )
        theirs_area, theirs_ratio = drawn[:, 2] * drawn[:, 3] / 64**2, np.log(drawn[:, 3] / drawn[:, 2])
        assert area.mean() == pytest.approx(theirs_area.mean(), abs=0.01)
        assert area.std() == pytest.approx(theirs_area.std(), abs=0.01)
        assert ratio.std() == pytest.approx(theirs_ratio.std(), abs=0.01)
        assert abs(ratio.mean()) < 0.01
