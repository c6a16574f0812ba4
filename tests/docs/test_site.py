"""The menu of the documentation site has every page; `make docs` holds the links, and CI runs it."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
MENU = [
    entry
    for block in re.findall(r"```{toctree}\n(?::[^\n]*\n)*\n(.*?)```", (DOCS / "index.md").read_text(), re.DOTALL)
    for entry in re.findall(r"^(?:.*<)?([^<>\n]+)>?$", block, re.MULTILINE)
]


def test_the_menu_has_every_page() -> None:
    """Each page of docs/ once; a page that is forgotten there could only be found by a search."""
    paths = (path for kind in ("md", "ipynb") for path in DOCS.glob(f"**/*.{kind}"))
    pages = {path.relative_to(DOCS).with_suffix("").as_posix() for path in paths} - {"index"}
    assert {page for page in pages if not page.startswith("options/")} <= set(MENU)  # conf.py puts these below their first
    assert len(MENU) == len(set(MENU))


def test_entries_of_the_menu_exist() -> None:
    """But for the page of rooms, which is written when the site is built."""
    pages = (DOCS / f"{entry}{kind}" for entry in MENU for kind in (".md", ".ipynb"))
    there = {page.relative_to(DOCS).with_suffix("").as_posix() for page in pages if page.exists()}
    assert [entry for entry in MENU if entry not in there] == ["api/modules"]


def test_the_rooms_of_the_repository_have_a_place() -> None:
    """Results, benchmarks, notebooks and data by the page that introduces them, and what lies at the top."""
    top = [
        "README",
        "CONTRIBUTING",
        "CHANGELOG",
        *(f"{room}/README" for room in ("results", "benchmarks", "notebooks", "data")),
    ]
    assert {f"../{page}" for page in top} <= set(MENU)
