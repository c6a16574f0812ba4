"""The server's adaptive steps, against torch.optim.Adam and against algorithm 2 of the paper in numpy."""

import numpy as np
import pytest
import torch

from fedfacet.aggregators.fedopt import FedOpt
from fedfacet.types import ClientUpdate, Facts

MODEL = {
    "weight": torch.linspace(-2, 3, 6, dtype=torch.float64).reshape(2, 3),
    "bias": torch.tensor([1.0, -1.0], dtype=torch.float64),
    "mean": torch.tensor([4.0], dtype=torch.float64),
}
FACTS = Facts(10, MODEL, ("weight", "bias"), ("mean",), frozenset())


def updates(round, clients=3):
    """Return a cohort's updates: of the size of a step, and now and then much larger or zero."""
    draw = np.random.default_rng(round)
    return [
        ClientUpdate(
            client_id=client_id,
            delta={
                name: torch.from_numpy(
                    draw.normal(size=MODEL[name].shape) * draw.choice([0.0, 1e-3, 0.1, 3.0], MODEL[name].shape)
                )
                for name in FACTS.parameters
            },
            buffers={"mean": torch.from_numpy(draw.normal(size=1))},
            num_samples=10 + client_id,
            num_steps=1,
            step_weight=1.0,
            metrics={},
        )
        for client_id in range(clients)
    ]


def mean_delta(sent, name):
    return np.mean([update.delta[name].numpy() for update in sent], axis=0)


def test_with_bias_correction_it_is_torchs_adam_on_the_negative_mean_update():
    part = FedOpt(second_moment="adam", server_lr=0.3, momentum=0.8, decay=0.97, tau=1e-2, bias_correction=True)
    server, model = part.init(FACTS), MODEL
    theirs = {name: torch.nn.Parameter(MODEL[name].clone()) for name in FACTS.parameters}
    adam = torch.optim.Adam(theirs.values(), lr=0.3, betas=(0.8, 0.97), eps=1e-2)
    for round in range(10):
        sent = updates(round)
        server, model = part.aggregate(server, model, iter(sent))
        for name, parameter in theirs.items():
            parameter.grad = torch.from_numpy(-mean_delta(sent, name))
        adam.step()
        for name, parameter in theirs.items():
            torch.testing.assert_close(model[name], parameter.detach(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("kind", ["adam", "yogi", "adagrad"])
def test_it_is_algorithm_2_of_the_paper(kind):
    eta, beta_1, beta_2, tau = 0.2, 0.7, 0.9, 0.05
    part = FedOpt(second_moment=kind, server_lr=eta, momentum=beta_1, decay=beta_2, tau=tau)
    server, model = part.init(FACTS), MODEL
    x = {name: MODEL[name].numpy() for name in FACTS.parameters}
    m, v = ({name: np.full_like(x[name], start) for name in x} for start in (0.0, tau**2))
    grew = shrank = False
    for round in range(10):
        sent = updates(round)
        server, model = part.aggregate(server, model, iter(sent))
        for name in x:
            delta, last = mean_delta(sent, name), v[name]
            m[name] = beta_1 * m[name] + (1 - beta_1) * delta
            if kind == "adagrad":
                v[name] = last + delta**2
            elif kind == "yogi":
                v[name] = last - (1 - beta_2) * delta**2 * np.sign(last - delta**2)
            else:
                v[name] = beta_2 * last + (1 - beta_2) * delta**2
            x[name] = x[name] + eta * m[name] / (np.sqrt(v[name]) + tau)
            assert model[name].numpy() == pytest.approx(x[name], rel=1e-9)
            grew, shrank = grew or (v[name] > last).any(), shrank or (v[name] < last).any()
    assert grew
    assert bool(shrank) is (kind != "adagrad")


@pytest.mark.parametrize("kind", ["adam", "yogi", "adagrad"])
def test_buffers_are_averaged_plainly(kind):
    part = FedOpt(second_moment=kind, server_lr=5.0)
    server, model = part.init(FACTS), MODEL
    for round in range(3):
        sent = updates(round)
        server, after = part.aggregate(server, model, iter(sent))
        expected = model["mean"].item() + np.mean([update.buffers["mean"].item() for update in sent])
        assert after["mean"].item() == pytest.approx(expected, rel=1e-12)
        model = after


def test_a_round_may_be_run_twice():
    part = FedOpt(second_moment="yogi")
    start = part.init(FACTS)
    once, _ = part.aggregate(start, MODEL, iter(updates(0)))
    for server in (start, once):
        results = [part.aggregate(server, MODEL, iter(updates(1))) for _ in range(2)]
        assert all(torch.equal(results[0][1][name], results[1][1][name]) for name in MODEL)
    assert start["steps"] == 0
    assert start["m"]["bias"].abs().sum() == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"second_moment": "sgd"}, "second_moment"),
        ({"momentum": 1.0}, "momentum"),
        ({"decay": -0.1}, "decay"),
        ({"server_lr": 0.0}, "server_lr"),
        ({"tau": 0.0}, "tau"),
        ({"tau": float("inf")}, "tau"),
        ({"second_moment": "yogi", "bias_correction": True}, "bias_correction"),
    ],
)
def test_impossible_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=f"Expected `{message}`"):
        FedOpt(**{"second_moment": "adam"} | arguments)
