"""Robust aggregators against oracles in plain numpy, one vector a client, and what bad clients cannot do to them."""

import itertools
import math
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedfacet import rng, state
from fedfacet.aggregators.fedavg import FedAvg
from fedfacet.aggregators.robust import CoordinateMedian, GeometricMedian, Krum, NormBound, TrimmedMean
from fedfacet.build import build
from fedfacet.config import compose_job
from fedfacet.errors import ConfigError
from fedfacet.types import ClientUpdate, Facts

SIZE = 7
EXACT = {"rel": 1e-9, "abs": 1e-9}


def arriving(vectors, num_samples=None, ids=None):
    """Updates of two parameters and a buffer."""
    vectors = [torch.tensor(np.asarray(one, dtype=np.float64)) for one in vectors]
    sizes = num_samples if num_samples is not None else [4] * len(vectors)
    return [
        ClientUpdate(
            client_id=i,
            delta={"a": v[:2].clone(), "b": v[2:6].view(2, 2).clone()},
            buffers={"mean": v[6].clone()},
            num_samples=n,
            num_steps=1,
            step_weight=1.0,
            metrics={},
        )
        for i, n, v in zip(ids if ids is not None else range(len(vectors)), sizes, vectors, strict=True)
    ]


def moved(aggregator, vectors, **more):
    """How far a round moves a model of zeros, as one vector of shape (SIZE,)."""
    start = {"a": torch.zeros(2), "b": torch.zeros(2, 2), "mean": torch.zeros(()), "number": torch.tensor(7)}
    start = {name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in start.items()}
    server, after = aggregator.aggregate({}, start, iter(arriving(vectors, **more)))
    assert server == {}
    assert list(after) == list(start)
    assert after["number"] == 7
    return np.concatenate([after[name].numpy().ravel() for name in ("a", "b", "mean")])


def draw(m, seed=0, scale=1.0):
    return scale * rng.stream(seed, "updates", m).normal(size=(m, SIZE))


# Oracles


def krum_by_hand(vectors, f, m, weights=None):
    """Scores from the differences themselves."""
    n = len(vectors)
    scores = []
    for k in range(n):
        squares = sorted(float(((vectors[k] - vectors[i]) ** 2).sum()) for i in range(n) if i != k)
        scores.append(sum(squares[: n - f - 2]))
    best = sorted(range(n), key=lambda k: (scores[k], k))[:m]
    return np.average([vectors[k] for k in best], axis=0, weights=None if weights is None else [weights[k] for k in best])


def trimmed_by_hand(vectors, trim, weights):
    """Every client repeated as often as it has weight and a thousandth more, so that cutting is counting."""
    result = []
    for column in np.transpose(vectors):
        copies = sorted(itertools.chain.from_iterable([value] * (1000 * n) for value, n in zip(column, weights, strict=True)))
        cut = round(trim * len(copies))
        result.append(np.mean(copies[cut : len(copies) - cut]))
    return np.array(result)


def median_by_hand(vectors, weights):
    return np.median(np.repeat(vectors, weights, axis=0), axis=0)


def weiszfeld_by_hand(vectors, weights, nu, iterations):
    point = np.average(vectors, axis=0, weights=weights)
    for _ in range(iterations):
        pull = [n / max(nu, np.linalg.norm(point - v)) for v, n in zip(vectors, weights, strict=True)]
        point = np.average(vectors, axis=0, weights=pull)
    return point


# Against the oracles


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(("n", "f", "m"), [(3, 0, 1), (5, 1, 1), (5, 1, 2), (7, 2, 1), (7, 2, 5), (9, 2, 4), (10, 3, 10)])
def test_krum_chooses_as_brute_force_does(n, f, m, seed):
    vectors, sizes = draw(n, seed), list(range(1, n + 1))
    expected = krum_by_hand(vectors, f, m)
    assert moved(Krum(byzantine=f, keep=m), vectors) == pytest.approx(expected, **EXACT)
    expected = krum_by_hand(vectors, f, m, sizes)
    assert moved(Krum(byzantine=f, keep=m, weighting="samples"), vectors, num_samples=sizes) == pytest.approx(expected, **EXACT)


@pytest.mark.parametrize(("n", "f"), [(3, 0), (4, 0), (5, 1), (6, 1), (7, 2), (9, 3)])
def test_what_krum_is_not_told_follows_from_the_number_of_updates(n, f):
    vectors = draw(n)
    assert moved(Krum(), vectors) == pytest.approx(krum_by_hand(vectors, f, 1), **EXACT)
    assert moved(Krum(keep=None), vectors) == pytest.approx(krum_by_hand(vectors, f, n - f), **EXACT)


@pytest.mark.parametrize("n", [1, 2])
def test_one_or_two_updates_are_averaged_unless_some_may_be_bad(n):
    vectors = draw(n)
    assert moved(Krum(), vectors) == pytest.approx(vectors.mean(axis=0), **EXACT)
    with pytest.raises(ConfigError, match=r"^Expected at least 3 updates in a round for .*=0, but got \d: .*\.$"):
        moved(Krum(byzantine=0), vectors)


@pytest.mark.parametrize("f", [1, 2, 3])
def test_krum_refuses_too_few_updates_and_too_few_clients(f):
    least = 2 * f + 3
    moved(Krum(byzantine=f), draw(least))
    with pytest.raises(ConfigError, match=f"^Expected at least {least} updates in a round for .*, but got {least - 1}: raise "):
        moved(Krum(byzantine=f), draw(least - 1))
    assert Krum(byzantine=f).init(Facts(least, {}, ())) == {}
    with pytest.raises(ConfigError, match=f"^Expected at least {least} clients for "):
        Krum(byzantine=f).init(Facts(least - 1, {}, ()))


def test_equal_scores_go_to_the_first_client_whatever_the_order():
    vectors = np.zeros((3, SIZE))
    vectors[:, 0] = [0.0, 1.0, 5.0]  # the nearest neighbours of 0 and 1 are each other
    for order in itertools.permutations(range(3)):
        assert moved(Krum(byzantine=0), vectors[list(order)], ids=list(order))[0] == 0.0


def test_krum_looks_at_buffers_too_unless_they_are_kept():
    """Or a client with an honest delta and a wild running mean would be chosen."""
    vectors = np.zeros((5, SIZE))
    vectors[:, 0] = [0.0, 1.0, 1.1, 1.2, 1.3]
    vectors[2, 6] = 1e6
    assert moved(Krum(byzantine=1), vectors)[6] == 0.0
    kept = moved(Krum(byzantine=1, buffers="keep"), vectors)
    assert kept.tolist() == [1.1, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("trim", [0.05, 0.1, 0.2, 0.25, 0.3, 0.45, 0.499])
@pytest.mark.parametrize("sizes", [[1] * 1, [1] * 5, [1] * 10, [1, 3, 2, 7, 4, 1]])
def test_the_trimmed_mean_is_what_is_left_of_the_middle(trim, sizes):
    vectors = draw(len(sizes))
    aggregator = TrimmedMean(trim=trim, weighting="samples")
    assert moved(aggregator, vectors, num_samples=sizes) == pytest.approx(trimmed_by_hand(vectors, trim, sizes), **EXACT)
    expected = trimmed_by_hand(vectors, trim, [1] * len(sizes))
    assert moved(TrimmedMean(trim=trim), vectors, num_samples=sizes) == pytest.approx(expected, **EXACT)


@pytest.mark.parametrize("number", [10, 20, 100])
def test_no_hair_of_a_client_that_is_cut_off_is_left(number):
    """29 of 100 is 0.29, but 0.29 times 100 is less than 29 in floating point."""
    for cut in range(1, number // 2):
        vectors = np.ones((number, SIZE))
        vectors[:cut] = 1e300
        assert moved(TrimmedMean(trim=cut / number), vectors) == pytest.approx(np.ones(SIZE)), cut


@pytest.mark.parametrize("sizes", [[1], [1, 1], [1] * 5, [1] * 8, [3, 1, 1, 1], [1, 3, 2, 7, 4, 1], [5, 1, 1, 2]])
def test_the_median_is_that_of_repeated_clients(sizes):
    for seed in range(3):
        vectors = draw(len(sizes), seed)
        expected = median_by_hand(vectors, sizes)
        assert moved(CoordinateMedian(weighting="samples"), vectors, num_samples=sizes) == pytest.approx(expected, **EXACT)
        assert moved(CoordinateMedian(), vectors, num_samples=sizes) == pytest.approx(np.median(vectors, axis=0), **EXACT)


def test_a_step_of_the_geometric_median_by_hand():
    """0, 0 and 6 on a line: the mean is 2, its distances 2, 2 and 4. Then (0 + 0 + 6 / 4) / (1 / 2 + 1 / 2 + 1 / 4) = 1.2."""
    vectors = np.zeros((3, SIZE))
    vectors[2, 0] = 6
    assert moved(GeometricMedian(iterations=1), vectors)[0] == pytest.approx(1.2)


@pytest.mark.parametrize("iterations", [1, 3, 50])
@pytest.mark.parametrize("nu", [1e-6, 0.5, 1e3])
def test_the_geometric_median_is_that_of_literal_steps(iterations, nu):
    vectors, sizes = draw(6), [1, 3, 2, 7, 4, 1]
    aggregator = GeometricMedian(nu=nu, iterations=iterations, weighting="samples")
    expected = weiszfeld_by_hand(vectors, sizes, nu, iterations)
    assert moved(aggregator, vectors, num_samples=sizes) == pytest.approx(expected, **EXACT)
    expected = weiszfeld_by_hand(vectors, [1] * 6, nu, iterations)
    aggregator = GeometricMedian(nu=nu, iterations=iterations, weighting="equal")
    assert moved(aggregator, vectors, num_samples=sizes) == pytest.approx(expected, **EXACT)


def test_many_steps_find_the_smallest_sum_of_distances():
    """The gradient of the sum, of unit vectors, vanishes there."""
    vectors = draw(9)
    away = moved(GeometricMedian(iterations=2000, nu=1e-12), vectors) - vectors
    assert np.abs((away / np.linalg.norm(away, axis=1, keepdims=True)).sum(axis=0)).max() < 1e-6


def test_a_point_where_distances_vanish_divides_by_nothing_that_is_zero():
    vectors = np.ones((4, SIZE))
    assert moved(GeometricMedian(), vectors) == pytest.approx(np.ones(SIZE))
    vectors[0] = -2.0  # the mean is none of them, the median three
    assert moved(GeometricMedian(iterations=100), vectors) == pytest.approx(np.ones(SIZE), abs=1e-3)


@pytest.mark.parametrize("bound", [1e-3, 1.0, 3.0, 1e3])
def test_norms_are_bounded_one_by_one(bound):
    vectors, sizes = draw(6) * np.arange(1, 7)[:, None], [1, 3, 2, 7, 4, 1]
    clipped = [v * min(1, bound / np.linalg.norm(v)) for v in vectors]
    assert moved(NormBound(bound=bound), vectors) == pytest.approx(np.mean(clipped, axis=0), **EXACT)
    expected = np.average(clipped, axis=0, weights=sizes)
    assert moved(NormBound(bound=bound, weighting="samples"), vectors, num_samples=sizes) == pytest.approx(expected, **EXACT)
    assert np.linalg.norm(moved(NormBound(bound=bound), vectors * 1e9)) <= bound * (1 + 1e-9)


def test_where_buffers_are_kept_they_do_not_count_for_the_norm():
    vectors = np.zeros((1, SIZE))
    vectors[0, 0], vectors[0, 6] = 3.0, 4.0
    assert moved(NormBound(bound=2.5), vectors) == pytest.approx([1.5, 0, 0, 0, 0, 0, 2.0])
    assert moved(NormBound(bound=3.0, buffers="keep"), vectors).tolist() == [3.0, 0, 0, 0, 0, 0, 0]


# What is federated averaging


@pytest.mark.parametrize("buffers", ["average", "keep"])
@pytest.mark.parametrize("weighting", ["equal", "samples"])
@pytest.mark.parametrize(
    "make",
    [
        partial(TrimmedMean, trim=0.0),
        partial(TrimmedMean, trim=0),
        partial(GeometricMedian, iterations=0),
        partial(NormBound, bound=math.inf),
        partial(Krum, byzantine=0, keep=99),
        partial(Krum, byzantine=0, keep=None),
        partial(Krum, byzantine=1, keep=6),
    ],
)
def test_without_strength_it_is_federated_averaging_bit_for_bit(make, weighting, buffers):
    vectors, sizes, ids = draw(6, scale=0.3), [9, 4, 5, 1, 2, 8], [3, 0, 5, 1, 2, 4]
    ours, plain = (a(weighting=weighting, buffers=buffers) for a in (make, FedAvg))
    assert (moved(ours, vectors, num_samples=sizes, ids=ids) == moved(plain, vectors, num_samples=sizes, ids=ids)).all()


def test_a_smoothing_beyond_all_distances_is_nearly_federated_averaging():
    vectors = draw(6)
    assert moved(GeometricMedian(nu=1e6), vectors) == pytest.approx(vectors.mean(axis=0), abs=1e-6)


# Properties

ROBUST = {
    "coordinate_median": CoordinateMedian,
    "trimmed_mean": partial(TrimmedMean, trim=0.3),
    "krum": partial(Krum, byzantine=1),
    "multi_krum": partial(Krum, byzantine=1, keep=3),
    "geometric_median": partial(GeometricMedian, weighting="equal"),
    "norm_bound": partial(NormBound, bound=2.0),
}
seeds = st.integers(0, 10**6)


@pytest.mark.parametrize("weighting", ["equal", "samples"])
@pytest.mark.parametrize("name", ROBUST)
@settings(max_examples=20)
@given(n=st.integers(5, 9), seed=seeds, data=st.data())
def test_the_order_of_updates_does_not_matter_but_for_rounding(name, weighting, n, seed, data):
    vectors, sizes = draw(n, seed), rng.stream(seed, "sizes").integers(1, 50, size=n).tolist()
    order = data.draw(st.permutations(range(n)))
    aggregator = ROBUST[name](weighting=weighting)
    one = moved(aggregator, vectors, num_samples=sizes)
    other = moved(aggregator, vectors[order], num_samples=[sizes[k] for k in order], ids=order)
    assert other == pytest.approx(one, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("name", [name for name in ROBUST if name != "norm_bound"])
@settings(max_examples=20)
@given(n=st.integers(5, 9), seed=seeds, scale=st.floats(0.01, 100), shift=st.floats(-100, 100))
def test_updates_that_are_moved_and_scaled_move_and_scale_the_result(name, n, seed, scale, shift):
    vectors, aggregator = draw(n, seed), ROBUST[name]()
    towards = rng.stream(seed, "shift").normal(size=SIZE)
    result, expected = (
        moved(aggregator, scale * vectors + shift * towards),
        scale * moved(aggregator, vectors) + shift * towards,
    )
    assert result == pytest.approx(expected, rel=1e-6, abs=1e-6 * max(1, abs(shift)))


@settings(max_examples=20)
@given(n=st.integers(1, 9), seed=seeds, scale=st.floats(0.01, 100))
def test_a_bound_scales_with_the_updates(n, seed, scale):
    vectors = draw(n, seed)
    result = moved(NormBound(bound=2.0 * scale), scale * vectors)
    assert result == pytest.approx(scale * moved(NormBound(bound=2.0), vectors), rel=1e-9, abs=1e-12)


arbitrary = st.lists(st.floats(-1e38, 1e38), min_size=SIZE, max_size=SIZE)


@pytest.mark.parametrize("name", ["coordinate_median", "trimmed_mean"])
@settings(max_examples=40)
@given(n=st.integers(3, 11), seed=seeds, data=st.data())
def test_a_minority_cannot_move_an_entry_out_of_the_range_of_the_honest(name, n, seed, data):
    f = data.draw(st.integers(0, (n - 1) // 2))
    honest, bad = draw(n - f, seed), data.draw(st.lists(arbitrary, min_size=f, max_size=f))
    aggregator = CoordinateMedian() if name == "coordinate_median" else TrimmedMean(trim=f / n)
    vectors = np.concatenate([honest, np.array(bad).reshape(f, SIZE)])
    result = moved(aggregator, vectors[data.draw(st.permutations(range(n)))])
    slack = 1e-9  # an average of equal numbers may be a rounding away from them
    assert (honest.min(axis=0) - slack <= result).all()
    assert (result <= honest.max(axis=0) + slack).all()


@pytest.mark.parametrize("weighting", ["equal", "samples"])
@settings(max_examples=40)
@given(n=st.integers(5, 11), seed=seeds, data=st.data())
def test_krum_takes_no_update_that_is_far_from_all_honest_ones(n, seed, weighting, data):
    f = data.draw(st.integers(1, (n - 3) // 2))
    honest, far = draw(n - f, seed), 1e3 * (1 + np.arange(f))[:, None] + draw(f, seed + 1)
    result = moved(Krum(byzantine=f, weighting=weighting), np.concatenate([far, honest]))
    assert (result == honest).all(axis=1).any()
    kept = moved(Krum(byzantine=f, keep=n - f, weighting=weighting), np.concatenate([far, honest]))
    assert kept == pytest.approx(honest.mean(axis=0), **EXACT)


@settings(max_examples=40)
@given(n=st.integers(5, 8), seed=seeds, data=st.data())
def test_krum_equals_brute_force_also_among_colluding_clients(n, seed, data):
    """Several send the same: their distances vanish, which leaves nothing to rounding."""
    f, m = data.draw(st.integers(0, (n - 3) // 2)), data.draw(st.integers(1, n))
    vectors = draw(n, seed)
    copies = data.draw(st.integers(0, n - 2))
    vectors[:copies] = vectors[0]
    scores = [krum_by_hand(vectors, f, m), moved(Krum(byzantine=f, keep=m), vectors)]
    assert scores[1] == pytest.approx(scores[0], rel=1e-9, abs=1e-9)


@settings(max_examples=20)
@given(seed=seeds, length=st.floats(1, 1e6))
def test_a_far_update_pulls_the_geometric_median_less_by_every_step(seed, length):
    vectors = np.concatenate([draw(6, seed), length * 10 * np.ones((2, SIZE))])
    away = [
        np.linalg.norm(moved(GeometricMedian(iterations=steps, weighting="equal"), vectors) - vectors[:6].mean(axis=0))
        for steps in (0, 1, 3, 10, 100)
    ]
    assume(away[0] > 10)
    # The smoothed median of what lies near need not come nearer to the mean of it, so the last steps are left out.
    assert away[:4] == sorted(away[:4], reverse=True)
    assert away[-1] < 5


# In float32, in federations


def test_large_numbers_of_float32_have_a_median_and_a_mean():
    """Their sum would overflow."""
    values, middle = [3.4e38, 3.4e38, -3.4e38, 3.4e38], [CoordinateMedian(), TrimmedMean(trim=0.4)]
    updates = [ClientUpdate(k, {"a": torch.tensor([value])}, {}, 1, 1, 1.0, {}) for k, value in enumerate(values)]
    for aggregator, expected in (*((one, 3.4e38) for one in middle), (TrimmedMean(trim=0.1), 2.125e38)):
        (after,) = aggregator.aggregate({}, {"a": torch.zeros(1)}, updates)[1].values()
        assert after.dtype == torch.float32
        assert after.item() == pytest.approx(expected)


@pytest.mark.parametrize("make", ROBUST.values(), ids=ROBUST)
def test_it_keeps_nothing_and_runs_in_a_federation(make, tiny_federation):
    if make is ROBUST["krum"] or make is ROBUST["multi_krum"]:
        make = partial(make, byzantine=0)
    run = tiny_federation(aggregator=make(), cohort_size=3, rounds=3)
    before = run.state.model
    after = run.fit().model
    assert run.state.aggregator == {}
    assert state.all_finite(after)
    assert state.digest(after) != state.digest(before)


@pytest.mark.slow
def test_three_clients_of_ten_that_turn_their_updates_round_stop_an_average_and_no_robust_one(job_of):
    """Digits, dealt evenly; without faults FedAvg ends at 0.92 to 0.95. Each client trains for four epochs a round."""
    faults = ("transforms=sign_flip", "transforms.sign_flip.clients=[0,1,2]", "transforms.sign_flip.scale=2")
    small = ("model.width=8", "model.hidden=16", "partition=iid", "partition.num_clients=10", "local.amount=4")
    usual = ("experiment=digits_gsc", "selector=all", "federation.cohort_size=10", "callbacks=[]", "logger=[]")
    accuracies = []
    for aggregator in (["fedavg"], ["trimmed_mean", "aggregator.trim=0.3"], ["multi_krum"]):
        run = build(job_of(*usual, *small, *faults, f"aggregator={aggregator[0]}", *aggregator[1:]), None)
        for _ in range(5):
            run.run_round()
        dataset, module = run.engine.clients.dataset, run.engine.clients.program.module
        module.load_state_dict(run.state.model)
        batch = dataset.batch(dataset.test)
        with torch.no_grad():
            accuracies.append(float((module.eval()(batch.x).argmax(dim=1) == batch.y).double().mean()))
    average, *robust = accuracies
    assert average < 0.6
    assert min(robust) > 0.75


@pytest.mark.parametrize("aggregator", ["coordinate_median", "geometric_median", "krum", "norm_bound", "trimmed_mean"])
def test_clients_with_parts_of_the_model_are_refused(aggregator, tmp_path):
    parts = ("capacity=largest", "submodel=heterofl", "model=scaler_cnn", "selector=uniform", "correction=none")
    job, _ = compose_job("train", ["debug=smoke", "callbacks=[]", "logger=[]", *parts, f"aggregator={aggregator}"])
    with pytest.raises(
        ConfigError, match=f"Expected aggregator={aggregator} to go with capacity=largest, but it needs whole models"
    ):
        build(job, tmp_path)


@pytest.mark.parametrize(
    ("make", "bad"),
    [
        *((TrimmedMean, {"trim": value}) for value in (-0.1, 0.5, 1.0, math.nan)),
        *((GeometricMedian, {"nu": value}) for value in (0.0, -1.0, math.inf, math.nan)),
        *((GeometricMedian, {"iterations": value}) for value in (-1, 1.5, True)),
        *((NormBound, {"bound": value}) for value in (0.0, -1.0, math.nan)),
        *((Krum, {"byzantine": value}) for value in (-1, 0.5, True)),
        *((Krum, {"keep": value}) for value in (0, -1, 1.5, True)),
    ],
)
def test_values_out_of_range_are_refused(make, bad):
    with pytest.raises(ValueError, match=f"Expected `{next(iter(bad))}`"):
        make(**bad)
