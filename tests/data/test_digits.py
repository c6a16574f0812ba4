"""Coloured digits: cells as demanded, nothing shared between splits, one channel of ink."""

import numpy as np
import pytest

from fedfacet.data.digits import Digits
from fedfacet.errors import InfeasiblePartitionError

DEMAND = np.array([[352, 128], [128, 352]])


def cells(dataset, indices):
    return np.bincount(2 * dataset.y[indices] + dataset.a[indices], minlength=4).reshape(2, 2).tolist()


def test_the_main_jobs_cells():
    dataset = Digits().load(DEMAND)
    assert cells(dataset, dataset.train) == DEMAND.tolist()
    # 896 digits are 5 or more; 480 of them train, and (896 - 480) // 4 = 104 is what a held-out cell can have.
    assert cells(dataset, dataset.val) == cells(dataset, dataset.test) == [[104, 104], [104, 104]]
    everything = np.concatenate([dataset.train, dataset.val, dataset.test])
    assert len(np.unique(everything)) == len(everything)


def test_ink_is_in_the_channel_of_the_attribute():
    dataset = Digits().load(DEMAND)
    ink = dataset.inputs.fetch(np.arange(len(dataset.y))).float().sum(dim=(2, 3)).numpy()
    assert (ink[np.arange(len(ink)), dataset.a] > 0).all()
    assert (ink.sum(axis=1) == ink[np.arange(len(ink)), dataset.a]).all()


def test_colours_depend_on_the_data_sets_seed_only():
    assert (Digits(seed=1).load(DEMAND).a == Digits(seed=1).load(DEMAND).a).all()
    assert (Digits(seed=1).load(DEMAND).a != Digits(seed=2).load(DEMAND).a).any()


def test_without_demand_the_colours_are_balanced():
    dataset = Digits().load()
    ((red, green), (red_5, green_5)) = cells(dataset, dataset.train)
    assert red == green
    assert red_5 == green_5
    assert len(set(np.ravel(cells(dataset, dataset.val)).tolist())) == 1


@pytest.mark.parametrize(("demand", "match"), [(DEMAND * 5, r"897 .*2400"), (np.ones((4, 2), int), "2 classes and 2")])
def test_what_cannot_be_had_is_said(demand, match):
    with pytest.raises(InfeasiblePartitionError, match=match):
        Digits().load(demand)
