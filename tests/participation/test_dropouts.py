import numpy as np
import pytest

from fedfacet import state
from fedfacet.aggregators.fedavgm import FedAvgM
from fedfacet.participation import Dropouts
from fedfacet.selectors.all import AllSelector


def test_clients_are_away_as_often_as_said():
    rng = np.random.default_rng(0)
    dropouts = Dropouts(away_probability=0.3, dropout_probability=0.0)
    there = np.zeros(10)
    for _ in range(2000):
        there[list(dropouts.available(10, rng))] += 1
    np.testing.assert_allclose(there / 2000, 0.7, atol=0.04)


def test_clients_drop_out_as_often_as_said():
    rng = np.random.default_rng(0)
    outcomes = [Dropouts(dropout_probability=0.2).outcome(3, lambda: rng) for _ in range(5000)]
    assert set(outcomes) == {0.0, 1.0}
    assert np.mean(outcomes) == pytest.approx(0.8, abs=0.02)


@pytest.mark.parametrize(("probability", "available"), [(0.0, (0, 1, 2, 3)), (1.0, ())])
def test_certainties(probability, available):
    rng = np.random.default_rng(0)
    for _ in range(100):
        assert Dropouts(away_probability=probability).available(4, rng) == available
        assert Dropouts(dropout_probability=probability).outcome(0, lambda: rng) == 1 - probability


@pytest.mark.parametrize("argument", ["away_probability", "dropout_probability"])
@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan")])
def test_impossible_arguments_are_refused(argument, value):
    with pytest.raises(ValueError, match=rf"Expected `{argument}` in \[0, 1\]"):
        Dropouts(**{argument: value})


# What a federation makes of it


def test_a_round_without_anybody_changes_nothing_but_the_round(tiny_federation):
    federation = tiny_federation(participation=Dropouts(away_probability=1.0), aggregator=FedAvgM())
    before = state.digest(federation.state.model)
    result = federation.run_round()
    assert (result.cohort, result.arrived) == ((), ())
    assert result.ledger.floats_down == result.ledger.floats_up == 0
    assert federation.state.round == 1
    assert state.digest(federation.state.model) == before
    assert federation.state.aggregator == {"velocity": {}}


def test_a_client_that_drops_out_costs_the_way_down_and_nothing_comes_back(tiny_federation):
    federation = tiny_federation(participation=Dropouts(dropout_probability=1.0), aggregator=FedAvgM(), selector=AllSelector())
    before = state.digest(federation.state.model)
    result = federation.run_round()
    assert (result.cohort, result.arrived) == ((0, 1, 2, 3), ())
    assert result.ledger.floats_down == 4 * state.num_floats(federation.state.model)
    assert result.ledger.floats_up == 0
    assert state.digest(federation.state.model) == before
    assert federation.state.participation_counts.tolist() == [0] * 4


def test_those_who_stay_make_the_round_alone(tiny_federation):
    """The model after a round with dropouts is that of a round which asked only the others."""
    dropping = tiny_federation(participation=Dropouts(dropout_probability=0.5), selector=AllSelector(), seed=1)
    result = dropping.run_round()
    assert 0 < len(result.arrived) < 4

    class Chosen(AllSelector):
        def select(self, server, context):
            return list(result.arrived)

    others = tiny_federation(selector=Chosen(), seed=1, cohort_size=len(result.arrived))
    others.run_round()
    assert state.digest(others.state.model) == state.digest(dropping.state.model)


def test_whoever_is_away_is_neither_selected_nor_asked(tiny_federation):
    federation = tiny_federation(
        participation=Dropouts(away_probability=0.5, dropout_probability=0.0), cohort_size=4, rounds=10
    )
    sizes = {len(federation.run_round().cohort) for _ in range(10)}
    assert len(sizes) > 2, "cohorts shrink to those who are there"


def test_the_same_seed_has_the_same_dropouts(tiny_federation):
    def arrivals(seed):
        federation = tiny_federation(
            participation=Dropouts(away_probability=0.3, dropout_probability=0.3), selector=AllSelector(), rounds=6, seed=seed
        )
        return [federation.run_round().arrived for _ in range(6)]

    assert arrivals(0) == arrivals(0)
    assert arrivals(0) != arrivals(1)
