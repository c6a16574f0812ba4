"""Training commands that docs/, results/ and headers of sweeps print can be run as they are."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from fedfacet import config

ROOT = Path(__file__).parents[2]
PAGES = sorted([*(ROOT / "docs").glob("*.md"), *(ROOT / "results").glob("*.md")])
PLUGIN = ("hydra/launcher=", "hydra.launcher.")
"""Of a launcher that is a package of its own, which the page says how to install."""


def commands(page: Path) -> list[str]:
    """Return the training commands of a page's blocks, each on one line; runs that are resumed are not there to be checked."""
    blocks = re.findall(r"```bash\n(.*?)```", page.read_text(), re.DOTALL)
    lines = [line.split(" #")[0].strip() for block in blocks for line in re.sub(r"\\\n\s*", "", block).splitlines()]
    return [line for line in lines if "src/train.py" in line and "resume=" not in line and "--help" not in line]


def files(page: Path) -> dict[str, str]:
    """Return the Python files that a page has its reader write, which commands may name classes of."""
    return dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", page.read_text(), re.DOTALL))


GROUPS = {folder.name for folder in (ROOT / "conf").iterdir() if folder.is_dir()}


def chosen(command: str) -> list[tuple[str, str]]:
    """Return the options that a command names: group, option."""
    words = [word.partition("=")[::2] for word in shlex.split(command.partition("src/train.py")[2])]
    named = [(group, option) for group, options in words if group in GROUPS for option in options.strip("[]").split(",")]
    return [(group, option) for group, option in named if option not in ("", "null")]


def keys(command: str) -> set[str]:
    """Return the keys whose values a command sets; of groups with several parts the list of them."""
    words = [word.partition("=") for word in shlex.split(command.partition("src/train.py")[2])]
    return {key if key not in GROUPS else f"{key}={value}" for key, _, value in words if key not in GROUPS or "[" in value}


MORE = [
    pytest.param(command, {}, id=f"{sweep.stem}-beside")
    for sweep in sorted((ROOT / "conf" / "sweep").glob("*.yaml"))
    for command in re.findall(r"^#   (python src/train\.py .*)$", sweep.read_text(), re.MULTILINE)
]
"""In headers of sweeps, beside their own."""
ALL = [
    *(pytest.param(command, files(page), id=f"{page.stem}-{n}") for page in PAGES for n, command in enumerate(commands(page))),
    *MORE,
]


def with_marks() -> list[Any]:
    """Return all commands; those whose every key is in others too are slow."""
    left, seen = list(ALL), set()
    while left and keys((most := max(left, key=lambda one: len(keys(one.values[0]) - seen))).values[0]) - seen:
        seen |= keys(most.values[0])
        left.remove(most)
    return [pytest.param(*one.values, id=one.id, marks=[pytest.mark.slow] if one in left else []) for one in ALL]


COMMANDS = with_marks()


def first_cell(overrides: list[str]) -> list[str]:
    """Return the overrides of the first job of a multirun, those included that its sweep runs through."""
    parser = OverridesParser.create()
    given = {override.key_or_group: override for override in parser.parse_overrides(overrides)}
    if "sweep" in given:
        sweep = OmegaConf.load(ROOT / "conf" / "sweep" / f"{given['sweep'].value()}.yaml")
        params = OmegaConf.to_container(sweep, resolve=False)["hydra"].get("sweeper", {}).get("params", {})
        own = {override.key_or_group: override for override in parser.parse_overrides([f"{k}={v}" for k, v in params.items()])}
        given = own | given
    return [
        f"{key}={next(override.sweep_string_iterator())}" if override.is_sweep_override() else str(override.input_line)
        for key, override in given.items()
    ]


def test_there_are_commands_to_check() -> None:
    """The patterns above still find them: in pages of both folders, with a line that goes on on the next, and a sweep."""
    found = {page.relative_to(ROOT).as_posix(): commands(page) for page in PAGES}
    assert len(COMMANDS) >= 20
    assert MORE
    assert sum(map(bool, found.values())) >= 9
    assert any("personal_evaluate.every_n_rounds=5" in command for command in found["results/fedld_pneumonia.md"])


def test_options_are_there() -> None:
    """Of every command; one with a key of its own is composed below."""
    named = {option for one in ALL for option in chosen(one.values[0])}
    assert len(named) > 100
    assert [(group, option) for group, option in named if not (ROOT / "conf" / group / f"{option}.yaml").is_file()] == []


@pytest.mark.parametrize(("command", "written"), COMMANDS)
def test_train_commands_compose(
    command: str,
    written: dict[str, str],
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every option is known and has a possible value; of a grid one cell."""
    if written:
        beside = tmp_path_factory.mktemp("beside")
        for name, content in written.items():
            (beside / name).write_text(content)
        monkeypatch.syspath_prepend(str(beside))
    monkeypatch.chdir(tmp_path)
    words = shlex.split(command.partition("src/train.py")[2])
    overrides = [word for word in words if word != "-m" and not word.startswith(PLUGIN)]
    argv = ["train.py", *(["-m", *first_cell(overrides)] if "-m" in words else overrides)]
    _, jobs = config.preflight("train", argv)
    assert len(jobs) == 1
    assert list(tmp_path.iterdir()) == [], "checking a command writes nothing"
