"""FedPAC's server, its quadratic problem above all, against a generic solver and closed forms."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from fedfacet import rng, state
from fedfacet.aggregators.fedavg import FedAvg
from fedfacet.errors import BadUpdateError, ConfigError
from fedfacet.methods.fedpac import FedPAC, _collaboration, _smallest_on_simplex
from fedfacet.types import ClientUpdate, Facts

CLASSES, WIDTH = 3, 4


@pytest.fixture
def model():
    return {
        "body.weight": torch.tensor([1.0, 2.0]),
        "head.weight": torch.ones(CLASSES, WIDTH),
        "head.bias": torch.zeros(CLASSES),
    }


def facts(model, **more):
    return Facts(5, model, tuple(model), **more)


def arriving(client_id, *, seed=0, num_samples=10, counts=(4, 3, 3)):
    draw = rng.stream(seed, "update", client_id)
    delta = {
        "body.weight": torch.tensor(draw.normal(size=2), dtype=torch.float32),
        "head.weight": torch.tensor(draw.normal(size=(CLASSES, WIDTH)), dtype=torch.float32),
        "head.bias": torch.tensor(draw.normal(size=CLASSES), dtype=torch.float32),
    }
    sent = {
        "fedpac/means": torch.tensor(draw.normal(size=(CLASSES, WIDTH)), dtype=torch.float32),
        "fedpac/variance": torch.tensor(draw.uniform(0.1, 2)),
        "fedpac/centroids": torch.tensor(draw.normal(size=(CLASSES, WIDTH)), dtype=torch.float32),
        "fedpac/counts": torch.tensor(counts, dtype=torch.float32),
    }
    return ClientUpdate(
        client_id=client_id,
        delta=delta,
        buffers={},
        num_samples=num_samples,
        num_steps=1,
        step_weight=1.0,
        metrics={},
        extras=sent,
    )


# --- the quadratic problem -------------------------------------------------------------------------------------------------


def quadratic(seed, size, rank):
    factor = rng.stream(seed, "quadratic").normal(size=(size, rank))
    return factor @ factor.T


@given(st.integers(0, 10**6), st.integers(1, 8), st.integers(1, 8))
def test_it_is_as_good_as_a_generic_solver(seed, size, rank):
    """Singular matrices among them, which have many solutions of the same value."""
    matrix = quadratic(seed, size, rank)
    ours = _smallest_on_simplex(matrix)
    assert (ours >= 0).all()
    assert ours.sum() == pytest.approx(1, abs=1e-12)
    generic = minimize(
        lambda w: w @ matrix @ w,
        np.full(size, 1 / size),
        jac=lambda w: 2 * matrix @ w,
        bounds=[(0, 1)] * size,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1, "jac": lambda w: np.ones(size)},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 1000},
    )
    scale = np.trace(matrix) / size
    assert ours @ matrix @ ours <= generic.fun + 1e-7 * scale
    if rank >= size and np.linalg.cond(matrix) < 1e3:
        assert ours == pytest.approx(generic.x, abs=1e-4)


@given(st.integers(0, 10**6), st.integers(1, 10), st.integers(1, 10), st.floats(-8, 8))
def test_it_satisfies_the_karush_kuhn_tucker_conditions(seed, size, rank, exponent):
    """With mu = a'Pa: (Pa)_j = mu where a_j > 0, and >= mu elsewhere; that is what optimal means for a convex problem."""
    matrix = quadratic(seed, size, rank) * 10.0**exponent
    ours = _smallest_on_simplex(matrix)
    gradient, scale = matrix @ ours, np.trace(matrix) / size
    optimum = ours @ gradient
    assert (gradient >= optimum - 1e-6 * scale).all()
    assert gradient[ours > 1e-6] == pytest.approx(np.full((ours > 1e-6).sum(), optimum), abs=1e-6 * scale)


def test_without_bias_weights_are_inverse_to_variances():
    assert _smallest_on_simplex(np.diag([1.0, 2.0, 4.0])) == pytest.approx(np.array([4, 2, 1]) / 7, rel=1e-9)


def test_a_client_that_is_like_nobody_keeps_its_own_head():
    assert _smallest_on_simplex(np.diag([1e-3, 0, 0]) + 100 * np.diag([0, 1, 1.0])) == pytest.approx([1, 1e-5, 1e-5], abs=1e-4)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_where_all_is_zero_all_heads_count_alike(size):
    assert _smallest_on_simplex(np.zeros((size, size))).tolist() == pytest.approx([1 / size] * size)


def test_the_problem_is_that_of_the_papers_statistics():
    """Variance plus squared bias, spelled out and given to a generic solver, for every client of the round."""
    updates = [arriving(k) for k in range(4)]
    h = np.stack([u.extras["fedpac/means"].double().numpy() for u in updates])
    v = np.array([float(u.extras["fedpac/variance"]) for u in updates])
    for i, row in enumerate(_collaboration(updates)):

        def loss(w, i=i):
            return (w**2 * v).sum() + np.square(h[i] - np.tensordot(w, h, axes=1)).sum()

        generic = minimize(
            loss, np.full(4, 0.25), bounds=[(0, 1)] * 4, constraints={"type": "eq", "fun": lambda w: w.sum() - 1}, tol=1e-12
        )
        assert row == pytest.approx(generic.x, abs=1e-4)
        assert loss(row) <= generic.fun + 1e-9


# --- rounds ----------------------------------------------------------------------------------------------------------------


def trained_head(model, update):
    return {name: model[name] + update.delta[name] for name in ("head.weight", "head.bias")}


def test_everybody_gets_a_head_of_its_own(model):
    pac, updates = FedPAC(), [arriving(k, num_samples=10 + k) for k in (3, 0, 2)]
    server, after = pac.aggregate(pac.init(facts(model)), model, iter(updates))
    heads = [trained_head(model, update) for update in updates]
    for update, row in zip(updates, _collaboration(updates), strict=True):
        sent = pac.broadcast(server, after, update.client_id).model
        assert torch.equal(sent["body.weight"], after["body.weight"])
        for name in ("head.weight", "head.bias"):
            expected = sum(w * head[name].double() for w, head in zip(row, heads, strict=True))
            torch.testing.assert_close(sent[name].double(), expected, rtol=1e-5, atol=1e-6)
    assert pac.broadcast(server, after, 1).model is after  # who has not taken part
    first, second = (pac.broadcast(server, after, client_id).model["head.bias"] for client_id in (0, 2))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("weighting", ["equal", "samples"])
def test_the_global_model_is_the_weighted_mean_of_the_clients_models(model, weighting):
    """Also in a later round, when clients start from different heads."""
    pac = FedPAC(weighting=weighting)
    server, sizes = pac.init(facts(model)), (10, 30)
    for round in (1, 2):
        updates = [arriving(k, seed=round, num_samples=n) for k, n in enumerate(sizes)]
        ended = [state.add(pac.broadcast(server, model, k).model, updates[k].delta) for k in range(2)]
        server, model = pac.aggregate(server, model, iter(updates))
        shares = [0.5, 0.5] if weighting == "equal" else [0.25, 0.75]
        for name, tensor in model.items():
            torch.testing.assert_close(tensor, sum(p * end[name] for p, end in zip(shares, ended, strict=True)))
    _, plain = FedAvg(weighting=weighting).aggregate({}, model, iter(updates))
    _, ours = pac.aggregate(server, model, iter(updates))
    assert not torch.allclose(plain["head.weight"], ours["head.weight"])


def test_who_stays_away_keeps_its_head(model):
    pac = FedPAC()
    server, after = pac.aggregate(pac.init(facts(model)), model, iter([arriving(0), arriving(1)]))
    head = pac.broadcast(server, after, 0).model["head.weight"]
    server, again = pac.aggregate(server, after, iter([arriving(1, seed=1), arriving(2, seed=1)]))
    assert torch.equal(pac.broadcast(server, again, 0).model["head.weight"], head)
    assert sorted(server["heads"]) == [0, 1, 2]


def test_mean_features_are_averaged_by_the_samples_of_each_class(model):
    pac = FedPAC()
    server = pac.init(facts(model))
    assert pac.broadcast(server, model, 0).extras == {}
    updates = [arriving(0, counts=(4, 6, 0)), arriving(1, counts=(0, 2, 0))]
    server, model = pac.aggregate(server, model, iter(updates))
    sent = pac.broadcast(server, model, 5).extras
    first, second = (u.extras["fedpac/centroids"] for u in updates)
    torch.testing.assert_close(sent["fedpac/centroids"][0], first[0])
    torch.testing.assert_close(sent["fedpac/centroids"][1], 0.75 * first[1] + 0.25 * second[1])
    assert sent["fedpac/known"].tolist() == [1, 1, 0]
    later = arriving(0, seed=1, counts=(0, 1, 1))
    server, _ = pac.aggregate(server, model, iter([later]))
    sent_later = pac.broadcast(server, model, 5).extras
    assert torch.equal(sent_later["fedpac/centroids"][0], sent["fedpac/centroids"][0])  # nobody held the class this time
    torch.testing.assert_close(sent_later["fedpac/centroids"][1:], later.extras["fedpac/centroids"][1:])
    assert sent_later["fedpac/known"].tolist() == [1, 1, 1]


def test_clients_that_send_no_statistics_are_refused_at_the_first_update(tiny_federation):
    """A federation whose objective is not FedPAC's; ``build`` refuses that pair before it starts."""
    with pytest.raises(BadUpdateError, match=r"from client \d in round 1, but its extras lacks 'fedpac/centroids'"):
        tiny_federation(aggregator=FedPAC()).run_round()


def test_a_model_without_a_head_is_averaged_as_by_fedavg(model):
    del model["head.weight"], model["head.bias"]
    pac = FedPAC()
    assert pac.extras(facts(model)) == {}
    updates = [arriving(k, num_samples=10 + k) for k in (3, 0, 2)]
    server, after = pac.aggregate(pac.init(facts(model)), model, iter(updates))
    _, plain = FedAvg(weighting="samples").aggregate({}, model, iter(updates))
    assert state.digest(after) == state.digest(plain)
    assert pac.broadcast(server, after, 0).model is after


@pytest.mark.parametrize("personal", ["head.weight", "head.bias"])
def test_heads_that_stay_with_the_clients_are_refused_before_the_first_round(model, personal):
    with pytest.raises(ConfigError, match="but they keep them: choose personal=none"):
        FedPAC().init(facts(model, personal=frozenset({personal})))
    FedPAC().init(facts(model, personal=frozenset({"body.weight"})))
