"""A table as Markdown, LaTeX or CSV."""

import csv
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

MADE_WITH = "Made with"  # the beginning of the last sentence of a caption, which tells the command

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


class Marked(NamedTuple):
    """A cell whose ``text`` stands out, as ``"bold"`` or ``"underlined"``, and the plain text that follows it."""

    text: str
    mark: str
    rest: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table, ready to be written in any form.

    Attributes:
        caption: what the numbers are and where they come from; backticks enclose names, as in Markdown.
        columns: their heads.
        rows: of cells.
        words: whether the cells are words, which are set flush left, rather than numbers.
        names: how many of the first columns are names, which are set flush left.
        notes: what a reader must know before trusting a cell, a sentence each.
        label: what LaTeX may refer to it by, in words: ``curves test/acc`` becomes ``tab:curves-test-acc``.
        numbers: the lines of a CSV file, unrounded, the heads first.
        more: tables that belong to it, in Markdown and on a page.
        over: heads above the columns but the first, and how many columns each spans.
    """

    caption: str
    columns: Sequence[str]
    rows: Iterable[Sequence[str | Marked]]
    words: bool = False
    names: int = 1
    notes: Sequence[str] = ()
    label: str = ""
    numbers: Sequence[Sequence[Any]] = ()
    more: "Sequence[Table]" = ()
    over: Sequence[tuple[str, int]] = ()

    def cells(self, escape: Callable[[str], str], marks: Mapping[str, str]) -> list[list[str]]:
        """Return the lines of cells, the heads first; every cell has gone through ``escape``, the marks around it."""

        def written(cell: str | Marked) -> str:
            if isinstance(cell, str):
                return escape(cell)
            return marks[cell.mark].format(escape(cell.text)) + escape(cell.rest)

        return [[written(cell) for cell in line] for line in (self.columns, *self.rows)]


def distinguishing_columns(columns: Sequence[str], rows: Sequence[Sequence[str | Marked]], names: int) -> dict[str, Any]:
    """Return the columns of a table without those of its first ``names``, but the very first, in which all rows are alike."""
    kept = [0, *(place for place in range(1, names) if len({row[place] for row in rows}) > 1)]
    chosen = [*kept, *range(names, len(columns))]
    return {
        "columns": [columns[place] for place in chosen],
        "rows": [[row[place] for place in chosen] for row in rows],
        "names": len(kept),
    }


def to_markdown(table: Table) -> str:
    """Return a table, its caption and its notes as Markdown, and the tables that belong to it."""
    captions = dict.fromkeys([table.caption, *(other.caption for other in table.more)])
    texts = ["\n\n".join(captions), *([""] if table.notes else []), *(f"- Note: {note}" for note in table.notes)]
    others = [part for other in table.more for part in (bars(other), "")]
    return "\n".join([bars(table), "", *texts, *(["", *others] if others else [""])])


def bars(table: Table) -> str:
    """Return the rows of a table as Markdown."""
    marks = {"bold": "**{}**", "underlined": "<u>{}</u>"}
    grid = table.cells(lambda text: text.replace("|", r"\|").replace("<", "&lt;"), marks)
    widths = [max(2, *map(len, column)) for column in zip(*grid, strict=True)]  # of one character no rule can be made
    flush_left = len(widths) if table.words else table.names
    rule = ["-" * width if i < flush_left else "-" * (width - 1) + ":" for i, width in enumerate(widths)]
    sides = [str.ljust] * flush_left + [str.rjust] * (len(widths) - flush_left)
    rows = (map(lambda cell, side, width: side(cell, width), line, sides, widths) for line in (grid[0], rule, *grid[1:]))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def to_latex(table: Table) -> str:
    r"""Return a table, its caption and its notes as a LaTeX float that needs ``\usepackage{booktabs}``.

    The command at the end of the caption has paths of this machine, so it stands in a comment.
    """
    grid = table.cells(latex_text, {"bold": r"\textbf{{{}}}", "underlined": r"\underline{{{}}}"})
    first_text, _, command = table.caption.partition(f" {MADE_WITH} `")
    made = f"{MADE_WITH} `{command}" if command else ""
    # Empty braces come first where the line break or rule before the cell would take it for an argument.
    head, *lines = (("    {}" if line[0].startswith(("[", "*")) else "    ") + " & ".join(line) + r" \\" for line in grid)
    texts = [rf"  \par\smallskip{{\footnotesize Note: {latex_text(note)}}}" for note in table.notes]
    sides = "l" * table.names + "r" * (len(grid[0]) - table.names)
    name = re.sub("[^a-z0-9]+", "-", table.label.lower()).strip("-")
    parts = (
        r"% Needs \usepackage{booktabs}.",
        *([f"% {' '.join(made.splitlines())}"] if made else []),
        *(r"\begin{table}", r"  \centering", rf"  \caption{{{latex_text(first_text)}}}", rf"  \label{{tab:{name}}}"),
        *(rf"  \begin{{tabular}}{{{sides}}}", r"    \toprule", head, r"    \midrule", *lines),
        *(r"    \bottomrule", r"  \end{tabular}", *texts, r"\end{table}", ""),
    )
    return "\n".join(parts)


def to_csv(table: Table) -> str:
    """Return the unrounded numbers of a table as CSV."""
    return csv_of(table.numbers)


WRITERS = {"markdown": to_markdown, "latex": to_latex, "csv": to_csv}


def csv_of(lines: Iterable[Sequence[Any]]) -> str:
    """Return lines of values as CSV; a text that a spreadsheet would take for a formula has an apostrophe before it."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([_no_formula(value) for value in line] for line in lines)
    return text.getvalue()


def _no_formula(value: Any) -> Any:
    formula = isinstance(value, str) and value[:1] in ("=", "+", "-", "@") and as_number(value) is None
    return f"'{value}" if formula else value


def as_number(text: str) -> float | None:
    """Return a text as a number, or ``None`` if it is none."""
    try:
        return float(text)
    except ValueError:
        return None


def latex_text(text: str) -> str:
    """Return a text as LaTeX, what stands in backticks as typewriter."""
    plain = [re.sub(r"[\\~^<>|±&%$#_{}]", lambda match: _LATEX[match[0]], part) for part in text.split("`")]
    return "".join(rf"\texttt{{{part}}}" if i % 2 else part for i, part in enumerate(plain))
