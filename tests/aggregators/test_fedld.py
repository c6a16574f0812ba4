"""FedLD's aggregation against the same formulas on d x d matrices, and against scikit-learn's principal components."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.decomposition import PCA

from fedfacet import rng, state
from fedfacet.aggregators.fedavg import FedAvg
from fedfacet.aggregators.fedld import FedLD
from fedfacet.types import ClientUpdate

SHAPES = {"body": (2, 3), "bias": (3,), "head": (4,)}
SIZE = 13
POLICIES = {"over": ("all", "kept"), "length_correction": ("per_axis", "total"), "scope": ("model", "tensor")}
EVERY_POLICY = [dict(zip(POLICIES, values, strict=True)) for values in itertools.product(*POLICIES.values())]


def bundle(vector):
    parts = np.split(np.asarray(vector, dtype=np.float64), np.cumsum([np.prod(shape) for shape in SHAPES.values()])[:-1])
    return {name: torch.tensor(part.reshape(shape)) for (name, shape), part in zip(SHAPES.items(), parts, strict=True)}


def vector(bundled):
    return np.concatenate([bundled[name].numpy().ravel() for name in SHAPES])


def arriving(G, num_samples=None):
    """Return an update per column of G, shape (d, m)."""
    sizes = num_samples if num_samples is not None else [5] * G.shape[1]
    return [
        ClientUpdate(
            client_id=i, delta=bundle(g), buffers={}, num_samples=n, num_steps=1, step_weight=1.0, metrics={}
        )
        for i, (g, n) in enumerate(zip(G.T, sizes, strict=True))
    ]  # fmt: skip


def moved(G, num_samples=None, **settings):
    """Return by how much FedLD moves a model that is all zeros."""
    return vector(FedLD(**settings).aggregate({}, bundle(np.zeros(SIZE)), iter(arriving(G, num_samples)))[1])


def literal(G, shares, *, over="all", length_correction="per_axis", signs=None, kept_share=0.8):
    """Equations 4, 6 and 7 as they stand, on the d x d matrix; ``signs`` replaces the orientation of equation 6."""
    d, m = G.shape
    values, vectors = np.linalg.eigh(G @ G.T / m)
    values, vectors = values[::-1], vectors[:, ::-1]
    count = max(1, int(kept_share * m))
    values, vectors = np.maximum(values, 0), vectors[:, :count]
    if signs is None:
        signs = np.where(vectors.T @ G.mean(axis=1) >= 0, 1.0, -1.0)
    vectors = vectors * signs[:count]
    weights = values[:count] / (values.sum() if over == "all" else values[:count].sum())
    mean = np.zeros(d)
    for i in range(m):
        g = G[:, i]
        projections = [(g @ v) / (np.linalg.norm(v) * np.linalg.norm(v)) * v for v in vectors.T]
        if length_correction == "per_axis":
            revised = sum(np.linalg.norm(g) / np.linalg.norm(p) * w * p for p, w in zip(projections, weights, strict=True))
        else:
            revised = sum(w * p for p, w in zip(projections, weights, strict=True))
            revised = revised * np.linalg.norm(g) / np.linalg.norm(revised)
        mean += shares[i] * revised
    return mean


def draw(m, seed=0, d=SIZE):
    return rng.stream(seed, "updates", m).normal(size=(d, m)) + 0.3


@pytest.mark.parametrize("policies", [p for p in EVERY_POLICY if p["scope"] == "model"], ids=str)
@pytest.mark.parametrize("m", [1, 2, 3, 5, 12])
@pytest.mark.parametrize("weighting", ["equal", "samples"])
def test_it_is_the_eigendecomposition_of_the_d_times_d_matrix(m, policies, weighting):
    G, sizes = draw(m), np.arange(3, 3 + m)
    shares = sizes / sizes.sum() if weighting == "samples" else np.full(m, 1 / m)
    expected = literal(G, shares, over=policies["over"], length_correction=policies["length_correction"])
    assert moved(G, sizes.tolist(), weighting=weighting, **policies) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("policies", [p for p in EVERY_POLICY if p["scope"] == "tensor"], ids=str)
def test_by_tensor_each_is_decomposed_by_itself(policies):
    """A tensor of three entries has at most three directions, however many clients there are."""
    G, shares = draw(4), np.full(4, 0.25)
    start = 0
    ours = moved(G, **policies)
    for shape in SHAPES.values():
        rows = slice(start, start := start + int(np.prod(shape)))
        keys = {key: policies[key] for key in ("over", "length_correction")}
        assert ours[rows] == pytest.approx(literal(G[rows], shares, **keys), rel=1e-9, abs=1e-12)
    assert ours != pytest.approx(moved(G, **policies | {"scope": "model"}), rel=1e-3)


def test_orientation_does_not_matter():
    """Projecting on v and on -v gives the same vector: equation 6, and the code's majority vote, have no effect."""
    G, shares = draw(4), np.full(4, 0.25)
    ours = moved(G)
    for signs in itertools.product([1.0, -1.0], repeat=3):
        assert literal(G, shares, signs=np.array(signs)) == pytest.approx(ours, rel=1e-10, abs=1e-13)


def test_directions_and_weights_are_those_of_scikit_learn():
    """PCA centres its data: with every update and its opposite the mean is zero, and so the components are FedLD's."""
    m = 5
    G = draw(m)
    pca = PCA(n_components=4).fit(np.concatenate([G.T, -G.T]))
    expected = np.zeros(SIZE)
    for g in G.T:
        projections = pca.components_ @ g
        expected += np.linalg.norm(g) * (pca.explained_variance_ratio_ * np.sign(projections)) @ pca.components_ / m
    assert moved(G) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("m", [2, 3, 6])
def test_one_axis_alone_is_the_first_singular_vector(m):
    """By numpy's SVD of the stacked updates; the weight over the kept axes is 1."""
    G = draw(m)
    first = np.linalg.svd(G)[0][:, 0]
    expected = sum(np.linalg.norm(g) * np.sign(g @ first) * first for g in G.T) / m
    assert moved(G, kept_share=1 / m, over="kept") == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("m", "count"), [(1, 1), (2, 1), (3, 2), (5, 4), (9, 7), (10, 8), (12, 9)])
def test_how_many_axes_are_kept(m, count):
    """floor(0.8 m), 1 at least: 5 -> 4 and 12 -> 9 as in the paper's federations. The result lies in their span."""
    G = draw(m)
    axes = np.linalg.svd(G)[0][:, :count]
    ours = moved(G)
    assert axes @ (axes.T @ ours) == pytest.approx(ours, rel=1e-8, abs=1e-11)
    narrower = axes[:, :-1]
    assert narrower @ (narrower.T @ ours) != pytest.approx(ours, rel=1e-3)


def test_a_share_that_floating_point_has_not_is_not_rounded_down():
    """0.29 * 100 is 28.999999999999996."""
    values = rng.stream(0, "gram").normal(size=(100, 150))
    revised = FedLD(kept_share=0.29)._revised(values @ values.T)
    assert np.linalg.matrix_rank(revised, tol=1e-9) == 29


@pytest.mark.parametrize("policies", EVERY_POLICY, ids=str)
def test_alone_a_client_keeps_its_update(policies):
    G = draw(1)
    assert moved(G, **policies) == pytest.approx(G[:, 0], rel=1e-12)


@pytest.mark.parametrize("policies", EVERY_POLICY, ids=str)
@pytest.mark.parametrize("m", [2, 7])
def test_clients_that_agree_are_averaged(policies, m):
    """Updates of one direction span one axis, whatever their lengths: nothing is lost, nothing is NaN."""
    lengths = np.arange(1, m + 1) / 4
    G = draw(1) * lengths
    assert moved(G, **policies) == pytest.approx(G.mean(axis=1), rel=1e-9)


@pytest.mark.parametrize("policies", EVERY_POLICY, ids=str)
def test_updates_of_zero_move_nothing(policies):
    assert not moved(np.zeros((SIZE, 3)), **policies).any()


@pytest.mark.parametrize("policies", EVERY_POLICY, ids=str)
def test_a_client_without_an_update_counts_as_one_that_does_not_move(policies):
    G = draw(3)
    with_idle = np.concatenate([G, np.zeros((SIZE, 1))], axis=1)
    result = moved(with_idle, **policies)
    assert np.isfinite(result).all()
    lengths = np.linalg.norm(G, axis=0)
    assert np.linalg.norm(result) <= lengths.sum() / 4 * (1 + 1e-9)


def test_axes_without_projection_contribute_nothing():
    """Orthogonal updates of lengths 3, 2, 1: each has a projection on its own axis only, and the last axis is not kept."""
    G = np.zeros((SIZE, 3))
    G[0, 0], G[5, 1], G[9, 2] = 3.0, 2.0, 1.0
    expected = np.zeros(SIZE)
    expected[0], expected[5] = 3 * (9 / 14) / 3, 2 * (4 / 14) / 3
    assert moved(G) == pytest.approx(expected, rel=1e-12, abs=1e-15)
    expected[0], expected[5] = 1.0, 2 / 3  # "total" gives the old lengths back, and what is on no axis is lost
    assert moved(G, length_correction="total") == pytest.approx(expected, rel=1e-12, abs=1e-15)


def test_total_keeps_every_updates_length_and_per_axis_shortens_them():
    G = draw(5)
    gram = G.T @ G
    lengths = np.linalg.norm(G, axis=0)
    for correction in ("total", "per_axis"):
        revised = G @ FedLD(length_correction=correction, over="kept")._revised(gram).T
        ours = np.linalg.norm(revised, axis=0)
        if correction == "total":
            assert ours == pytest.approx(lengths, rel=1e-9)
        else:
            values = np.linalg.eigvalsh(gram)[::-1][:4]
            assert ours == pytest.approx(lengths * np.linalg.norm(values / values.sum()), rel=1e-9)


def test_weights_over_the_kept_axes_add_up_to_one():
    """So they only scale what those over all axes give, where lengths are corrected per axis."""
    G = draw(6)
    values = np.linalg.eigvalsh(G.T @ G)[::-1]
    assert moved(G, over="kept") == pytest.approx(moved(G, over="all") * values.sum() / values[:4].sum(), rel=1e-9)
    assert moved(G, over="kept", length_correction="total") == pytest.approx(moved(G, length_correction="total"), rel=1e-9)


@given(
    st.integers(1, 6), st.integers(0, 3), st.integers(0, 10**6), st.sampled_from(EVERY_POLICY), st.floats(-6, 6),
    st.sampled_from([torch.float32, torch.float64]),
)  # fmt: skip
def test_it_stays_finite_and_within_bounds_for_any_cohort(m, copies, seed, policies, exponent, dtype):
    """Rank-deficient cohorts among them: copies and sums of updates. The mean is never longer than the updates' mean length."""
    draws = rng.stream(seed, "any cohort")
    G = draws.normal(size=(SIZE, m)) * 10.0**exponent
    G = np.concatenate([G, G[:, draws.integers(m, size=copies)] * draws.integers(-2, 3, size=copies)], axis=1)
    updates = [
        ClientUpdate(i, {k: t.to(dtype) for k, t in bundle(g).items()}, {}, 3 + i, 1, 1.0, {}) for i, g in enumerate(G.T)
    ]
    start = {name: tensor.to(dtype) for name, tensor in bundle(np.zeros(SIZE)).items()}
    _, after = FedLD(**policies).aggregate({}, start, iter(updates))
    assert state.all_finite(after)
    assert all(tensor.dtype == dtype for tensor in after.values())
    shares = np.array([u.num_samples for u in updates]) / sum(u.num_samples for u in updates)
    for name in SHAPES if policies["scope"] == "tensor" else [None]:
        of_part = [u.delta if name is None else {name: u.delta[name]} for u in updates]
        reached = after if name is None else {name: after[name]}
        assert state.norm(reached) <= sum(p * state.norm(part) for p, part in zip(shares, of_part, strict=True)) * (1 + 1e-4)


def test_a_turn_of_space_turns_the_result():
    """Nothing hangs on the coordinates, only on lengths and angles."""
    G = draw(4)
    turn, _ = np.linalg.qr(rng.stream(3, "turn").normal(size=(SIZE, SIZE)))
    assert moved(turn @ G) == pytest.approx(turn @ moved(G), rel=1e-8, abs=1e-11)


def test_running_statistics_are_averaged_plainly():
    updates = [
        ClientUpdate(i, bundle(g), {"mean": torch.tensor([float(i)])}, 10 * (i + 1), 1, 1.0, {})
        for i, g in enumerate(draw(2).T)
    ]
    model = bundle(np.zeros(SIZE)) | {"mean": torch.tensor([5.0])}
    for settings, expected in (({}, 5 + 20 / 30), ({"weighting": "equal"}, 5.5), ({"buffers": "keep"}, 5)):
        _, after = FedLD(**settings).aggregate({}, model, iter(updates))
        assert after["mean"].item() == pytest.approx(expected)


def test_a_round_of_a_tiny_federation(tiny_federation):
    """The updates of real clients, against the d x d decomposition of their stacked float32 updates."""
    ours, plain = tiny_federation(cohort_size=4, aggregator=FedLD()), tiny_federation(cohort_size=4, aggregator=FedAvg())
    start = ours.state.model
    tasks = []
    run, ours.engine.run = ours.engine.run, lambda orders: run(tasks.extend(orders) or orders)
    ours.run_round()
    plain.run_round()
    updates = list(run(tasks))
    flat = lambda b: np.concatenate([b[n].double().numpy().ravel() for n in start])  # noqa: E731
    G = np.stack([flat(update.delta) for update in updates], axis=1)
    sizes = np.array([update.num_samples for update in updates])
    moved_by = flat(ours.state.model) - flat(start)
    assert moved_by == pytest.approx(literal(G, sizes / sizes.sum()), rel=1e-3, abs=1e-6)
    assert moved_by != pytest.approx(flat(plain.state.model) - flat(start), rel=1e-2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kept_share": 0.0}, r"Expected `kept_share` in \(0, 1\], but got 0.0"),
        ({"kept_share": 1.1}, r"Expected `kept_share` in \(0, 1\]"),
        ({"over": "some"}, "Expected `over` to be 'all' or 'kept', but got 'some'"),
        ({"length_correction": "none"}, "Expected `length_correction` to be 'per_axis' or 'total', but got 'none'"),
        ({"scope": "layer"}, "Expected `scope` to be 'model' or 'tensor', but got 'layer'"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        FedLD(**settings)
