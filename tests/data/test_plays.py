"""LEAF's rules, one by one, on a text made for the purpose; its counts on the real one."""

import gzip
import hashlib

import numpy as np
import pytest

from fedfacet.data.shakespeare import roles_in

PREFACE = "first line\n\nTHE SONNETS\n\nby William Shakespeare\n\n  Poet. Not a play.\n    At all.\n"


def play(title, *lines, gap=1):
    return "\n".join(["1600", "", title, *[""] * gap, "by William Shakespeare", "", *lines, ""])


def found(*plays):
    return [tuple(role) for role in roles_in(PREFACE + "\n".join(plays))]


OTHER = ["  Other. One", "    Two", "    Three"]


def test_speeches_go_on_with_four_spaces_until_another_begins():
    """Stage directions that are indented as far are spoken, also after a heading: LEAF does not tell them apart."""
    roles = found(
        play(
            "PLAY",
            "  Ham. To be,",
            "    or not",
            "    to be",
            "                    Exit Hamlet",
            "SCENE 2",
            "    Enter Ophelia",
            *OTHER,
            "  Ham. Words.",
        )
    )
    assert roles == [
        ("PLAY", "HAM", "To be, or not to be Exit Hamlet Enter Ophelia Words. "),
        ("PLAY", "OTHER", "One Two Three "),
    ]


def test_before_the_second_author_there_is_no_play():
    assert found() == []
    assert roles_in("") == roles_in("one line") == []
    assert "POET" not in {role[1] for role in found(play("PLAY", *OTHER, "  Ham. A", "    B", "    C"))}


def test_names_are_written_in_capitals_and_roles_of_two_plays_are_two():
    first = play("ONE", "  Sir Toby. A", "    B", "  SIR TOBY. C", *OTHER)
    second = play("TWO", "  Sir Toby. D", "    E", "    F", *OTHER)
    assert [role for role in found(first, second) if role[1] == "SIR TOBY"] == [
        ("ONE", "SIR TOBY", "A B C "),
        ("TWO", "SIR TOBY", "D E F "),
    ]


def test_roles_with_two_lines_and_plays_with_one_character_are_left_out():
    assert [role[1] for role in found(play("PLAY", "  Short. A", "    B", *OTHER))] == ["OTHER"]
    assert found(play("MONOLOGUE", *OTHER)) == []


@pytest.mark.parametrize("gap", [1, 3, 6])
def test_the_title_stands_two_to_seven_lines_above_the_author(gap):
    assert {role[0] for role in found(play("A TITLE", "  Ham. A", "    B", "    C", *OTHER, gap=gap))} == {"A TITLE"}


def test_the_comedy_of_errors_is_not_indented():
    """There a heading looks like a speech, and a notice between two pages ends one."""
    lines = ["AEGEON. One.", "Two.", "ACT I. Scene 2", "lost", "DUKE. A", "B", "<<THIS ELECTRONIC VERSION", "lost too"]
    roles = found(play("THE COMEDY OF ERRORS", *lines, "DUKE. C", "AEGEON. Three."))
    assert roles == [
        ("THE COMEDY OF ERRORS", "AEGEON", "One. Two. Three. "),
        ("THE COMEDY OF ERRORS", "DUKE", "A B C "),
    ]


def test_spaces_are_drawn_together():
    roles = found(play("PLAY", "  Ham. Well,   well,  well", "     five spaces", "    end   ", *OTHER))
    assert roles[0] == ("PLAY", "HAM", "Well, well, well five spaces end ")


@pytest.fixture(scope="module")
def real(data_dir):
    file = data_dir / "shakespeare" / "t8.shakespeare.txt.gz"
    if not file.is_file():
        pytest.skip(f"no {file}: point FEDFACET_DATA at a folder that holds shakespeare/")
    content = gzip.decompress(file.read_bytes())
    assert hashlib.md5(content).hexdigest() == "d2028225a89d8b0b3093dddb720da91f"
    return roles_in(content.decode("ascii"))


def test_the_real_text_has_leafs_counts(real):
    """1,130 roles with a window in 36 plays, 4,226,206 windows, mean 3,740.0, deviation 6,213.2."""
    sizes = np.array([len(role.text) - 80 for role in real if len(role.text) > 80])
    assert len({role.play for role in real}) == 36
    assert len(real) == 1_145
    assert len(sizes) == 1_130
    assert sizes.sum() == 4_226_206
    assert sizes.mean() == pytest.approx(3_740.0, abs=0.05)
    assert sizes.std(ddof=1) == pytest.approx(6_213.2, abs=0.05)


def test_the_real_roles_say_what_they_say(real):
    text = {(role.play, role.character): role.text for role in real}
    assert "To be, or not to be- that is the question:" in text["THE TRAGEDY OF HAMLET, PRINCE OF DENMARK", "HAM"]
    assert text["THE COMEDY OF ERRORS", "AEGEON"].startswith("Proceed, Solinus, to procure my fall,")
    assert not [role for role in real if "  " in role.text or not role.text.endswith(" ")]
