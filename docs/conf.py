"""The documentation site: the Markdown pages where they lie, and one page of docstrings per room.

``make docs`` builds it into ``build/docs``. The source folder is the repository's root, so that the pages link to each other as
they do on GitHub. A link to a file that is not a page (a yaml, a csv) becomes a download of that file. Notebooks are pages with
their kept outputs.
"""

import json
import sys
from importlib.resources import files
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.ext import apidoc

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "docs"), str(ROOT / "src")]  # mathml.py; the checkout's fedfacet, whatever is installed

import fedfacet  # noqa: E402

project = "FedFacet"
author = copyright = "The FedFacet authors"
version = release = fedfacet.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "mathml"]
root_doc = "docs/index"
source_suffix = {".md": "markdown", ".ipynb": "markdown", ".rst": "restructuredtext"}
include_patterns = [
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "data/README.md", "notebooks/*"),
    *("docs/**", "results/*.md", "results/archive/*.md", "benchmarks/*.md", "benchmarks/results/*.md"),
]
exclude_patterns = ["docs/_static", "docs/_templates"]
templates_path = ["_templates"]

myst_heading_anchors = 4  # named as on GitHub, for links to sections
myst_enable_extensions = ["dollarmath"]  # as on GitHub

autodoc_default_options = {"members": True, "member-order": "bysource", "show-inheritance": True}
autodoc_mock_imports = ["nvflare"]  # of the extra `deploy`, which building the site does not need
suppress_warnings = ["ref.python"]  # two `Run`s: of names that only type checkers import, the module is not known here
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # or `Attributes:` and the attributes themselves would be two entries of one name

html_theme = "furo"
html_title = f"{project} {release}"
html_logo = html_favicon = "_static/logo.svg"
html_math_renderer = "mathml"
html_static_path = ["_static", str(files("ziamath") / "fonts")]  # this package has a font for formulas
html_css_files = ["site.css"]
html_additional_pages = {"index": "first_page.html"}  # the root page lies in docs/
html_copy_source = False

PARTS = {
    "docs/options": "options/*",
    "notebooks/README": "*",
    "results/README": "*\narchive/*",
    "benchmarks/README": "diary\nresults/*",
}
"""Pages in whose section of the menu others stand. It is not written there because GitHub would show it."""


def write_api_pages(app: Sphinx) -> None:
    """Write docs/api: one page per room, with all modules of it."""
    api, templates = ROOT / "docs" / "api", ROOT / "docs" / "_templates"
    folders = ["--templatedir", str(templates), "--output-dir", str(api), str(ROOT / "src" / "fedfacet")]
    apidoc.main(["--force", "--remove-old", "-q", *folders])


def add_parts(app: Sphinx, docname: str, source: list[str]) -> None:
    """Append to a page of ``PARTS`` the menu of those that belong to it."""
    if docname in PARTS:
        source[0] += f"\n```{{toctree}}\n:hidden:\n:glob:\n\n{PARTS[docname]}\n```\n"


def show_notebook(app: Sphinx, docname: str, source: list[str]) -> None:
    """Replace a notebook by Markdown: its text, its code, and what the code has printed and drawn."""
    if app.env.doc2path(docname).suffix != ".ipynb":
        return
    parts = []
    for cell in json.loads(source[0])["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        for output in cell.get("outputs", []):
            if image := output.get("data", {}).get("image/png"):
                parts.append(f"![what the cell draws](data:image/png;base64,{''.join(image.split())})")
            elif said := "".join(output.get("text", output.get("data", {}).get("text/plain", []))):
                parts.append(f"```text\n{said.rstrip()}\n```")
    source[0] = "\n\n".join(parts) + "\n"


def unlink_menu(app: Sphinx, doctree: nodes.document) -> None:
    """Take downloads out of the menu's copy of a page's titles: Sphinx expects none there."""
    for link in list(app.env.tocs[app.env.docname].findall(addnodes.download_reference)):
        link.replace_self(link.children)


def keep_colons(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Have napoleon not take what stands before a colon for the type of an attribute ("Sent up: the gradients.")."""
    if what in ("attribute", "data", "property"):
        lines[:0] = ["..", ""]  # an empty comment


def is_alias(app: Sphinx, what: str, name: str, obj: object, skip: bool, options: object) -> bool | None:
    """Leave out fields of named tuples, of which Python says "Alias for field number 0"; the class explains them."""
    return True if type(obj).__name__ == "_tuplegetter" else None


def setup(app: Sphinx) -> None:
    """Connect the functions above; napoleon and the collector of titles have priority 500."""
    app.connect("builder-inited", write_api_pages)
    app.connect("source-read", add_parts)
    app.connect("source-read", show_notebook)
    app.connect("doctree-read", unlink_menu, priority=600)
    app.connect("autodoc-process-docstring", keep_colons, priority=400)
    app.connect("autodoc-skip-member", is_alias)
