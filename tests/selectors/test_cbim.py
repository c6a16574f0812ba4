import json
import logging
from itertools import pairwise
from math import inf, nan

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedfacet import config, rng, state
from fedfacet.build import build
from fedfacet.callbacks.reputation import Reputation
from fedfacet.clients.queries.base import answer_query
from fedfacet.clients.queries.resources import Resources
from fedfacet.devices.synthetic import LognormalDevices
from fedfacet.engines.workers import WorkersEngine
from fedfacet.errors import ConfigError
from fedfacet.mechanisms.server_data import ServerEvaluation
from fedfacet.methods.cbim import CBIMSelector, Contract, menu_of
from fedfacet.participation import Dropouts
from fedfacet.records import Ledger, RoundResult
from fedfacet.storage.run_files import rows_of
from fedfacet.types import Broadcast, ClientTask, ClientUpdate, Facts, RoundNeeds

MATRICES = ([[6, 2], [2, 6]], [[1, 1], [1, 1]], [[3, 0], [0, 3]], [[9, 5], [5, 9]], [[2, 2], [2, 2]])
SECONDS = [8.0, 6.0, 4.0, 2.0, 2.0]
MENU = menu_of(SECONDS, 4, lowest=0.5, highest=1.0, unit_cost=1.0)


def cbim(**options):
    return CBIMSelector(contract=Contract(), resources=Resources(), **options)


def update(client_id, delta):
    change = {"w": torch.tensor([float(delta)], dtype=torch.float64)}
    return ClientUpdate(client_id, change, {}, 10, 1, 1.0, {"loss_sum": 1.0, "num_seen": 1})


def judge(change):
    """A model that is moved by w of 1 or less is right on 50 + 50 w of 100 samples."""
    right = round(50 + 50 * min(1.0, float(change["w"]))) if change else 50
    return np.array([[[right, 100 - right]], [[0, 0]]])


def learnt(selector, server, cohort, deltas):
    updates = [update(client_id, delta) for client_id, delta in deltas.items()]
    result = RoundResult(1, tuple(cohort), (), {}, Ledger(), {}, len(server["past"]))
    return selector.observe(server, result, updates, rng.stream(0, "selector-learns", 1), judge=judge)


@pytest.fixture
def market(server):
    """Return a function: rewards that clients answer, reputations, cohort size -> a server."""

    def make(rewards, reputations, cohort_size, seconds=SECONDS, **options):
        resources = [[1.0, second, 1.0] for second in seconds]
        run = server(cbim(**options), len(rewards), cohort_size, answers={"contract": rewards, "resources": resources})
        run.state = {**run.state, "reputation": torch.tensor(reputations, dtype=torch.float64)}
        return run

    return make


# Who is taken


def test_the_dearest_contracts_of_good_reputation_come_first(market):
    rewards = [MENU.rewards[0], MENU.rewards[1], MENU.rewards[2], MENU.rewards[3], 0.0]
    run = market(rewards, [0.5, 0.9, 0.6, 0.49, 1.0], 2)
    assert run.select(1) == [2, 1], "one is below the threshold, one takes nothing"
    assert [asked for _, asked in run.asked] == [[0, 1, 2, 3, 4], [0, 1, 2, 4]], "only candidates are offered a contract"
    assert market(rewards, [0.2] * 5, 2).select(1) == []


def test_the_best_types_are_taken_while_the_budget_lasts(market):
    rewards = [MENU.rewards[m] for m in (0, 1, 2, 3, 3)]
    budget = MENU.rewards[3] + MENU.rewards[1] + 1e-9
    cohorts = {tuple(market(rewards, [0.5] * 5, 5, round_budget=budget).select(round)) for round in range(1, 30)}
    assert cohorts == {(3, 1), (4, 1)}, "the dearest by lot, then what still fits"


def test_what_is_not_on_the_menu_is_not_taken_and_told(market, caplog):
    run = market([nan, 99.0, -1.0, MENU.rewards[3], inf], [0.5] * 5, 5)
    with caplog.at_level(logging.WARNING):
        assert run.select(2) == [3]
    said = "Round 2: the choices of 4 of 5 clients are not on the menu and they are not taken: clients 0, 1, 2, 4."
    assert caplog.messages == [said]


def test_a_client_chooses_by_its_type_and_its_device(tiny_clients):
    clients = tiny_clients(matrices=MATRICES)
    clients.needs[:] = [RoundNeeds(1.0, second, 1.0, 1.0) for second in [2.0, 8.0, 9.0, 2.0, 2.0]]
    weights = state.clone(clients.objective.model.state_dict())

    def ask(client_id, seed, round=1):
        task = ClientTask(client_id, round, seed, Broadcast(weights))
        return answer_query(clients, Contract().offered(MENU), task)

    found = [ask(0, seed).value for seed in range(100)]
    assert set(found) == set(MENU.rewards), "each quarter of the types has an item of its own"
    assert {ask(1, seed).value for seed in range(20)} == {MENU.rewards[0]}, "its device is quick enough for that alone"
    assert {ask(2, seed).value for seed in range(20)} == {0.0}
    assert [ask(0, 3, round).value for round in range(1, 9)] == [found[3]] * 8, "a type is for the whole run"
    assert (ask(0, 0).floats_up, ask(0, 0).samples) == (1, 0)
    with pytest.raises(RuntimeError, match=r"^Expected a choice from a menu, but none was offered"):
        answer_query(clients, Contract(), ClientTask(0, 1, 0, Broadcast(weights)))


# Reputation


def test_reputation_by_hand():
    """Client 0: good, then lost; client 1: bad twice; client 2: good twice; client 3: never there."""
    selector = cbim(recent=1)
    server = selector.init(Facts(4, {}, ()))
    assert server["reputation"].tolist() == [0.5] * 4
    server = learnt(selector, server, [0, 1, 2], {0: 0.6, 1: -2.0, 2: 0.5})
    assert server["recent"].flatten().tolist() == [1, 2, 1, 0]
    assert server["reputation"].tolist() == [1.0, 0.0, 1.0, 0.5]
    server = learnt(selector, server, [0, 1, 2], {1: -2.0, 2: 0.5})
    assert server["recent"].flatten().tolist() == [3, 2, 1, 0]
    assert server["past"].tolist() == [[1, 0, 0], [0, 1, 0], [1, 0, 0], [0, 0, 0]]
    # good 0.4, lost 0.6: u = 0.6, b = 0.4
    assert server["reputation"].tolist() == pytest.approx([0.4 + 0.5 * 0.6, 0.0, 1.0, 0.5])
    server = learnt(selector, server, [0], {0: -2.0})
    # good 0.4, lost 0.4, bad 0.6 (alone, it is worse than none): u = 0.4 / 1.4, b = 1 / 1.4 * 0.16 / 0.52
    assert server["reputation"][0].item() == pytest.approx(0.16 / 0.52 / 1.4 + 0.5 * 0.4 / 1.4)


def test_the_tolerance_is_of_the_accuracy_without_one():
    """All three: 0.5 of the mean 0; without client 2: of 0.2, which is 10 samples of 100 more."""
    for tolerance, end in ((0.09, 2), (0.11, 1)):
        selector = cbim(tolerance=tolerance)
        server = learnt(selector, selector.init(Facts(3, {}, ())), [0, 1, 2], {0: 0.2, 1: 0.2, 2: -0.4})
        assert server["recent"][:, 0].tolist() == [1, 1, end]


@given(
    st.lists(st.sampled_from([1, 2, 3]), max_size=14),
    st.integers(1, 4),
    st.sampled_from([0.5, 0.6, 0.9]),
    st.sampled_from([0.5, 0.6, 0.8]),
)
def test_bad_rounds_lower_a_reputation_strictly(history, recent, bad_weight, recent_weight):
    """After any history; two of them, and the second too unless nothing is left to lose."""
    selector = cbim(recent=recent, bad_weight=bad_weight, recent_weight=recent_weight)
    server = selector.init(Facts(1, {}, ()))
    for end in history:
        server = learnt(selector, server, [0], {1: {0: 0.5}, 2: {0: -0.9}, 3: {}}[end])
    reputations = [server["reputation"].item()]
    for _ in range(2):
        server = learnt(selector, server, [0], {0: -0.9})
        reputations.append(server["reputation"].item())
    assert all(0 <= reputation <= 1 for reputation in reputations)
    assert all(after < before or before == 0 for before, after in pairwise(reputations))


# In a federation


def test_members_are_paid_when_their_updates_arrive(tiny_federation, tmp_path):
    options = {"participation": Dropouts(dropout_probability=0.4), "devices": LognormalDevices()}
    callbacks = {"reputation": Reputation(run_dir=tmp_path)}
    federation = tiny_federation(
        matrices=MATRICES, selector=cbim(tolerance=1.0), cohort_size=3, rounds=6, callbacks=callbacks, **options
    )
    lost, rows = 0, []
    callbacks["reputation"].on_fit_start(federation)
    for _ in range(6):
        result = federation.run_round()
        paid = sum(federation.state.disclosures["contract"][k] for k in result.arrived)
        assert result.metrics["selector/spent"] == pytest.approx(paid)
        assert result.metrics["server/samples"] == (len(result.arrived) + 1) * len(
            federation.find(ServerEvaluation).server_data.samples
        ) * bool(paid)
        lost += len(result.cohort) - len(result.arrived)
        rows += [(result.round, k, federation.state.selector["reputation"][k].item()) for k in sorted(result.cohort)]
    assert lost > 0
    written = rows_of(tmp_path / "reputation.csv")
    assert [(int(row["round"]), int(row["client"]), float(row["reputation"])) for row in written] == rows


def test_other_processes_choose_alike(tiny_federation):
    found = []
    for engine in (None, WorkersEngine(workers=2, device="cpu")):
        federation = tiny_federation(matrices=MATRICES, selector=cbim(), devices=LognormalDevices(), engine=engine)
        federation.run_round()
        found.append((federation.state.disclosures["contract"], federation.state.selector["reputation"].tolist()))
        federation.engine.close()
    assert found[0] == found[1]


@pytest.mark.parametrize(("seed", "rounds"), [(0, 10), pytest.param(1, 20, marks=pytest.mark.slow)])
def test_clients_that_send_noise_end_with_the_lowest_reputation(seed, rounds, tmp_path):
    """3 of 24; the median keeps the model alive meanwhile. They are below the threshold or about to be; nobody else is."""
    overrides = (
        "experiment=digits_gsc", "method=cbim", "aggregator=coordinate_median", "transforms=random_update",
        "transforms.random_update.clients=[0,1,2]", "local.amount=5", f"federation.rounds={rounds}", f"seed={seed}",
        "callbacks=[summary,reputation]", "logger=[]",
    )  # fmt: skip
    job, _ = config.compose_job("train", list(overrides))
    federation = build(job, tmp_path)
    federation.fit()
    reputations, counts = (
        json.loads((tmp_path / "summary.json").read_text())["reputation"],
        federation.state.participation_counts,
    )
    noisy = [reputations[k] for k in (0, 1, 2) if counts[k]]
    honest = [reputations[k] for k in range(3, 24) if counts[k]]
    assert len(noisy) >= 2
    assert max(noisy) < 0.5 <= min(honest)
    assert len(honest) >= 9


def test_reputations_of_other_selectors_are_refused(tiny_federation, tmp_path):
    federation = tiny_federation(callbacks={"reputation": Reputation(run_dir=tmp_path)})
    with pytest.raises(ConfigError, match=r"^Expected a selector that keeps reputations .*, but UniformSelector does not"):
        federation.callbacks["reputation"].on_fit_start(federation)


@pytest.mark.parametrize(
    "wrong",
    [
        {"items": 0}, {"lowest": 0.0}, {"lowest": 2.0}, {"highest": inf}, {"unit_cost": 0.0}, {"round_budget": 0.0},
        {"threshold": 0.6}, {"threshold": -0.1}, {"tolerance": nan}, {"bad_weight": 0.4}, {"recent_weight": 1.0}, {"recent": 0},
        {"uncertainty_weight": 1.1},
    ],
)  # fmt: skip
def test_impossible_arguments_are_refused(wrong):
    with pytest.raises(ValueError, match=f"^Expected `{next(iter(wrong)).replace('highest', 'lowest')}`"):
        cbim(**wrong)
