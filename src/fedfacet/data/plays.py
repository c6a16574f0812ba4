"""Who says what in Shakespeare's plays: LEAF's rules for the Gutenberg text of January 1994."""

import re
from typing import NamedTuple

_AUTHOR = "by William Shakespeare"
_UNINDENTED = "THE COMEDY OF ERRORS"
# How a speech begins ("  Ham. To be, ..."), and how it goes on.
_SPEECH, _MORE = re.compile(r"  ([a-zA-Z][a-zA-Z ]*)\. (.*)"), re.compile(r"    (.*)")
_SPEECH_UNINDENTED, _MORE_UNINDENTED = re.compile(r"([a-zA-Z][a-zA-Z ]*)\. (.*)"), re.compile(r"(.*)")
_TITLE_ABOVE = range(2, 8)  # lines between a play's title and its author
_LAST_LINE = 124_195  # of the plays; a poem follows
_MIN_LINES = 3  # LEAF leaves out roles with fewer: they could not both train and test


class Role(NamedTuple):
    """One character of a play, and all that is said, in order; lines end with a space, and no two spaces stand together."""

    play: str
    character: str
    text: str


def roles_in(text: str) -> list[Role]:
    """Return the roles of all plays, in the order in which they first speak.

    Everything before the second "by William Shakespeare" is left out, which is the table of contents and the sonnets. A play
    starts at each such line; its title is the first line that is not empty 2 to 7 lines above. A speech starts with two
    spaces, a name and a full stop, and goes on with four spaces, except in The Comedy of Errors, whose lines are not indented.
    Names are written in capitals. Plays with a single character are no plays, and roles with two lines or fewer are left out.

    Source: LEAF (arXiv:1812.01097) and its preprocessing; on the text with the md5 d2028225a89d8b0b3093dddb720da91f both find
    1,145 roles in 36 plays.
    """
    lines = text.splitlines()[1:]
    authors = [number for number, line in enumerate(lines) if _AUTHOR in line]
    plays: list[tuple[str, dict[str, list[str]]]] = []
    unindented = False
    current: list[str] | None = None
    for number in range(authors[1] if len(authors) > 1 else len(lines), min(len(lines), _LAST_LINE + 1)):
        line = lines[number]
        if _AUTHOR in line:
            above = (lines[number - distance].strip() for distance in _TITLE_ABOVE if distance <= number)
            title = next(filter(None, above), "")
            unindented, current = title == _UNINDENTED, None
            plays.append((title, {}))
        elif speech := (_SPEECH_UNINDENTED if unindented else _SPEECH).match(line):
            name = speech.group(1).upper()
            # Without indentation "ACT I. SCENE 1" looks like a speech.
            is_heading = unindented and name.startswith("ACT ")
            current = None if is_heading else plays[-1][1].setdefault(name, [])
            if current is not None:
                current.append(speech.group(2))
        elif current is not None and (more := (_MORE_UNINDENTED if unindented else _MORE).match(line)):
            if unindented and more.group(1).startswith("<"):  # a notice of the publisher's between two pages
                current = None
            else:
                current.append(more.group(1))
    return [
        Role(title, name, re.sub(" {2,}", " ", "".join(f"{line} " for line in said)))
        for title, characters in plays
        if len(characters) > 1
        for name, said in characters.items()
        if len(said) >= _MIN_LINES
    ]
