"""Pictures that docs/ has of the code are those of the code of today."""

import runpy
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_picture_is_up_to_date_and_shows_no_room_twice() -> None:
    """No room stands beside or above one that imports it, or the floors would have no end."""
    drawn = runpy.run_path(str(DOCS / "make_rooms.py"))
    assert (DOCS / "rooms.svg").read_text(encoding="utf-8") == drawn["picture"](), "run `python docs/make_rooms.py`"
    names = [name for floor in drawn["floors"]() for name in floor]
    assert len(names) == len(set(names)) > 40
    assert "](rooms.svg)" in (DOCS / "one_round.md").read_text(encoding="utf-8")


def test_the_picture_of_the_taxonomy_is_that_of_the_cards() -> None:
    drawn = runpy.run_path(str(DOCS / "make_taxonomy_picture.py"))
    there = (DOCS / "taxonomy.svg").read_text(encoding="utf-8")
    assert there == drawn["picture"](), "run `python docs/make_taxonomy_picture.py`"
    assert "](taxonomy.svg)" in (DOCS / "taxonomy.md").read_text(encoding="utf-8")
