import pytest
import torch

from fedfacet.aggregators.fedavgm import FedAvgM
from fedfacet.types import ClientUpdate, Facts


def arriving(*deltas):
    return [
        ClientUpdate(
            client_id=position, delta={"w": delta}, buffers={}, num_samples=5, num_steps=1, step_weight=1.0, metrics={}
        )
        for position, delta in enumerate(deltas)
    ]


def started(aggregator, **model):
    """Return the state before the first round, and the model."""
    model = {name: torch.as_tensor(tensor) for name, tensor in model.items()}
    return aggregator.init(Facts(2, model, tuple(model))), model


def test_it_follows_the_hand_written_iterates():
    """m <- beta m + mean(Delta), w <- w + eta m, m_0 = 0; with beta = 1/2, eta = 2 and binary fractions, by hand and exact."""
    aggregator = FedAvgM(momentum=0.5, server_lr=2.0)
    server, model = started(aggregator, w=[0.0])
    rounds = [((1.0, 3.0), 2.0, 4.0), ((0.0, 0.0), 1.0, 6.0), ((-1.0, -4.0), -2.0, 2.0), ((8.0, 8.0), 7.0, 16.0)]
    for deltas, velocity, weight in rounds:
        server, model = aggregator.aggregate(server, model, arriving(*(torch.tensor([delta]) for delta in deltas)))
        assert server["velocity"]["w"].tolist() == [velocity]
        assert model["w"].tolist() == [weight]


def test_the_steady_gain_of_the_papers_setting_is_two():
    """Under a constant update m tends to Delta / (1 - beta), so a round moves by eta / (1 - beta) = 0.1 / 0.05 = 2 times it.

    Written as an exponential average, m <- beta m + (1 - beta) Delta, the gain would be 0.1.
    """
    aggregator = FedAvgM(momentum=0.95, server_lr=0.1)
    delta = torch.tensor([0.3, -1.7], dtype=torch.float64)
    server, model = started(aggregator, w=torch.zeros(2, dtype=torch.float64))
    for _ in range(500):
        before = model
        server, model = aggregator.aggregate(server, model, arriving(delta))
    assert (model["w"] - before["w"]).tolist() == pytest.approx((2 * delta).tolist(), rel=1e-9)


def test_the_first_step_is_server_lr_times_the_average():
    aggregator = FedAvgM(momentum=0.95, server_lr=0.1)
    _, after = aggregator.aggregate(*started(aggregator, w=[1.0]), arriving(torch.tensor([5.0])))
    assert after["w"].tolist() == pytest.approx([1.5])


def test_its_velocity_is_all_that_a_twin_needs():
    ours, twin = FedAvgM(momentum=0.9, server_lr=0.3), FedAvgM(momentum=0.9, server_lr=0.3)
    server, model = ours.aggregate(*started(ours, w=[1.0]), arriving(torch.tensor([0.7])))
    _, ours_next = ours.aggregate(server, model, arriving(torch.tensor([0.1])))
    _, twins_next = twin.aggregate({"velocity": dict(server["velocity"])}, model, arriving(torch.tensor([0.1])))
    assert torch.equal(twins_next["w"], ours_next["w"])
    _, without = twin.aggregate(twin.init(Facts(2, model, ("w",))), model, arriving(torch.tensor([0.1])))
    assert not torch.equal(without["w"], ours_next["w"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"momentum": 1.0}, r"Expected `momentum` in \[0, 1\)"),
        ({"momentum": -0.1}, r"Expected `momentum` in \[0, 1\)"),
        ({"server_lr": 0.0}, "Expected `server_lr` to be larger than 0"),
    ],
)
def test_numbers_out_of_range_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        FedAvgM(**settings)
