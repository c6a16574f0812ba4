"""Tables on a terminal."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple


class TextTable(NamedTuple):
    """A table; its first column and those of words are set flush left, all of them where no word shall be cut (``words``)."""

    title: str
    columns: Sequence[str]
    rows: Iterable[Sequence[str]]
    words: bool = False


def print_tables(tables: Iterable[TextTable], remarks: Iterable[str] = (), figures: Sequence[Path] = ()) -> None:
    """Print tables, what is to be said of them, and where pictures are, to a terminal or to a file as it would look in one."""
    from rich.console import Console  # late, as everything that --help need not wait for
    from rich.table import Table

    console = Console(highlight=False, markup=False)
    for title, columns, rows, words in tables:
        table, rows = Table(show_lines=words), list(rows)
        for position, column in enumerate(columns):
            flush_left = words or position == 0 or column in ("matrix", "type")
            longest = max(len(word) for row in (columns, *rows) for word in row[position].split()) if words else None
            table.add_column(column, justify="left" if flush_left else "right", width=longest)
        for row in rows:
            table.add_row(*row)
        if words:
            console.width = max(console.width, 1 + sum(3 + (column.width or 0) for column in table.columns))
        console.print(f"\n{title}", table, sep="\n")
    for remark in remarks:
        console.print(remark)
    if figures:
        console.print()
    for figure in figures:
        console.print(f"wrote {figure}", soft_wrap=True)
