"""A table as Markdown, LaTeX or CSV."""

import csv
import io
import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fedfacet.analysis.runs import as_number
from fedfacet.analysis.tables import MADE_WITH, PAPER, Cell, Table

_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}


def to_markdown(table: Table) -> str:
    """Return the table, its caption and its notes as Markdown."""
    grid = table_grid(table, markdown_text, bold="**{}**", underline="<u>{}</u>")
    return markdown_of(grid, table.caption, table.notes)


def markdown_of(grid: Sequence[Sequence[str]], caption: str, notes: Sequence[str], flush_left: int = 1) -> str:
    """Return a Markdown table with its caption and its notes.

    ``grid`` holds lines of cells without bare bars, the heads first. The first ``flush_left`` columns are set flush left; the
    others are numbers, flush right.
    """
    widths = [max(2, *map(len, column)) for column in zip(*grid, strict=True)]  # of one character no rule can be made
    rule = ["-" * width if i < flush_left else "-" * (width - 1) + ":" for i, width in enumerate(widths)]
    sides = [str.ljust] * flush_left + [str.rjust] * (len(widths) - flush_left)
    rows = (map(lambda cell, side, width: side(cell, width), line, sides, widths) for line in (grid[0], rule, *grid[1:]))
    said = [caption, *([""] if notes else []), *(f"- Note: {note}" for note in notes)]
    return "\n".join([*(f"| {' | '.join(row)} |" for row in rows), "", *said]) + "\n"


def to_latex(table: Table) -> str:
    r"""Return the table as a LaTeX float that needs ``\usepackage{booktabs}``."""
    grid = table_grid(table, latex_text, bold=r"\textbf{{{}}}", underline=r"\underline{{{}}}")
    metrics = re.findall(r"`([^`]*)`", table.caption.partition(MADE_WITH)[0])
    return latex_of(grid, table.caption, table.notes, label=" ".join([*metrics[:1], "by", table.corner]))


def latex_of(grid: Sequence[Sequence[str]], caption: str, notes: Sequence[str], *, label: str, flush_left: int = 1) -> str:
    """Return a LaTeX float with a table, its caption and its notes; arguments as for ``markdown_of``, cells as LaTeX.

    The command at the end of the caption has paths of this machine, so it stands in a comment. ``label`` is what the table may
    be referred to by, in words: ``curves test/acc`` becomes ``tab:curves-test-acc``.
    """
    said_first, _, command = caption.partition(f" {MADE_WITH} `")
    made = f"{MADE_WITH} `{command}" if command else ""
    # Empty braces come first where the line break or rule before the cell would take it for an argument.
    head, *lines = (("    {}" if line[0].startswith(("[", "*")) else "    ") + " & ".join(line) + r" \\" for line in grid)
    said = [rf"  \par\smallskip{{\footnotesize Note: {latex_text(note)}}}" for note in notes]
    sides = "l" * flush_left + "r" * (len(grid[0]) - flush_left)
    name = re.sub("[^a-z0-9]+", "-", label.lower()).strip("-")
    parts = (
        r"% Needs \usepackage{booktabs}.",
        *([f"% {' '.join(made.splitlines())}"] if made else []),
        *(r"\begin{table}", r"  \centering", rf"  \caption{{{latex_text(said_first)}}}", rf"  \label{{tab:{name}}}"),
        *(rf"  \begin{{tabular}}{{{sides}}}", r"    \toprule", head, r"    \midrule", *lines),
        *(r"    \bottomrule", r"  \end{tabular}", *said, r"\end{table}", ""),
    )
    return "\n".join(parts)


def to_csv(table: Table) -> str:
    """Return one line per cell, unrounded and in the table's unit; without runs ``n`` is 0 and the values are empty."""
    lines: list[Sequence[Any]] = [["row", "column", "mean", "std", "n", "seeds", "at"]]
    for row in table.rows:
        for column in table.columns:
            cell = table.cells[row, column]
            values = [cell.mean, cell.std] if cell.seeds or math.isfinite(cell.mean) else ["", ""]
            number = "" if column.at == PAPER else len(cell.seeds)
            lines.append([row, column.name, *values, number, " ".join(map(str, cell.seeds)), column.at])
    return csv_of(lines)


def csv_of(lines: Iterable[Sequence[Any]]) -> str:
    """Return lines of values as CSV; a text that a spreadsheet would take for a formula has an apostrophe before it."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([_no_formula(value) for value in line] for line in lines)
    return text.getvalue()


def _no_formula(value: Any) -> Any:
    formula = isinstance(value, str) and value[:1] in ("=", "+", "-", "@") and as_number(value) is None
    return f"'{value}" if formula else value


def markdown_text(text: str) -> str:
    """Return a text as a cell of a Markdown table."""
    return text.replace("|", r"\|").replace("<", "&lt;")


def table_grid(table: Table, escape: Callable[[str], str], *, bold: str, underline: str) -> list[list[str]]:
    """Return the lines of a table's cells, the heads first; every cell has gone through ``escape``, the marks around it."""
    several = len({column.at for column in table.columns}) > 1
    heads = [f"{column.name}, {column.at}" if several else column.name for column in table.columns]
    grid = [[escape(head) for head in (table.corner, *heads)]]
    grid += [[escape(row)] for row in table.rows]
    for column in table.columns:
        # Ranks follow the printed digits: what looks equal is marked equal.
        means = {row: _printed(table.cells[row, column].mean, table.percent) for row in table.rows}
        lower_is_better = table.lower_is_better if column.lower_is_better is None else column.lower_is_better
        ranks = sorted({float(mean) for mean in means.values() if mean != "nan"}, reverse=not lower_is_better)
        # A lone number, or one that all rows share, has won against nobody.
        marks = dict(zip(ranks, (bold, underline), strict=False)) if len(ranks) > 1 and lower_is_better is not None else {}
        for line, (row, text) in zip(grid[1:], means.items(), strict=True):
            cell = table.cells[row, column]
            marked = marks.get(float(text), "{}").format(escape(cell_text(cell, table.percent)))
            if column.at == PAPER:
                line.append("-" if math.isnan(cell.mean) else marked)
            else:
                line.append(f"{marked} ({len(cell.seeds)})" if cell.seeds else "missing")
    return grid


def cell_text(cell: Cell, percent: bool) -> str:
    """Return a cell's mean, and its standard deviation where there is one."""
    spread = f" ± {_printed(cell.std, percent)}" if math.isfinite(cell.std) else ""
    return _printed(cell.mean, percent) + spread


def _printed(value: float, percent: bool) -> str:
    return f"{value:.2f}" if percent else f"{value:.4g}"


def latex_text(text: str) -> str:
    """Return a text as LaTeX, what stands in backticks as typewriter."""
    plain = [re.sub(r"[\\~^<>|±&%$#_{}]", lambda match: _LATEX[match[0]], part) for part in text.split("`")]
    return "".join(rf"\texttt{{{part}}}" if i % 2 else part for i, part in enumerate(plain))
