import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fedfacet.callbacks.probabilities import Calibration

SPLITS = ("val", "test")
NAMES = ("ece", "ece_attribute/a0", "ece_attribute/a1", "ece_worst_attribute")


def by_hand(logits, y, bins):
    """Sample by sample into bins, and then their gaps."""
    members: dict[int, list[tuple[float, bool]]] = {}
    for row, label in zip(logits.softmax(dim=1).tolist(), y.tolist(), strict=True):
        members.setdefault(min(int(max(row) * bins), bins - 1), []).append((max(row), row.index(max(row)) == label))
    gaps = (abs(sum(right - sure for sure, right in own)) for own in members.values())
    return sum(gaps) / len(y)


def test_the_error_is_that_of_the_global_model_and_of_each_attribute(tiny_federation, tiny_clients):
    clients = tiny_clients()
    dataset = clients.dataset
    splits = {"val": dataset.train[::3], "test": dataset.test}
    federation = tiny_federation(clients=clients, rounds=3)
    callback = Calibration(data=SimpleNamespace(splits=splits, dataset=dataset), every_n_rounds=2, bins=7)
    metrics = callback.measure(federation, 2)
    assert list(metrics) == [f"{split}/{name}" for split in SPLITS for name in NAMES]
    model = clients.objective.model
    model.load_state_dict(federation.state.model)
    for split, positions in splits.items():
        batch = dataset.batch(positions)
        with torch.inference_mode():
            logits = model.eval()(batch.x).double()
        assert metrics[f"{split}/ece"] == pytest.approx(by_hand(logits, batch.y, 7), abs=1e-6)
        for value in (0, 1):
            own = batch.a == value
            expected = by_hand(logits[own], batch.y[own], 7)
            assert metrics[f"{split}/ece_attribute/a{value}"] == pytest.approx(expected, abs=1e-6)
            assert expected > 1e-3
        worst = max(metrics[f"{split}/ece_attribute/a{value}"] for value in (0, 1))
        assert metrics[f"{split}/ece_worst_attribute"] == worst
    unmeasured = callback.measure(federation, 1)
    assert list(unmeasured) == list(metrics)
    assert all(map(math.isnan, unmeasured.values()))
    assert callback.measure(federation, 3) == metrics


def test_an_attribute_value_without_samples_has_no_error(tiny_federation, tiny_clients):
    clients = tiny_clients()
    dataset = clients.dataset
    splits = {"test": dataset.test[dataset.a[dataset.test] == 1]}
    callback = Calibration(data=SimpleNamespace(splits=splits, dataset=dataset))
    metrics = callback.measure(tiny_federation(clients=clients, rounds=1), 1)
    assert math.isnan(metrics["test/ece_attribute/a0"])
    assert metrics["test/ece_worst_attribute"] == metrics["test/ece_attribute/a1"] == pytest.approx(metrics["test/ece"])


def test_without_attributes_there_is_one_number(toy_dataset, tiny_federation):
    dataset = toy_dataset([[8], [8]])
    callback = Calibration(data=SimpleNamespace(splits={"test": np.empty(0, np.int64)}, dataset=dataset), every_n_rounds=5)
    assert list(callback.measure(tiny_federation(rounds=9), 1)) == ["test/ece"]


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match=r"^Expected `callbacks\.calibration\.bins` to be a whole number, 1 or larger"):
        Calibration(data=None, bins=0)
