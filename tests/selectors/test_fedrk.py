import itertools
from collections import Counter
from math import inf, nan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import minimize
from scipy.stats import chisquare

from fedfacet.clients.queries.counts import DisclosedInteractionMatrix
from fedfacet.methods.fedrk import FedRKSelector, balancing_weights


def fedrk(**options):
    return FedRKSelector(interaction_matrix=DisclosedInteractionMatrix(), **{"pretraining_rounds": 0} | options)


def matrices_of(paper, name):
    return [matrix for count, matrix, _ in paper[name]["clients"] for _ in range(count)]


def variance(weights, matrices):
    """What is minimised, as the thesis writes it: the mean squared distance of the sum's entries from their mean."""
    total = sum(weight * np.asarray(matrix, dtype=float) for weight, matrix in zip(weights, matrices, strict=True))
    return float(((total - total.mean()) ** 2).mean())


def generic_solution(matrices, floor):
    """The same programme in all K weights, by a general-purpose solver (sequential quadratic programming)."""
    count = len(matrices)
    flat = np.reshape(matrices, (count, -1)).astype(float)
    flat = (flat - flat.mean(axis=1, keepdims=True)) / max(1.0, np.abs(flat).max())
    found = minimize(
        lambda w: np.square(w @ flat).sum(),
        np.full(count, 1 / count),
        jac=lambda w: 2 * flat @ (w @ flat),
        bounds=[(floor / count, 1)] * count,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1, "jac": np.ones_like},
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 3000},
    )
    return found.x


def exhaustive_solution(types, floor):
    """The weight of each type of client, by trying every set of types that may lie above the floor.

    ``types`` has (count, matrix); within a set the optimum solves a linear system (Lagrange), and the best feasible one wins.
    """
    counts = np.array([count for count, _ in types])
    lowest = counts * floor / counts.sum()
    flat = np.reshape([matrix for _, matrix in types], (len(types), -1)).astype(float)
    flat -= flat.mean(axis=1, keepdims=True)
    best = (inf, None)
    for size in range(1, len(types) + 1):
        for free in map(list, itertools.combinations(range(len(types)), size)):
            at_floor = np.where(np.isin(np.arange(len(types)), free), 0.0, lowest)
            gram = flat[free] @ flat[free].T
            system = np.block([[2 * gram, np.ones((size, 1))], [np.ones((1, size)), np.zeros((1, 1))]])
            right = np.append(-2 * flat[free] @ (at_floor @ flat), 1 - at_floor.sum())
            weights = at_floor.copy()
            weights[free] = np.linalg.lstsq(system, right, rcond=None)[0][:size]
            if (weights >= lowest - 1e-12).all():
                best = min(best, (np.square(weights @ flat).mean(), tuple(weights)))
    return best


# Against other solvers, on the paper's federations


@pytest.mark.parametrize(("scale", "expected"), [(1, 0.2), (10, 0.2), (100, 0.2038), (1000, 0.3683), (10**5, 0.5)])
def test_beside_a_giant_the_ridge_evens_small_clients_out(scale, expected):
    """As the docstring owns up to: it is relative to the largest client."""
    giant, one, other = balancing_weights([[[9 * scale, scale]], [[9, 1]], [[4, 6]]], floor=1e-6)
    alone = one + (giant if scale == 1 else 0)  # with equal matrices the two share the weight
    assert alone / (giant + one + other) == pytest.approx(expected, abs=1e-3)


def test_the_exact_optimum_on_waterbirds_has_three_clients(paper):
    """The thesis does not print it; found by exhaustion here, and once with a solver of another kind."""
    matrices = matrices_of(paper, "waterbirds_dist")
    weights = balancing_weights(matrices, floor=1e-9)
    support = {str(matrices[k]): round(weights[k], 3) for k in np.flatnonzero(weights > 1e-4)}
    assert support == {
        "[[81, 35], [9, 31]]": pytest.approx(0.642, abs=1e-3),
        "[[29, 39], [1, 89]]": pytest.approx(0.197, abs=1e-3),
        "[[23, 23], [10, 110]]": pytest.approx(0.161, abs=1e-3),
    }


@pytest.mark.parametrize("floor", [1e-9, 1e-3, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("name", ["waterbirds_dist", "gai"])
def test_where_the_optimum_is_unique_it_is_the_one_of_an_exhaustive_search(paper, name, floor):
    types = [(count, matrix) for count, matrix, _ in paper[name]["clients"]]
    weights = balancing_weights(matrices_of(paper, name), floor)
    ends = np.cumsum([count for count, _ in types])
    per_type = [weights[end - count : end].sum() for end, (count, _) in zip(ends, types, strict=True)]
    lowest, expected = exhaustive_solution(types, floor)
    np.testing.assert_allclose(per_type, expected, atol=1e-4)
    assert variance(weights, matrices_of(paper, name)) == pytest.approx(lowest, rel=1e-8)


@pytest.mark.parametrize("floor", [1e-3, 0.3])
@pytest.mark.parametrize("name", ["waterbirds_dist", "gai", "gsc", "gci", "spawrious4", "gci_100"])
def test_no_general_solver_finds_a_smaller_variance(paper, name, floor):
    matrices = matrices_of(paper, name)
    weights = balancing_weights(matrices, floor)
    assert variance(weights, matrices) <= variance(generic_solution(matrices, floor), matrices) * (1 + 1e-7) + 1e-8


@pytest.mark.parametrize("name", ["gsc", "gci", "spawrious4", "gci_100"])
def test_where_zero_variance_is_reachable_it_is_reached_by_the_evenest_weights(paper, name):
    """The least-norm solution of the equations alone has only positive weights there, so that no floor binds."""
    matrices = matrices_of(paper, name)
    weights = balancing_weights(matrices, floor=1e-9)
    flat = np.reshape(matrices, (len(matrices), -1)).astype(float)
    equations = np.vstack([(flat - flat.mean(axis=1, keepdims=True)).T, np.ones(len(matrices))])
    evenest = np.linalg.lstsq(equations, np.append(np.zeros(flat.shape[1]), 1.0), rcond=None)[0]
    assert evenest.min() > 0
    np.testing.assert_allclose(weights, evenest, atol=1e-6)
    assert variance(weights, matrices) < 1e-9


# Closed forms and properties


def test_two_opposite_clients_weigh_by_how_far_off_each_is():
    assert balancing_weights([[[30, 0]], [[0, 10]]], floor=1e-6) == pytest.approx([0.25, 0.75], abs=1e-6)


def test_the_floor_binds_where_a_client_only_harms():
    weights = balancing_weights([[[10, 10]], [[90, 0]], [[70, 0]], [[80, 1]]], floor=0.2)
    assert weights == pytest.approx([0.85, 0.05, 0.05, 0.05], abs=1e-5)


@pytest.mark.parametrize("matrix", [[[0, 0], [0, 0]], [[5, 5], [5, 5]], [[90, 10], [10, 90]]])
def test_clients_that_are_all_alike_weigh_alike(matrix):
    np.testing.assert_allclose(balancing_weights([matrix] * 6, floor=0.01), 1 / 6)


def test_one_client_weighs_one_and_a_floor_of_one_is_uniform():
    assert balancing_weights([[[7, 2], [0, 1]]], floor=0.001) == pytest.approx([1.0])
    np.testing.assert_allclose(balancing_weights([[[7, 2]], [[1, 2]], [[0, 9]]], floor=1.0), 1 / 3)


COUNTS = st.tuples(st.integers(1, 12), st.integers(1, 3), st.integers(1, 3)).flatmap(
    lambda shape: arrays(np.float64, shape, elements=st.sampled_from([0.0, 1.0, 5.0, 90.0, 120.0]))
)


@given(COUNTS, st.sampled_from([1e-6, 1e-3, 0.2, 1.0]), st.randoms(use_true_random=False))
@settings(max_examples=60)
def test_any_counts(matrices, floor, random):
    weights = balancing_weights(matrices, floor)
    assert weights.sum() == pytest.approx(1, abs=1e-12)
    assert weights.min() >= floor / len(matrices) - 1e-15
    scale = max(1.0, np.abs(matrices).max() ** 2)
    assert variance(weights, matrices) <= variance(generic_solution(matrices, floor), matrices) + 1e-6 * scale
    order = list(range(len(matrices)))
    random.shuffle(order)
    np.testing.assert_allclose(balancing_weights(matrices[order], floor), weights[order], atol=1e-5)
    for first, second in itertools.combinations(range(len(matrices)), 2):
        if (matrices[first] == matrices[second]).all():
            assert weights[first] == pytest.approx(weights[second], abs=1e-9)


# The draw


def test_a_cohort_of_one_is_drawn_by_the_weights(server):
    matrices = [[[9, 1]], [[1, 9]], [[5, 3]], [[8, 0]]]
    expected = balancing_weights(matrices, floor=0.2)
    run = server(fedrk(floor=0.2), 4, 1, answers={"interaction_matrix": matrices})
    drawn = Counter(run.round(round)[0] for round in range(1, 801))
    assert chisquare([drawn[k] for k in range(4)], 800 * expected).pvalue > 1e-4


def test_a_larger_cohort_is_drawn_without_replacement(server):
    matrices = [[[9, 1]], [[1, 9]], [[5, 3]], [[8, 0]]]
    weights = balancing_weights(matrices, floor=0.2)
    run = server(fedrk(floor=0.2), 4, 2, answers={"interaction_matrix": matrices})
    drawn = Counter(run.round(round) for round in range(1, 801))
    pairs = list(itertools.permutations(range(4), 2))
    expected = [800 * weights[i] * weights[j] / (1 - weights[i]) for i, j in pairs]
    assert chisquare([drawn[pair] for pair in pairs], expected).pvalue > 1e-4


@pytest.mark.parametrize("name", ["waterbirds_dist", "gai", "gsc"])
def test_nine_can_always_be_drawn(server, paper, name):
    """By the floor alone: the exact optima on WaterBirds and GAI leave 27 of 30 and 20 of 25 clients without weight."""
    matrices = matrices_of(paper, name)
    run = server(fedrk(), len(matrices), 9, answers={"interaction_matrix": matrices})
    cohorts = [run.round(round) for round in range(1, 41)]
    assert all(len(set(cohort)) == 9 for cohort in cohorts)
    if name == "waterbirds_dist":
        assert all({0, 3, 4} <= set(cohort) for cohort in cohorts)
        counts = Counter(client_id for cohort in cohorts for client_id in cohort)
        assert len(counts) == 30, "the others take turns at random"


def test_matrices_are_asked_once_and_clients_that_come_later_when_they_do(server):
    run = server(
        fedrk(pretraining_rounds=2), 5, 2, answers={"interaction_matrix": [[[9, 1]], [[1, 9]], [[5, 3]], [[8, 0]], [[1, 1]]]}
    )
    assert run.round(1) == (0, 1, 2, 3, 4)
    assert run.round(2, available=[0, 1, 2, 4]) == (0, 1, 2, 4)
    assert set(run.round(3, available=[0, 1, 3])) <= {0, 1, 3}
    run.round(4)
    run.round(5)
    assert run.asked == [(3, [0, 1, 3]), (4, [2, 4])], "after T_0 rounds, and once of those who come later"


def test_weights_are_those_of_the_clients_that_are_there(server):
    """Client 2 alone balances client 0; without it client 1 has to, who needs less weight."""
    matrices = [[[10, 0]], [[0, 90]], [[0, 10]]]
    run = server(fedrk(floor=1e-3), 3, 1, answers={"interaction_matrix": matrices})
    drawn = Counter(run.round(round, available=[0, 1])[0] for round in range(1, 1001))
    assert drawn[0] / 1000 == pytest.approx(0.9, abs=0.03)


@pytest.mark.parametrize(
    ("option", "value"), [("floor", 0), ("floor", 1.5), ("floor", nan), ("pretraining_rounds", -1), ("pretraining", "none")]
)
def test_impossible_arguments_are_refused(option, value):
    with pytest.raises(ValueError, match=f"Expected `{option}` .*, but got {value!r}"):
        fedrk(**{option: value})


def test_in_a_federation_the_matrices_cost_their_entries_once(tiny_federation):
    federation = tiny_federation(selector=fedrk(pretraining_rounds=1), rounds=3)
    ledgers = [federation.run_round().ledger for _ in range(3)]
    assert [ledger.query_floats_up for ledger in ledgers] == [0, 4 * 4, 0]
    assert [ledger.query_floats_down for ledger in ledgers] == [0, 0, 0]
    assert federation.state.disclosures["interaction_matrix"][2] == [[7, 7], [1, 1]]
