"""The style of all pictures, and how they are saved.

Matplotlib is imported when a picture is drawn, not before, and used through its objects only: no window, no global figure. A
file is written whole or not at all.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedfacet.storage.whole_file import written_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's palette, which colour-blind readers can tell apart.
BLUE, ORANGE, GREEN, PINK, SKY, YELLOW, VERMILION = COLOURS = (
    *("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#F0E442", "#D55E00"),
)
DASHES = (0, (4, 2))

_STYLE: Any = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so that pictures look the same everywhere
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.handlelength": 1.5,
    "text.parse_math": False,  # a dollar sign in the name of a class is a dollar sign
}


@contextmanager
def saved_figure(path: Path, width: float, height: float) -> "Iterator[Figure]":
    """Lend a figure of a size in inches, and save it."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(width, height), dpi=200, layout=ConstrainedLayoutEngine(h_pad=0.03, w_pad=0.05))
        FigureCanvasAgg(figure)
        yield figure
        path.parent.mkdir(parents=True, exist_ok=True)
        with written_whole(path) as unfinished:
            figure.savefig(unfinished, format="png")
