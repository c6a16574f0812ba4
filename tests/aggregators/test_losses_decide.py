"""q-FedAvg and AFL on clients whose loss is a parabola, F_k = h_k / 2 (w - c_k)^2, with one full-batch step of size eta.

With curvatures 1 and 4 and optima 0 and 10 both have a fixed point in closed form. That of q-FedAvg is where
F_1^q h_1 (w - c_1) = F_2^q h_2 (c_2 - w), so |w - c_1| / |w - c_2| = (h_2 / h_1)^((q + 1) / (2 q + 1)); that of AFL is where
both losses are equal, |w - c_1| / |w - c_2| = sqrt(h_2 / h_1), its limit for large q.
"""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from fedfacet import state
from fedfacet.aggregators.agnostic import AgnosticFL
from fedfacet.aggregators.fedavg import FedAvg
from fedfacet.aggregators.q_fedavg import QFedAvg
from fedfacet.clients.queries.local_loss import LocalLoss
from fedfacet.simplex import ascended, nearest_of_simplex
from fedfacet.types import ClientUpdate, Facts

H, C, ETA = (1.0, 4.0), (0.0, 10.0), 0.01


def updates_at(point):
    return [
        ClientUpdate(
            client_id=k,
            delta={"w": -ETA * h * (point - c)},
            buffers={},
            num_samples=5,
            num_steps=1,
            step_weight=1.0,
            metrics={},
            report=float(h / 2 * (point - c) ** 2),
        )
        for k, (h, c) in enumerate(zip(H, C, strict=True))
    ]


def reached(aggregator, rounds):
    model = {"w": torch.tensor([3.0], dtype=torch.float64)}
    server = aggregator.init(Facts(2, model, ("w",)))
    for _ in range(rounds):
        server, model = aggregator.aggregate(server, model, iter(updates_at(model["w"])))
    return server, float(model["w"])


@pytest.mark.parametrize(("q", "expected"), [(0, 8.0), (1, 7.159), (5, 6.805)])
def test_q_fedavg_ends_where_its_objective_is_smallest(q, expected):
    ratio = (H[1] / H[0]) ** ((q + 1) / (2 * q + 1))
    fixed = 10 * ratio / (1 + ratio)
    assert fixed == pytest.approx(expected, abs=1e-3)
    assert reached(QFedAvg(local_loss=LocalLoss(), q=q, lr=ETA), 1_000)[1] == pytest.approx(fixed, rel=1e-6)


def test_a_step_of_q_fedavg_is_the_papers_formula():
    """By hand at w = 3, q = 2, L = 100: F = 4.5 and 98, Delta = -0.03 and 0.28."""
    losses, deltas, lip = np.array([4.5, 98.0]) + 1e-10, np.array([-0.03, 0.28]), 1 / ETA
    h = 2 * losses * (lip * deltas) ** 2 + lip * losses**2
    expected = 3 + (losses**2 * lip * deltas).sum() / h.sum()
    assert reached(QFedAvg(local_loss=LocalLoss(), q=2, lr=ETA), 1)[1] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("weighting", ["equal", "samples"])
def test_q_of_zero_is_fedavg_bit_for_bit_and_asks_nothing(weighting):
    ours = QFedAvg(local_loss=LocalLoss(), q=0, weighting=weighting)
    model = {"w": torch.tensor([3.0])}
    sent = updates_at(model["w"])
    results = [a.aggregate({}, model, iter(sent))[1] for a in (ours, FedAvg(weighting=weighting))]
    assert state.digest(results[0]) == state.digest(results[1])
    assert ours.report() is None


def test_afl_ends_where_both_clients_lose_alike():
    server, point = reached(AgnosticFL(local_loss=LocalLoss(), step=1e-3), 3_000)
    assert point == pytest.approx(20 / 3, rel=1e-4)
    # Where the model stands still, lambda_1 h_1 (w - c_1) = lambda_2 h_2 (c_2 - w): lambda = 2/3 and 1/3.
    assert server["mixture"].tolist() == pytest.approx([2 / 3, 1 / 3], rel=1e-3)


def test_afl_without_steps_is_fedavg_but_for_rounding():
    _, point = reached(AgnosticFL(local_loss=LocalLoss(), step=0.0), 1_500)
    assert point == pytest.approx(8.0, rel=1e-9)


def test_clients_of_weight_zero_leave_the_model_as_it_is():
    aggregator = AgnosticFL(local_loss=LocalLoss())
    model = {"w": torch.tensor([3.0])}
    first, _ = updates_at(model["w"])
    server, after = aggregator.aggregate({"mixture": torch.tensor([0.0, 1.0], dtype=torch.float64)}, model, iter([first]))
    assert torch.equal(after["w"], model["w"])
    assert server["mixture"].sum() == pytest.approx(1)


def test_afl_leaves_those_who_are_away_where_they_are():
    """Two of three are there and lose alike, so nothing moves; a loss above theirs raises a weight at the other's cost."""
    aggregator = AgnosticFL(local_loss=LocalLoss(), step=0.1)
    server = aggregator.init(Facts(3, {"w": torch.zeros(1)}, ("w",)))

    def after(server, **losses):
        updates = [
            ClientUpdate(int(name[1]), {"w": torch.zeros(1)}, {}, 10, 1, 1.0, {}, report=loss) for name, loss in losses.items()
        ]
        return aggregator.aggregate(server, {"w": torch.zeros(1)}, iter(updates))[0]

    for _ in range(3):
        server = after(server, _0=1.0, _1=1.0)
    assert server["mixture"].tolist() == pytest.approx([1 / 3] * 3, rel=1e-12)
    assert after(server, _0=3.0, _1=1.0)["mixture"].tolist() == pytest.approx([1 / 3 + 0.1, 1 / 3 - 0.1, 1 / 3])


@given(st.lists(st.tuples(st.floats(0, 10), st.booleans(), st.floats(0.01, 1)), min_size=1, max_size=6), st.floats(0, 2))
def test_the_ascent_is_that_of_those_who_answered(clients, step):
    losses, answered, weights = (torch.tensor(column) for column in zip(*clients, strict=True))
    losses, weights = losses.double(), weights.double() / weights.double().sum()
    moved = ascended(weights, step, losses, answered)
    assert float(moved.sum()) == pytest.approx(1)
    shifted = ascended(weights, step, losses + 5, answered)
    assert moved.tolist() == pytest.approx(shifted.tolist(), abs=1e-9), "what all who answered have in common does not count"
    if answered.sum() < 2:
        assert moved.tolist() == pytest.approx(weights.tolist(), abs=1e-9), "a lone loss moves nothing"
    worst = int(torch.where(answered, losses, -1).argmax())
    assert not answered.any() or moved[worst] >= weights[worst] - 1e-9, "the largest loss never costs weight"


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=6))
def test_the_projection_is_the_nearest_point(point):
    target = np.array(point)
    ours = nearest_of_simplex(torch.tensor(point, dtype=torch.float64)).numpy()
    assert ours.min() >= 0
    assert ours.sum() == pytest.approx(1)
    found = minimize(
        lambda x: ((x - target) ** 2).sum(),
        np.full(len(point), 1 / len(point)),
        bounds=[(0, 1)] * len(point),
        constraints={"type": "eq", "fun": lambda x: x.sum() - 1},
        method="SLSQP",
    )
    assert ((ours - target) ** 2).sum() <= found.fun + 1e-6


@pytest.mark.parametrize(("make", "bad"), [(QFedAvg, {"q": -1}), (QFedAvg, {"lr": 0}), (AgnosticFL, {"step": float("nan")})])
def test_values_out_of_range_are_refused(make, bad):
    with pytest.raises(ValueError, match=f"Expected `{next(iter(bad))}`"):
        make(local_loss=LocalLoss(), **bad)
