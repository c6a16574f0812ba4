"""An aggregator may put a question to the cohort before it trains; the answers come with the updates."""

import math

import pytest

from fedfacet.aggregators.base import Aggregator
from fedfacet.clients.queries.counts import NumSamples
from fedfacet.clients.queries.local_loss import LocalLoss
from fedfacet.errors import BadUpdateError
from fedfacet.participation import Participation
from fedfacet.selectors.all import AllSelector
from fedfacet.selectors.pow_d import PowDSelector
from fedfacet.selectors.uniform import UniformSelector


class Asking(Aggregator):
    """Averages, and remembers what it was told."""

    def __init__(self, query):
        super().__init__()
        self.query = query
        self.told = []

    def report(self):
        return self.query

    def aggregate(self, server, model, updates):
        updates = list(updates)
        self.told.append({update.client_id: update.report for update in updates})
        return server, model


def local_loss(federation, client_id):
    (answer,) = federation.engine.ask(LocalLoss(), [federation.order(federation.state, client_id)])
    return answer.value


def test_every_member_reports_on_the_model_that_it_was_sent(tiny_federation):
    aggregator = Asking(LocalLoss())
    federation = tiny_federation(aggregator=aggregator, selector=UniformSelector(), cohort_size=2, rounds=2)
    result = federation.run_round()
    (told,) = aggregator.told
    assert told == {client_id: local_loss(federation, client_id) for client_id in result.cohort}  # the model stays as it is
    assert all(math.isfinite(loss) for loss in told.values())
    assert (result.ledger.query_floats_up, result.ledger.query_floats_down) == (2, 0)
    assert result.ledger.query_samples == sum(receipt.num_samples for receipt in result.receipts)
    assert [(one.client_id, one.kind) for one in result.disclosed] == [(client_id, "loss") for client_id in result.cohort]


def test_who_has_told_the_selector_is_not_asked_again(tiny_federation):
    aggregator = Asking(LocalLoss())
    selector = PowDSelector(local_loss=LocalLoss(), num_samples=NumSamples())
    federation = tiny_federation(aggregator=aggregator, selector=selector, cohort_size=2, rounds=2)
    for _ in range(2):
        result = federation.run_round()
        assert result.ledger.query_floats_up == federation.num_clients
        assert aggregator.told[-1] == {k: federation.state.disclosures["local_loss"][k] for k in result.arrived}


def test_what_needs_no_model_is_asked_once_in_a_run(tiny_federation):
    aggregator = Asking(NumSamples())
    federation = tiny_federation(aggregator=aggregator, selector=UniformSelector(), cohort_size=3, rounds=6)
    asked = [one.client_id for _ in range(6) for one in federation.run_round().disclosed]
    assert sorted(asked) == sorted(set(asked))
    assert all(None not in told.values() for told in aggregator.told)


def test_a_round_run_again_after_a_resume_tells_the_same(tiny_federation):
    first, second = (tiny_federation(aggregator=Asking(NumSamples()), cohort_size=3, rounds=4) for _ in range(2))
    first.run_round()
    second.restore(first.state)
    assert first.run_round().ledger == second.run_round().ledger
    assert first.aggregator.told[1] == second.aggregator.told[0]


class EvenOnes(Participation):
    def outcome(self, client_id, draw):
        return 0.0 if client_id % 2 else 1.0


def test_who_will_not_answer_is_not_asked(tiny_federation):
    aggregator = Asking(LocalLoss())
    result = tiny_federation(aggregator=aggregator, participation=EvenOnes(), cohort_size=4, rounds=1).run_round()
    assert {one.client_id for one in result.disclosed} == {k for k in result.cohort if k % 2 == 0} != set()


def nan_from(clients):
    class SomeNaN(LocalLoss):
        def answer(self, context):
            answer = super().answer(context)
            return answer._replace(value=math.nan) if context.client_id in clients else answer

    return SomeNaN()


def test_a_report_that_is_not_finite_makes_an_update_bad(tiny_federation):
    federation = tiny_federation(aggregator=Asking(nan_from({2})), selector=AllSelector(), cohort_size=4)
    with pytest.raises(BadUpdateError, match=r"from client 2 in round 1, but its local_loss is nan: lower the learning rate"):
        federation.run_round()
    federation = tiny_federation(aggregator=Asking(nan_from({2})), selector=AllSelector(), cohort_size=4, on_bad_update="drop")
    federation.run_round()
    (told,) = federation.aggregator.told
    assert told.keys() == {0, 1, 3}
