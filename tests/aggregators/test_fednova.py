import pytest
import torch

from fedfacet.aggregators.fednova import FedNova
from fedfacet.types import ClientUpdate, Facts


def update(client_id=0, *, steps=1, step_weight=None, n=10, buffers=None, w=(0.0, 0.0)):
    return ClientUpdate(
        client_id=client_id,
        delta={"w": torch.tensor(w)},
        buffers={name: torch.tensor(value) for name, value in (buffers or {}).items()},
        num_samples=n,
        num_steps=steps,
        step_weight=float(steps if step_weight is None else step_weight),
        metrics={},
    )


@pytest.fixture
def model():
    return {"w": torch.tensor([1.0, 2.0]), "mean": torch.tensor([0.5])}


def plain(model, updates, **options):
    """Return the model after one round without momentum."""
    aggregator = FedNova(momentum=0.0, server_lr=1.0, **options)
    return aggregator.aggregate(aggregator.init(Facts(2, model, ("w",), ("mean",))), model, iter(updates))[1]


def test_by_hand(model):
    """Directions (1, 0) after 2 steps and (0, 1) after 6: 4 steps along their mean, (2, 2); the average would be (1, 3)."""
    updates = [update(0, steps=2, w=(2.0, 0.0)), update(1, steps=6, w=(0.0, 6.0))]
    assert plain(model, updates)["w"].tolist() == [3.0, 4.0]


def test_by_hand_weighted_by_samples(model):
    """p = 3/4, 1/4: tau_eff = 3, direction (3/4, 1/4)."""
    updates = [update(0, steps=2, n=30, w=(2.0, 0.0)), update(1, steps=6, n=10, w=(0.0, 6.0))]
    assert plain(model, updates, weighting="samples")["w"].tolist() == [1 + 2.25, 2 + 0.75]


def test_the_effective_steps_may_be_the_plain_ones(model):
    """Both divide by ||a_k||_1 = 4; tau_eff is 4 by default, or the mean of 2 and 6 steps, which is 4, and of 2 and 10, 6."""
    for second, expected in ((6, 2.0), (10, 3.0)):
        updates = [update(0, steps=2, step_weight=4, w=(4.0, 0.0)), update(1, steps=second, step_weight=4, w=(0.0, 4.0))]
        assert plain(model, updates)["w"].tolist() == [3.0, 4.0]
        assert plain(model, updates, tau_eff="steps")["w"].tolist() == [1 + expected, 2 + expected]


def test_the_number_of_steps_does_not_change_a_clients_say(model):
    """A client that walks twice as far in twice the steps only lengthens the common step."""
    other = update(1, steps=4, w=(0.0, 4.0))
    moves = [
        plain(model, [one, other])["w"] - model["w"]
        for one in (update(0, steps=4, w=(4.0, 0.0)), update(0, steps=8, w=(8.0, 0.0)))
    ]
    assert (moves[0] / moves[0].norm()).tolist() == pytest.approx((moves[1] / moves[1].norm()).tolist())
    assert moves[1].norm().item() == pytest.approx(1.5 * moves[0].norm().item())


def test_running_statistics_are_averaged_without_steps_or_momentum(model):
    aggregator = FedNova()
    server = aggregator.init(Facts(2, model, ("w",), ("mean",)))
    for _ in range(2):
        updates = [update(0, steps=1, buffers={"mean": [1.0]}), update(1, steps=9, buffers={"mean": [3.0]})]
        server, after = aggregator.aggregate(server, model, iter(updates))
        assert after["mean"].tolist() == [2.5]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"momentum": 1.0}, r"Expected `momentum` in \[0, 1\)"),
        ({"server_lr": 0.0}, "Expected `server_lr` to be larger than 0"),
        ({"tau_eff": "tau"}, "Expected `tau_eff` to be 'step_weights' or 'steps', but got 'tau'"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        FedNova(**settings)
