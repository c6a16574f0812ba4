"""What a command prints: tables, remarks and pictures, as text, Markdown or JSON."""

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from fedfacet import __version__
from fedfacet.analysis import writers
from fedfacet.entry import print_error, sentence_of
from fedfacet.errors import FedFacetError
from fedfacet.storage.atomic_write import json_text
from fedfacet.terminal import console_of, filled, padding_of, print_table, print_usage, row_by_row


class Output(NamedTuple):
    """What a command prints: ``data`` as json, tables and remarks as text, and the pictures that it drew.

    ``errors`` are about parts of the request that failed; the other parts are printed all the same.
    """

    format: str
    data: Any
    tables: Iterable[writers.Table]
    figures: Sequence[Path] = ()
    remarks: Sequence[str] = ()
    errors: Sequence[str] = ()


def run_command(describe: Callable[[Sequence[str]], Output], usage: Callable[[], str], argv: Sequence[str] | None) -> int:
    """Print what a command returns for its options, by default those of the process; return the exit status."""
    argv = sys.argv[1:] if argv is None else argv
    if "--version" in argv:
        print(f"fedfacet {__version__}")
        return 0
    if {"-h", "--help"} & set(argv):
        print_usage(usage())
        return 0
    try:
        output = describe(argv)
    except (FedFacetError, ValueError, TypeError, OSError) as error:
        print_error(sentence_of(error))
        return 2
    if output.format == "json":
        print(json_text(output.data))
        for figure in output.figures:
            print(f"wrote {figure}", file=sys.stderr)
    elif output.format == "markdown":
        print(markdown_tables(output.tables, output.remarks), end="")
    else:
        print_tables(output.tables, output.remarks, output.figures)
    for sentence in output.errors:
        print_error(sentence)
    return 2 if output.errors else 0


def markdown_tables(tables: Iterable[writers.Table], remarks: Iterable[str] = ()) -> str:
    """Return tables as Markdown, and the remarks on them."""
    return "\n\n".join([*map(writers.bars, tables), *remarks]) + "\n"


def folded(markdown: str, width: int) -> str:
    r"""Return Markdown folded between words to ``width`` characters; each row of a wider table becomes a block of lines.

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


def print_tables(tables: Iterable[writers.Table], remarks: Iterable[str] = (), figures: Sequence[Path] = ()) -> None:
    """Print tables, remarks on them, and the paths of pictures, folded to the width of the terminal."""
    from rich.table import Table

    console = console_of()
    for one in tables:
        words, (columns, *rows) = one.words, one.cells(str, {"bold": "{}", "underlined": "{}"})
        table = Table(show_lines=words, padding=padding_of(console))
        for position, column in enumerate(columns):
            flush_left = words or position == 0 or column in ("matrix", "type")
            # A name among words is what the user types: it stays whole.
            name = words and position == 0
            table.add_column(column, justify="left" if flush_left else "right", overflow="fold", no_wrap=name)
        for row in rows:
            table.add_row(*row)
        console.print(f"\n{one.caption}")
        print_table(console, table, words=words)
    for remark in remarks:
        console.print(remark)
    if figures:
        console.print()
    for figure in figures:
        console.print(f"wrote {figure}", soft_wrap=True)
