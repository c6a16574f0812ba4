import logging
from dataclasses import fields
from math import inf, log, nan, sqrt

import numpy as np
import pytest
import torch

from fedfacet import rng
from fedfacet.clients.queries.local_loss import Valuation
from fedfacet.clients.queries.resources import RoundJoules
from fedfacet.compatibility import check_pairs
from fedfacet.devices.synthetic import UniformDevices
from fedfacet.errors import ConfigError
from fedfacet.mechanisms.devices import SimulatedDevices
from fedfacet.records import ClientReceipt, Ledger, RoundResult
from fedfacet.selectors.flame import FlameSelector, utilities

MATRICES = ([[6, 2], [2, 6]], [[1, 1], [1, 1]], [[3, 0], [0, 3]], [[9, 5], [5, 9]], [[2, 2], [2, 2]])


def flame(**options):
    return FlameSelector(valuation=Valuation(), round_joules=RoundJoules(), **options)


@pytest.fixture
def knowing(server):
    """Return a function: valuations (-inf: never heard), joules of a round, cohort size -> a server that knows them."""

    def make(valuations, joules, cohort_size, *, durations=None, selected=None, **options):
        number = len(valuations)
        answers = {"valuation": list(valuations), "round_joules": joules}
        run = server(flame(**options), number, cohort_size, answers=answers)
        run.state = {
            "valuations": torch.tensor(valuations, dtype=torch.float64),
            "durations": torch.tensor(durations or [0.0] * number, dtype=torch.float64),
            "selected": torch.tensor(selected or [1] * number, dtype=torch.int64),
        }
        return run

    return make


def heard(run, round, answers, cohort=None, durations=None):
    """Have the selector learn from a round in which these clients answered."""
    receipts = tuple(ClientReceipt(k, 10, 1, 1.0, 10, {"valuation": value}) for k, value in answers.items())
    cohort = tuple(answers) if cohort is None else cohort
    result = RoundResult(round, cohort, receipts, {}, Ledger(), {}, run.num_clients, durations=durations or {})
    run.state = run.selector.observe(run.state, result, [], rng.stream(0, "selector-learns", round))
    return run.state


# Utilities


def test_utilities_of_five_clients_by_hand():
    """A budget of 1000 J and 30 s: used are 10, 100, 500, 1000 and 2000 J, and the second takes 40 s."""
    found = utilities(
        np.array([3.0, 3.0, 1.0, 9.0, 9.0]),
        np.array([10.0, 100.0, 500.0, 1000.0, 2000.0]),
        np.array([30.0, 40.0, 10.0, 1.0, 1.0]),
        max_joules=1000.0,
        preferred_seconds=30.0,
        slow_factor=0.5,
    )
    assert found == pytest.approx([3 * log(100), 3 * log(10) * 0.5 * 30 / 40, log(2), 0, 0])


def test_the_defaults_are_those_of_the_released_code():
    """``device_selection.py``: a tenth of 3,000 mAh at 3.7 V, 30 s, 0.5, and n sqrt(loss^2 / n) as statistical utility."""
    defaults = {field.name: field.default for field in fields(FlameSelector)}
    assert defaults["max_joules"] == pytest.approx(3000 * 3.6 * 3.7 * 0.1)
    assert (defaults["preferred_seconds"], defaults["slow_factor"]) == (30.0, 0.5)
    names = ("max_joules", "preferred_seconds", "slow_factor")
    valuation = 100 * sqrt(2.0**2 / 100)  # of 100 samples with a mean loss of 2
    found = utilities(np.array([valuation]), np.array([999.0]), np.array([60.0]), **{name: defaults[name] for name in names})
    assert found == pytest.approx([20 * log(4) * 0.5 * 30 / 60])


def test_the_best_are_chosen_in_order(knowing):
    run = knowing([3.0, 3.0, 1.0, 9.0, 4.0], [10.0, 100.0, 500.0, 1000.0, 10.0], 3, max_joules=1000.0)
    assert run.select(1) == [4, 0, 1]
    assert run.select(2, available=[1, 2, 3]) == [1, 2], "the budget of 3 is spent"


def test_energy_is_that_of_all_rounds_so_far(knowing):
    """Ten rounds of 50 J are 500 J; nobody has used less than a round."""
    run = knowing([1.0] * 3, [50.0, 50.0, 50.0], 3, selected=[0, 19, 20], max_joules=1000.0)
    assert run.select(1) == [0, 1]


def test_without_budget_and_time_it_is_the_highest_valuation_that_was_heard_last(knowing):
    valuations = [3.0, 8.0, 1.0, 9.0, 4.0]
    options = {"max_joules": None, "preferred_seconds": None}
    run = knowing(valuations, [1e9] * 5, 3, selected=[7, 1, 3, 9, 2], durations=[900.0, 1.0, 5.0, 80.0, 3.0], **options)
    assert run.select(1) == [3, 1, 4]


def test_devices_that_use_no_energy_are_ranked_by_loss(knowing):
    assert knowing([3.0, 8.0, 1.0], [0.0] * 3, 2).select(1) == [1, 0]


def test_those_never_heard_come_first_by_lot(knowing):
    run = knowing([9.0, -inf, -inf, -inf, 1.0], [10.0, 10.0, 10.0, 9999.0, 10.0], 3, selected=[1, 0, 0, 0, 1])
    cohorts = {tuple(run.select(round)) for round in range(1, 60)}
    assert cohorts == {(1, 2, 0), (2, 1, 0)}, "a round of 3 takes more than its budget"


def test_ties_are_broken_by_lot(knowing):
    run = knowing([2.0] * 3, [10.0] * 3, 1)
    assert {run.select(round)[0] for round in range(1, 60)} == {0, 1, 2}


def test_those_that_tell_no_joules_are_never_chosen(knowing):
    for options in ({}, {"max_joules": None}):
        run = knowing([9.0, 9.0, 1.0, 1.0, -inf], [nan, inf, -1.0, 10.0, nan], 5, **options)
        assert run.select(1) == [3]


def test_joules_are_asked_once_and_valuations_of_the_cohort(server):
    run = server(flame(), 4, 2, answers={"valuation": [1.0] * 4, "round_joules": [10.0] * 4})
    first, second = run.select(1), run.select(2)
    assert [asked for _, asked in run.asked] == [[0, 1, 2, 3], first, second]


# What it learns


def test_the_last_report_counts_and_so_does_every_order(server):
    run = server(flame(), 4, 2)
    heard(run, 1, {1: 3.0}, cohort=(1, 2), durations={1: 7.0})
    known = heard(run, 2, {1: 1.0, 3: 2.0})
    assert known["valuations"].tolist() == [-inf, 1.0, -inf, 2.0]
    assert known["durations"].tolist() == [0.0, 7.0, 0.0, 0.0]
    assert known["selected"].tolist() == [0, 2, 1, 1], "one that is lost has used its energy too"


def test_valuations_that_are_not_finite_come_last_and_are_told(knowing, caplog):
    run = knowing([5.0] * 4, [10.0] * 4, 3)
    with caplog.at_level(logging.WARNING):
        heard(run, 2, {0: nan, 1: 7.0, 3: inf})
    assert caplog.messages == ["Round 2: the valuations of 2 of 3 clients are not finite and come last: clients 0, 3."]
    cohorts = {tuple(run.select(round)) for round in range(3, 60)}
    assert cohorts == {(1, 2, 0), (1, 2, 3)}


# In a federation


def test_nobody_is_chosen_whose_budget_is_spent(tiny_federation):
    """A sample takes a joule, and nothing else does: clients of 16, 4, 6, 28 and 8 samples have 40 J each."""
    devices = UniformDevices(joules_per_sample=1.0)
    federation = tiny_federation(matrices=MATRICES, selector=flame(max_joules=40.0), cohort_size=3, rounds=30, devices=devices)
    needed, used, sizes = federation.find(SimulatedDevices).clock.needed(), np.zeros(5), []
    for _ in range(30):
        cohort = list(federation.run_round().cohort)
        assert (used[cohort] < 40).all()
        used[cohort] += needed[cohort]
        sizes.append(len(cohort))
    assert (used >= 40).all()
    assert (used < 40 + needed).all()
    assert sizes[0] == 3
    assert sizes[-1] == 0, "when all have spent theirs, rounds are empty"


def test_the_cohort_reports_on_the_model_that_it_is_sent(tiny_federation):
    federation = tiny_federation(matrices=MATRICES, selector=flame(), devices=UniformDevices())
    first, second = federation.run_round(), federation.run_round()
    assert (first.ledger.query_floats_up, second.ledger.query_floats_up) == (5 + 2, 2)
    assert {told.kind for told in first.disclosed} == {"resources", "loss"}
    assert second.ledger.query_samples == sum(np.sum(MATRICES[k]) for k in second.cohort)
    assert federation.state.selector["durations"].count_nonzero() == 4


def test_it_is_refused_without_devices():
    with pytest.raises(ConfigError, match=r"provides 'devices', which selector=flame requires, .*devices="):
        check_pairs({"selector": flame(), "devices": None}, {"selector": "flame"})
    check_pairs({"selector": flame(), "devices": UniformDevices()}, {})


@pytest.mark.parametrize(("option", "value"), [("max_joules", 0.0), ("preferred_seconds", nan), ("slow_factor", 1.5)])
def test_impossible_arguments_are_refused(option, value):
    with pytest.raises(ValueError, match=f"Expected `{option}` .*, but got {value}"):
        flame(**{option: value})
