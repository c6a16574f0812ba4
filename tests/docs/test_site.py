"""The menu of the documentation site has every page, and code fits; `make docs` holds the links, and CI runs it."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
WIDEST = 88
"""Columns of code that the site shows without scrolling in a window of 1400 pixels."""
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


def test_code_fits() -> None:
    """Lines of fenced blocks; of commands, a comment stands above its line, and a backslash continues a long one."""
    pages = [
        *ROOT.glob("*.md"),
        *(page for room in ("docs", "results", "benchmarks", "data") for page in ROOT.glob(f"{room}/**/*.md")),
    ]
    lines = [
        (page.relative_to(ROOT).as_posix(), line)
        for page in pages
        for _, block in re.findall(r"^( *)```\w+\n(.*?)^\1```", page.read_text(), re.DOTALL | re.MULTILINE)
        for line in block.splitlines()
    ]
    assert len(lines) > 800
    assert [(page, line) for page, line in lines if len(line) > WIDEST] == []
