"""One ledger of steps, rounds and answers: by Opacus, by closed forms, and by who has answered what."""

import csv
import json
import logging
import statistics

import numpy as np
import pytest
import torch
from opacus.accountants import PRVAccountant

from fedfacet.build import build
from fedfacet.config import compose_job
from fedfacet.errors import CheckpointError, ConfigError
from fedfacet.mechanisms.privacy import DifferentialPrivacy
from fedfacet.metrics.proven_epsilon import Mechanism, composed_epsilon, proven_epsilon

ANSWERS = ("selector=diversity_score", "selector.label_histogram.noise_multiplier=2")
CENTRAL = ("method=dp_fedavg", *ANSWERS, "selector.label_histogram.max_norm=40")
LOCAL = ("privacy=dp_sgd", "aggregator=fedavg")


def accounting_of(federation):
    return federation.find(DifferentialPrivacy).accounting


@pytest.fixture
def private(tmp_path):
    """Return a function: overrides -> a small federation."""

    def make(*overrides, callbacks="[]"):
        (tmp_path / "run").mkdir(exist_ok=True)
        job, _ = compose_job("train", ["debug=smoke", f"callbacks={callbacks}", "logger=[]", *overrides])
        return build(job, tmp_path / "run")

    return make


def test_rounds_and_an_answer_are_one_gaussian_mechanism(private):
    """Clients' histograms are asked for once: mu squared is T / z^2 + 1 / z_q^2."""
    federation = private(*CENTRAL, "federation.rounds=3", "privacy.noise_multiplier=1.5")
    found = [federation.run_round().metrics["privacy/epsilon"] for _ in range(3)]
    for round, epsilon in enumerate(found, 1):
        mu = np.sqrt(round / 1.5**2 + 1 / 2**2)
        assert epsilon == pytest.approx(proven_epsilon(1 / mu, 1.0, 1, 1e-5))
    assert federation.state.slots["privacy"]["times"] == {"label_histogram": 1}
    said = accounting_of(federation).summary(federation.state)
    assert said["epsilon"] == found[-1]
    assert said["covers"] == ["models", "answers to `label_histogram`"]
    assert said["unit"] == "client"
    assert said["noise_key"] == "simulation"
    assert "covered are the server's models and the noised answers to `label_histogram`" in said["says"]
    assert "the epsilon of a simulation and no guarantee" in said["says"]


def test_a_question_that_is_put_again_costs_again(private):
    """By the client that has answered most often."""
    federation = private(*CENTRAL, "federation.rounds=3")

    class Again(type(federation.selector)):
        def select(self, server, context):
            cohort = super().select(server, context)  # which asks everybody once
            if context.round > 1:
                context.ask(self.label_histogram, context.available[:2])
            return cohort

    object.__setattr__(federation.selector, "__class__", Again)
    times = []
    for _ in range(3):
        federation.run_round()
        times.append(federation.state.slots["privacy"]["times"]["label_histogram"])
    assert times == [1, 2, 3]


def test_every_client_has_the_epsilon_of_its_own_steps_and_answers(private, tmp_path):
    options = (*LOCAL, *ANSWERS, "federation.rounds=2", "local.unit=epochs", "local.amount=1", "local.batch_size=5")
    federation = private(*options, callbacks="[csv_log,summary]")
    federation.fit()
    with (tmp_path / "run" / "privacy.csv").open() as file:
        rows = list(csv.DictReader(file))
    sizes = list(map(len, federation.engine.clients.partition.indices))
    known = {}
    for k, row in enumerate(rows):
        steps = int(federation.state.participation_counts[k]) * -(-sizes[k] // 5)
        assert int(row["steps"]) == steps
        assert float(row["sampling_rate"]) == min(1.0, 5 / sizes[k])
        oracle = PRVAccountant()
        oracle.history = [(1.0, min(1.0, 5 / sizes[k]), steps)] * bool(steps) + [(2.0, 1.0, 1)]
        if (history := tuple(oracle.history)) not in known:
            with np.errstate(all="ignore"):
                known[history] = oracle.get_epsilon(1e-5)
        assert float(row["epsilon"]) == pytest.approx(known[history], rel=0.01)
        parts = [Mechanism(1.0, min(1.0, 5 / sizes[k]), steps), Mechanism(2.0, 1.0, 1)]
        assert float(row["epsilon"]) == composed_epsilon(parts, 1e-5, "prv")
    assert 0 in [int(row["steps"]) for row in rows], "somebody has only answered"
    epsilons = [float(row["epsilon"]) for row in rows]
    said = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert said["privacy"]["epsilon"] == said["final"]["privacy/epsilon"] == max(epsilons)
    assert said["privacy"]["epsilon_median"] == statistics.median(epsilons)
    assert f"({max(epsilons):.4g}, 1e-05)-differential privacy for the client with the largest" in said["privacy"]["says"]


def test_sizes_are_free_where_samples_are_hidden(private):
    federation = private(*LOCAL, "selector=size_weighted")
    federation.run_round()
    assert "num_samples" in federation.state.disclosures
    assert "times" not in federation.state.slots["privacy"]


def test_a_client_stops_at_its_limit_and_says_so(private, caplog):
    options = (*LOCAL, "selector=all", "federation.rounds=4", "local.batch_size=5")
    options += ("local.unit=epochs", "local.amount=1", "partition=quantity_skew")
    free = accounting_of(private(*options))
    one_round = [
        composed_epsilon([Mechanism(1.0, *spent)], 1e-5, "prv") for spent in zip(free.rates, free.planned, strict=True)
    ]
    assert len(set(one_round)) > 2
    first = int(np.argmin(one_round))  # it stops after two rounds
    limit = 1.001 * composed_epsilon([Mechanism(1.0, free.rates[first], 2 * free.planned[first])], 1e-5, "prv")
    federation = private(*options, f"privacy.max_epsilon={limit}")
    with caplog.at_level(logging.INFO, "fedfacet"):
        cohorts = [set(federation.run_round().cohort) for _ in range(4)]
    assert max(accounting_of(federation).epsilons(federation.state)) <= limit
    assert cohorts[0] == {k for k, epsilon in enumerate(one_round) if epsilon <= limit}
    assert [first in cohort for cohort in cohorts] == [True, True, False, False]
    for k in range(len(one_round)):
        said = sum(f"Client {k} takes no further part" in record.getMessage() for record in caplog.records)
        assert said == (k not in accounting_of(federation).admitted(federation.state, [k]))
    with pytest.raises(ConfigError, match=r"Expected a `privacy\.max_epsilon` that some client stays below"):
        private(*options, "privacy.max_epsilon=1e-6")


def test_a_resumed_run_goes_on_with_what_was_spent_and_with_its_key(private, tmp_path):
    (tmp_path / "key").write_bytes(bytes(range(16)))
    options = (*LOCAL, *ANSWERS, "federation.rounds=3", f"privacy.noise_key_file={tmp_path / 'key'}")
    whole, first, again = (private(*options) for _ in range(3))
    whole.fit()
    first.run_round()
    again.restore(first.state)
    again.fit()
    assert torch.equal(again.state.slots["privacy"]["steps"], whole.state.slots["privacy"]["steps"])
    assert again.state.slots["privacy"]["times"] == whole.state.slots["privacy"]["times"] == {"label_histogram": 1}
    assert all(torch.equal(again.state.model[name], tensor) for name, tensor in whole.state.model.items())
    plain = private(*options[:-1])
    assert whole.state.disclosures != plain.fit().disclosures, "another key, other noise on answers"
    with pytest.raises(CheckpointError, match="noise key"):
        plain.restore(first.state)


def test_other_processes_draw_the_same_noise(private, tmp_path):
    """On updates, counts and answers, from the key."""
    (tmp_path / "key").write_bytes(bytes(range(16)))
    options = (*CENTRAL, "federation.rounds=2", f"privacy.noise_key_file={tmp_path / 'key'}", "threads=1")
    options += ("privacy.target_quantile=0.5", "privacy.clipped_count_stddev=2")
    one, two = private(*options), private(*options, "engine=workers", "engine.workers=2")
    assert one.fit().slots == two.fit().slots
    assert one.state.disclosures == two.state.disclosures
    assert all(torch.equal(two.state.model[name], tensor) for name, tensor in one.state.model.items())


def test_without_delta_a_run_is_what_it_was(private):
    """One that began before there was an account: no column, no state."""
    federation = private(*LOCAL, "selector=uniform", "privacy.delta=null")
    assert "privacy/epsilon" not in federation.run_round().metrics
    assert federation.state.slots["privacy"] == {}


def test_the_tighter_accountant_of_clients(private):
    federation = private(*LOCAL, "selector=uniform")
    federation.run_round()
    spent = federation.state.slots["privacy"]["steps"].tolist()
    k = int(np.argmax(spent))
    oracle = PRVAccountant()
    oracle.history = [(1.0, accounting_of(federation).rates[k], spent[k])]
    found = accounting_of(federation).epsilons(federation.state)
    assert found[k] == pytest.approx(oracle.get_epsilon(1e-5))
    assert found[k] < accounting_of(federation).epsilons(federation.state, "rdp")[k]
    assert accounting_of(federation).metrics(federation.state, federation.state, due=True)["privacy/epsilon"] == max(found)
    assert accounting_of(federation).summary(federation.state)["accountant"] == "privacy loss random variables, PRV (Opacus)"


def test_where_the_tighter_one_has_no_bound_the_other_one_is_named(private):
    federation = private(*LOCAL, "selector=uniform", "privacy.noise_multiplier=0.1")
    federation.run_round()
    said = accounting_of(federation).summary(federation.state)
    assert said["epsilon"] == max(accounting_of(federation).epsilons(federation.state, "rdp")) > 50
    assert said["accountant"] == "Rényi divergences (Opacus), as PRV has no finite bound here"
    assert said["accountant"] in said["says"]


@pytest.mark.parametrize("unknown", [float("nan"), float("inf")])
def test_a_bound_that_is_no_number_is_none(unknown, monkeypatch):
    """Not an epsilon of 0."""
    monkeypatch.setattr(PRVAccountant, "get_epsilon", lambda *_: unknown)
    parts = [Mechanism(1.234, 0.2, 7)]
    assert composed_epsilon(parts, 1e-5, "prv") == composed_epsilon(parts, 1e-5, "rdp") > 0
