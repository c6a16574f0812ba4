"""Formulas as MathML, which browsers draw by themselves: no script, no network."""

import re
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.util import logging

log = logging.getLogger(__name__)

SPELLINGS = ((r"\\arg\s*\\(max|min)", r"\\arg\1"), (r"(\\Big)?\\[lr]Vert(?![a-z])", r"\\|"), (r"\\[lr]vert(?![a-z])", "|"))
"""What the docstrings write, and the same as latex2mathml knows it; its \\lVert would grow without its \\rVert."""


def mathml(node: nodes.Element, display: str) -> str:
    """Return a formula as MathML; what it would leave as LaTeX is warned of."""
    latex = node.astext()
    for pattern, known in SPELLINGS:
        latex = re.sub(pattern, known, latex)
    if re.search(r"\\\\(?!.*\\end{)", latex, re.DOTALL):
        latex = rf"\begin{{split}}{latex}\end{{split}}"
    drawn: str = convert(latex, display=display)
    drawn = drawn.replace("<mo>&#x0221E;</mo>", "<mi>&#x0221E;</mi>")  # or it would stand apart, as operators do
    drawn = drawn.replace("<mo>&#x02212;</mo><mi>&#x0221E;</mi>", '<mo form="prefix">&#x02212;</mo><mi>&#x0221E;</mi>')
    if re.search(r"\\|>&<", drawn):
        log.warning("Expected a formula that latex2mathml knows, but got %r.", node.astext(), location=node)
    return drawn


def inline(writer: Any, node: nodes.math) -> None:
    """Write a formula within a line."""
    writer.body.append(mathml(node, "inline"))
    raise nodes.SkipNode


def block(writer: Any, node: nodes.math_block) -> None:
    """Write a formula on a line of its own."""
    writer.body.append(mathml(node, "block"))
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Add the renderer ``mathml``."""
    app.add_html_math_renderer("mathml", inline_renderers=(inline, None), block_renderers=(block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
