"""Lines, usages and tables, folded to the width of the terminal."""

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_IN_A_FILE = 160  # characters of a line where no terminal says how many fit
_NARROW = 72  # below which cells stand without space around them
_OPTION = re.compile(r"(?P<indent> {2,4})(?P<option>\S.*?) {2,}(?P<meaning>\S)")  # in what a command says to --help


def row_by_row(names: Sequence[str], rows: Iterable[Sequence[str]], width: int) -> list[str]:
    """Return a table as one block of lines per row: its first cell, then each other cell beside its column's name.

    ``names`` are those of all columns but the first. An empty cell has no line.
    """
    deep = max(map(len, names), default=0)
    lines = []
    for first, *cells in rows:
        parts = ((name, cell) for name, cell in zip(names, cells, strict=True) if cell)
        lines += [first, *(filled(f"  {name:{deep}}  {cell}", width) for name, cell in parts)]
    return lines


def filled(line: str, width: int) -> str:
    """Return a line folded between words; further lines are indented, except those of a sentence.

    Example:
        >>> print(filled("model: lenet, mlp", 14))
        model: lenet,
          mlp
    """
    if len(line) <= width:
        return line
    indent = "  " if line[:1] == "-" or line[:1].islower() else ""
    if line[:1] == " ":
        indent = " " * (len(line) - len(line.lstrip()) + 4)
    return textwrap.fill(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def print_usage(usage: str) -> None:
    """Print what a command says to --help, folded to the width of the terminal, if there is one."""
    if sys.stdout.isatty() or "COLUMNS" in os.environ:
        usage = usage_folded(usage, max(shutil.get_terminal_size().columns, 40))
    print(usage, end="")


def usage_folded(usage: str, width: int) -> str:
    r"""Return what a command says to --help for a terminal of ``width`` characters.

    An option's meaning stands beside it, or below it where the terminal is narrow.

    Example:
        >>> print(usage_folded("usage: train KEY=VALUE ...\n\n  seed=0    of the draws, and\n            of the weights\n", 24))
        usage: train KEY=VALUE
          ...
        <BLANKLINE>
          seed=0
              of the draws, and of
              the weights
        <BLANKLINE>
    """
    lines = usage.splitlines()
    if max(map(len, lines)) <= width:
        return usage
    parts: list[str] = []
    while lines:
        line = lines.pop(0)
        option = _OPTION.match(line)
        # What goes on: an option's meaning where it began, and sentences at the margin.
        deep = option.start("meaning") if option else 0
        while (
            lines and (option or line[:1].isupper()) and re.match(rf" {{{deep}}}\S", lines[0]) and not _OPTION.match(lines[0])
        ):
            line = f"{line} {lines.pop(0).strip()}"
        if not option:
            parts += filled(line, width).split("\n")
        elif width >= _NARROW:
            parts += _hung(line, width, deep)
        else:
            indent = " " * (option.end("indent") + 4)
            parts += [line[: option.end("option")], *_hung(indent + line[deep:], width, len(indent))]
    return "\n".join(parts) + "\n"


def _hung(line: str, width: int, deep: int) -> list[str]:
    return textwrap.wrap(line, width, subsequent_indent=" " * deep, break_long_words=False, break_on_hyphens=False)


def fitted(line: str) -> str:
    """Return a line for stdout: on a terminal folded between words, elsewhere as it is."""
    return filled(line, shutil.get_terminal_size().columns) if sys.stdout.isatty() else line


def console_of() -> "Console":
    """Return a console as wide as the terminal; a file gets long lines, unless COLUMNS says otherwise."""
    from rich.console import Console  # late, as everything that --help need not wait for

    console = Console(highlight=False, markup=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _IN_A_FILE
    return console


def padding_of(console: "Console") -> tuple[int, int]:
    """Return the space around a table's cells, above and beside."""
    return 0, int(console.width >= _NARROW)


def print_table(console: "Console", table: "Table", *, words: bool = False) -> None:
    """Print a table, or one block per row where the terminal is too narrow for it.

    A table of numbers fits if its cells fit; cells of ``words`` are folded, so such a table fits if its longest words do.
    """
    wide = console.options.update(max_width=100_000)
    needed = console.measure(table, options=wide)
    if (needed.minimum if words else needed.maximum) <= console.width:
        console.print(table)
        return
    _, *names = (str(column.header) for column in table.columns)
    rows = zip(*(map(str, column.cells) for column in table.columns), strict=True)
    if table.title:
        console.print(table.title)
    for line in row_by_row(names, rows, console.width):
        console.print(line, soft_wrap=True)
    if table.caption:
        console.print(table.caption)
