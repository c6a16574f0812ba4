"""Execute notebooks and keep what they print and draw: ``python docs/execute_notebooks.py [FILE ...]``.

Without a file it executes all notebooks of the repository, which takes a few minutes. Each notebook runs in a new process, from
top to bottom. Its file keeps what Jupyter would show.
"""

import ast
import base64
import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from PIL import Image

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted([*ROOT.glob("notebooks/*.ipynb"), *ROOT.glob("docs/tutorials/*.ipynb")])


def execute(file: Path) -> None:
    """Run the cells of a notebook, and write their outputs into its file."""
    book = json.loads(file.read_text(encoding="utf-8"))
    os.chdir(file.parent)
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate((cell for cell in book["cells"] if cell["cell_type"] == "code"), 1):
        cell |= {"execution_count": number, "outputs": outputs_of("".join(cell["source"]), number, names)}
    file.write_text(json.dumps(book, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def outputs_of(source: str, number: int, names: dict[str, Any]) -> list[dict[str, Any]]:
    """Run a cell in the namespace of its notebook, and return what it prints and the value of its last line."""
    streams = {"stdout": io.StringIO(), "stderr": io.StringIO()}
    *body, last = ast.parse(source).body
    result = None
    with contextlib.redirect_stdout(streams["stdout"]), contextlib.redirect_stderr(streams["stderr"]):
        if isinstance(last, ast.Expr):
            exec(compile(ast.Module(body, []), f"cell {number}", "exec"), names)
            result = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), names)
        else:
            exec(compile(source, f"cell {number}", "exec"), names)
    said = [(name, stream.getvalue()) for name, stream in streams.items()]
    outputs: list[dict[str, Any]] = [
        {"name": name, "output_type": "stream", "text": text.splitlines(keepends=True)} for name, text in said if text
    ]
    if result is not None:
        data: dict[str, Any] = {"text/plain": repr(result).splitlines(keepends=True)}
        if hasattr(result, "_repr_html_"):
            data["text/html"] = result._repr_html_().splitlines(keepends=True)
        if isinstance(result, Image.Image):
            data = {"image/png": png_of(result), "text/plain": ["<a picture>"]}  # its repr has an address
        outputs.append({"data": data, "execution_count": number, "metadata": {}, "output_type": "execute_result"})
    return outputs


def png_of(picture: Image.Image) -> str:
    """Return a picture in base64, in 256 colours: a third as large, and alike to the eye."""
    file = io.BytesIO()
    picture.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(file, "png", optimize=True)
    return base64.b64encode(file.getvalue()).decode() + "\n"


if __name__ == "__main__":
    match [Path(name).resolve() for name in sys.argv[1:]] or NOTEBOOKS:
        case [file]:
            execute(file)
        case files:
            for file in files:
                print(file.relative_to(ROOT), flush=True)
                subprocess.run([sys.executable, __file__, file], check=True)
