import weakref
from dataclasses import replace

import pytest
import torch

from fedfacet.aggregators.fedavg import FedAvg
from fedfacet.aggregators.fedavgm import FedAvgM
from fedfacet.types import ClientUpdate, Facts


def update(client_id=0, *, n=10, buffers=None, **delta):
    return ClientUpdate(
        client_id=client_id,
        delta={name: torch.tensor(value) for name, value in delta.items()},
        buffers={name: torch.tensor(value) for name, value in (buffers or {}).items()},
        num_samples=n,
        num_steps=1,
        step_weight=1.0,
        metrics={},
    )


def after(aggregator, model, updates):
    """Return the model after a first round."""
    return aggregator.aggregate(aggregator.init(Facts(2, model, ("w",), ("mean",))), model, iter(updates))[1]


@pytest.fixture
def model():
    return {"w": torch.tensor([1.0, 2.0]), "mean": torch.tensor([0.5]), "num_batches": torch.tensor(7)}


@pytest.mark.parametrize(("weighting", "expected"), [("equal", [3.0, 4.0]), ("samples", [4.0, 3.0])])
def test_weights(model, weighting, expected):
    updates = [update(0, n=10, w=[0.0, 4.0]), update(1, n=30, w=[4.0, 0.0])]
    assert after(FedAvg(weighting=weighting), model, updates)["w"].tolist() == expected


def test_only_those_who_arrived_share_the_weight(model):
    """Equation 1 of the paper divides by the samples of all clients, which would shrink every partial round's step."""
    assert after(FedAvg(weighting="samples"), model, [update(0, n=3, w=[1.0, 1.0])])["w"].tolist() == [2.0, 3.0]


@pytest.mark.parametrize(("buffers", "expected"), [("average", 0.5 + 3.0), ("keep", 0.5)])
@pytest.mark.parametrize("aggregator", [FedAvg, FedAvgM])
def test_buffers_are_averaged_plainly_or_kept(model, aggregator, buffers, expected):
    updates = [update(0, w=[0.0, 0.0], buffers={"mean": [2.0]}), update(1, w=[0.0, 0.0], buffers={"mean": [4.0]})]
    moved = after(aggregator(buffers=buffers), model, updates)
    assert moved["mean"].tolist() == [expected]
    assert moved["num_batches"].item() == 7
    assert list(moved) == list(model)


@pytest.mark.parametrize("aggregator", [FedAvg, FedAvgM])
def test_neither_the_model_nor_an_update_is_written_to(model, aggregator):
    updates = [update(0, w=[1.0, 1.0]), update(1, w=[3.0, 3.0])]
    after(aggregator(), model, updates)
    assert model["w"].tolist() == [1.0, 2.0]
    assert [one.delta["w"].tolist() for one in updates] == [[1.0, 1.0], [3.0, 3.0]]


def test_updates_are_read_as_they_come(model):
    """A cohort's updates need not be in memory at once: each is folded in and let go before the next but one is asked for."""
    alive = []

    def stream():
        for client_id in range(4):
            delta = torch.tensor([1.0, 1.0])
            alive.append(weakref.ref(delta))
            assert sum(reference() is not None for reference in alive) <= 2
            one = replace(update(client_id), delta={"w": delta})
            del delta
            yield one
            del one

    assert after(FedAvg(), model, stream())["w"].tolist() == [2.0, 3.0]
    assert len(alive) == 4


@pytest.mark.parametrize("aggregator", [FedAvg, FedAvgM])
@pytest.mark.parametrize("name", ["weighting", "buffers"])
def test_an_unknown_choice_is_refused(aggregator, name):
    with pytest.raises(ValueError, match=f"Expected `{name}` to be"):
        aggregator(**{name: "median"})
