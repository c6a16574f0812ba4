"""What a data set refuses."""

from dataclasses import replace

import pytest
import torch

from fedfacet.data.augmentation import CropAndFlip
from fedfacet.data.dataset import InMemoryInputs


def test_inputs_that_are_no_images_are_not_augmented(toy_dataset):
    vectors = replace(toy_dataset(), inputs=InMemoryInputs(torch.zeros(80, 3)), mean=None, std=None)
    with pytest.raises(ValueError, match=r"no augmentation of inputs that are no images, but got CropAndFlip\(padding=4\)"):
        replace(vectors, augmentation=CropAndFlip())


def test_half_a_normalisation_is_refused(toy_dataset):
    with pytest.raises(ValueError, match="both `mean` and `std`"):
        replace(toy_dataset(), std=None)
