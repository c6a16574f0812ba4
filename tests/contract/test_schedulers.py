"""What every learning-rate scheduler keeps to."""

import math

import pytest

from fedfacet import config

ROUNDS = 120
METRICS = {"train/loss": 0.7, "val/loss": 0.9, "val/acc": 0.4, "test/acc": 0.3}


@pytest.fixture
def make_scheduler(scheduler_option, composed):
    def make(**changed):
        node = composed(f"scheduler={scheduler_option}", f"federation.rounds={ROUNDS}").scheduler
        node.update(changed)
        return config.make(node)

    return make


def run(scheduler, rounds, start=1):
    factors = []
    for round in range(start, rounds + 1):
        factors.append(scheduler.factor(round))
        scheduler.observe(METRICS | {"val/loss": 1 / round if round < 20 else 0.05})
    return factors


def test_factors_are_positive_and_never_raise_the_learning_rate(make_scheduler):
    factors = run(make_scheduler(), ROUNDS)
    assert all(type(factor) is float and 0 < factor <= 1 + 1e-12 and math.isfinite(factor) for factor in factors)


def test_a_round_may_be_run_again_and_rounds_may_be_left_out(make_scheduler):
    expected = run(make_scheduler(), ROUNDS)
    scheduler = make_scheduler()
    for round in range(1, ROUNDS + 1):
        assert scheduler.factor(round) == scheduler.factor(round) == expected[round - 1]
        scheduler.observe(METRICS | {"val/loss": 1 / round if round < 20 else 0.05})
    late = make_scheduler()
    late.load_state_dict(scheduler.state_dict())
    assert late.factor(ROUNDS + 1) == scheduler.factor(ROUNDS + 1)


def test_a_resumed_run_goes_on_as_if_nothing_had_happened(make_scheduler, through_a_file, same):
    whole = make_scheduler()
    expected = run(whole, ROUNDS)
    for stopped in (1, 25, 45):
        first = make_scheduler()
        run(first, stopped)
        saved = first.state_dict()
        copy = through_a_file(saved)
        resumed = make_scheduler()
        resumed.load_state_dict(copy)
        assert run(resumed, ROUNDS, stopped + 1) == expected[stopped:]
        assert same(resumed.state_dict(), whole.state_dict())
        run(first, ROUNDS, stopped + 1)
        assert same(saved, copy), "what was saved is not changed afterwards"


def test_only_none_is_constant(make_scheduler, scheduler_option):
    assert make_scheduler().is_constant == (scheduler_option == "none") == (set(run(make_scheduler(), ROUNDS)) == {1.0})
