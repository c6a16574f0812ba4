"""The selector that CONTRIBUTING.md writes in two files really needs only these two."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]

SCRIPT = """
import runpy, sys
import fedfacet.selectors

fedfacet.selectors.__path__.append({selectors!r})  # beside those of the checkout
sys.argv[0] = {train!r}
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_a_selector_is_two_files(tmp_path: Path, start_script: Callable[..., Any]) -> None:
    """Written as printed into folders beside those of the checkout, it runs and does what it says."""
    blocks = re.findall(r"```(?:python|yaml)\n# (\S*selector\S*)\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
    assert [Path(name).suffix for name, _ in blocks] == [".py", ".yaml"]
    for name, content in blocks:
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(content)
    places = {"selectors": str(tmp_path / "src" / "fedfacet" / "selectors"), "train": str(ROOT / "src" / "train.py")}
    (tmp_path / "script.py").write_text(SCRIPT.format(**places))
    options = ["selector=most_spurious", "heterogeneity=true", "federation.rounds=1", "threads=1", "paths.output_dir=run"]
    searchpath = f"hydra.searchpath=['file://{tmp_path / 'conf'}']"
    finished = start_script(tmp_path, tmp_path / "script.py", searchpath, *options).result()
    assert finished.status == 0, finished.err
    # Clients 8 to 23 of the gsc federation are the ones with a spurious correlation of 0.53; all others have none.
    assert (tmp_path / "run" / "metrics.csv").read_text().splitlines()[1].startswith("1,8 9 10 11 12 13 14 15 16,9,")
    assert "selector: most_spurious" in (tmp_path / "run" / "config.yaml").read_text()
