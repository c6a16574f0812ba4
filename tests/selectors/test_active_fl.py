import itertools
import logging
from collections import Counter
from math import comb, exp, inf, nan

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from fedfacet import rng
from fedfacet.clients.queries.local_loss import LocalLoss, Valuation
from fedfacet.records import ClientReceipt, Ledger, RoundResult
from fedfacet.selectors.active_fl import ActiveFLSelector

MATRICES = ([[6, 2], [2, 6]], [[1, 1], [1, 1]], [[3, 0], [0, 3]], [[9, 5], [5, 9]], [[2, 2], [2, 2]])


def active_fl(**options):
    return ActiveFLSelector(valuation=Valuation(), **options)


@pytest.fixture
def knowing(server):
    """Return a function: valuations (-inf: none yet), cohort size -> a server that knows them."""

    def make(valuations, cohort_size, *, seed=0, **options):
        run = server(active_fl(**options), len(valuations), cohort_size, answers={"valuation": list(valuations)}, seed=seed)
        run.state = {"valuations": torch.tensor(valuations, dtype=torch.float64)}
        return run

    return make


def heard(run, round, answers):
    """Have the selector learn from a round in which these clients answered."""
    receipts = tuple(ClientReceipt(k, 10, 1, 1.0, 10, {"valuation": value}) for k, value in answers.items())
    result = RoundResult(round, tuple(answers), receipts, {}, Ledger(), {}, run.num_clients)
    run.state = run.selector.observe(run.state, result, [], rng.stream(0, "selector-learns", round))
    return run.state["valuations"].tolist()


def successive(weights, number):
    """The probability of each ordered draw of ``number`` clients, one after another in proportion to weights."""
    found = {}
    for order in itertools.permutations(weights, number):
        left, probability = sum(weights.values()), 1.0
        for k in order:
            probability *= weights[k] / left
            left -= weights[k]
        found[order] = probability
    return found


def agree(drawn, expected):
    assert set(drawn) <= set(expected), "nothing happens that has probability 0"
    total = sum(drawn.values())
    counts = [drawn[key] for key in expected]
    return chisquare(counts, [total * p for p in expected.values()]).pvalue > 1e-4


# Closed forms of probabilities


def test_five_clients_by_hand(knowing):
    """Two of five are excluded; of the others each is drawn by its exponential."""
    valuations = [1.0, 4.0, 2.0, 3.0, 2.5]
    run = knowing(valuations, 1, excluded_share=0.4, sharpness=0.7, uniform_share=0.0)
    weights = {k: exp(0.7 * valuations[k]) for k in (1, 3, 4)}
    expected = {(k,): weight / sum(weights.values()) for k, weight in weights.items()}
    assert agree(Counter(tuple(run.select(round)) for round in range(1, 2501)), expected)


@pytest.mark.parametrize(("sharpness", "probabilities"), [(0.0, [0.2] * 5), (25.0, [0, 0, 0, 0.5, 0.5])])
def test_it_has_the_probabilities_that_flsim_prints(knowing, sharpness, probabilities):
    """Its ``test_convert_to_probability``, with the valuations 1, 1, 1, 2 and 2."""
    run = knowing([1.0, 1.0, 1.0, 2.0, 2.0], 1, excluded_share=0.0, sharpness=sharpness, uniform_share=0.0)
    expected = {(k,): p for k, p in enumerate(probabilities) if p}
    assert agree(Counter(tuple(run.select(round)) for round in range(1, 1501)), expected)


def test_several_places_are_drawn_one_after_another(knowing):
    valuations = [1.0, 4.0, 2.0, 3.0, 2.5]
    run = knowing(valuations, 2, excluded_share=0.2, sharpness=0.5, uniform_share=0.0)
    expected = successive({k: exp(0.5 * valuations[k]) for k in (1, 2, 3, 4)}, 2)
    assert agree(Counter(tuple(run.select(round)) for round in range(1, 3501)), expected)


def test_the_uniform_share_is_drawn_from_all_others(knowing):
    """Excluded ones too: of three places one is uniform."""
    valuations = [1.0, 4.0, 2.0, 3.0, 2.5]
    run = knowing(valuations, 3, excluded_share=0.4, sharpness=0.7, uniform_share=1 / 3)
    first = successive({k: exp(0.7 * valuations[k]) for k in (1, 3, 4)}, 2)
    expected = {(*order, k): p / 3 for order, p in first.items() for k in set(range(5)) - set(order)}
    assert agree(Counter(tuple(run.select(round)) for round in range(1, 4001)), expected)


@pytest.mark.parametrize("sharpness", [0.0, 0.01])
def test_without_exclusion_and_sharpness_it_is_uniform(knowing, sharpness):
    valuations = [0.3, 7.0, 2.0, 5.0, 1.0] if sharpness == 0 else [2.0] * 5
    run = knowing(valuations, 2, excluded_share=0.0, sharpness=sharpness, uniform_share=0.0)
    drawn = Counter(frozenset(run.select(round)) for round in range(1, 1501))
    assert len(drawn) == comb(5, 2)
    assert chisquare(list(drawn.values())).pvalue > 1e-4


def test_ties_are_excluded_by_lot(knowing):
    run = knowing([1.0] * 4, 1, excluded_share=0.75, uniform_share=0.0)
    drawn = Counter(run.select(round)[0] for round in range(1, 1501))
    assert len(drawn) == 4
    assert chisquare(list(drawn.values())).pvalue > 1e-4


def test_valuations_far_apart_do_not_overflow(knowing):
    run = knowing([1e6, 2e6, 3e6, 4e6], 2, excluded_share=0.0, sharpness=1.0, uniform_share=0.0)
    assert {tuple(run.select(round)) for round in range(1, 50)} == {(3, 2)}


# Those who have not reported


def test_before_anybody_reported_the_cohort_is_uniform(server):
    run = server(active_fl(), 5, 2, answers={"valuation": [1.0] * 5})
    drawn = Counter(frozenset(run.select(round)) for round in range(1, 1501))
    assert len(drawn) == comb(5, 2)
    assert chisquare(list(drawn.values())).pvalue > 1e-4


def test_a_place_is_left_to_chance_while_somebody_is_unknown(knowing):
    run = knowing([5.0, 4.0, 3.0, -inf, 2.0], 2, excluded_share=0.0, sharpness=100.0, uniform_share=0.0)
    drawn = Counter(tuple(run.select(round)) for round in range(1, 1501))
    assert set(drawn) == {(0, 1), (0, 2), (0, 3), (0, 4)}
    assert chisquare(list(drawn.values())).pvalue > 1e-4
    assert run.select(1, available=[0, 1, 2, 4])[1] == 1, "everybody who is there is known"


def test_everybody_is_explored(server):
    run = server(active_fl(), 30, 9, answers={"valuation": [float(k) for k in range(30)]})
    for round in range(1, 400):
        heard(run, round, {k: float(k) for k in run.select(round)})
    assert run.state["valuations"].tolist() == [float(k) for k in range(30)]


def test_the_last_valuation_counts(server):
    run = server(active_fl(), 4, 2)
    assert heard(run, 1, {1: 3.0, 2: 5.0}) == [-inf, 3.0, 5.0, -inf]
    assert heard(run, 2, {1: 1.0}) == [-inf, 1.0, 5.0, -inf]


def test_what_is_not_finite_counts_as_none_and_is_told(server, caplog):
    run = server(active_fl(), 5, 2)
    heard(run, 1, dict.fromkeys(range(5), 2.0))
    with caplog.at_level(logging.WARNING):
        assert heard(run, 2, {0: nan, 1: 7.0, 3: inf}) == [-inf, 7.0, 2.0, -inf, 2.0]
    assert caplog.messages == ["Round 2: the valuations of 2 of 3 clients are not finite and count as none: clients 0, 3."]


# In a federation


def test_the_cohort_reports_on_the_model_that_it_is_sent(tiny_federation):
    federation = tiny_federation(selector=active_fl(), matrices=MATRICES, cohort_size=2, rounds=4)
    for _ in range(4):
        before = federation.state
        result = federation.run_round()
        tasks = [federation.order(before, k) for k in result.cohort]
        losses = [answer.value for answer in federation.engine.ask(LocalLoss(), tasks)]
        sizes = np.array([np.sum(MATRICES[k]) for k in result.cohort])
        known = federation.state.selector["valuations"][list(result.cohort)].numpy()
        assert known == pytest.approx(np.sqrt(sizes) * losses)
        assert result.ledger.query_floats_up == 2
        assert result.ledger.query_floats_down == 0, "they are sent the model anyway"
        assert result.ledger.query_samples == sizes.sum()
        assert sorted({told.client_id for told in result.disclosed}) == sorted(result.cohort)


@pytest.mark.parametrize(
    ("option", "value"),
    [("excluded_share", 1.1), ("excluded_share", nan), ("uniform_share", -0.1), ("sharpness", -1.0), ("sharpness", inf)],
)
def test_impossible_arguments_are_refused(option, value):
    with pytest.raises(ValueError, match=f"Expected `{option}` .*, but got {value}"):
        active_fl(**{option: value})
