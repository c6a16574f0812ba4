import hashlib
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedfacet import state

NAN, INF = float("nan"), float("inf")


def bundle(seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    shapes = {"conv.weight": (3, 2, 2), "conv.bias": (3,), "scale": (), "empty": (0, 4)}
    return {name: torch.randn(shape, generator=generator, dtype=dtype) for name, shape in shapes.items()}


def assert_equal(left, right):
    assert list(left) == list(right)
    for name in left:
        torch.testing.assert_close(left[name], right[name], rtol=0, atol=0, equal_nan=True)


def test_subtract_takes_the_names_of_the_left():
    left, right = bundle(0), bundle(1)
    right["only right"] = torch.ones(1)
    assert_equal(state.subtract(left, right), {name: left[name] - right[name] for name in left})
    assert state.subtract({}, right) == {}


def test_add_scales_the_right_and_keeps_what_it_lacks():
    left, right = bundle(0), bundle(1)
    del right["scale"]
    expected = {name: left[name] + 0.5 * right[name] if name in right else left[name] for name in left}
    assert_equal(state.add(left, right, scale=0.5), expected)
    assert_equal(state.add(left, {}), left)
    assert state.add({}, right) == {}


def test_add_of_the_difference_gives_back_the_left():
    left, right = bundle(0, torch.float64), bundle(1, torch.float64)
    result = state.add(right, state.subtract(left, right))
    for name in left:
        torch.testing.assert_close(result[name], left[name])


def test_scaled():
    assert_equal(state.scaled(bundle(), -2.0), {name: -2.0 * tensor for name, tensor in bundle().items()})
    assert state.scaled({}, 2.0) == {}


@given(st.lists(st.floats(0.01, 1000), min_size=1, max_size=6))
def test_weighted_mean_is_numpys_average(weights):
    bundles = [bundle(seed, torch.float64) for seed in range(len(weights))]
    mean = state.weighted_mean(zip(bundles, weights, strict=True))
    for name in bundles[0]:
        expected = np.average([each[name].numpy() for each in bundles], axis=0, weights=weights)
        np.testing.assert_allclose(mean[name].numpy(), expected, rtol=1e-12, atol=1e-12)


def test_gram_holds_the_inner_products_of_all_entries():
    draw = np.random.default_rng(3)
    parts = [(draw.normal(size=(2, 3)), draw.normal(size=4)) for _ in range(3)]
    flat = np.stack([np.concatenate([w.ravel(), b]) for w, b in parts])
    bundles = [{"w": torch.tensor(w).t(), "b": torch.tensor(b)} for w, b in parts]
    assert state.gram(bundles) == pytest.approx(flat @ flat.T, rel=1e-13)
    assert state.gram([{}, {}]).tolist() == [[0, 0], [0, 0]]


def test_gram_is_summed_in_float64():
    """In float32 the ones would be lost beside 1e8."""
    bundle = {"w": torch.tensor([1e4] + 100 * [1.0])}
    assert state.gram([bundle]).tolist() == [[1e8 + 100]]


def test_combination_adds_with_any_sign():
    bundles = [
        {"w": torch.tensor([1.0, 2.0]), "b": torch.tensor([[3.0]])},
        {"w": torch.tensor([5.0, 7.0]), "b": torch.zeros(1, 1)},
    ]
    combined = state.combination(bundles, np.array([2.0, -1.0]))
    assert {name: tensor.tolist() for name, tensor in combined.items()} == {"w": [-3.0, -3.0], "b": [[6.0]]}
    assert combined["w"].dtype == torch.float32
    assert bundles[0]["w"].tolist() == [1.0, 2.0]
    assert state.combination([{}, {}], [1.0, 1.0]) == {}
    with pytest.raises(ValueError, match="shorter"):
        state.combination(bundles, [1.0])


@pytest.mark.parametrize("size", [1, 2**16 - 1, 2**16, 2**16 + 1])
def test_by_entry_sees_the_values_of_all_bundles_at_an_entry(size):
    """Also of tensors that do not lie in memory as they look, of scalars and of empty ones; in parts, of which none is lost."""
    bundles = [bundle(seed) | {"long": torch.arange(2.0 * size).view(2, size).t() * (seed + 1)} for seed in range(3)]
    shapes = []

    def total(values):
        shapes.append(tuple(values.shape))
        return values.double() @ torch.tensor([1.0, 10.0, 100.0], dtype=torch.float64)

    combined = state.by_entry(bundles, total)
    assert all(rows <= 2**16 and columns == 3 for rows, columns in shapes)
    for name, tensor in combined.items():
        first, second, third = (one[name].double() for one in bundles)
        torch.testing.assert_close(tensor, (first + 10 * second + 100 * third).float())
    assert list(combined) == list(bundles[0])
    assert state.by_entry([{}, {}], total) == {}


@pytest.mark.parametrize("weight", [1.0, 1 / 3, 960.0])
def test_the_mean_of_one_bundle_is_that_bundle(weight):
    """One client that holds everything, averaged alone, loses no bit."""
    alone = {"w": torch.randn(1000, generator=torch.Generator().manual_seed(0))}
    mean = state.weighted_mean([(alone, weight)])
    assert torch.equal(mean["w"], alone["w"])
    assert mean["w"].data_ptr() != alone["w"].data_ptr()


def test_the_norm_of_large_numbers_is_finite():
    assert state.norm({"w": torch.full((4,), 1e30), "b": torch.zeros(2)}) == pytest.approx(2e30)


def test_weighted_mean_frees_what_it_has_added():
    made = []

    def stream():
        for seed in range(6):
            tensors = bundle(seed)
            made.append(weakref.ref(tensors["conv.weight"]))
            assert sum(tensor() is not None for tensor in made) <= 2, "only this one and the one before"
            yield tensors, 1.0

    assert list(state.weighted_mean(stream())) == list(bundle())


def test_weighted_mean_of_nothing_is_empty():
    assert state.weighted_mean([]) == {}
    assert state.weighted_mean([({}, 1.0), ({}, 2.0)]) == {}


def test_weighted_mean_keeps_the_dtype():
    mean = state.weighted_mean([(bundle(seed, torch.bfloat16), 2.0) for seed in range(2)])
    assert {tensor.dtype for tensor in mean.values()} == {torch.bfloat16}


def test_num_floats_counts_floats_only():
    assert state.num_floats(bundle() | {"steps": torch.tensor(3), "mask": torch.ones(5, dtype=torch.bool)}) == 12 + 3 + 1
    assert state.num_floats({}) == 0


@pytest.mark.parametrize("poison", [NAN, INF, -INF])
@pytest.mark.parametrize("name", ["conv.weight", "scale"])
def test_all_finite_finds_one_bad_entry(poison, name):
    tensors = bundle()
    assert state.all_finite(tensors)
    tensors[name].view(-1)[-1] = poison
    assert not state.all_finite(tensors)


def test_all_finite_of_integers_and_of_nothing():
    assert state.all_finite({})
    assert state.all_finite({"steps": torch.tensor(3), "empty": torch.empty(0)})
    assert state.all_finite({"large": torch.full((9,), 3e38)}), "no sum may overflow on the way"


def test_norm_is_that_of_all_entries_together():
    flat = torch.cat([tensor.view(-1) for tensor in bundle().values()])
    assert state.norm(bundle()) == pytest.approx(float(flat.norm()), rel=1e-6)
    assert state.norm({}) == 0.0


def test_clone_shares_no_memory_and_no_graph():
    original = bundle()
    original["scale"].requires_grad_(True)
    copy = state.clone(original)
    assert not copy["scale"].requires_grad
    with torch.no_grad():
        for tensor in original.values():
            tensor.zero_()
    assert_equal(copy, bundle())


@pytest.mark.parametrize("function", [state.subtract, state.add])
def test_arithmetic_writes_into_neither(function):
    left, right = bundle(0), bundle(1)
    function(left, right)
    assert_equal(left, bundle(0))
    assert_equal(right, bundle(1))


def test_weighted_mean_writes_into_none():
    bundles = [bundle(0), bundle(1)]
    state.weighted_mean((each, 3.0) for each in bundles)
    assert_equal(bundles[0], bundle(0))
    assert_equal(bundles[1], bundle(1))


def test_digest_is_the_sha256_of_what_its_docstring_says():
    sha = hashlib.sha256(b"w|(2,)|torch.float32|" + np.array([1, 2], dtype="<f4").tobytes()).hexdigest()
    assert state.digest({"w": torch.tensor([1.0, 2.0])}) == sha


def test_digest_ignores_order_and_layout():
    tensors = bundle()
    assert state.digest(dict(reversed(tensors.items()))) == state.digest(tensors)
    square = torch.arange(6.0).view(2, 3)
    assert state.digest({"w": square.t().contiguous().t()}) == state.digest({"w": square})


@pytest.mark.parametrize(
    "other",
    [
        {"w": torch.tensor([1.0, np.nextafter(np.float32(2), np.float32(3))])},
        {"v": torch.tensor([1.0, 2.0])},
        {"w": torch.tensor([[1.0, 2.0]])},
        {"w": torch.tensor([1.0, 2.0], dtype=torch.float64)},
        {"w": torch.tensor([1.0, 2.0]), "empty": torch.empty(0)},
        {},
    ],
)
def test_digest_sees_every_difference(other):
    assert state.digest(other) != state.digest({"w": torch.tensor([1.0, 2.0])})


def test_digest_tells_zero_from_minus_zero():
    assert state.digest({"w": torch.tensor([0.0])}) != state.digest({"w": torch.tensor([-0.0])})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool])
def test_digest_of_every_dtype(dtype):
    assert state.digest({"w": torch.tensor([1, 0]).to(dtype)}) != state.digest({"w": torch.tensor([0, 1]).to(dtype)})


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.bool])
@pytest.mark.parametrize("weight", [1e-300, 0.1, 1.0, 3000.0, 2.0**53])
@pytest.mark.parametrize("number", [2, 3, 7, 100])
def test_the_mean_of_equal_bundles_is_that_bundle(dtype, weight, number):
    bundle = {"w": torch.tensor([30.0, -0.1, 60000.0, 0.0]).to(dtype), "scalar": torch.tensor(1 / 3).to(dtype)}
    assert state.digest(state.weighted_mean([(bundle, weight)] * number)) == state.digest(bundle)
    assert state.digest(state.weighted_mean((bundle, weight * one) for one in range(1, number))) == state.digest(bundle)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_means_of_short_floats_neither_overflow_nor_lose_digits(dtype):
    draw = torch.Generator().manual_seed(0)
    bundles = [({"w": (300 * torch.rand(50, generator=draw)).to(dtype)}, 7000.0 + one) for one in range(40)]
    total = sum(weight for _, weight in bundles)
    exact = sum(bundle["w"].double() * weight for bundle, weight in bundles) / total
    whole = {"w": torch.ones(50)}
    by_entry = state.weighted_mean((bundle, (weight, whole)) for bundle, weight in bundles)
    combined = state.combination([bundle for bundle, _ in bundles], [weight / total for _, weight in bundles])
    for mean in (state.weighted_mean(bundles), by_entry, combined):
        assert torch.equal(mean["w"], exact.to(dtype))


@pytest.mark.parametrize("equal", [1, 2, 3])
def test_means_of_single_precision_are_added_up_in_the_order_given(equal):
    """Bundles that are all the same at first are added up as any others once one differs."""
    draw = torch.Generator().manual_seed(0)
    first, other = ({"w": torch.randn(50, generator=draw)} for _ in range(2))
    bundles = [(bundle, 3.7 * (1 + position)) for position, bundle in enumerate([first] * equal + [other, first])]
    total = bundles[0][0]["w"] * bundles[0][1]
    for bundle, weight in bundles[1:]:
        total = total.add(bundle["w"], alpha=weight)
    assert torch.equal(state.weighted_mean(bundles)["w"], total / sum(weight for _, weight in bundles))
