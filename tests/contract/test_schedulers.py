"""What every learning-rate scheduler keeps to."""

import math
from copy import deepcopy

import pytest

from fedfacet import config
from fedfacet.storage.fitting import misfit

ROUNDS = 120
METRICS = {"train/loss": 0.7, "val/loss": 0.9, "val/acc": 0.4, "test/acc": 0.3}


@pytest.fixture
def make_scheduler(scheduler_option, composed):
    """Return a function that makes the scheduler; the option ``none`` is no scheduler at all."""
    node = composed(f"scheduler={scheduler_option}", f"federation.rounds={ROUNDS}").scheduler
    if scheduler_option == "none":
        assert config.make(node) is None
        pytest.skip("no scheduler, so the factor is 1: tests/schedulers compares")
    return lambda: config.make(node)


def measured(round):
    return METRICS | {"val/loss": 1 / round if round < 20 else 0.05}


def run(scheduler, server, rounds, start=1):
    """Return the factors of some rounds, and the state after them."""
    factors = []
    for round in range(start, rounds + 1):
        factors.append(scheduler.factor(server, round))
        server = scheduler.observe(server, measured(round))
    assert misfit("scheduler", server, scheduler.init(), {}) is None, "a resume holds the state to the one that `init` returns"
    return factors, server


def test_factors_are_positive_and_never_raise_the_learning_rate(make_scheduler):
    scheduler = make_scheduler()
    factors, _ = run(scheduler, scheduler.init(), ROUNDS)
    assert all(type(factor) is float and 0 < factor <= 1 + 1e-12 and math.isfinite(factor) for factor in factors)
    assert len(set(factors)) > 1, "one that never changes anything is `scheduler=none`"


def test_a_round_run_twice_from_one_state_is_the_same(make_scheduler, same):
    """Also by another scheduler, and with other rounds in between; what goes in is not written to."""
    scheduler, other = make_scheduler(), make_scheduler()
    server = scheduler.init()
    expected, _ = run(make_scheduler(), server, ROUNDS)
    for round in range(1, ROUNDS + 1):
        before, metrics = deepcopy(server), measured(round)
        assert scheduler.factor(server, round) == scheduler.factor(server, round) == expected[round - 1]
        after = scheduler.observe(server, metrics)
        run(scheduler, after, round + 3, start=round + 1)
        assert same(scheduler.observe(server, metrics), after)
        assert same(other.observe(server, metrics), after)
        assert same(server, before)
        assert metrics == measured(round)
        server = after
    assert same(scheduler.init(), other.init())


def test_rounds_may_be_left_out(make_scheduler):
    scheduler = make_scheduler()
    _, server = run(scheduler, scheduler.init(), ROUNDS)
    assert make_scheduler().factor(server, ROUNDS + 1) == scheduler.factor(server, ROUNDS + 1)
    assert make_scheduler().factor(server, ROUNDS) == scheduler.factor(server, ROUNDS)


def test_a_resumed_run_goes_on_as_if_nothing_had_happened(make_scheduler, through_a_file, same):
    whole = make_scheduler()
    expected, end = run(whole, whole.init(), ROUNDS)
    for stopped in (1, 25, 45):
        first, resumed = make_scheduler(), make_scheduler()
        _, server = run(first, first.init(), stopped)
        loaded = through_a_file(server)
        assert same(loaded, server)
        factors, resumed_end = run(resumed, loaded, ROUNDS, stopped + 1)
        assert factors == expected[stopped:]
        assert same(resumed_end, end)
