from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from fedfacet.data.shakespeare import ALPHABET
from fedfacet.metrics.group_names import group_names

NAMES = st.lists(st.text(), min_size=1, max_size=4)


def test_groups_are_in_the_order_of_their_numbers():
    assert group_names("ab", "xyz") == [f"{y}, {a}" for y, a in product("ab", "xyz")]


def test_one_attribute_value_goes_without_saying():
    assert group_names(("normal", "pneumonia"), ("none",)) == ["normal", "pneumonia"]


def test_shakespeares_characters_are_told_apart_and_seen():
    names = group_names(ALPHABET, ("none",))
    assert len(set(names)) == len(ALPHABET) == len(names)
    assert {"'\\n'", "' '", "a", "Z"} <= set(names)


@given(NAMES, NAMES)
def test_every_name_is_one_line_that_can_be_printed(classes, attributes):
    names = group_names(classes, attributes)
    assert len(names) == len(classes) * len(attributes)
    assert all(name and name.isprintable() for name in names)
