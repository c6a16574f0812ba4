"""A table as Markdown, LaTeX or CSV."""

import csv
import io
import math
import re
from collections.abc import Callable

from fedfacet.analysis.tables import PAPER, Table

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
    grid = _grid(table, lambda text: text.replace("|", r"\|"), bold="**{}**", underline="<u>{}</u>")
    widths = [max(len(line[i]) for line in grid) for i in range(len(grid[0]))]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    lines = []
    for head, *numbers in (grid[0], rule, *grid[1:]):
        padded = [head.ljust(widths[0]), *(text.rjust(width) for text, width in zip(numbers, widths[1:], strict=True))]
        lines.append(f"| {' | '.join(padded)} |")
    notes = [f"- Note: {note}" for note in table.notes]
    return "\n".join([*lines, "", table.caption, *([""] if notes else []), *notes]) + "\n"


def to_latex(table: Table) -> str:
    r"""Return the table as a LaTeX float that needs ``\usepackage{booktabs}``."""
    grid = _grid(table, _latex, bold=r"\textbf{{{}}}", underline=r"\underline{{{}}}")
    lines = ["    " + " & ".join(line) + r" \\" for line in grid]
    notes = [rf"  \par\smallskip{{\footnotesize Note: {_latex(note)}}}" for note in table.notes]
    return "\n".join(
        [
            r"\begin{table}",
            r"  \centering",
            rf"  \caption{{{_latex(table.caption)}}}",
            rf"  \begin{{tabular}}{{l{'r' * len(table.columns)}}}",
            r"    \toprule",
            lines[0],
            r"    \midrule",
            *lines[1:],
            r"    \bottomrule",
            r"  \end{tabular}",
            *notes,
            r"\end{table}",
            "",
        ]
    )


def to_csv(table: Table) -> str:
    """Return one line per cell, unrounded and in the table's unit; without runs ``n`` is 0 and the values are empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["row", "column", "mean", "std", "n", "seeds", "at"])
    for row in table.rows:
        for column in table.columns:
            cell = table.cells[row, column]
            values = [cell.mean, cell.std] if cell.seeds or math.isfinite(cell.mean) else ["", ""]
            number = "" if column.at == PAPER else len(cell.seeds)
            writer.writerow([row, column.name, *values, number, " ".join(map(str, cell.seeds)), column.at])
    return text.getvalue()


def _grid(table: Table, escape: Callable[[str], str], *, bold: str, underline: str) -> list[list[str]]:
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
            if math.isfinite(cell.std):
                text += f" ± {_printed(cell.std, table.percent)}"
            marked = marks.get(float(means[row]), "{}").format(escape(text))
            if column.at == PAPER:
                line.append("-" if math.isnan(cell.mean) else marked)
            else:
                line.append(f"{marked} ({len(cell.seeds)})" if cell.seeds else "missing")
    return grid


def _printed(value: float, percent: bool) -> str:
    return f"{value:.2f}" if percent else f"{value:.4g}"


def _latex(text: str) -> str:
    plain = [re.sub(r"[\\~^<>|±&%$#_{}]", lambda match: _LATEX[match[0]], part) for part in text.split("`")]
    return "".join(rf"\texttt{{{part}}}" if i % 2 else part for i, part in enumerate(plain))
