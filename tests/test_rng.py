import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from fedfacet import rng

KEYS = st.lists(st.integers(-5, 100), max_size=3).map(tuple)
NAMES = st.tuples(st.integers(0, 100), st.sampled_from(["selection", "batches", "batch", ""]), KEYS)


def first_draws(name):
    seed, purpose, keys = name
    return rng.stream(seed, purpose, *keys).integers(2**63, size=2).tolist()


def test_the_first_numbers_of_some_streams():
    """Every partition and every run hangs on these; if this fails, no saved number can be made again."""
    assert rng.stream(0, "selection", 7).integers(1000, size=4).tolist() == [21, 770, 811, 370]
    assert rng.stream(1, "partition").permutation(6).tolist() == [2, 4, 1, 3, 5, 0]
    assert rng.torch_seed(0, "weights") == 3019959172908235655


@given(NAMES)
def test_equal_names_are_equal_streams(name):
    assert first_draws(name) == first_draws(name)


@given(NAMES, NAMES)
def test_different_names_are_different_streams(left, right):
    assume(left != right)
    assert first_draws(left) != first_draws(right)
    assert rng.torch_seed(left[0], left[1], *left[2]) != rng.torch_seed(right[0], right[1], *right[2])


def test_a_trailing_zero_is_another_key():
    """numpy's SeedSequence takes [1, 2] and [1, 2, 0] for the same."""
    assert first_draws((0, "batches", (1, 2))) != first_draws((0, "batches", (1, 2, 0)))
    assert first_draws((0, "batches", ())) != first_draws((0, "batches", (0,)))


def test_keys_may_be_numpy_integers():
    assert first_draws((0, "batches", (np.int64(3),))) == first_draws((0, "batches", (3,)))


def test_a_stream_does_not_depend_on_what_was_drawn_before():
    fresh = first_draws((3, "batches", (1,)))
    rng.stream(3, "batches", 1).random(100)
    np.random.default_rng().random(10)
    torch.rand(3)
    assert first_draws((3, "batches", (1,))) == fresh


def test_streams_are_equal_in_another_process(start_script, tmp_path):
    """Python's own hash is salted per process, which must not matter."""
    code = "from fedfacet import rng; print(rng.stream(5, 'selection', 2).integers(2**62), rng.torch_seed(5, 'train', 1, 2))"
    (tmp_path / "drawn.py").write_text(code)
    printed = start_script(tmp_path, tmp_path / "drawn.py").result().out.split()
    assert printed == [str(rng.stream(5, "selection", 2).integers(2**62)), str(rng.torch_seed(5, "train", 1, 2))]


@given(NAMES)
def test_torch_seeds_are_seeds_of_torch(name):
    seed = rng.torch_seed(name[0], name[1], *name[2])
    assert 0 <= seed < 2**63
    torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("draw", [rng.stream, rng.torch_seed])
def test_negative_seeds_are_refused(draw):
    with pytest.raises(ValueError, match="Expected `seed` to be 0 or larger, but got -1"):
        draw(-1, "selection")


def test_forked_puts_the_global_generator_back():
    before = torch.get_rng_state()
    with rng.forked(0, "train", 1, 2):
        torch.rand(5)
    assert torch.equal(torch.get_rng_state(), before)


def test_forked_puts_the_global_generator_back_after_an_error():
    before = torch.get_rng_state()

    def draw_and_fail():
        with rng.forked(0, "train"):
            torch.rand(5)
            raise KeyError

    with pytest.raises(KeyError):
        draw_and_fail()
    assert torch.equal(torch.get_rng_state(), before)


def test_draws_inside_depend_on_the_name_alone():
    def draw(*keys):
        with rng.forked(0, "train", *keys):
            return torch.rand(4)

    first = draw(1, 2)
    torch.rand(7)
    assert torch.equal(draw(1, 2), first)
    assert not torch.equal(draw(1, 3), first)


def test_forks_nest():
    with rng.forked(0, "outer"):
        expected = torch.rand(2)
    with rng.forked(0, "outer"):
        with rng.forked(0, "inner"):
            torch.rand(3)
        assert torch.equal(torch.rand(2), expected)


@pytest.mark.gpu
def test_forked_covers_the_accelerator():
    device = torch.device("cuda")
    before = torch.cuda.get_rng_state(device)
    with rng.forked(0, "train", device=device):
        first = torch.rand(4, device=device)
    torch.rand(9, device=device)
    torch.cuda.set_rng_state(before, device)
    with rng.forked(0, "train", device=device):
        assert torch.equal(torch.rand(4, device=device), first)
    assert torch.equal(torch.cuda.get_rng_state(device), before)
