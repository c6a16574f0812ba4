import math

import numpy as np
import pytest

from fedfacet.arguments import check_choice, check_whole, check_within


@pytest.mark.parametrize("interval", ["[0, 1]", "[0, 1)", "(0, 1]", "(0, 1)", "(0, 1e9]"])
def test_an_interval_holds_what_its_brackets_say(interval):
    low, high = map(float, interval[1:-1].split(", "))
    check_within("x", (low + high) / 2, interval)
    check_within("x", np.float32(0.5), interval)
    for end, kept in ((low, interval[0] == "["), (high, interval[-1] == "]")):
        if kept:
            check_within("x", end, interval)
        else:
            with pytest.raises(ValueError, match="Expected `x` in "):
                check_within("x", end, interval)
    for outside in (math.nextafter(low, -math.inf), math.nextafter(high, math.inf), math.nan, math.inf, -math.inf):
        with pytest.raises(ValueError, match="Expected `x` in "):
            check_within("x", outside, interval)


@pytest.mark.parametrize("value", [1, -1, 1.0, 2.5, math.nan, None, "2", True, [2]])
def test_whole_numbers_are_integers_and_large_enough(value):
    check_whole("n", 2, 2)
    with pytest.raises(ValueError, match="`n` to be a whole number, 2 or larger, but got "):
        check_whole("n", value, 2)


def test_choices_are_named():
    check_choice("mode", "b", ("a", "b", "c"))
    with pytest.raises(ValueError, match=r"^Expected `mode` to be 'a', 'b' or 'c', but got None\.$"):
        check_choice("mode", None, ("a", "b", "c"))
    with pytest.raises(ValueError, match=r"^Expected `split` to be 1 or 2, but got 3\.$"):
        check_choice("split", 3, (1, 2))
