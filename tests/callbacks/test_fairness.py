import dataclasses
import math
from types import SimpleNamespace

import numpy as np
import pytest

from fedfacet.errors import FedFacetError
from fedfacet.metrics.group_fairness import fairness_of, rates_of
from fedfacet.plots.fairness import Fairness


@pytest.fixture
def measured(tiny_federation, tiny_clients, tmp_path):
    """Return a function: settings -> callback, federation and its counts on the test set, shape (Y, A, Y)."""

    def make(**settings):
        clients = tiny_clients()
        dataset = clients.dataset
        splits = {"val": dataset.train[::3], "test": dataset.test}
        federation = tiny_federation(clients=clients, rounds=3)
        callback = Fairness(data=SimpleNamespace(splits=splits, dataset=dataset), run_dir=tmp_path, **settings)
        (counts,) = federation.engine.evaluate(federation.state.model, [dataset.test])
        return callback, federation, counts.confusion.reshape(dataset.num_classes, dataset.num_attributes, dataset.num_classes)

    return make


def of_test(metrics):
    return {name.removeprefix("test/fair/"): value for name, value in metrics.items() if name.startswith("test/fair/")}


def test_the_positive_class_has_a_name(measured):
    callback, federation, _ = measured(positive_class=1)
    last = callback.data.dataset.class_names[-1]
    named, *_ = measured(positive_class=last)
    number, *_ = measured(positive_class=callback.data.dataset.num_classes - 1)
    assert repr(named.measure(federation, 1)) == repr(number.measure(federation, 1))
    with pytest.raises(FedFacetError, match=rf"one of the classes .*{last}, or its number, from 0, but got 'granted'"):
        measured(positive_class="granted")


@pytest.mark.parametrize("positive_class", [0, 1, None])
def test_it_measures_the_global_model(measured, positive_class):
    callback, federation, counts = measured(positive_class=positive_class, every_n_rounds=2)
    metrics = callback.measure(federation, 2)
    found = of_test(metrics)
    for name, value in fairness_of(counts, positive_class=positive_class).items():
        assert found[name] == pytest.approx(value, nan_ok=True)
    assert [found["count_a0"], found["count_a1"]] == counts.sum(axis=(0, 2)).tolist()
    assert found["groups"] == 2
    assert ("rate/tpr_a1" in found) == (positive_class is not None)
    if positive_class is not None:
        rates = rates_of(counts, positive_class)
        assert found["rate/tpr_a1"] == pytest.approx(rates["tpr"][1], nan_ok=True)
        signed = found["signed/demographic_parity"]
        assert signed == pytest.approx(rates["sel"][1] - rates["sel"][0])
        assert found["signed/demographic_parity_low"] <= signed <= found["signed/demographic_parity_high"]
    assert all(type(value) is float for value in metrics.values())
    assert of_test(callback.measure(federation, 1)).keys() == found.keys()
    gaps = ("equal_opportunity", "demographic_parity", "accuracy_parity", "rate/acc_a0")
    assert all(math.isnan(callback.measure(federation, 1)[f"test/fair/{gap}"]) for gap in gaps)
    assert callback.measure(federation, 3) == pytest.approx(metrics, nan_ok=True)


def test_a_group_that_is_too_small_has_no_rates(measured):
    callback, federation, counts = measured(min_count=10**6)
    found = of_test(callback.measure(federation, 1))
    assert found.pop("groups") == 0
    sizes = [found.pop(f"count_a{group}") for group in (0, 1)]
    assert sizes == counts.sum(axis=(0, 2)).tolist()
    assert all(map(math.isnan, found.values()))


def test_what_cannot_be_measured_is_refused(measured, tiny_clients, tmp_path):
    with pytest.raises(ValueError, match="Expected `positive_class` to be one of the 2 classes"):
        measured(positive_class=2)
    with pytest.raises(ValueError, match="every_n_rounds"):
        measured(every_n_rounds=0)
    dataset = tiny_clients().dataset
    alone = dataclasses.replace(dataset, attribute_names=("all",), a=np.zeros_like(dataset.a))
    with pytest.raises(FedFacetError, match=r"^Expected a data set with two attribute values or more"):
        Fairness(data=SimpleNamespace(splits={}, dataset=alone), run_dir=tmp_path)
