from dataclasses import replace

import numpy as np
import pytest
import torch

from fedfacet.data.dataset import InMemoryInputs
from fedfacet.data.fingerprint import fingerprint


@pytest.fixture
def dataset(toy_dataset):
    return toy_dataset()


def test_the_same_data_have_the_same(dataset, toy_dataset):
    assert fingerprint(dataset) == fingerprint(toy_dataset()) != fingerprint(toy_dataset(seed=1))


def test_everything_counts_that_a_run_sees(dataset):
    pixels = dataset.inputs.tensor
    others = [
        replace(dataset, inputs=InMemoryInputs(255 - pixels)),
        replace(dataset, inputs=InMemoryInputs(pixels.to(torch.float32))),
        replace(dataset, inputs=InMemoryInputs(pixels.flip(0))),
        replace(dataset, inputs=InMemoryInputs(pixels.flatten(2))),
        replace(dataset, y=1 - dataset.y),
        replace(dataset, a=np.where(np.arange(len(dataset.a)) == 3, 1 - dataset.a, dataset.a)),
        replace(dataset, train=dataset.train[1:]),
        replace(dataset, test=dataset.test[1:]),
        replace(dataset, val=dataset.train[:2]),
    ]
    assert len({fingerprint(dataset), *map(fingerprint, others)}) == 1 + len(others)


def test_one_changed_input_of_many_shows_where_the_whole_is_looked_at(dataset):
    changed = dataset.inputs.tensor.repeat(40, 1, 1, 1)
    many = replace(dataset, inputs=InMemoryInputs(changed.clone()))
    changed[len(changed) - 2] ^= 1
    other = replace(dataset, inputs=InMemoryInputs(changed))
    assert fingerprint(many) == fingerprint(other)
    assert fingerprint(many, whole=True) != fingerprint(other, whole=True)


def test_inputs_of_any_kind_have_one(dataset):
    for dtype in (torch.float64, torch.bfloat16, torch.int64, torch.bool):
        assert len(fingerprint(replace(dataset, inputs=InMemoryInputs(dataset.inputs.tensor.flatten(1).to(dtype))))) == 64
