"""Each tutorial works in an empty folder, from its first command to its last, and shows what really comes out."""

import ast
import filecmp
import json
import re
import shlex
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedfacet.commands.output import folded

ROOT = Path(__file__).parents[2]
TUTORIALS = ROOT / "docs" / "tutorials"
NOTEBOOK = json.loads((TUTORIALS / "compare_selectors.ipynb").read_text())
CODE = [cell for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]

RUNNER = """
import runpy, sys
sys.path.insert(0, "")  # as PYTHONPATH=. does
sys.argv = sys.argv[1:]
run = runpy.run_path if sys.argv[0].endswith(".py") else runpy.run_module
run(sys.argv[0], run_name="__main__")
"""
SHORTER = {"rounds=300": "rounds=8", "49::50": "3::4", "0,1,2,3,4,5": "0", "S = range(8)": "S = range(1)", "s=40": "s=2"}
SMALL = ("model=mlp", "model.hidden=[4]", "heterogeneity=true")
"""What is trained for less long here than by a reader."""


def commands_of(block: str) -> Iterator[list[str]]:
    """Yield the words of each command of a block; make passes its arguments on to train.py."""
    for line in block.replace("\\\n", " ").splitlines():
        words = shlex.split(line)
        yield ["python", "src/train.py", *words[2].removeprefix("ARGS=").split()] if words[0] == "make" else words


def shortened(text: str) -> str:
    """Return what is run here of a page or a notebook."""
    for long, short in SHORTER.items():
        text = text.replace(long, short)
    return text


def shape_of(text: str) -> list[str]:
    """Return the lines of an output without widths of columns; numbers are 0, also those that one seed does not have."""
    lines = (re.sub(r"[━─┏┓┳┡┩╇├┤┼└┘┴]+|\s+", " ", line) for line in text.splitlines())
    return [shaped for line in lines if (shaped := re.sub(r"[-+]?(\d+(\.\d+)?|nan)|(?<= )-$", "0", line).strip())]


class Reader:
    """Does what a page says, in an empty folder that has the scripts only."""

    def __init__(self, folder: Path, start_script: Callable[..., Any]) -> None:
        self.folder, self.start_script, self.said = folder, start_script, ""
        (folder / "src").symlink_to(ROOT / "src")
        (folder / "runner").write_text(RUNNER)

    def follow(self, page: str) -> None:
        """Write each file, run each command, and look for each output among what has been said."""
        blocks = re.findall(r"```(python|yaml|bash|text)\n(?:# (\S+\.(?:py|yaml))\n)?(.*?)```", page, re.DOTALL)
        assert len(blocks) == page.count("```") / 2, "every block is of a known kind"
        for kind, name, content in blocks:
            if kind == "text":
                assert set(shape_of(content)) <= set(shape_of(self.said)), content
            elif kind == "bash":
                for words in commands_of(content):
                    self.run(words)
            else:
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                (self.folder / name).write_text(content)

    def run(self, words: list[str]) -> None:
        """Run a command; the run that the page has its reader stop is stopped."""
        match words:
            case [".", ".venv/bin/activate"] | ["export", "PYTHONPATH=."]:
                return
            case ["cmp", one, other, "&&", "echo", word]:
                assert filecmp.cmp(self.folder / one, self.folder / other, shallow=False)
                self.said += f"{word}\n"
                return
            case ["python", "-m", "pytest", *rest]:
                # The process that forks has loaded modules whose asserts pytest would rewrite.
                quiet = ["-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
                arguments = ["pytest", *quiet, *rest]
            case ["python", "src/train.py", *rest] if not any(word.startswith("resume=") for word in rest):
                rounds = [] if any(word.startswith("federation.rounds=") for word in rest) else ["federation.rounds=2"]
                arguments = ["src/train.py", *rest, *SMALL, "~callbacks.figures", *rounds]
            case ["python", script, *rest]:
                arguments = [script, *rest]
            case _:
                raise AssertionError(f"a command that this test does not know: {words}")
        stopped = "paths.output_dir=logs/second" in arguments
        started = self.start_script(self.folder, self.folder / "runner", *arguments, env={"COLUMNS": "88"})
        if stopped:
            metrics = self.folder / "logs" / "second" / "metrics.csv"
            started.wait_until(lambda: metrics.exists() and metrics.read_text().count("\n") > 2)
            started.kill(signal.SIGINT)
        ended = started.result()
        assert ended.status == (130 if stopped else 0), ended.out + ended.err
        self.said += folded(ended.out, 88) + ended.err


@pytest.mark.parametrize("page", sorted(TUTORIALS.glob("*.md")), ids=lambda page: page.stem)
def test_a_page_works(page: Path, tmp_path: Path, start_script: Callable[..., Any]) -> None:
    """Its commands end well, and its outputs are of the form of what they print."""
    reader = Reader(tmp_path, start_script)
    reader.follow(shortened(page.read_text()))
    assert (tmp_path / "logs").is_dir()


def test_the_notebook_works(tmp_path: Path, start_script: Callable[..., Any]) -> None:
    """Its cells run in order, with fewer seeds and rounds, and print lines of the kept form."""
    cells = ["".join(cell["source"]) for cell in CODE]
    code = shortened("\n\n".join(cells)).replace("COMMON = [", f"COMMON = [*{SMALL}, ")
    (tmp_path / "cells.py").write_text(f"import tempfile; tempfile.tempdir = {str(tmp_path)!r}\n\n{code}")
    done = start_script(tmp_path, tmp_path / "cells.py").result()
    assert done.status == 0, done.err
    kept = "".join("".join(out["text"]) for cell in CODE for out in cell["outputs"] if out["output_type"] == "stream")
    wanted = {re.sub("not significant|significant", "", line) for line in shape_of(kept)}
    assert wanted <= {re.sub("not significant|significant", "", line) for line in shape_of(done.out)}
    assert list(tmp_path.rglob("forest.png"))


def test_the_notebook_has_its_outputs() -> None:
    """Each cell that says something kept it, in order, and nothing of the machine that ran it."""
    assert [cell["execution_count"] for cell in CODE] == [number + 1 for number in range(len(CODE))]
    for cell in CODE:
        last = ast.parse("".join(cell["source"])).body[-1]
        assert len(cell["source"]) <= 25
        assert bool(cell["outputs"]) == (isinstance(last, ast.For | ast.Expr) and "train(" not in cell["source"][-1])
        assert not any(word in json.dumps(cell["outputs"]) for word in ("/tmp", "/home", "/work", "Traceback", "stderr"))


def test_links_of_the_notebook_exist() -> None:
    """Those of pages are looked at with all others."""
    text = "".join("".join(cell["source"]) for cell in NOTEBOOK["cells"] if cell["cell_type"] == "markdown")
    links = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    assert len(links) >= 4
    assert all((TUTORIALS / link).exists() for link in links), links


def test_code_fits_on_the_site() -> None:
    """No line of a block or a cell is cut at a width of 88 characters."""
    blocks = [block for page in TUTORIALS.glob("*.md") for block in re.findall(r"```.*?```", page.read_text(), re.DOTALL)]
    lines = [line for block in [*blocks, *("".join(cell["source"]) for cell in CODE)] for line in block.splitlines()]
    assert max(map(len, lines)) <= 88
