"""A client whose answer is not as its query declares it is away in the round, or ends the run, as ``on_bad_update`` says."""

import logging
import math
import random

import numpy as np
import pytest

from fedfacet import state
from fedfacet.aggregators.agnostic import AgnosticFL
from fedfacet.answer_form import AnswerForm
from fedfacet.build import build, settle
from fedfacet.callbacks.base import Measurement
from fedfacet.clients.queries.base import Query
from fedfacet.clients.queries.counts import NumSamples
from fedfacet.clients.queries.local_loss import LocalLoss
from fedfacet.errors import BadUpdateError
from fedfacet.mechanisms.updates import UpdateCheck
from fedfacet.selectors.all import AllSelector
from fedfacet.selectors.base import ClientSelector
from fedfacet.selectors.pow_d import PowDSelector
from fedfacet.types import Answer

NONSENSE = (None, "high", "1.5", True, {"loss": 1.0}, [1.0], [[1.0], [2.0, 3.0]], -1.0, 10**400, 1e300, object)


class Told(LocalLoss):
    """A loss of which some clients tell something else."""

    def __init__(self, values):
        self.values = values

    def answer(self, context):
        answer = super().answer(context)
        return answer._replace(value=self.values.get(context.client_id, answer.value))


class Undeclared(Query):
    """A user's own query, which declares nothing."""

    name, needs_model = "mine", False

    def __init__(self, values):
        self.values = values

    def answer(self, context):
        return Answer(self.values.get(context.client_id, 1.0), floats_up=1, samples=0)


class First(ClientSelector):
    """Asks everybody, and takes the first."""

    def __init__(self, query):
        self.query = query

    def select(self, server, context):
        answers = context.ask(self.query, context.available)
        return [k for k in context.available if k in answers][: context.num_slots]


def pow_d(values):
    return PowDSelector(local_loss=Told(values), num_samples=NumSamples())


@pytest.mark.parametrize("value", NONSENSE, ids=repr)
def test_one_clients_nonsense_has_it_away_in_every_round(tiny_federation, value, caplog):
    federation = tiny_federation(selector=pow_d({1: value}), rounds=3, on_bad_update="drop")
    for round in (1, 2, 3):
        result = federation.run_round()
        assert sorted(one.client_id for one in result.disclosed if one.query == "local_loss") == [0, 1, 2, 3]
        assert result.ledger.query_floats_up == sum(one.floats_up for one in result.disclosed)
        assert 1 not in result.cohort
        assert caplog.text.count(f"from client 1 in round {round}, but its local_loss is ") == 1
    assert "an answer to the query local_loss that counts from client 1" in caplog.text
    assert "; the client is away." in caplog.text
    assert state.all_finite(federation.state.model)
    assert 1 not in federation.state.disclosures["local_loss"]


@pytest.mark.parametrize("value", NONSENSE, ids=repr)
def test_it_ends_the_run_with_a_sentence_where_the_user_asks_for_that(tiny_federation, value):
    federation = tiny_federation(selector=pow_d({1: value}))
    before = federation.state
    with pytest.raises(BadUpdateError, match=r"client 1 in round 1, but its local_loss is .*: lower the learning rate"):
        federation.run_round()
    assert federation.state is before


@pytest.mark.parametrize("bad", ["raise", "drop"])
def test_where_nobody_answers_well_one_sentence_ends_the_run(tiny_federation, bad):
    federation = tiny_federation(selector=First(Undeclared(dict.fromkeys(range(4)))), on_bad_update=bad)
    sentence = "an answer that counts in round 1, but 4 clients are away without one" if bad == "drop" else "from client 0 in"
    with pytest.raises(BadUpdateError, match=sentence):
        federation.run_round()


@pytest.mark.parametrize("value", [None, "x", {}, [None], [[1], 2], 10**400])
def test_a_query_that_declares_nothing_is_held_to_numbers(tiny_federation, value):
    assert tiny_federation(selector=First(Undeclared({0: value})), on_bad_update="drop").run_round().cohort == (1, 2)


@pytest.mark.parametrize(("value", "kept"), [(np.ones((1, 2)), [[1.0, 1.0]]), (np.float32(2), 2.0), ([[1], [2]], [[1], [2]])])
def test_numbers_of_any_shape_pass_and_arrays_become_lists(tiny_federation, value, kept):
    federation = tiny_federation(selector=First(Undeclared({0: value})))
    federation.run_round()
    assert federation.state.disclosures["mine"][0] == kept


@pytest.mark.parametrize("cost", [(None, 0), (1.5, 0), (1, -1), (1, "many")])
def test_costs_that_are_none_are_bad_answers(tiny_federation, cost):
    class Costly(Undeclared):
        def answer(self, context):
            return Answer(1.0, *cost) if context.client_id == 0 else super().answer(context)

    assert tiny_federation(selector=First(Costly({})), on_bad_update="drop").run_round().cohort == (1, 2)


def test_a_declaration_holds_in_terms_of_the_data_set(tiny_federation):
    class Pairs(Undeclared):
        form = AnswerForm(shape=("Y",), low=0)

    fits = [1.0] * tiny_federation().facts.num_classes
    told = {0: fits, 1: fits[:-1], 2: [-value for value in fits], 3: fits}
    assert tiny_federation(selector=First(Pairs(told)), on_bad_update="drop").run_round().cohort == (0, 3)


@pytest.mark.parametrize("value", [math.nan, math.inf, None, -1.0])
def test_what_an_aggregator_asks_must_be_finite(tiny_federation, value):
    aggregator = AgnosticFL(local_loss=Told({2: value}))
    federation = tiny_federation(aggregator=aggregator, selector=AllSelector(), cohort_size=4, on_bad_update="drop", rounds=3)
    for _ in range(3):
        assert federation.run_round().arrived == (0, 1, 3)
    assert math.isfinite(float(federation.state.aggregator["mixture"].sum()))


def test_a_loss_that_no_client_has_may_be_nan_where_losses_are_ranked(tiny_federation):
    """So it is where a model has diverged, or a client has no samples."""
    result = tiny_federation(selector=pow_d({1: math.nan, 2: math.inf})).run_round()
    assert result.cohort[0] == 2
    assert 1 not in result.cohort


def test_a_measurement_leaves_bad_answers_out(tiny_federation, caplog):
    class Counts(Measurement):
        name = "counts"

        def question(self):
            return Undeclared({1: "x", 3: None})

        def on_answers(self, federation, answers):
            self.seen = sorted(answers)

        def measure(self, federation, round):
            return {"counts/seen": float(len(self.seen))}

    federation = tiny_federation(callbacks={"counts": Counts()}, on_bad_update="drop")
    result = federation.run_round()
    assert result.metrics["counts/seen"] == 2
    assert result.ledger.query_floats_up == 4
    assert caplog.text.count("; the client is away.") == 2
    assert caplog.records[0].levelno == logging.WARNING


LEAVES = (None, "x", {}, [], math.nan, math.inf, -1, 0, 1e-300, 1e30, 3.4e38, 1e299, 10**400)


@pytest.mark.parametrize(
    "options",
    [
        "selector=fedcs selector.candidates=1.0", "selector=flame", "selector=fmore", "selector=bandwidth_threshold",
        "method=cbim server_data=validation", "method=lag devices=none selector.smoothness.iterations=1",
    ],
)  # fmt: skip
def test_rounds_run_whatever_one_client_answers(options, job_of, tmp_path):
    """Methods that ask for what no real site answers, or that take long; those of real sites are in ``tests/deploy``."""
    rounds = ("federation.rounds=2", "federation.cohort_size=3", "callbacks=[]", "logger=[]", "threads=1", "model.width=4")
    config = job_of("experiment=digits_gsc", "partition.scale=0.1", "devices=uniform", *options.split(), *rounds)
    settle(config)
    federation = build(config, tmp_path)
    first, inner, draw = federation.state, federation.engine.ask, random.Random(options)

    def forged(value, leaf):
        return [forged(one, leaf) for one in value] if isinstance(value, list) and leaf is not None else leaf

    for leaf in draw.sample(LEAVES, 8):

        def ask(query, tasks, leaf=leaf):
            tasks = list(tasks)
            for task, answer in zip(tasks, inner(query, tasks), strict=True):
                yield answer._replace(value=forged(answer.value, leaf)) if task.client_id == 1 else answer

        federation.engine.ask = ask
        federation.put(UpdateCheck("drop"))
        federation.restore(first)
        for _ in range(2):
            federation.run_round()
        assert state.all_finite(federation.state.model), leaf


class Draws(ClientSelector):
    """Asks other clients each time: when the round begins anew, the first two are not asked again."""

    sampling_rate = None

    def __init__(self, query, count):
        self.query, self.count, self.times = query, count, 0

    def select(self, server, context):
        self.times += 1
        asked = context.available[:3] if self.times == 1 else context.available[-1:]
        context.ask(self.count, asked)
        context.ask(self.query, asked)
        return context.available[: context.num_slots]


def test_what_came_before_a_round_began_anew_is_booked_once_and_remembered(tiny_federation):
    selector = Draws(Told({1: None}), NumSamples())
    federation = tiny_federation(selector=selector, on_bad_update="drop")
    result = federation.run_round()
    lines = sorted((one.query, one.client_id) for one in result.disclosed)
    assert selector.times == 2
    assert lines == [(query, client_id) for query in ("local_loss", "num_samples") for client_id in range(4)]
    assert result.ledger.query_floats_up == sum(one.floats_up for one in result.disclosed) == 8
    assert set(federation.state.disclosures["num_samples"]) == {0, 1, 2, 3}
    assert set(federation.state.disclosures["local_loss"]) == {0, 2, 3}
    taken = set(result.cohort)
    model = state.num_floats(federation.state.model)
    assert result.ledger.query_floats_down == model * len({0, 1, 2, 3} - taken)
