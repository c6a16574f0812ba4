"""Whoever follows the pages on data, models and methods of one's own gets what they say: every block is written and run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"```(python|yaml|bash|sh)\n(?:# (\S+\.(?:py|yaml))\n)?(.*?)```", re.DOTALL)

RESULTS = {
    "your_own_data.md": ["dataset: image_folder", "dataset: csv"],
    "your_own_model.md": ["model: torchvision", "model: my_network", "model: my_wrapped"],
    "your_own_method.md": ["loss: focal", "aggregator: trimmed", "partition: by_attribute"],
    "metrics.md": [],
    "from_python.md": [],
}
"""What the configurations of the pages' runs say they chose."""

LONG = RESULTS.keys() - {"from_python.md"}
"""Each command loads torch anew, and some load a network of torchvision."""


@pytest.mark.parametrize("page", [pytest.param(page, marks=pytest.mark.slow) if page in LONG else page for page in RESULTS])
def test_the_page_works(page, tmp_path, start_script):
    """Commands run in order in an empty folder, which has the scripts only; five rounds are enough for a table."""
    (tmp_path / "src").symlink_to(ROOT / "src")
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
    }
    said = ""
    for kind, name, content in BLOCK.findall((ROOT / "docs" / page).read_text()):
        if kind in ("python", "yaml"):
            assert name, "every file has its name"
            file = tmp_path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content)
            continue
        if script := re.fullmatch(r"python (\w+\.py)", content.strip()):
            ended = start_script(tmp_path, tmp_path / script[1]).result()
            assert ended.status == 0, ended.out + ended.err
            said += ended.out
            continue
        finished = subprocess.run(
            ["bash", "-e", "-c", content], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
        )
        assert finished.returncode == 0, finished.stdout + finished.stderr
        said += finished.stdout
    chosen = [file.read_text() for file in sorted((tmp_path / "logs" / "train" / "runs").glob("*/config.yaml"))]
    for wanted in RESULTS[page]:
        assert any(re.search(rf"^  {wanted}$", settings, re.MULTILINE) for settings in chosen), wanted
    for folder in (tmp_path / "logs" / "train" / "runs").glob("*"):
        assert (folder / "summary.json").exists()
    if page == "your_own_data.md":
        assert "48 train, 12 test" in said
    if page == "from_python.md":
        assert "tensor(" in said, "a module of ours under a plain Trainer"
        assert re.search(r"^10 \(.*\) 0\.9", said, re.MULTILINE), "ten rounds, and a network that has learnt"
        assert "difference in true positive rates: 0." in said
        assert re.search(r"^test/loss \(last\), a - b: \+0\.\d+, 95 % interval", said, re.MULTILINE), "of three pairs"
        assert re.search(r"^\| FedAvgM\b.* \(3\)", said, re.MULTILINE), "the table of six folders"
        assert (tmp_path / "runs.html").exists()
    if page == "your_own_method.md":
        assert re.search(r"^\W*trimmed\W+2\b", said, re.MULTILINE), "a line of the comparison, over two seeds"
