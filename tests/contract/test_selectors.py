"""What every selector of conf/selector keeps to. The clients that answer its questions are real ones."""

import functools
import inspect
from copy import deepcopy
from dataclasses import replace
from math import nan
from types import MappingProxyType

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfacet import rng, state
from fedfacet.clients.queries.base import answer_query
from fedfacet.records import ClientReceipt, Disclosed, Ledger, RoundResult
from fedfacet.selectors.base import Taxonomy
from fedfacet.storage.fitting import misfit
from fedfacet.types import Broadcast, ClientTask, RoundNeeds, SelectionContext

NUM_CLIENTS = 7
SMALLER = {"favor": {"components": 4, "hidden": 16, "capacity": 8}}
"""Settings with which an option takes less time."""

METRICS = {"train/loss": 0.7, "train/num_steps": 12, "test/acc": 0.8, "test/acc_worst_group": 0.5}


@pytest.fixture(scope="module")
def answer(tiny_clients):
    """Return a function: a query and a client -> the client's own answer, found once; every seventh client answers alike."""
    counts = rng.stream(0, "contract").integers(1, 9, size=(NUM_CLIENTS, 2, 2)).tolist()
    clients = tiny_clients(matrices=counts)
    clients.needs[:] = [RoundNeeds(1.0 + k % 3, 2.0 + k % 4, 3.0 + k % 2, 400.0 + 100 * k) for k in range(NUM_CLIENTS)]
    weights = {name: tensor.clone() for name, tensor in clients.objective.model.state_dict().items()}
    known = {}

    def ask(query, client_id):
        client_id %= NUM_CLIENTS
        if (query.name, client_id) not in known:
            known[query.name, client_id] = answer_query(clients, query, ClientTask(client_id, 1, 0, Broadcast(weights))).value
        return known[query.name, client_id]

    return ask


@pytest.fixture(scope="module")
def run_of(make_part, answer, make_update, facts_of_model, same):
    """Return a function: option -> a run whose rounds hold the selector to its contract."""
    drawn = functools.cache(make_update)  # nobody writes to one

    class Run:
        def __init__(self, option, *, num_clients=NUM_CLIENTS, seed=0, answers=None, updates=None, metrics=METRICS):
            self.selector = make_part("selector", option, **SMALLER.get(option, {}))
            self.server = self.first = self.selector.init(replace(facts_of_model, num_clients=num_clients))
            self.num_clients = num_clients
            self.seed = seed
            self.answers = answers or (lambda query, client_id, value: value)
            self.updates = updates or (lambda update: update)
            self.metrics = metrics
            self.disclosed = {}

        def context(self, round, cohort_size, available):
            def ask(query, client_ids):
                assert set(client_ids) <= set(available), "only those who are there can be asked"
                answers = {client_id: self.answers(query, client_id, answer(query, client_id)) for client_id in client_ids}
                self.disclosed.setdefault(query.name, {}).update(answers)
                self.told |= {(client_id, query.name, query.kind): value for client_id, value in answers.items()}
                return answers

            return SelectionContext(
                round=round,
                num_clients=self.num_clients,
                cohort_size=cohort_size,
                num_slots=min(cohort_size, len(available)),
                available=tuple(available),
                disclosed=MappingProxyType(self.disclosed),
                rng=rng.stream(self.seed, "selection", round),
                ask=ask,
            )

        def select(self, round, cohort_size, available):
            before, self.told = deepcopy(self.server), {}
            cohort = self.selector.select(self.server, self.context(round, cohort_size, available))
            assert same(self.server, before), "select changes nothing"
            assert isinstance(cohort, list)
            assert all(type(client_id) is int for client_id in cohort), "plain ints, which JSON and a dict's keys understand"
            if not self.selector.sizes_itself:
                assert len(cohort) in (min(cohort_size, len(available)), len(available)), "as many as there are places, or all"
            assert len(set(cohort)) == len(cohort), "nobody twice"
            assert set(cohort) <= set(available)
            return cohort

        def wants_updates(self):
            return self.selector.needs_updates is not None and self.selector.needs_updates(self.server)

        def observe(self, result, updates):
            before = deepcopy([self.server, [update.delta for update in updates]])
            needed = self.selector.judges() if self.selector.judges is not None else None
            handed = {"judge": judge_gradients if needed == "gradients" else judge} if needed else {}
            if "change" in inspect.signature(self.selector.observe).parameters:
                changes = [(update.delta | update.buffers, 1.0) for update in updates]
                sent = (*facts_of_model.parameters, *facts_of_model.buffers)
                still = {name: torch.zeros_like(facts_of_model.model[name]) for name in sent}
                handed["change"] = state.weighted_mean(changes) or still
            draws = (rng.stream(self.seed, "selector-learns", result.round) for _ in range(2))
            learnt = [self.selector.observe(self.server, result, updates, draw, **handed) for draw in draws]
            assert same([self.server, [update.delta for update in updates]], before), "what it learns from is not written to"
            fault = misfit("selector", learnt[0], self.first, facts_of_model.model)
            assert fault is None, "a resume holds the state to the one that `init` returns"
            assert same(*learnt), "what it learns is a function of the state, the round and the generator"
            return learnt[0]

        def round(self, round, cohort_size, available, arrived=None):
            cohort = self.select(round, cohort_size, available)
            assert self.select(round, cohort_size, available) == cohort, "a round that was given up is drawn again"
            arrived = [client_id for client_id in cohort if arrived is None or client_id in arrived]
            updates = [self.updates(drawn(client_id, seed=round)) for client_id in arrived]
            receipts = tuple(
                ClientReceipt(
                    client_id=update.client_id,
                    num_samples=update.num_samples,
                    num_steps=update.num_steps,
                    **update.metrics,
                    answers={
                        name: known[update.client_id] for name, known in self.disclosed.items() if update.client_id in known
                    },
                )
                for update in updates
            )
            durations = {client_id: 1.0 + client_id % 5 for client_id in arrived}
            answers = {}
            for (client_id, query, _), value in self.told.items():
                answers.setdefault(query, {})[client_id] = value
            result = RoundResult(
                *(round, tuple(cohort), receipts, self.metrics, Ledger(), {}, self.num_clients),
                disclosed=tuple(Disclosed(*asked, 1, None) for asked in self.told),
                durations=durations,
                answers=answers,
            )
            if self.selector.remember is not None:
                assert self.selector.observe is None, "it learns in one way"
                self.server = self.selector.remember(self.server, cohort)
            if self.selector.observe is not None:
                self.server = self.observe(result, updates if self.wants_updates() else [])
            else:
                assert not self.wants_updates(), "nobody would look at them"
            return cohort

    return Run


def judge(change):
    """Return what a changed model says of samples of the server's, of two classes: counts that follow its first numbers."""
    first = next((float(tensor.flatten()[0]) for tensor in change.values()), 0.0)
    hits = round(100 + 50 * np.tanh(10 * first))
    return np.array([[[hits, 200 - hits]], [[60, 140]]])


def judge_gradients(change):
    """Return the squared gradients of a head's two rows, which follow a changed model's first numbers."""
    first = next((float(tensor.flatten()[0]) for tensor in change.values()), 0.0)
    return np.array([np.exp(first), 1.0])


SIZES = ((1, 1), (2, 1), (9, 9), (24, 12))
"""How many clients there are, and how many are chosen."""

LOST = {"local_loss": nan, "valuation": nan, "smoothness": nan, "loss_moments": [9.0, nan, nan]}
"""What clients answer whose model has diverged."""

UNKNOWN = {
    "resources": [nan, 1.0, 2.0],
    "round_joules": nan,
    "upload_seconds": nan,
    "bid": [1.0, nan, 1.0, 0.1],
    "contract": nan,
}


def test_the_taxonomy_is_its_own(selector_option, make_part):
    """Its row of the thesis' table 4; a selector that says nothing about itself would inherit nothing either."""
    selector = make_part("selector", selector_option)
    assert isinstance(vars(type(selector)).get("taxonomy"), Taxonomy), f"{type(selector).__name__} lacks a `taxonomy`"


def test_cohorts_of_any_size_with_everybody_there(selector_option, run_of):
    for cohort_size in (1, 2, 4, NUM_CLIENTS - 1, NUM_CLIENTS):
        run = run_of(selector_option)
        for round in range(1, 4):
            run.round(round, cohort_size, range(NUM_CLIENTS))


def test_every_size_of_federation(selector_option, run_of):
    for num_clients in range(1, NUM_CLIENTS + 1):
        run = run_of(selector_option, num_clients=num_clients)
        for round in range(1, 4):
            run.round(round, max(1, num_clients // 2), range(num_clients))


def test_a_cohort_of_one_and_of_all(selector_option, run_of):
    for num_clients, cohort_size in ((24, 1), (24, 24), (100, 100)):
        run = run_of(selector_option, num_clients=num_clients)
        for round in range(1, 3):
            run.round(round, cohort_size, range(num_clients))


def nothing(value):
    """Return an answer's zeros."""
    return [nothing(entry) for entry in value] if isinstance(value, list) else type(value)(0)


def test_clients_that_have_nothing_to_tell(selector_option, run_of):
    """Losses, sizes, counts, measures and updates that are zero throughout."""

    def still(update):
        return replace(
            update, delta={name: 0 * tensor for name, tensor in update.delta.items()}, metrics={"loss_sum": 0.0, "num_seen": 1}
        )

    options = {
        "answers": lambda query, client_id, value: nothing(value),
        "updates": still,
        "metrics": dict.fromkeys(METRICS, 0.0),
    }
    for num_clients, cohort_size in SIZES:
        run = run_of(selector_option, num_clients=num_clients, **options)
        for round in range(1, 4):
            run.round(round, cohort_size, range(num_clients))


def test_losses_that_are_nan(selector_option, run_of):
    """A model that diverged, on every client or on some; what else was measured is NaN too. Updates hold no NaN."""
    seen = set()

    def lose(lost):
        def answers(query, client_id, value):
            seen.add(query.name)
            return value if lost == "some" and not client_id % 2 else LOST.get(query.name, value)

        return {"answers": answers, "metrics": dict.fromkeys(METRICS, nan)}

    for lost in ("all", "some"):
        for num_clients, cohort_size in SIZES:
            run = run_of(selector_option, num_clients=num_clients, **lose(lost))
            for round in range(1, 4):
                run.round(round, cohort_size, range(num_clients))
        if not seen & LOST.keys():
            return  # it asks for no loss


def test_resources_that_are_nan(selector_option, run_of):
    """A client that does not know its own device."""

    def answers(query, client_id, value):
        return UNKNOWN.get(query.name, value) if client_id % 2 else value

    asked = set()
    for num_clients, cohort_size in reversed(SIZES):
        run = run_of(selector_option, num_clients=num_clients, answers=answers)
        for round in range(1, 4):
            run.round(round, cohort_size, range(num_clients))
        if not (asked := asked | run.disclosed.keys()) & UNKNOWN.keys():
            return  # it asks for none


@given(st.data())
@settings(max_examples=6)
def test_whoever_is_away_and_however_many_are_asked_for(selector_option, run_of, same, through_a_file, data):
    """Several rounds with clients coming and going; somewhere in between the selector is saved, loaded, and goes on alike."""
    num_rounds = 6
    run = run_of(selector_option, seed=data.draw(st.integers(0, 3)))
    loaded_after = data.draw(st.integers(1, num_rounds - 1))
    loaded = None
    for round in range(1, num_rounds + 1):
        available = sorted(data.draw(st.sets(st.integers(0, NUM_CLIENTS - 1), min_size=1)))
        arrived = data.draw(st.sets(st.integers(0, NUM_CLIENTS - 1)))
        cohort_size = data.draw(st.integers(1, NUM_CLIENTS))
        cohort = run.round(round, cohort_size, available, arrived)
        if loaded is not None:
            assert loaded.round(round, cohort_size, available, arrived) == cohort
            assert same(loaded.server, run.server)
        if round == loaded_after:
            loaded = run_of(selector_option, seed=run.seed)
            loaded.server = through_a_file(run.server)
            assert same(loaded.server, run.server)
            loaded.disclosed.update({name: dict(answers) for name, answers in run.disclosed.items()})


def test_a_state_is_not_changed_by_later_rounds(selector_option, run_of, same):
    run = run_of(selector_option)
    for round in range(1, 4):
        run.round(round, 3, range(NUM_CLIENTS))
        saved = run.server
        copy = deepcopy(saved)
        run.round(round + 10, 3, range(NUM_CLIENTS))
        assert same(saved, copy)


def test_it_keeps_nothing_to_itself(selector_option, run_of, same):
    """A selector that has seen other rounds goes on from a state as one that is new does."""
    run = run_of(selector_option)
    for round in range(1, 4):
        run.round(round, 3, range(NUM_CLIENTS))
        server, disclosed = run.server, {name: dict(answers) for name, answers in run.disclosed.items()}
        fresh = run_of(selector_option)
        fresh.server, fresh.disclosed = server, {name: dict(answers) for name, answers in disclosed.items()}
        expected = fresh.round(4, 3, range(NUM_CLIENTS))
        run.round(14, 2, range(1, NUM_CLIENTS))
        run.server, run.disclosed = server, disclosed
        assert run.round(4, 3, range(NUM_CLIENTS)) == expected
        assert same(run.server, fresh.server)
        run.server = server


def test_everything_random_comes_from_the_context(selector_option, run_of):
    """Two selectors made at different times choose alike under one seed."""
    cohorts = []
    for _ in range(2):
        run = run_of(selector_option, seed=5)
        cohorts.append([run.round(round, 3, range(NUM_CLIENTS)) for round in range(1, 6)])
        np.random.default_rng().random(3)
    assert cohorts[0] == cohorts[1]
