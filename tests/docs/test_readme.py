"""What the README says is there, is there."""

import re
import shlex
from pathlib import Path

import pytest

from fedfacet import config

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
COMMANDS = [
    line.split("#")[0].strip() for block in re.findall(r"```bash\n(.*?)```", README, re.DOTALL) for line in block.splitlines()
]
TRAIN = [command for command in COMMANDS if "src/train.py" in command and "resume=" not in command and "--help" not in command]


def test_there_are_commands_to_check() -> None:
    """The pattern above still finds the README's commands."""
    assert len(TRAIN) >= 8


@pytest.mark.parametrize("command", TRAIN)
def test_train_commands_compose(command: str, tmp_path: Path) -> None:
    """Every option of every training command is known and has a possible value."""
    overrides = [word for word in shlex.split(command.partition("src/train.py")[2]) if word != "-m"]
    argv = ["train.py", *(["-m"] if "-m" in shlex.split(command) else []), *overrides, f"paths.log_dir={tmp_path}"]
    _, jobs = config.preflight("train", argv)
    assert jobs


def test_make_arguments_compose(tmp_path: Path) -> None:
    """So does what the README passes through make."""
    (arguments,) = re.findall(r'make train ARGS="([^"]+)"', README)
    assert config.preflight("train", ["train.py", *arguments.split(), f"paths.log_dir={tmp_path}"])[1]


@pytest.mark.parametrize("row", re.findall(r"^\| `(\w+)` \| (`.*)\|$", README, re.MULTILINE), ids=lambda row: row[0])
def test_tables_list_every_option(row: tuple[str, str]) -> None:
    """A group's row in the README names the options that the group has, all of them and no others."""
    group, options = row
    assert set(re.findall(r"`(\w+)`", options)) == {file.stem for file in (ROOT / "conf" / group).glob("*.yaml")}


def test_linked_files_exist() -> None:
    """No link of the README points to nothing."""
    for link in re.findall(r"\]\((?!https?:)([^)#]+)\)", README):
        assert (ROOT / link).exists(), link
