"""The search space of ``tune``, in Hydra's grammar."""

import pytest

from fedfacet.errors import ConfigError
from fedfacet.runs.study import Dimension, Numbers, search_space, values_for


@pytest.mark.parametrize(
    ("override", "dimension"),
    [
        ("a=interval(0.5,2)", Dimension(("0.5", "2.0"), Numbers(0.5, 2.0, None, log=False))),
        ("a=tag(log,interval(0.01,0.3))", Dimension(("0.01", "0.3"), Numbers(0.01, 0.3, None, log=True))),
        ("a=int(interval(1,10))", Dimension(("1", "10"), Numbers(1, 10, 1, log=False))),
        ("a=tag(int,log,interval(1,10))", Dimension(("1", "10"), Numbers(1, 10, 1, log=True))),
        ("a=range(1,8,3)", Dimension(("1", "4", "7"), Numbers(1, 7, 3, log=False))),
        ("a=shuffle(range(1,4))", Dimension(("1", "2", "3"), Numbers(1, 3, 1, log=False))),
        ("a=range(0.0,1.0,0.25)", Dimension(("0.0", "0.25", "0.5", "0.75"), Numbers(0.0, 0.75, 0.25, log=False))),
        ("a=choice(b,c)", Dimension(("b", "c"), None)),
        ("a=b,c", Dimension(("b", "c"), None)),
        ("a=choice([1,2],b)", Dimension(("[1,2]", "b"), None)),
    ],
)
def test_it_reads_what_is_searched(override, dimension):
    assert search_space(["x=1", override, "seed=3,4", "~y"]) == (["x=1", "~y"], ("3", "4"), {"a": dimension})


def test_the_last_of_several_values_of_a_key_counts():
    assert search_space(["a=1,2", "b=1,2", "a=3"])[::2] == (["a=3"], {"b": Dimension(("1", "2"), None)})


def test_what_was_drawn_is_spelt_as_it_was_given():
    _, _, space = search_space(["d=choice([1,2],b)", "a=range(0.0,0.4,0.1)", "b=interval(1,2)", "c=range(9)"])
    drawn = {"a": 0.1 + 0.2, "b": 1.25, "c": 8, "d": "[1,2]"}
    assert values_for(space, drawn) == ["a=0.3", "b=1.25", "c=8", "d=[1,2]"]


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["a=1", "seed=0,1"], "Expected something to search"),
        (["a=interval(2,1)"], "Expected two numbers in order for `a`"),
        (["a=interval(1,1)"], "Expected two numbers in order for `a`"),
        (["a=tag(log,interval(0,1))"], "Expected two numbers in order, larger than 0, for `a`"),
        (["a=tag(log,range(1,9,2))"], "Expected steps of 1 on a log scale"),
        (["a=range(5,5)"], "Expected 1 to 10,000 values of `a`"),
        (["a=range(1000000000)"], "Expected 1 to 10,000 values of `a`"),
        (["a=range(1,5,0)"], "Expected overrides of the form key=value"),
        (["a=choice("], "Expected overrides of the form key=value"),
    ],
)
def test_what_cannot_be_drawn_is_refused(overrides, said):
    with pytest.raises(ConfigError, match=f"^{said}"):
        search_space(overrides)
