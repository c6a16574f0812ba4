"""What the README says is there, is there; so is what docs/methods.md and the guide say."""

import re
import shlex
from pathlib import Path

import pytest

from fedfacet import config

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
METHODS = (ROOT / "docs" / "methods.md").read_text()
BLOCKS = re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
COMMANDS = [line.split(" #")[0].strip() for block in BLOCKS for line in block.splitlines() if "src/train.py" in line]
TRAIN = [command for command in COMMANDS if "resume=" not in command]
OPTIONS = re.findall(r"^\| [^|]+ \| [^|]+ \| `(\S+=\S+)` \|", METHODS, re.MULTILINE)
SNIPPETS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
PAGES = [
    path
    for pattern in ("*.md", "docs/**/*.md", "results/**/*.md", "*/README.md", "benchmarks/**/*.md")
    for path in sorted(ROOT.glob(pattern))
]


def test_there_is_something_to_check() -> None:
    """The patterns above still find the commands, methods and snippets."""
    assert len(TRAIN) >= 2
    assert len(OPTIONS) >= 15
    assert len(SNIPPETS) == 1


def test_it_is_short() -> None:
    """A page that is read, and says first how to begin; what is longer goes to docs/. Rules of tables are no words."""
    assert len(README.replace("|", " ").replace("---", " ").split()) <= 450
    assert "make train" in " ".join(README.split()[:60])


def test_options_of_methods_are_there() -> None:
    """In the table of docs/methods.md; tests/contract has each of them run."""
    assert [option for option in OPTIONS if not (ROOT / "conf" / option.replace("=", "/")).with_suffix(".yaml").is_file()] == []


@pytest.mark.parametrize("command", TRAIN)
def test_train_commands_compose(command: str, tmp_path: Path) -> None:
    """Every option of every training command is known and has a possible value."""
    overrides = shlex.split(command.partition("src/train.py")[2])
    _, jobs = config.preflight("train", ["train.py", *overrides, f"paths.log_dir={tmp_path}"])
    assert jobs


def test_make_arguments_compose(tmp_path: Path) -> None:
    """So does what the README passes through make."""
    (arguments,) = re.findall(r'make train ARGS="([^"]+)"', README)
    assert config.preflight("train", ["train.py", *arguments.split(), f"paths.log_dir={tmp_path}"])[1]


def test_the_run_of_the_snippet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    """It trains and prints an accuracy; here in two rounds."""
    monkeypatch.chdir(tmp_path)
    exec(SNIPPETS[0].replace('"selector=uniform"', '"selector=uniform", "federation.rounds=2"'), {})
    assert 0 <= float(capsys.readouterr().out.split()[-1]) <= 1


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_linked_files_exist(page: Path) -> None:
    """No link points to nothing, nor to a section that is not there."""
    for link, _, section in re.findall(r"\]\((?!https?:)([^)#\s]*)(#([^)\s]+))?\)", page.read_text()):
        target = page.parent / link if link else page
        assert target.exists(), link
        if section:
            shown = re.sub(r"\[(.*?)\]\(.*?\)", r"\1", target.read_text())  # a title may be a link
            titles = re.findall(r"^#+ (.*)$", shown, re.MULTILINE)
            assert section in {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}, (link, section)
