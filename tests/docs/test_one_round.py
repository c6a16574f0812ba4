"""docs/one_round.md names, in reading order, exactly the files through which one plain round runs."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

TRACE = """
import inspect, json, runpy, sys
from pathlib import Path

src, out = Path(sys.argv.pop(1)).resolve(), sys.argv.pop(1)
of_file, on_path, depth, under_way = {}, {}, None, False


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
    global depth, under_way
    code = frame.f_code
    is_round = code.co_name == "run_round" and ours(code) == "src/fedfacet/federation.py"
    if event == "call" and is_round and not under_way:
        under_way = True
        for outer in stack(frame):
            on_path.setdefault(ours(outer), set()).add(outer.co_qualname)
    elif event == "call" and under_way:
        if ours(code) and code.co_flags & inspect.CO_OPTIMIZED:  # not the body of a module or class
            on_path.setdefault(ours(code), set()).add(code.co_qualname)
        elif depth is None and code.co_qualname.endswith("SGD.step"):
            depth = [outer.co_qualname for outer in stack(frame)][::-1]
    elif event == "return" and is_round:
        sys.setprofile(None)


sys.argv = sys.argv[1:]
sys.path[0] = str(src)
sys.setprofile(watch)
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    sys.setprofile(None)
    found = {"files": {file: sorted(names) for file, names in on_path.items()}, "frames": depth}
    Path(out).write_text(json.dumps(found))
"""


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, list[str]], list[str], str]:
    """Return the files of one round with their functions, our calls down to the first gradient step, and both as text."""
    folder = tmp_path_factory.mktemp("round")
    options = ["selector=uniform", "aggregator=fedavg", "federation.rounds=1", "callbacks=[]", "logger=[]"]
    options += ["engine=sequential", "heterogeneity='true'", "threads=1", f"paths.output_dir={folder / 'run'}"]
    command = [sys.executable, "-c", TRACE, str(ROOT / "src"), str(folder / "found.json"), str(ROOT / "src" / "train.py")]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    finished = subprocess.run([*command, *options], capture_output=True, text=True, cwd=folder, env=environment, timeout=300)
    assert finished.returncode == 0, finished.stderr
    found = json.loads((folder / "found.json").read_text())
    files = {file: names for file, names in found["files"].items() if not file.startswith("src/fedfacet/runs/")}
    frames = found["frames"][-1 - found["frames"][::-1].index("train") :]  # what calls `train` is the command line's affair
    lines = {file: len((ROOT / file).read_text().splitlines()) for file in files}
    listed = "\n".join(f"{lines[file]:5} {file}: {', '.join(names)}" for file, names in sorted(files.items()))
    told = f"{len(files)} files, {sum(lines.values())} lines, {len(frames)} frames: {' > '.join(frames)}\n{listed}"
    return files, frames, told


def test_a_plain_round_runs_through_the_files_that_the_page_names(traced: tuple[dict[str, list[str]], list[str], str]) -> None:
    """Each of them once, and no other."""
    files, _, told = traced
    section = (
        (ROOT / "docs" / "one_round.md").read_text().partition("## The files, in reading order\n")[2].partition("\n## ")[0]
    )
    assert sorted(re.findall(r"^\d+\. `(src/\S+\.py)`", section, re.MULTILINE)) == sorted(files), told


def test_a_stranger_can_follow_it(traced: tuple[dict[str, list[str]], list[str], str]) -> None:
    """Few files, and few calls of our own down to the first gradient step; whoever adds one has to say why here."""
    files, frames, told = traced
    assert len(files) <= 11, told
    assert len(frames) <= 7, told
