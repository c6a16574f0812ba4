"""docs/options.md says what conf/ and the docstrings say."""

import re
import runpy
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "options.md").read_text()
RENEW = "`PYTHONPATH=src python docs/make_options.py > docs/options.md` renews the page"


def test_the_page_is_what_is_generated() -> None:
    """Line by line; options that nobody has put on the page yet may lie between, so that a new part needs no third file."""
    options_page = runpy.run_path(str(ROOT / "docs" / "make_options.py"))["options_page"]
    lines = iter(options_page().splitlines())
    contents = next(line for line in PAGE.splitlines() if line.startswith("Groups: "))
    for line in PAGE.splitlines():
        assert line == contents or line in lines, f"{RENEW}: {line!r} is not what is generated here."


def test_every_committed_option_is_on_the_page() -> None:
    """Those that git knows."""
    listed = subprocess.run(["git", "ls-files", "conf/*/*.yaml"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode or not listed.stdout:
        pytest.skip("no git repository")
    committed = {file for file in listed.stdout.split() if not file.startswith("conf/hydra/")}
    assert committed <= set(re.findall(r"\]\(\.\./(conf/\w+/\w+\.yaml)\)", PAGE)), RENEW


def test_every_setting_has_a_meaning() -> None:
    """From its docstring or from the comment on its line."""
    settings = re.findall(r"^\| `([\w.]+)` \| (.*?) \| ?(.*?) \|$", PAGE, re.MULTILINE)
    assert len(settings) > 150
    assert [key for key, _, meaning in settings if not meaning] == []
