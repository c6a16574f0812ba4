"""docs/options.md and docs/options/ say what conf/ and the docstrings say."""

import re
import runpy
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = {
    page.relative_to(ROOT / "docs").as_posix(): page.read_text()
    for page in (ROOT / "docs" / "options.md", *(ROOT / "docs" / "options").glob("*.md"))
}
RENEW = "`PYTHONPATH=src python docs/make_options.py` renews the pages"
_OPTION = r"\]\(\.\./\.\./(conf/\w+/\w+\.yaml)\)"
_SETTING = r"^\| `([\w.]+)` \| (?:.*?) \| ?(.*?) \|"


def test_the_pages_are_what_is_generated() -> None:
    """All but those of groups with an option that no page has yet: a new part needs no third file until it is committed."""
    generated = runpy.run_path(str(ROOT / "docs" / "make_options.py"))["option_pages"]()
    assert PAGES.keys() <= generated.keys(), RENEW
    options, there = ({name: set(re.findall(_OPTION, page)) for name, page in pages.items()} for pages in (generated, PAGES))
    added = [name for name in generated if options[name] - there.get(name, set())]
    same = [name for name in PAGES if name not in added and not (added and name == "options.md")]
    assert [name for name in same if PAGES[name] != generated[name]] == [], RENEW


def test_every_committed_option_is_on_its_page() -> None:
    """Those that git knows."""
    listed = subprocess.run(["git", "ls-files", "conf/*/*.yaml"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode or not listed.stdout:
        pytest.skip("no git repository")
    committed = {file for file in listed.stdout.split() if not file.startswith("conf/hydra/")}
    shown = {option for page in PAGES.values() for option in re.findall(_OPTION, page)}
    assert committed <= shown, RENEW


def test_every_setting_has_a_meaning() -> None:
    """From its docstring or from the comment on its line."""
    settings = [row for page in PAGES.values() for row in re.findall(_SETTING, page, re.MULTILINE)]
    assert len(settings) > 150
    assert [key for key, meaning in settings if not meaning] == []


def test_no_page_says_the_same_of_a_setting_twice() -> None:
    """What several options of a group share stands once, and each of them names it with its default."""
    for name in PAGES.keys() - {"options/scripts.md"}:
        rows = re.findall(_SETTING, PAGES[name], re.MULTILINE)
        assert len(set(rows)) == len(rows), name
    pow_d = PAGES["options/selector.md"].split("## [`selector=pow_d`]")[1].split("\n## ")[0]
    assert "[Shared settings](#shared-settings): `selector.num_samples.noise_multiplier` = `null`" in pow_d
