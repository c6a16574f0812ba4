import dataclasses
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import linprog
from scipy.stats import chi2_contingency, entropy, power_divergence
from sklearn.metrics import normalized_mutual_info_score

from fedfacet.heterogeneity import (
    HeterogeneityTriplet,
    InteractionMatrices,
    InteractionMatrix,
    class_distances,
    measure_federation,
)

PRINTED = 0.005 + 1e-12  # two decimals
MATRICES = st.tuples(st.integers(2, 4), st.integers(2, 4)).flatmap(
    lambda shape: arrays(np.int64, shape, elements=st.integers(0, 40))
)


def triplet(counts):
    return InteractionMatrix(counts).triplet


@pytest.mark.parametrize("name", ["gsc", "gci", "gai", "waterbirds_dist", "spawrious4", "gci_100"])
def test_every_client_of_table_6(paper, name):
    for count, matrix, printed in paper[name]["clients"]:
        assert triplet(matrix) == pytest.approx(printed, abs=PRINTED), f"{count} x {matrix}"


@pytest.mark.parametrize("name", ["gsc", "gci", "gai", "waterbirds_dist", "spawrious4"])
def test_every_federation_of_table_5(paper, name):
    matrices = [InteractionMatrix(matrix) for count, matrix, _ in paper[name]["clients"] for _ in range(count)]
    pooled = np.sum([matrix.counts for matrix in matrices], axis=0)
    assert pooled.tolist() == paper[name]["pooled"]
    assert measure_federation(matrices).global_triplet == pytest.approx(paper[name]["pooled_triplet"], abs=PRINTED)


@pytest.mark.parametrize(
    ("name", "CI", "AI", "SC"),
    [
        ("gsc", 4, 4, 16),
        ("gci", 16, 4, 4),
        ("gai", 3, 20, 2),  # the caption says 12 / 60 / 8, which is 80 %; the four exact ties of CI and AI are AI
        ("spawrious4", 4, 4, 17),
        ("waterbirds_dist", 3, 2, 25),
        ("gci_100", 68, 16, 16),
    ],
)
def test_types_are_those_of_the_figures_5_to_9(paper, name, CI, AI, SC):
    types = [triplet(matrix).type for count, matrix, _ in paper[name]["clients"] for _ in range(count)]
    assert (types.count("CI"), types.count("AI"), types.count("SC")) == (CI, AI, SC)
    assert len(types) == CI + AI + SC


@settings(max_examples=40)
@given(MATRICES)
def test_spurious_correlation_is_scikit_learns_normalised_mutual_information(counts):
    y, a = (np.repeat(axis.ravel(), counts.ravel()) for axis in np.indices(counts.shape))
    assume(len(np.unique(y)) > 1 or len(np.unique(a)) > 1)  # for constants scikit-learn says 1, the paper 0 / 0 and we 0
    assert triplet(counts).spurious_correlation == pytest.approx(normalized_mutual_info_score(y, a), abs=1e-9)


@given(MATRICES)
def test_measures_lie_between_0_and_1(counts):
    assert all(0 <= value <= 1 for value in triplet(counts))


@given(MATRICES, st.randoms(use_true_random=False))
def test_order_of_classes_and_of_attributes_does_not_matter(counts, random):
    rows, columns = (random.sample(range(size), size) for size in counts.shape)
    assert triplet(counts[rows][:, columns]) == pytest.approx(triplet(counts), abs=1e-12)


@given(MATRICES, st.integers(2, 50))
def test_size_does_not_matter(counts, factor):
    assert triplet(factor * counts) == pytest.approx(triplet(counts), abs=1e-12)


@given(MATRICES)
def test_transposing_swaps_class_and_attribute(counts):
    class_imbalance, attribute_imbalance, correlation = triplet(counts)
    assert triplet(counts.T) == pytest.approx((attribute_imbalance, class_imbalance, correlation), abs=1e-12)


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([[5, 5], [5, 5]], (0, 0, 0)),
        ([[5, 0], [0, 5]], (0, 0, 1)),
        ([[5, 5], [0, 0]], (1, 0, 0)),
        ([[5, 0], [5, 0]], (0, 1, 0)),
        ([[5, 0], [0, 0]], (1, 1, 0)),
        ([[0, 0], [0, 0]], (0, 0, 0)),
        ([[7, 3]], (0, 1 - 0.610864302 / math.log(2), 0)),  # a single class cannot be unbalanced
        ([[5, 0], [5, 0], [0, 5], [0, 5]], (0, 0, 2 / 3)),  # the largest possible for 4 classes and 2 attributes
    ],
)
def test_extremes(counts, expected):
    assert triplet(counts) == pytest.approx(expected, abs=1e-8)


@given(st.integers(2, 100), st.data(), st.integers(1, 500))
def test_one_attribute_value_leaves_class_imbalance_alone(num_classes, data, count):
    """Data without an attribute: n of Y classes, all as large, have 1 - log n / log Y, and nothing is zero divided by zero."""
    held = data.draw(st.lists(st.integers(0, num_classes - 1), min_size=1, unique=True))
    counts = np.zeros((num_classes, 1))
    counts[held] = count
    class_imbalance, *others = triplet(counts)
    assert class_imbalance == pytest.approx(1 - math.log(len(held)) / math.log(num_classes), abs=1e-9)
    assert others == [0, 0]


@pytest.mark.parametrize("total", [1, 10**15])
def test_independence_is_exactly_zero_whatever_rounding_does(total):
    assert triplet(np.outer([0.3, 0.7], [0.1, 0.9]) * total).spurious_correlation == 0


@given(st.integers(1, 200), st.integers(2, 12), st.integers(2, 4))
def test_balance_is_exactly_zero(count, num_classes, num_attributes):
    """Or a balanced client's rounding errors, normalised, would be as loud as anybody's heterogeneity."""
    assert triplet(np.full((num_classes, num_attributes), count)) == (0, 0, 0)


@pytest.mark.parametrize("counts", [[[1, -1], [1, 1]], [[1, math.nan]], [[1, math.inf]], [1, 2], [], [[]], [[[1]]]], ids=str)
def test_malformed_matrices_are_refused(counts):
    with pytest.raises(ValueError, match="Expected an interaction matrix of shape"):
        InteractionMatrix(counts)


def test_a_matrix_cannot_be_changed():
    given_counts = np.array([[1.0, 2.0]])
    matrix = InteractionMatrix(given_counts)
    given_counts[0, 0] = 9
    assert matrix.counts.tolist() == [[1, 2]]
    with pytest.raises(ValueError, match="read-only"):
        matrix.counts[0, 0] = 3
    with pytest.raises(dataclasses.FrozenInstanceError):
        matrix.counts = given_counts


@given(MATRICES)
def test_from_labels_counts_the_samples_of_each_cell(counts):
    y, a = (np.repeat(axis.ravel(), counts.ravel()) for axis in np.indices(counts.shape))
    order = np.random.default_rng(0).permutation(len(y))
    matrix = InteractionMatrix.from_labels(y[order], a[order], *counts.shape)
    assert matrix.counts.tolist() == counts.tolist()
    assert matrix.total == counts.sum()


@pytest.mark.parametrize(
    ("measures", "kind"),
    [
        ((0.5, 0.1, 0.2), "CI"),
        ((0.1, 0.5, 0.2), "AI"),
        ((0.1, 0.2, 0.5), "SC"),
        ((0.5, 0.5, 0.2), "AI"),
        ((0.5, 0.2, 0.5), "CI"),
        ((0.2, 0.5, 0.5), "AI"),
        ((0.5, 0.5 - 1e-12, 0.2), "AI"),  # equal but for rounding
        ((0.0, 0.0, 0.0), "none"),
        ((1e-16, 0.0, 0.0), "none"),
    ],
)
def test_the_type_is_the_largest_measure(measures, kind):
    assert HeterogeneityTriplet(*measures).type == kind


def test_a_client_has_a_type_where_a_test_finds_more_than_chance():
    """Against scipy's likelihood-ratio tests of equal counts and of independence."""
    draw, seen = np.random.default_rng(0), set()
    for number in range(300):
        counts = draw.integers(1, 15 if number % 2 else 60, size=[(2, 2), (3, 2), (2, 4)][number % 3])
        p_values = [power_divergence(counts.sum(axis=axis), lambda_="log-likelihood").pvalue for axis in (0, 1)]
        p_values.append(chi2_contingency(counts, correction=False, lambda_="log-likelihood").pvalue)
        matrix = InteractionMatrix(counts)
        assert matrix.type == (matrix.triplet.type if min(p_values) < 0.01 else "none")
        seen.add(matrix.type)
    assert seen == {"CI", "AI", "SC", "none"}
    assert InteractionMatrix([[4], [0]]).type == "none"
    assert InteractionMatrix([[50], [0]]).type == "CI"
    assert InteractionMatrix([[0, 0], [0, 0]]).type == "none"


def test_a_federation_is_measured_pooled_and_by_client():
    measured = measure_federation([InteractionMatrix([[4, 0], [0, 0]]), InteractionMatrix([[0, 0], [0, 4]])])
    assert measured.clients == ((1, 1, 0), (1, 1, 0))
    assert measured.client_mean == (1, 1, 0)
    assert measured.global_triplet == pytest.approx((0, 0, 1))


def test_client_means_of_gsc():
    """Fidelity of equations 24-26 on GSC: (4 x .531, 4 x .531, 16 x .531) / 24."""
    counts = {(90, 90, 10, 10): 4, (90, 10, 90, 10): 4, (90, 10, 10, 90): 16}
    matrices = [InteractionMatrix(np.reshape(cells, (2, 2))) for cells, count in counts.items() for _ in range(count)]
    one = 1 + (0.9 * math.log(0.9) + 0.1 * math.log(0.1)) / math.log(2)
    assert measure_federation(matrices).client_mean == pytest.approx((one / 6, one / 6, one * 2 / 3))


def test_distances_of_class_shares_against_scipy():
    draw = np.random.default_rng(1)
    counts = draw.integers(0, 30, size=(5, 3, 2))
    matrices = [InteractionMatrix(one) for one in (*counts, np.zeros((3, 2)))]  # who holds nothing has no shares
    p, q = counts.sum(axis=2) / counts.sum(axis=(1, 2))[:, None], counts.sum(axis=(0, 2)) / counts.sum()
    unlike = 1 - np.eye(3)

    def earth_mover(one):
        """The cheapest way to move one's shares to the others', by linear programming."""
        equal = np.vstack([np.kron(np.eye(3), np.ones(3)), np.kron(np.ones(3), np.eye(3))])
        return linprog(unlike.ravel(), A_eq=equal, b_eq=np.concatenate([one, q])).fun

    expected = {
        "jensen_shannon": np.mean([np.sqrt((entropy(one, (one + q) / 2, 2) + entropy(q, (one + q) / 2, 2)) / 2) for one in p]),
        "hellinger": np.mean([np.linalg.norm(np.sqrt(one) - np.sqrt(q)) / np.sqrt(2) for one in p]),
        "total_variation": np.mean([earth_mover(one) for one in p]),
    }
    assert class_distances(matrices) == pytest.approx(expected)
    assert set(class_distances([InteractionMatrix([[0], [0]])]).values()) == {0.0}


@pytest.mark.parametrize("shape", [(2, 2), (3, 4), (1, 2), (4, 1), (1, 1)])
def test_many_clients_are_measured_as_each_by_itself(shape):
    draw = np.random.default_rng(5)
    counts_KYA = draw.integers(0, 3, size=(200, *shape)) * draw.integers(0, 30, size=(200, 1, 1))  # some have no samples
    many = InteractionMatrices(counts_KYA)
    np.testing.assert_allclose(many.triplets_KD, [matrix.triplet for matrix in many], rtol=0, atol=1e-12)
    assert many.types == [matrix.type for matrix in many]
    assert np.array_equal(many.pooled.counts, sum(matrix.counts for matrix in many))
    assert len(many[3:5]) == 2


def test_clients_are_counted_as_each_by_itself():
    draw = np.random.default_rng(5)
    y, a, sizes = draw.integers(3, size=50), draw.integers(2, size=50), np.array([7, 0, 40, 3])
    many = InteractionMatrices.of(y, a, sizes, 3, 2)
    for matrix, part in zip(many, np.split(np.arange(50), np.cumsum(sizes)[:-1]), strict=True):
        assert np.array_equal(matrix.counts, InteractionMatrix.from_labels(y[part], a[part], 3, 2).counts)
