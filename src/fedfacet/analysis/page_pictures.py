"""Pictures of a page: matplotlib's SVGs, with colours that the page chooses for light and dark."""

import hashlib
import io
import re
from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from fedfacet.analysis.selection import draw_chosen
from fedfacet.plots.curves import INK, LINES, Band, draw_bands
from fedfacet.plots.style import BLUE, GREEN, ORANGE, PINK, SKY, VERMILION, styled_figure

_VARIABLES = {
    "black": "--ink", BLUE: "--blue", ORANGE: "--orange", GREEN: "--green", PINK: "--pink", SKY: "--sky",
    VERMILION: "--vermilion",
}  # fmt: skip
"""A colour of matplotlib's -> the variable of the page's style sheet that stands for it."""

_THEMED = {"#000000": "--ink"} | {colour.lower(): variable for colour, variable in _VARIABLES.items()}
_BOUND, _ON_PALE = "#666666", "#101010"  # around the pale strips of types, and their names
_SWATCHES = {"-": "none", "--": "4 2", ":": "1.2 2", "-.": "6 2 1.2 2"}
_WIDTH = 3.7  # inches
_ROUND = "round"  # whose numbers are whole


def looks_of(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return a colour and a style for each name's line; neighbours differ in both, for who sees no colours."""
    return {name: {"color": INK[place % len(INK)], "linestyle": LINES[place % len(LINES)]} for place, name in enumerate(names)}


def swatches_of(looks: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    """Return name, variable of the colour and SVG's dashes of each line, for the legend."""
    return [(name, _VARIABLES[look["color"]], _SWATCHES[look["linestyle"]]) for name, look in looks.items()]


def curves_svg(bands: Sequence[Band], looks: Mapping[str, Mapping[str, Any]], *, up: str, across: str, title: str) -> Markup:
    """Draw lines with their bands.

    Args:
        bands: of one panel.
        looks: as ``looks_of`` gives them.
        up: what is drawn upwards.
        across: what is drawn to the right.
        title: what the picture tells, for who does not see it.
    """
    with styled_figure(_WIDTH, 2.5) as figure:
        axes = figure.subplots()
        draw_bands(axes, bands, looks)
        axes.set(xlabel=across, ylabel=up)
        if across == _ROUND:
            axes.locator_params(axis="x", integer=True)
        return _inline(figure, title, _THEMED, "themed")


def selection_svg(chosen_RK: NDArray[np.bool_], types: Sequence[str], title: str) -> Markup:
    """Draw who was selected: ink on nothing, so that the page shines through; a dark page turns the ink to white."""
    from matplotlib.colors import LinearSegmentedColormap

    with styled_figure(_WIDTH, 2.0) as figure:
        axes = figure.subplots()
        draw_chosen(axes, chosen_RK, types)
        axes.set(xlabel=_ROUND)
        for chosen in axes.images:
            chosen.set_cmap(LinearSegmentedColormap.from_list("ink", [(0, 0, 0, 0), (0, 0, 0, 1)]))
        for strip in axes.patches:
            strip.set(edgecolor=_BOUND, linewidth=0.6)  # pale types on a pale page would have no bounds
        for kind in axes.texts:
            kind.set_color(_ON_PALE)
        return _inline(figure, title, _THEMED | {_BOUND: "--rule"}, "themed map")


def _inline(figure: Any, title: str, themed: Mapping[str, str], name: str) -> Markup:
    """Return a figure as an element of HTML, which scales and has a title."""
    for patch in (figure.patch, *(axes.patch for axes in figure.axes)):
        patch.set_visible(False)  # the page shines through
    written = io.BytesIO()
    figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    root = ElementTree.fromstring(written.getvalue())  # matplotlib's own, nobody else's
    for parent in list(root.iter()):
        for child in list(parent):
            if _local(child.tag) in ("metadata", "style"):  # the style would be the whole page's
                parent.remove(child)
    prefix = f"p{_digest(written.getvalue(), title)}"  # the same names in two pictures would be one
    for element in root.iter():
        element.tag = _local(element.tag)
        attributes = {_local(name): value for name, value in element.attrib.items()}
        if "id" in attributes:
            attributes["id"] = prefix + attributes["id"]
        if attributes.get("href", "").startswith("#"):
            attributes["href"] = f"#{prefix}{attributes['href'][1:]}"
        if "clip-path" in attributes:
            attributes["clip-path"] = attributes["clip-path"].replace("url(#", f"url(#{prefix}")
        if "style" in attributes:
            style = re.sub(r"font-family: [^;]*;? ?", "", attributes["style"])
            for colour, variable in themed.items():
                style = style.replace(colour, f"var({variable})")
            attributes["style"] = style
        element.attrib.clear()
        element.attrib.update(attributes)
    size = root.attrib["viewBox"]
    root.attrib.clear()
    root.attrib.update({"viewBox": size, "role": "img", "aria-label": title, "class": name})
    title_element = ElementTree.Element("title")
    title_element.text = title
    root.insert(0, title_element)
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def _local(name: str) -> str:
    """Return the name of an element or attribute without its namespace, which HTML knows by itself."""
    return name.rpartition("}")[2]


def _digest(*parts: bytes | str) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() if isinstance(part, str) else part)
    return digest.hexdigest()[:8]
