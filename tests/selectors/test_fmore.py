import json
from collections import Counter
from math import nan

import pytest
from scipy.stats import binomtest

from fedfacet.callbacks.csv_log import CsvLog
from fedfacet.callbacks.summary import Summary
from fedfacet.clients.queries.counts import NumSamples
from fedfacet.clients.queries.resources import Resources
from fedfacet.compatibility import check_pairs
from fedfacet.devices.synthetic import LognormalDevices, UniformDevices
from fedfacet.engines.workers import WorkersEngine
from fedfacet.errors import ConfigError
from fedfacet.methods.fmore import Bid, FMoreSelector
from fedfacet.participation import Dropouts
from fedfacet.selectors.uniform import UniformSelector
from fedfacet.storage.run_files import rows_of
from fedfacet.termination import BudgetTermination

MATRICES = ([[6, 2], [2, 6]], [[1, 1], [1, 1]], [[3, 0], [0, 3]], [[9, 5], [5, 9]], [[2, 2], [2, 2]])


def fmore(costs=(1.0, 1.0, 1.0), **options):
    return FMoreSelector(bid=Bid(costs=costs), num_samples=NumSamples(), resources=Resources(), **options)


@pytest.fixture
def auction(server):
    """Return a function: bids, cohort size -> a server to whom clients answer so."""

    def make(bids, cohort_size, **options):
        answers = {"bid": bids, "num_samples": [10] * len(bids), "resources": [[1.0, 1.0, 1.0]] * len(bids)}
        return server(fmore(**options), len(bids), cohort_size, answers=answers)

    return make


# Who wins


def test_the_best_offers_win_in_order(auction):
    """2.0, 0.4, 2.4, 1.5 and -0.2 of gain."""
    bids = [[1, 1, 1, 1.0], [0.2, 0.2, 0.2, 0.2], [1, 1, 1, 0.6], [1, 0.5, 0.5, 0.5], [0.3, 0.0, 0.0, 0.5]]
    assert auction(bids, 3).select(1) == [2, 0, 3]
    assert auction(bids, 5).select(1) == [2, 0, 3, 1], "an offer worth less than its price does not win"
    assert auction(bids, 2, weights=(1.0, 9.0, 1.0)).select(1) == [2, 0]
    assert auction(bids, 5, scoring="leontief", weights=(2.0, 2.0, 2.0)).select(1) == [2, 0, 3, 1]


def test_who_offers_nothing_does_not_win(auction):
    run = auction([[0.0, 0.0, 0.0, 0.0]] * 3, 2)
    assert run.select(1) == []


def test_ties_are_broken_by_lot(auction):
    run = auction([[1, 1, 1, 1.0]] * 3, 1)
    assert {run.select(round)[0] for round in range(1, 60)} == {0, 1, 2}


def test_psi_passes_some_over_and_they_fill_what_is_left(auction):
    run = auction([[1, 1, 1, 0.1 * k] for k in range(4)], 1, acceptance=0.8)
    firsts = Counter(run.select(round)[0] for round in range(1, 2001))
    assert binomtest(firsts[0], 2000, 0.8 + 0.2**4).pvalue > 1e-3, "the best one, or all were passed over"
    assert binomtest(firsts[1], 2000, 0.2 * 0.8).pvalue > 1e-3
    assert all(len(auction([[1, 1, 1, 0.5]] * 4, 3, acceptance=0.1).select(round)) == 3 for round in range(1, 20))


def test_the_server_announces_who_bids_and_what_is_largest(server):
    announced = []

    class Noted(Bid):
        def announced(self, auction):
            announced.append(auction)
            return super().announced(auction)

    selector = FMoreSelector(bid=Noted(), num_samples=NumSamples(), resources=Resources())
    answers = {"bid": [[1, 1, 1, 1.0]] * 3, "num_samples": [10, 40, 20], "resources": [[1, 2, 4], [1, 10, 8], [1, nan, 0]]}
    run = server(selector, 3, 2, answers=answers)
    run.select(1)
    run.select(2, available=[0, 2])
    assert [(one.bidders, one.winners, one.largest) for one in announced] == [
        (3, 2, (40, 5.0, 0.25)),
        (2, 2, (20, 5.0, 0.25)),
    ]
    assert [asked for _, asked in run.asked] == [[0, 1, 2], [0, 1, 2], [0, 1, 2], [0, 2]], "sizes and seconds once"


def test_where_all_win_nobody_is_left_out_by_rounding(tiny_federation):
    """The dearest type is just worth its cost, so that every price is the score."""
    for seed in range(5):
        options = {"matrices": MATRICES, "cohort_size": 5, "devices": LognormalDevices(), "seed": seed}
        result = tiny_federation(selector=fmore(), **options).run_round()
        assert sorted(result.cohort) == [0, 1, 2, 3, 4]


# In a federation


def test_payments_are_the_prices_of_those_who_arrive(tiny_federation, tmp_path):
    options = {"participation": Dropouts(dropout_probability=0.4), "devices": LognormalDevices()}
    callbacks = {"csv_log": CsvLog(run_dir=tmp_path), "summary": Summary(run_dir=tmp_path, facts={}, model_config={})}
    federation = tiny_federation(matrices=MATRICES, selector=fmore(), cohort_size=3, rounds=6, callbacks=callbacks, **options)
    paid, told, num_clients = [], [], federation.num_clients
    for _ in range(6):
        result = federation.run_round()
        paid.append(sum(federation.state.disclosures["bid"][k][3] for k in result.arrived))
        told.append(result.metrics["selector/spent"])
        assert result.ledger.query_floats_down == 8 * num_clients, "weights, largest qualities, and who may bid and win"
        assert 0 < len(result.cohort) <= 3
    assert told == pytest.approx(paid)
    assert any(len(row["cohort"].split()) > int(row["num_arrived"]) for row in rows_of(tmp_path / "metrics.csv"))
    assert [float(row["selector/spent"]) for row in rows_of(tmp_path / "metrics.csv")] == told
    federation.fit()
    assert json.loads((tmp_path / "summary.json").read_text())["spent"] == pytest.approx(sum(paid))


def test_a_run_ends_when_the_budget_is_spent(tiny_federation):
    options = {"matrices": MATRICES, "cohort_size": 2, "rounds": 50, "devices": UniformDevices()}
    first = tiny_federation(selector=fmore(), **options).run_round().metrics["selector/spent"]  # the same bids in every round
    federation = tiny_federation(selector=fmore(), termination=BudgetTermination(payments=3.5 * first), **options)
    federation.fit()
    assert federation.state.round == 4
    assert federation.state.slots["termination"]["spent"] == pytest.approx(4 * first)
    assert federation.state.stopped == f"{4 * first:.4g} has been paid to clients, {3.5 * first:g} was the budget"


def test_other_processes_bid_alike(tiny_federation):
    found = []
    for engine in (None, WorkersEngine(workers=2, device="cpu")):
        federation = tiny_federation(matrices=MATRICES, selector=fmore(), devices=LognormalDevices(), engine=engine)
        federation.run_round()
        found.append(federation.state.disclosures["bid"])
        federation.engine.close()
    assert found[0] == found[1]


def test_a_budget_without_payments_is_refused():
    parts = {"selector": UniformSelector(), "termination": BudgetTermination()}
    said = "'selection/payments', which termination=budget requires, but there is none: choose a selector that pays clients"
    with pytest.raises(ConfigError, match=said):
        check_pairs(parts, {"selector": "uniform", "termination": "budget"})
    check_pairs({"selector": fmore(), "devices": UniformDevices()}, {})
    check_pairs({"selector": fmore(), "termination": BudgetTermination(), "devices": UniformDevices()}, {})


@pytest.mark.parametrize(
    "wrong",
    [
        {"scoring": "quadratic"}, {"weights": [1.0, 1.0]}, {"weights": [1.0, 0.0, 1.0]}, {"weights": [1.0, nan, 1.0]},
        {"scoring": "cobb_douglas"}, {"acceptance": 0.0}, {"acceptance": 1.5}, {"acceptance": nan},
    ],
)  # fmt: skip
def test_impossible_arguments_are_refused(wrong):
    with pytest.raises(ValueError, match=r"^Expected `(scoring|weights|acceptance)`"):
        fmore(**wrong)
