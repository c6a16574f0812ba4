import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import pytest

from fedfacet.arguments import Choice, Declared, Number, Whole, Within, check_choice, check_whole, check_within


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


@pytest.mark.parametrize(
    ("words", "fine", "refused"),
    [
        ("larger than 0", [1e-300, math.inf], [0, -1, math.nan]),
        ("0 or larger, and finite", [0, 1e300], [-1e-300, math.inf, math.nan]),
        ("finite", [0, -1e300], [math.inf, -math.inf, math.nan]),
    ],
)
def test_words_say_which_numbers_are_fine(words, fine, refused):
    for value in fine:
        Number(words).check("x", value)
    for value in refused:
        with pytest.raises(ValueError, match=f"^Expected `x` to be {words}, but got {value}\\.$"):
            Number(words).check("x", value)


@dataclass(eq=False, kw_only=True)
class Part(Declared):
    option_group = "part."

    share: Annotated[float | None, Within("[0, 1]", ": take a part")] = 0.5
    number: Annotated[int, Whole(2)] = 2
    mode: Annotated[str, Choice("a", "b")] = "a"
    free: float = 0.0


@dataclass(eq=False, kw_only=True)
class Heir(Part):
    mode: str = "b"  # another default, and the range is what it was
    late: "Annotated[float, Number('0 or larger')]" = 0.0  # as under `from __future__ import annotations`


@pytest.mark.parametrize("kind", [Part, Heir])
def test_a_part_refuses_what_its_fields_do_not_allow(kind):
    assert vars(kind(share=None, free=math.nan))["share"] is None
    for given, said in (
        ({"share": 2}, r"`part\.share` in \[0, 1\], but got 2: take a part\."),
        ({"number": None}, r"`part\.number` to be a whole number, 2 or larger, but got None\."),
        ({"mode": "c"}, r"`part\.mode` to be 'a' or 'b', but got 'c'\."),
    ):
        with pytest.raises(ValueError, match=said):
            kind(**given)


def test_an_annotation_may_be_a_text():
    with pytest.raises(ValueError, match=r"`part\.late` to be 0 or larger, but got -1"):
        Heir(late=-1)
