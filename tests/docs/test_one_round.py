"""docs/one_round.md names, in reading order, exactly the files through which one plain round runs."""

import ast
import inspect
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fedfacet.federation import Federation
from fedfacet.round import run_round

ROOT = Path(__file__).parents[2]

TRACE = """
import inspect, json, runpy, sys
from pathlib import Path

src, out, before = Path(sys.argv.pop(1)).resolve(), sys.argv.pop(1), int(sys.argv.pop(1))
of_file, on_path, down, depth, under_way = {}, {}, None, None, False


def ours(code):
    if code.co_filename not in of_file:
        path = Path(code.co_filename)
        of_file[code.co_filename] = path.relative_to(src.parent).as_posix() if src in path.resolve().parents else None
    return of_file[code.co_filename]


def stack(frame):
    while frame is not None:
        if ours(frame.f_code):
            yield frame.f_code
        frame = frame.f_back


def watch(frame, event, argument):
    global before, depth, down, under_way
    code = frame.f_code
    is_round = code.co_name == "run_round" and ours(code) == "src/fedfacet/round.py"
    if is_round and before:
        before -= event == "return"
    elif event == "call" and is_round and not under_way:
        under_way = True
        for outer in stack(frame):
            on_path.setdefault(ours(outer), set()).add(outer.co_qualname)
    elif event == "call" and under_way:
        if ours(code) and code.co_flags & inspect.CO_OPTIMIZED:  # not the body of a module or class
            on_path.setdefault(ours(code), set()).add(code.co_qualname)
        elif depth is None and code.co_qualname.endswith("SGD.step"):
            depth = [outer.co_qualname for outer in stack(frame)][::-1]
            down = sorted(on_path)
    elif event == "return" and is_round:
        sys.setprofile(None)


sys.argv = sys.argv[1:]
sys.setprofile(watch)
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    sys.setprofile(None)
    found = {"files": {file: sorted(names) for file, names in on_path.items()}, "down": down, "frames": depth}
    Path(out).write_text(json.dumps(found))
"""


class Traced(NamedTuple):
    """The files of one round, those among them up to the first gradient step, our calls down to it, and all that as text.

    ``lines`` counts those of the functions that run, docstrings and all.
    """

    files: list[str]
    down: list[str]
    frames: list[str]
    lines: int
    told: str


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory, start_script: Callable[..., Any]) -> Traced:
    """Return where a plain round goes, in a process that has run none."""
    return trace(tmp_path_factory.mktemp("round"), start_script, 1, "callbacks=[]", "logger=[]", "heterogeneity='true'")


def trace(folder: Path, start_script: Callable[..., Any], number: int, *options: str) -> Traced:
    """Run rounds up to a number, and write down where the last of them went."""
    options = (
        "selector=uniform",
        "aggregator=fedavg",
        f"federation.rounds={number}",
        "engine=sequential",
        "threads=1",
        *options,
    )
    (folder / "trace.py").write_text(TRACE)
    arguments = [str(ROOT / "src"), str(folder / "found.json"), str(number - 1), str(ROOT / "src" / "train.py")]
    arguments += [*options, f"paths.output_dir={folder / 'run'}"]
    finished = start_script(folder, folder / "trace.py", *arguments).result()
    assert finished.status == 0, finished.err
    found = json.loads((folder / "found.json").read_text())
    # What calls `train` is the command line's affair.
    outside = ("src/fedfacet/runs/", "src/fedfacet/commands/", "src/fedfacet/entry.py", "src/fedfacet/__main__.py")
    files, down = ([file for file in found[part] if not file.startswith(outside)] for part in ("files", "down"))
    frames = found["frames"][-1 - found["frames"][::-1].index("train") :]
    lines = {file: lines_of(ROOT / file, found["files"][file]) for file in files}
    listed = "\n".join(f"{lines[file]:5} {file}: {', '.join(found['files'][file])}" for file in sorted(files))
    told = (
        f"{len(down)} files and {sum(map(lines.__getitem__, down))} lines to the first step, {len(files)} and "
        f"{sum(lines.values())} in all, {len(frames)} frames: {' > '.join(frames)}\n{listed}"
    )
    return Traced(files, down, frames, sum(lines.values()), told)


def lines_of(file: Path, names: list[str]) -> int:
    """Count the lines of some functions of a file, by their qualified names; a function counts those inside it."""

    def count(node: ast.AST, prefix: str) -> int:
        lines = 0
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef) and prefix + child.name in names:
                lines += child.end_lineno - child.lineno + 1
            elif isinstance(child, ast.ClassDef):
                lines += count(child, f"{prefix}{child.name}.")
        return lines

    return count(ast.parse(file.read_text()), "")


def test_a_plain_round_runs_through_the_files_that_the_page_names(traced: Traced) -> None:
    """Each of them once, and no other; first those on the way to the gradient step, then those on the way back."""
    page = (ROOT / "docs" / "one_round.md").read_text()
    section = page.partition("## The files, in reading order\n")[2].partition("\n## ")[0]
    down, _, back = section.partition("\nOn the way back")
    named = re.compile(r"^\d+\. `(src/\S+\.py)`", re.MULTILINE)
    assert sorted(named.findall(down)) == sorted(traced.down), traced.told
    assert sorted(named.findall(section)) == sorted(traced.files), traced.told
    assert back, traced.told


def test_a_stranger_can_follow_it(traced: Traced) -> None:
    """Few files, and few calls of our own down to the first gradient step; whoever adds one has to say why here."""
    assert len(traced.down) <= 12, traced.told  # the run, the round and what the server sends are three files of it
    assert len(traced.files) <= 14, traced.told  # and back: the check of updates, the average
    assert len(traced.frames) <= 8, traced.told  # the fold is one of them: it asks for updates, and mechanisms wrap it
    assert 500 <= traced.lines <= 800, traced.told


def test_what_a_user_runs_is_held_to_a_budget_too(tmp_path: Path, start_script: Callable[..., Any]) -> None:
    """With the default callbacks and loggers, in a round that is neither the first nor the last."""
    usual = trace(tmp_path, start_script, 2, "experiment=digits_gsc", "federation.rounds=3")
    assert len(usual.frames) <= 8, usual.told
    assert len(usual.files) <= 39, usual.told
    assert usual.lines <= 1480, usual.told


def test_the_centre_stays_a_chain() -> None:
    """What a mechanism adds is in its file: the loop has no condition for it, and the federation no argument."""
    loop = ast.parse(inspect.getsource(run_round))
    assert len(inspect.getsourcelines(run_round)[0]) <= 60
    assert sum(isinstance(node, ast.If | ast.IfExp) for node in ast.walk(loop)) <= 4
    assert len(inspect.signature(Federation).parameters) <= 8
