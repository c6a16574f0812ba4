"""The committed pictures are those of the commands beside them."""

import re
import shlex
from pathlib import Path

import pytest

from fedfacet import config
from fedfacet.commands import describe
from fedfacet.commands.describe_federations import one_by_one, selector_overrides

ROOT = Path(__file__).parents[2]
FIGURES = ROOT / "docs" / "figures"
PAGE = (FIGURES / "README.md").read_text()
COMMANDS = re.findall(r"^python src/describe.py (.*)$", re.sub(r"\\\n\s*", "", PAGE), re.MULTILINE)


def test_every_picture_has_a_command_and_is_shown() -> None:
    """The page shows exactly the files that there are, each from the folder of one command."""
    pictures = {path.relative_to(FIGURES).as_posix() for path in FIGURES.rglob("*.png")}
    assert pictures == set(re.findall(r"\]\(([^)]*\.png)\)", PAGE))
    folders = {re.findall(r"paths.output_dir=docs/figures/?(\S*)", command)[0] or "." for command in COMMANDS}
    assert folders == {Path(picture).parent.as_posix() for picture in pictures}
    assert len(folders) == len(COMMANDS)
    assert max((FIGURES / picture).stat().st_size for picture in pictures) < 150_000


ALIKE = ("partition=gci ", "partition=gai ", "partition=spawrious4 ", "partition=waterbirds_dist ")
"""Whose pictures are drawn as gsc's are."""


@pytest.mark.parametrize("command", [pytest.param(c, marks=pytest.mark.slow if c.startswith(ALIKE) else ()) for c in COMMANDS])
def test_commands_are_valid(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each option of a command is known; those that need no data set draw the files that are committed."""
    monkeypatch.chdir(tmp_path)
    overrides = shlex.split(command)
    assert all(config.compose_job("describe", job) for job in one_by_one(selector_overrides(overrides)))
    if "dataset=" not in command:
        assert describe.main([*overrides, *(["simulate.rounds=3"] if "simulate" in command else [])]) == 0
        drawn = {path.relative_to(tmp_path) for path in tmp_path.rglob("*.png")}
        assert drawn
        assert all((ROOT / path).exists() for path in drawn)
