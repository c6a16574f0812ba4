import itertools
from collections import Counter
from math import exp, inf, nan

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from fedfacet import rng, state
from fedfacet.build import build
from fedfacet.callbacks.base import Callback
from fedfacet.errors import ConfigError
from fedfacet.mechanisms.server_data import ServerEvaluation
from fedfacet.methods.s_fedavg import SFedAvgSelector
from fedfacet.methods.shapley import shapley_values
from fedfacet.records import Ledger, RoundResult
from fedfacet.types import ClientUpdate

JOB = ("experiment=digits_gsc", "callbacks=[]", "logger=[]", "selector=s_fedavg", "aggregator=fedavg")


def update(client_id, delta, buffer=0.0):
    change = {"w": torch.tensor([float(delta)], dtype=torch.float64)}
    buffers = {"running": torch.tensor([float(buffer)], dtype=torch.float64)}
    return ClientUpdate(client_id, change, buffers, 10 + client_id, 1, 1.0, {"loss_sum": 1.0, "num_seen": 1})


def accuracy_is(function):
    """Return a judge for whom a model that is moved by w is right on 100 function(w) of 100 samples."""

    def judge(change):
        moved = float(change["w"]) if change else 0.0
        right = round(100 * function(moved))
        return np.array([[[right, 100 - right]], [[0, 0]]])

    return judge


def learnt(run, updates, judge, round=1):
    """Return the relevances after a round of these updates."""
    cohort = tuple(one.client_id for one in updates)
    result = RoundResult(round, cohort, (), {}, Ledger(), {}, run.num_clients)
    draw = rng.stream(0, "selector-learns", round)
    run.state = run.selector.observe(run.state, result, updates, draw, judge=judge)
    return run.state["relevance"].numpy()


# Draws


def test_the_cohort_is_drawn_by_a_softmax_of_relevance(server):
    run = server(SFedAvgSelector(temperature=0.5), 4, 2)
    relevance = np.array([0.1, 0.9, -0.3, 0.4])
    run.state = {"relevance": torch.from_numpy(relevance)}
    weights, expected = [exp(phi / 0.5) for phi in relevance], {}
    for first, second in itertools.permutations(range(4), 2):
        expected[first, second] = weights[first] / sum(weights) * weights[second] / (sum(weights) - weights[first])
    drawn = Counter(tuple(run.select(round)) for round in range(1, 2501))
    assert chisquare([drawn[pair] for pair in expected], [2500 * p for p in expected.values()]).pvalue > 1e-4


def test_the_papers_settings_hardly_prefer_a_client(server):
    """Algorithm 1 by hand: phi is 1/10, alpha .75, beta .25; a value of .5 makes it .2, which a softmax gives .109."""
    run = server(SFedAvgSelector(), 10, 1)
    found = learnt(run, [update(3, 1.0)], accuracy_is(lambda w: 0.25 if w == 0 else 0.75))
    assert found == pytest.approx([0.1] * 3 + [0.2] + [0.1] * 6)
    share = exp(0.2) / (exp(0.2) + 9 * exp(0.1))
    assert round(share, 3) == 0.109
    drawn = sum(run.select(round) == [3] for round in range(1, 4001))
    assert drawn / 4000 == pytest.approx(share, abs=4 * (share * (1 - share) / 4000) ** 0.5)


def test_at_first_all_are_alike(server):
    run = server(SFedAvgSelector(), 5, 2)
    assert run.state["relevance"].tolist() == [0.2] * 5
    drawn = Counter(frozenset(run.select(round)) for round in range(1, 1501))
    assert len(drawn) == 10
    assert chisquare(list(drawn.values())).pvalue > 1e-4


# What is learnt


def test_two_updates_by_hand(server):
    """v is .5 alone, .7 with the first, .4 with the second, .6 with their mean."""
    run = server(SFedAvgSelector(), 3, 2)
    judge = accuracy_is(lambda w: {0.0: 0.5, 2.0: 0.7, -1.0: 0.4, 0.5: 0.6}[w])
    shapley = [((0.7 - 0.5) + (0.6 - 0.4)) / 2, ((0.4 - 0.5) + (0.6 - 0.7)) / 2]
    found = learnt(run, [update(2, 2.0), update(0, -1.0)], judge)
    assert found == pytest.approx([0.75 / 3 + 0.25 * shapley[1], 1 / 3, 0.75 / 3 + 0.25 * shapley[0]])


def test_what_is_shared_out_is_what_the_round_gained(server):
    """Efficiency: with retention 0 and gain 1, relevances are the values, and add up to v(N) - v(nobody)."""
    for number in (4, 9):  # exact, and drawn
        run = server(SFedAvgSelector(retention=0.0, gain=1.0, tolerance=0.0), 9, number)
        updates = [update(k, (-1) ** k * 0.3 * k + 0.1) for k in range(number)]
        function = lambda w: 0.5 + 0.3 * np.tanh(w)  # noqa: E731
        mean = np.mean([float(one.delta["w"]) for one in updates])
        found = learnt(run, updates, accuracy_is(function))
        assert found[:number].sum() == pytest.approx((round(100 * function(mean)) - 50) / 100)


def test_equal_updates_have_equal_values(server):
    run = server(SFedAvgSelector(), 4, 3)
    found = learnt(run, [update(0, 1.0), update(1, -2.0), update(3, 1.0)], accuracy_is(lambda w: 0.5 + 0.2 * np.tanh(w)))
    assert found[0] == pytest.approx(found[3])
    assert found[0] > found[1]
    assert found[2] == 0.25, "who is away stays where it was"


def test_buffers_are_part_of_a_model(server):
    seen = []

    def judge(change):
        seen.append(tuple(float(change[name]) for name in ("w", "running")) if change else ())
        return np.array([[[1, 1]], [[0, 2]]])

    learnt(server(SFedAvgSelector(), 2, 2), [update(0, 1.0, 4.0), update(1, 3.0, 8.0)], judge)
    assert sorted(seen) == [(), (1.0, 4.0), (2.0, 6.0), (3.0, 8.0)]


def test_a_round_without_updates_teaches_nothing(server):
    run = server(SFedAvgSelector(), 3, 2)
    before = run.state
    learnt(run, [], None)
    assert run.state is before


# In a federation


@pytest.fixture
def mislabelled(tiny_clients):
    """Ten clients, of which 1, 4 and 8 have the other label throughout; no test sample has."""
    clients = tiny_clients(matrices=[[[8, 8], [8, 8]]] * 10)
    for client_id in (1, 4, 8):
        rows = clients.partition.indices[client_id]
        clients.dataset.y[rows] = 1 - clients.dataset.y[rows]
    return clients


def test_clients_with_wrong_labels_end_with_the_lowest_relevance(mislabelled, tiny_federation):
    federation = tiny_federation(selector=SFedAvgSelector(temperature=0.02), clients=mislabelled, cohort_size=4, rounds=25)
    federation.fit()
    relevance = federation.state.selector["relevance"]
    assert set(relevance.argsort()[:3].tolist()) == {1, 4, 8}
    counts = federation.state.participation_counts
    others = [k for k in range(10) if k not in (1, 4, 8)]
    assert counts[[1, 4, 8]].float().mean() < 0.7 * counts[others].float().mean(), "they are drawn less often too"


class Kept(Callback):
    needs_updates = True

    def on_updates(self, federation, updates):
        self.updates = list(updates)


def test_sub_cohorts_are_judged_on_the_servers_samples(tiny_federation):
    """The values are those of a game that is played here, with the engine's own measurement."""
    kept = Kept()
    selector = SFedAvgSelector(retention=0.0, gain=1.0)
    run = tiny_federation(selector=selector, cohort_size=3, rounds=3, callbacks={"kept": kept})
    samples = run.find(ServerEvaluation).server_data.samples
    for _ in range(3):
        before = run.state.model
        result = run.run_round()

        def accuracy(coalition, before=before):
            mean = state.weighted_mean((kept.updates[i].delta | kept.updates[i].buffers, 1.0) for i in coalition)
            counts = run.engine.evaluate(state.add(before, mean), [samples])[0].confusion
            counts = counts.reshape(counts.shape[1], -1, counts.shape[1])
            return np.einsum("yay->", counts) / counts.sum()

        expected = shapley_values(accuracy, 3, rng.stream(0, "unused"))
        assert run.state.selector["relevance"][list(result.cohort)].numpy() == pytest.approx(expected)
        assert result.metrics["server/samples"] == 8 * len(samples)
        assert result.ledger.query_floats_up == result.ledger.query_samples == 0


@pytest.mark.parametrize(
    ("also", "said"),
    [
        ((), "for selector=s_fedavg, but the server has no samples: choose server_data=validation, or another selector."),
        (("server_data=validation", "personal=head"), "`personal` keeps layers with the clients"),
        (
            ("server_data=validation", "capacity=proportions", "submodel=heterofl"),
            "compares whole updates: choose selector=uniform",
        ),
    ],
)
def test_it_is_refused_in_one_sentence(also, said, job_of, tmp_path):
    with pytest.raises(ConfigError, match=said) as info:
        build(job_of(*JOB, *also), tmp_path / "run")
    assert "\n" not in str(info.value)


def test_the_server_need_not_know_attributes(job_of, tmp_path, caplog):
    runs = [
        build(job_of(*JOB, "server_data=validation", f"server_data.attributes={known}"), tmp_path)
        for known in ("true", "false")
    ]
    ends = [(run.run_round().metrics["server/samples"], state.digest(run.state.model), run.state.selector) for run in runs]
    assert ends[0][:2] == ends[1][:2]
    assert torch.equal(ends[0][2]["relevance"], ends[1][2]["relevance"])
    assert "lie idle" not in caplog.text


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("temperature", 0.0), ("temperature", inf), ("gain", nan), ("retention", 1.1), ("retention", -0.1)),
        *(("permutations", 0), ("exact_up_to", -1), ("tolerance", -1.0)),
    ],
)
def test_impossible_arguments_are_refused(option, value):
    with pytest.raises(ValueError, match=f"Expected `{option}` .*, but got {value}"):
        SFedAvgSelector(**{option: value})
