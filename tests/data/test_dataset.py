"""What a data set refuses, and what goes to a GPU."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fedfacet.data.augmentation import CropAndFlip
from fedfacet.data.dataset import Dataset, InMemoryInputs, _on_gpu


def test_inputs_that_are_no_images_are_not_augmented(toy_dataset):
    vectors = replace(toy_dataset(), inputs=InMemoryInputs(torch.zeros(80, 3)), mean=None, std=None)
    with pytest.raises(ValueError, match=r"no augmentation of inputs that are no images, but got CropAndFlip\(padding=4\)"):
        replace(vectors, augmentation=CropAndFlip())


def test_half_a_normalisation_is_refused(toy_dataset):
    with pytest.raises(ValueError, match="both `mean` and `std`"):
        replace(toy_dataset(), std=None)


@pytest.mark.parametrize("room", [0, 10**9])
@pytest.mark.parametrize("shape", [(12, 3, 4, 5), (12, 7)])
def test_what_a_gpu_is_sent_is_what_a_cpu_sees(room, shape, monkeypatch):
    """With inputs that fit there and such that do not; the transfers alone need a GPU (tests/parity/test_gpu.py)."""
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=16 * room))
    tensor = torch.arange(math.prod(shape)).reshape(shape)
    y, a = np.arange(12) % 3, np.arange(12) % 2
    dataset = Dataset(InMemoryInputs(tensor), y, a, np.arange(8), np.arange(8, 12), None, ("a", "b", "c"), ("u", "v"))
    indices = np.array([7, 0, 3])
    for sent, seen in zip(_on_gpu(dataset, indices, torch.device("cpu")), dataset.batch(indices), strict=True):
        assert torch.equal(sent, seen)
