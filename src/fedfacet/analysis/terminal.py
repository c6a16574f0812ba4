"""What a command has to say, on a terminal."""

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedfacet import __version__
from fedfacet.analysis import writers
from fedfacet.entry import sentence_of, tell_error
from fedfacet.errors import FedFacetError
from fedfacet.storage.atomic_write import json_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_IN_A_FILE = 160  # characters of a line where no terminal says how many fit
_NARROW = 72  # below which cells stand without space around them
_OPTION = re.compile(r"(?P<indent> {2,4})(?P<option>\S.*?) {2,}(?P<meaning>\S)")  # in what a command says to --help


TextTable = writers.Table


class Told(NamedTuple):
    """What a command prints: ``data`` if ``output`` is json, tables and remarks if it is text; and the pictures it drew.

    ``errors`` are what did not go, of several things that were asked for; the others are told all the same.
    """

    output: str
    data: Any
    tables: Iterable[TextTable]
    figures: Sequence[Path] = ()
    remarks: Sequence[str] = ()
    errors: Sequence[str] = ()


def run_command(tell: Callable[[Sequence[str]], Told], usage: Callable[[], str], argv: Sequence[str] | None) -> int:
    """Print what a command has to say to its options, those of the process by default; return the exit status."""
    argv = sys.argv[1:] if argv is None else argv
    if "--version" in argv:
        print(f"fedfacet {__version__}")
        return 0
    if {"-h", "--help"} & set(argv):
        print_usage(usage())
        return 0
    try:
        told = tell(argv)
    except (FedFacetError, ValueError, TypeError, OSError) as error:
        tell_error(sentence_of(error))
        return 2
    if told.output == "json":
        print(json_text(told.data))
        for figure in told.figures:
            print(f"wrote {figure}", file=sys.stderr)
    elif told.output == "markdown":
        print(markdown_tables(told.tables, told.remarks), end="")
    else:
        print_tables(told.tables, told.remarks, told.figures)
    for sentence in told.errors:
        tell_error(sentence)
    return 2 if told.errors else 0


def markdown_tables(tables: Iterable[TextTable], remarks: Iterable[str] = ()) -> str:
    """Return tables as Markdown, and the remarks on them."""
    return "\n\n".join([*map(writers.bars, tables), *remarks]) + "\n"


def folded(markdown: str, width: int) -> str:
    r"""Return Markdown for a terminal of ``width`` characters: no word is broken, and too wide a table is told row by row.

    Example:
        >>> print(folded("| a | b |\n| - | - |\n| c | d |\n", 8))
        c
          b  d
        <BLANKLINE>
    """
    lines: list[str] = []
    for is_table, block in groupby(markdown.splitlines(), key=lambda line: line.startswith("|")):
        group = list(block)
        if is_table and len(group) > 2 and max(map(len, group)) > width:
            (_, *names), _, *rows = ([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in group)
            lines += row_by_row(names, rows, width)
        elif is_table:
            lines += group
        else:
            lines += [filled(line, width) for line in group]
    return "\n".join(lines) + "\n"


def row_by_row(names: Sequence[str], rows: Iterable[Sequence[str]], width: int) -> list[str]:
    """Return a table as one block of lines per row: its first cell, then each other cell beside its column's name.

    ``names`` are those of all columns but the first. An empty cell has no line.
    """
    deep = max(map(len, names), default=0)
    lines = []
    for first, *cells in rows:
        told = ((name, cell) for name, cell in zip(names, cells, strict=True) if cell)
        lines += [first, *(filled(f"  {name:{deep}}  {cell}", width) for name, cell in told)]
    return lines


def filled(line: str, width: int) -> str:
    """Return a line folded between words; what goes on stands further to the right, but for a sentence.

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
    told: list[str] = []
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
            told += filled(line, width).split("\n")
        elif width >= _NARROW:
            told += _hung(line, width, deep)
        else:
            indent = " " * (option.end("indent") + 4)
            told += [line[: option.end("option")], *_hung(indent + line[deep:], width, len(indent))]
    return "\n".join(told) + "\n"


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


def print_tables(tables: Iterable[TextTable], remarks: Iterable[str] = (), figures: Sequence[Path] = ()) -> None:
    """Print tables, remarks on them, and the paths of pictures, folded to the width of the terminal."""
    from rich.table import Table

    console = console_of()
    for told in tables:
        words, (columns, *rows) = told.words, told.cells(str, {"bold": "{}", "underlined": "{}"})
        table = Table(show_lines=words, padding=padding_of(console))
        for position, column in enumerate(columns):
            flush_left = words or position == 0 or column in ("matrix", "type")
            # A name among words is what the user types: it stays whole.
            name = words and position == 0
            table.add_column(column, justify="left" if flush_left else "right", overflow="fold", no_wrap=name)
        for row in rows:
            table.add_row(*row)
        console.print(f"\n{told.caption}")
        print_table(console, table, words=words)
    for remark in remarks:
        console.print(remark)
    if figures:
        console.print()
    for figure in figures:
        console.print(f"wrote {figure}", soft_wrap=True)
