"""What all pictures share: their style, the names of groups in them, and how they are saved.

Matplotlib is imported when a picture is drawn, not before, and used through its objects only: no window, no global figure. A
file is written whole or not at all. The end of its name says what it is: a PNG, an SVG or a PDF.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedfacet.metrics.group_names import group_names
from fedfacet.storage.atomic_write import atomic_write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette, which colour-blind readers can tell apart, with its three light colours darkened: a line must have a
# contrast of 3 to 1 with white.
BLUE, ORANGE, GREEN, PINK, SKY, OLIVE, VERMILION = COLOURS = (
    *("#0072B2", "#B87D00", "#009E73", "#CC79A7", "#3B97D3", "#7A7A00", "#D55E00"),
)
DASHES = (0, (4, 2))

SUFFIXES = (".png", ".svg", ".pdf")  # of pictures
WIDTHS = {"column": 3.25, "page": 6.75}  # of a page with two columns, in inches
_SPLITS = {"train": "training", "val": "validation", "test": "test", "personal_test": "personal test"}
_MEASURES = {"acc": "accuracy", "acc_worst_group": "worst-group accuracy", "acc_adjusted": "adjusted accuracy", "loss": "loss"}
_MEASURES |= {"acc_mean": "accuracy (mean of clients)", "acc_min": "accuracy (worst client)"}
_MOST_SIGNS = 20  # of a client's name
_UNDATED: Any = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}  # the same runs give the same bytes

_NARROWEST = 1.9  # of panels side by side, in inches

_STYLE: Any = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so that pictures look the same everywhere
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "hatch.linewidth": 0.7,
    "legend.handlelength": 1.5,
    "text.parse_math": False,  # a dollar sign in the name of a class is a dollar sign
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "fedfacet",  # or the names within would be drawn anew each time
    "pdf.fonttype": 42,  # TrueType, which publishers ask for
}


@contextmanager
def styled_figure(width: float, height: float) -> "Iterator[Figure]":
    """Lend a figure of a size in inches, in the style of all pictures."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(width, height), dpi=200, layout=ConstrainedLayoutEngine(h_pad=0.03, w_pad=0.05))
        FigureCanvasAgg(figure)
        yield figure


@contextmanager
def saved_figure(path: Path, width: float, height: float) -> "Iterator[Figure]":
    """Lend such a figure, and save it.

    Raises:
        ValueError: if the name of the file ends in none of ``SUFFIXES``.
    """
    if path.suffix not in SUFFIXES:
        raise ValueError(f"Expected the name of a picture to end in {', '.join(SUFFIXES)}, but got {path}: name it so.")
    with styled_figure(width, height) as figure:
        yield figure
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as unfinished:
            figure.savefig(unfinished, format=path.suffix[1:], metadata=_UNDATED.get(path.suffix))


@contextmanager
def saved_panels(
    path: Path,
    number: int,
    size: Callable[[int, int], tuple[float, float]],
    per_row: int = 3,
    fit: float | None = None,
    **shared: Any,
) -> "Iterator[tuple[Figure, list[Axes]]]":
    """Lend such a figure with so many panels, row by row, and save it; places without a panel stay empty.

    ``size`` is the figure's width and height, given its numbers of rows and columns. ``fit`` is a width in inches that the
    figure must have, ``None`` for any. ``shared`` says which axes are alike.
    """
    columns = min(number, per_row if fit is None else max(1, min(per_row, int(fit / _NARROWEST))))
    rows = -(-number // columns)
    width, height = size(rows, columns)
    with saved_figure(path, width if fit is None else fit, height) as figure:
        grid = figure.subplots(rows, columns, squeeze=False, **shared).ravel().tolist()
        for axes in grid[number:]:
            axes.axis("off")
        yield figure, grid[:number]


def columns_of(grid: "Sequence[Axes]") -> int:
    """Return how many panels stand side by side."""
    place = grid[0].get_subplotspec()
    return 1 if place is None else int(place.get_gridspec().ncols)


def legend_columns(names: Sequence[str], width: float) -> int:
    """Return in how many columns a legend is as wide as a figure at most."""
    return max(1, min(len(names), int((width - 0.1) / (0.6 + 0.066 * max(map(len, names), default=0)))))


def client_labels(numbers: Sequence[int], names: Sequence[str]) -> list[str]:
    """Return what an axis calls some clients: their names, cut to twenty signs, or their numbers where they have none."""
    shown = group_names(names, ["none"])
    return [shown[number][:_MOST_SIGNS] if shown else str(number) for number in numbers]


def axis_name(metric: str) -> str:
    """Return what an axis calls a metric; one without a plain name keeps its key.

    Example:
        >>> [axis_name(metric) for metric in ("val/acc", "test/fair/equal_opportunity", "attack/mean/auc", "comm/floats_up")]
        ['validation accuracy', 'test gap in equal opportunity', 'AUC of attacks (mean)', 'comm/floats_up']
    """
    split, _, of = metric.partition("/")
    kind, _, measured = of.partition("/")
    if split in _SPLITS and of in _MEASURES:
        return f"{_SPLITS[split]} {_MEASURES[of]}"
    if split in _SPLITS and kind == "fair" and measured:
        return f"{_SPLITS[split]} gap in {measured.replace('_', ' ')}"
    if split == "attack" and measured == "auc":
        return f"AUC of attacks ({kind.replace('_', ' ')})"
    return metric
