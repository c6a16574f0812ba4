"""What a narrow terminal shows."""

from importlib import import_module

import pytest

from fedfacet.analysis.writers import Table
from fedfacet.commands.output import folded, print_tables

MARKDOWN = """| selector   | last round      | best             |
| ---------- | --------------: | ---------------: |
| feddiverse | 0.00 ± 0.00 (3) | **2.88 ± 4.08** |
| a\\|b        | 1.00 ± 0.00 (3) | 36.86 ± 16.51    |

Mean ± standard deviation over seeds. Made with `python src/report.py logs`.

- Note: take --test t, which assumes differences of a normal distribution.
"""


def test_a_table_that_does_not_fit_is_told_row_by_row():
    lines = folded(MARKDOWN, 40).splitlines()
    assert lines[:7] == [
        "feddiverse",
        "  last round  0.00 ± 0.00 (3)",
        "  best        **2.88 ± 4.08**",
        "a\\|b",
        "  last round  1.00 ± 0.00 (3)",
        "  best        36.86 ± 16.51",
        "",
    ]
    assert max(map(len, lines)) <= 40
    assert " ".join(" ".join(lines).split()).endswith("take --test t, which assumes differences of a normal distribution.")


def test_what_a_setting_means_goes_on_further_to_the_right():
    assert folded("  run=DIR  the folder of a run\n", 24) == "  run=DIR  the folder of\n      a run\n"


def test_what_fits_stays_as_it_is():
    assert folded(MARKDOWN, 100) == MARKDOWN


@pytest.mark.parametrize("columns", [50, 64])
def test_no_word_of_a_narrow_table_is_broken(monkeypatch, capsys, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    heads = ["ids", "matrix", "samples", "CI", "AI", "SC", "type"]
    print_tables([Table("Clients", heads, [["8-22", "90 10 / 10 90", "200", "0.00", "0.00", "0.53", "SC"]])])
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= columns
    assert [word for word in (*heads, "8-22", "200", "0.53") if word not in said] == []


@pytest.mark.parametrize("columns", [50, 64, 80, 100])
@pytest.mark.parametrize("command", ["attack", "client", "describe", "serve", "tune"])
def test_help_is_not_ragged(monkeypatch, capsys, command, columns):
    """No line is too wide, and none that goes on could have stood on the line before it."""
    monkeypatch.setenv("COLUMNS", str(columns))
    assert import_module(f"fedfacet.commands.{command}").main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if len(line) > columns and len(line.split()) > 1] == []
    indent = [len(line) - len(line.lstrip()) for line in lines]
    goes_on = [
        number
        for number in range(2, len(lines))
        if indent[number] == indent[number - 1] >= 8
        or (lines[number - 1][:1].isupper() and lines[number] and not indent[number])
    ]
    ragged = [lines[n] for n in goes_on if len(lines[n - 1]) + 1 + len(lines[n].split()[0]) <= columns]
    assert [line for line in ragged if "python" not in line] == []
