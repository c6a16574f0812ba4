"""Every notebook runs from top to bottom, and has kept the outputs of such a run."""

import ast
import json
import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
NAMES = [file.stem for file in NOTEBOOKS]


def code_of(book):
    return [cell for cell in book["cells"] if cell["cell_type"] == "code"]


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
def test_it_is_a_notebook_with_its_outputs(notebook):
    """Each cell that says something kept it, in order, and nothing of the machine that ran it."""
    book = json.loads(notebook.read_text())
    assert book["nbformat"] == 4
    assert len({cell["id"] for cell in book["cells"]}) == len(book["cells"])
    assert book["cells"][0]["source"][0].startswith("# ")
    assert {cell["cell_type"] for cell in book["cells"]} == {"markdown", "code"}
    assert all(cell["source"] for cell in book["cells"]), "no empty cell"
    assert [cell["execution_count"] for cell in code_of(book)] == list(range(1, len(code_of(book)) + 1))
    for cell in code_of(book):
        assert len(cell["source"]) <= 30, "thin: logic belongs into the package; a method of one's own is about so long"
        assert max(map(len, cell["source"])) <= 88 + len("\n"), "the site cuts what is wider"
        assert bool(cell["outputs"]) or not isinstance(ast.parse("".join(cell["source"])).body[-1], ast.Expr)
        said = json.dumps([{**output, "data": output.get("data", {}) | {"image/png": ""}} for output in cell["outputs"]])
        assert not re.search(r"/tmp|/home|/root|/work|Traceback|stderr|\\u001b|Commit: ", said)
    assert notebook.stat().st_size < 300_000


SHORTER = {
    r"federation\.rounds=\d+": "federation.rounds=2",
    r"for seed in range\(3\)": "for seed in range(1)",
    r"shadow\.epochs=\d+": "shadow.epochs=2",
    r"shadow\.models=\d+": "shadow.models=4",
}
"""What is trained for less long here than by a reader: no cell depends on how well."""


def shape_of(cell):
    """Return the kinds of a cell's outputs, and the words in them."""
    text = "".join("".join(output.get("text", [])) for output in cell["outputs"])
    return [output["output_type"] for output in cell["outputs"]], set(re.findall(r"[A-Za-z_]{3,}", text)) - {
        "nan",
        "not",
        "best",
    }


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=NAMES)
def test_it_runs(notebook, tmp_path, start_script):
    """For few rounds, by the command that renews its outputs: each cell prints and draws what it has kept, but for numbers."""
    kept = json.loads(notebook.read_text())
    book = notebook.read_text()
    for longer, short in SHORTER.items():
        book = re.sub(longer, short, book)
    book = json.loads(book)
    code_of(book)[0]["source"].insert(0, f"import tempfile; tempfile.tempdir = {str(tmp_path)!r}\n")
    (tmp_path / notebook.name).write_text(json.dumps(book))
    # Without a download means without data too.
    done = start_script(
        tmp_path, FOLDER.parent / "docs" / "execute_notebooks.py", tmp_path / notebook.name, env={"FEDFACET_DATA": None}
    ).result()
    assert done.status == 0, done.err
    executed = json.loads((tmp_path / notebook.name).read_text())
    assert [shape_of(cell) for cell in code_of(executed)] == [shape_of(cell) for cell in code_of(kept)]
