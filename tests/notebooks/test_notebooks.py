"""Every notebook runs from top to bottom, and none is committed with what a machine put into it."""

import json
import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
NAMES = [file.stem for file in NOTEBOOKS]


def test_there_are_notebooks():
    assert NAMES == [
        "01_heterogeneity",
        "02_feddiverse",
        "03_your_own_method",
        "04_your_own_data",
        "05_models_and_attacks",
        "06_fairness",
        "07_selection",
    ]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda file: file.stem)
def test_it_is_a_notebook_without_outputs(notebook):
    book = json.loads(notebook.read_text())
    assert book["nbformat"] == 4
    assert len({cell["id"] for cell in book["cells"]}) == len(book["cells"])
    assert book["cells"][0]["source"][0].startswith("# ")
    for cell in book["cells"]:
        assert cell["cell_type"] in ("markdown", "code")
        assert cell["source"], "no empty cell"
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)
            assert len(cell["source"]) <= 25, "thin: logic belongs into the package; a method of one's own is about so long"


LONG = {"02_feddiverse", "05_models_and_attacks", "06_fairness", "07_selection"}
"""Minutes of training, and commands in processes of their own."""


SHORTER = {r"federation\.rounds=\d+": "federation.rounds=6"}
"""What is trained for less long here than by a reader: no cell depends on how well."""


@pytest.mark.parametrize(
    "notebook", [pytest.param(file, marks=[pytest.mark.slow] if file.stem in LONG else []) for file in NOTEBOOKS], ids=NAMES
)
def test_it_runs(notebook, tmp_path, start_script):
    """For few rounds, in a process of its own, from the notebook's folder as Jupyter does; the cells are plain Python."""
    cells = [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]
    code = "\n\n".join("".join(cell["source"]) for cell in cells)
    for longer, short in SHORTER.items():
        code = re.sub(longer, short, code)
    strict = 'import warnings; warnings.filterwarnings("error", category=DeprecationWarning, module="__main__")'
    (tmp_path / "cells.py").write_text(f"{strict}\nimport tempfile; tempfile.tempdir = None\n\n{code}")
    # Without a download means without data too.
    environment = {"TMPDIR": str(tmp_path), "FEDFACET_DATA": None}
    said = {"out": tmp_path / "out", "err": tmp_path / "err"}
    done = start_script(FOLDER, tmp_path / "cells.py", env=environment, **said).result()
    assert done.status == 0, done.err
    assert {path.parent for path in tmp_path.rglob("*.png")}, "it draws, and leaves nothing elsewhere"
