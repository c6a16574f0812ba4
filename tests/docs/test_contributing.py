"""The selector that CONTRIBUTING.md writes in two files really needs only these two."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_selector_is_two_files(tmp_path: Path) -> None:
    """Written as printed into a copy of the checkout, it is listed, runs, and does what it says."""
    for folder in ("src", "conf"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    blocks = re.findall(r"```(?:python|yaml)\n# (\S*selector\S*)\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
    assert [Path(name).suffix for name, _ in blocks] == [".py", ".yaml"]
    for name, content in blocks:
        (tmp_path / name).write_text(content)
    command = [sys.executable, "src/train.py", "selector=most_spurious", "heterogeneity=true", "federation.rounds=1"]
    finished = subprocess.run(
        [*command, "threads=1", "paths.output_dir=run"], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert finished.returncode == 0, finished.stderr
    # Clients 8 to 23 of the gsc federation are the ones with a spurious correlation of 0.53; all others have none.
    assert (tmp_path / "run" / "metrics.csv").read_text().splitlines()[1].startswith("1,8 9 10 11 12 13 14 15 16,9,")
    assert "selector: most_spurious" in (tmp_path / "run" / "config.yaml").read_text()
