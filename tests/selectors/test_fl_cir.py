from math import inf, log, nan, sqrt

import numpy as np
import pytest
import torch
from scipy.stats import entropy
from torch import nn

from fedfacet import rng, state
from fedfacet.aggregators.fedavg import FedAvg
from fedfacet.assembly import assemble
from fedfacet.build import build
from fedfacet.clients.prediction import head_gradients
from fedfacet.engines.sequential import SequentialEngine
from fedfacet.engines.workers import WorkersEngine
from fedfacet.errors import ConfigError
from fedfacet.mechanisms.server_data import ServerEvaluation
from fedfacet.records import Ledger, RoundResult
from fedfacet.selectors.fl_cir import FLCIRSelector, class_shares
from fedfacet.types import ClientUpdate, ServerData

JOB = ("experiment=digits_gsc", "callbacks=[]", "logger=[]", "selector=fl_cir", "aggregator=fedavg")

ONE_CLASS_EACH = [[[9, 9], [1, 1]], [[1, 1], [9, 9]], [[10, 8], [1, 1]], [[1, 1], [8, 10]], [[5, 5], [5, 5]]]


def learnt(run, gradients, round=1):
    """Return the state after a round in which clients' models had these gradients."""
    updates = [
        ClientUpdate(k, {"w": torch.tensor([float(k)])}, {}, 10, 1, 1.0, {"loss_sum": 1.0, "num_seen": 1}) for k in gradients
    ]
    result = RoundResult(round, tuple(gradients), (), {}, Ledger(), {}, run.num_clients)
    judge = lambda change: np.array(gradients[int(change["w"])], dtype=float)  # noqa: E731
    run.state = run.selector.observe(run.state, result, updates, rng.stream(0, "selector-learns", round), judge=judge)
    return run.state


def known(run, shares, times):
    run.state = {"shares": torch.tensor(np.array(shares), dtype=torch.float64), "times": torch.tensor(times)}


# Cohorts


def greedy(shares, bonus, size):
    """Return a cohort, found by trying every client for every place; the divergence is scipy's."""
    uniform = np.full(len(shares[0]), 1.0)
    value = {k: 1 / entropy(p, uniform) + bonus[k] for k, p in enumerate(shares)}
    cohort = [max(value, key=value.get)]
    while len(cohort) < size:
        left = {k: entropy(np.sum([shares[i] for i in (*cohort, k)], axis=0), uniform) for k in value if k not in cohort}
        cohort.append(min(left, key=left.get))
    return cohort


def test_with_true_shares_it_is_the_greedy_cohort(server):
    for seed in range(20):
        draw = rng.stream(seed, "unused")
        shares, times = draw.dirichlet(np.full(3, 0.5), size=8), draw.integers(1, 9, size=8).tolist()
        run = server(FLCIRSelector(exploration=2.0), 8, 5)
        known(run, shares, times)
        bonus = [2.0 * sqrt(3 * log(7) / (2 * number)) for number in times]
        assert run.select(7) == greedy(shares, bonus, 5), seed


def test_who_was_seen_seldom_gains(server):
    """Only the first place depends on it: the second client is nearer to balance, with 1 / KL of 50 and 12."""
    shares = [[0.3, 0.7], [0.4, 0.6], [0.0, 1.0]]
    for exploration, first in ((0.0, 1), (50.0, 0)):
        run = server(FLCIRSelector(exploration=exploration), 3, 1)
        known(run, shares, [1, 9, 9])
        assert run.select(20) == [first]


def test_those_never_seen_come_first_by_lot(server):
    run = server(FLCIRSelector(), 6, 3)
    known(run, [[0.5, 0.5]] * 4 + [[0.0, 0.0]] * 2, [1, 1, 1, 1, 0, 0])
    cohorts = [run.select(round) for round in range(2, 200)]
    assert {frozenset(cohort[:2]) for cohort in cohorts} == {frozenset({4, 5})}
    assert {cohort[0] for cohort in cohorts} == {4, 5}
    assert {cohort[2] for cohort in cohorts} == {0, 1, 2, 3}, "ties are broken by lot"
    known(run, np.zeros((6, 2)), [0] * 6)
    assert len({frozenset(run.select(round)) for round in range(1, 300)}) == 20


# What is learnt


def test_shares_are_means_of_what_gradients_tell(server):
    """1 / rho is the share of 1 / G: (1/4, 3/4) and (1/2, 1/2); with beta = log 9 the shares are (1/4, 3/4) and (1/2, 1/2)."""
    run = server(FLCIRSelector(sharpness=log(9)), 4, 2)
    learnt(run, {2: (3.0, 1.0), 0: (1.0, 3.0)})
    learnt(run, {2: (5.0, 5.0)}, round=2)
    assert run.state["times"].tolist() == [1, 0, 2, 0]
    assert run.state["shares"].numpy() == pytest.approx(np.array([[0.75, 0.25], [0, 0], [0.375, 0.625], [0, 0]]))
    before = run.state
    assert learnt(run, {}) is before


def test_without_softmax_shares_are_those_of_the_released_code():
    """``compute_ratio``: the least square over each, (1/4, 1/2, 1), over their sum."""
    assert class_shares(np.array([4.0, 2.0, 1.0]), None) == pytest.approx([1 / 7, 2 / 7, 4 / 7])
    assert np.isnan(class_shares(np.array([inf, 1.0]), None)).all()


@pytest.mark.parametrize(
    ("squares", "shares"),
    [
        ((0.0, 0.0), (0.5, 0.5)),
        ((0.0, 1.0), (np.e / (1 + np.e), 1 / (1 + np.e))),
        ((0.0, 0.0, 1.0), np.array([np.sqrt(np.e), np.sqrt(np.e), 1]) / (1 + 2 * np.sqrt(np.e))),
        ((1e-320, 1e300), (np.e / (1 + np.e), 1 / (1 + np.e))),
        ((2.0,) * 10, (0.1,) * 10),
        ((inf, 1.0), (nan, nan)),
    ],
)
def test_gradients_that_are_hard_to_divide_by(squares, shares):
    assert class_shares(np.array(squares), 1.0) == pytest.approx(np.array(shares), nan_ok=True)
    if np.isfinite(squares).all():
        assert class_shares(np.array(squares), 1e3).sum() == pytest.approx(1)


def test_gradients_that_are_nan_teach_nothing_and_are_named(server, caplog):
    run = server(FLCIRSelector(), 3, 3)
    learnt(run, {0: (1.0, 2.0), 1: (nan, 1.0), 2: (inf, 1.0)})
    assert "Round 1: the gradients of 2 of 3 clients' models are not finite and teach nothing: clients 1, 2." in caplog.text
    assert run.state["times"].tolist() == [1, 0, 0]
    assert run.state["shares"].isfinite().all()


# In a federation


def test_a_client_heavy_of_a_class_is_known_by_it(tiny_federation):
    run = tiny_federation(selector=FLCIRSelector(), matrices=ONE_CLASS_EACH, cohort_size=5, rounds=3)
    run.fit()
    shares = run.state.selector["shares"]
    assert shares[:4].argmax(dim=1).tolist() == [0, 1, 0, 1]
    assert run.state.selector["times"].tolist() == [3] * 5


def test_gradients_are_those_of_each_clients_own_model(tiny_federation):
    """The state is what this test finds by itself from the updates of a federation that keeps them."""
    seen = []

    class Watched(FLCIRSelector):
        def observe(self, server, result, updates, rng, *, judge):
            seen.append([(update.client_id, update.delta | update.buffers) for update in updates])
            return super().observe(server, result, updates, rng, judge=judge)

    run = tiny_federation(selector=Watched(sharpness=5.0), cohort_size=3, rounds=1)
    before, samples = run.state.model, run.find(ServerEvaluation).server_data.samples
    result = run.run_round()
    for client_id, change in seen[0]:
        squares = head_gradients(run.engine.clients, state.add(before, change), samples)
        assert run.state.selector["shares"][client_id].tolist() == class_shares(squares, 5.0).tolist()
    assert result.metrics["server/samples"] == 3 * len(samples)
    assert result.ledger.query_floats_up == result.ledger.query_samples == 0


def test_workers_change_nothing(tiny_federation):
    ends = []
    for engine in (SequentialEngine(device="cpu"), WorkersEngine(workers=2, device="cpu")):
        run = tiny_federation(selector=FLCIRSelector(), engine=engine, rounds=3)
        run.fit()
        ends.append((state.digest(run.state.model), state.digest(run.state.selector)))
    assert ends[0] == ends[1]


@pytest.mark.parametrize(
    ("also", "said"),
    [
        ((), "for selector=fl_cir, but the server has no samples: choose server_data=validation, or another selector."),
        (("server_data=validation", "personal=head"), "`personal` keeps layers with the clients"),
    ],
)
def test_it_is_refused_in_one_sentence(also, said, job_of, tmp_path):
    with pytest.raises(ConfigError, match=said) as info:
        build(job_of(*JOB, *also), tmp_path / "run")
    assert "\n" not in str(info.value)


def test_a_model_without_features_and_head_is_refused(tiny_clients):
    class Bare(nn.Sequential):
        def __init__(self, num_classes, input_shape):
            super().__init__(nn.Flatten(), nn.Linear(16, num_classes))

    clients, engine = tiny_clients(model=Bare), SequentialEngine(device="cpu")
    parts = {"selector": FLCIRSelector(), "participation": None, "server_data": ServerData(clients.dataset.test)}
    with pytest.raises(ConfigError, match="the model has no `features` with a linear `head` on top: choose another model, or"):
        assemble(clients, engine=engine, aggregator=FedAvg(), rounds=1, cohort_size=1, seed=0, **parts)


@pytest.mark.parametrize(
    ("option", "value"),
    [("sharpness", 0.0), ("sharpness", 1e4), ("sharpness", nan), ("exploration", -1.0), ("exploration", inf)],
)
def test_impossible_arguments_are_refused(option, value):
    with pytest.raises(ValueError, match=f"Expected `{option}` .*, but got {value}"):
        FLCIRSelector(**{option: value})
