"""Draws the taxonomy of client selection from the selectors' cards: ``python docs/make_taxonomy_picture.py``.

It writes ``docs/taxonomy.svg``, which is the thesis' figure 4 with what this package has.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path

from fedfacet.commands.describe_selectors import FIELDS, Card, all_cards
from fedfacet.selectors.base import CHARACTERISTICS

WIDTH, LINE, HEAD, GAP = 292, 18, 28, 12
SERVER, CLIENT, BOTH = "#f3d6d2", "#d5e8d4", "#dbe7f3"
DIMENSIONS = (
    ("Policy", SERVER, "policy"),
    ("Termination condition", SERVER, "termination"),
    ("Value interpretation", SERVER, "interpretation"),
    ("Client characteristics", CLIENT, "requires"),
    ("Shared information", CLIENT, "shares"),
    ("Value generation", BOTH, "generation"),
)
"""Head, colour by whom it concerns as in the thesis, and field of a card: three dimensions to a row."""


def counted(cards: Mapping[str, Card]) -> Iterator[tuple[str, str, list[tuple[str, int]]]]:
    """Yield each dimension's head, its colour, and its values with how many selectors have each, the most frequent first."""
    for head, colour, field in DIMENSIONS:
        found = Counter(value for card in cards.values() for value in FIELDS[field](card) if value != "-")
        names = CHARACTERISTICS if field == "requires" else {}
        yield head, colour, [(names.get(value, value), number) for value, number in sorted(found.items(), key=_rank)]


def _rank(value: tuple[str, int]) -> tuple[int, str]:
    return -value[1], value[0]


def picture() -> str:
    """Return the drawing: a box for each dimension, with its values and how many selectors have them."""
    boxes = list(counted({option: card for option, card in all_cards().items() if card.group == "selector"}))
    heights = [max(HEAD + LINE * len(values) + GAP for *_, values in row) for row in (boxes[:3], boxes[3:])]
    width, height = 3 * WIDTH + 2 * GAP, sum(heights) + GAP
    frame = f'x="-10" y="-10" width="{width + 20}" height="{height + 20}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-10 -10 {width + 20} {height + 20}" font-size="12" '
        'font-family="ui-monospace, Menlo, Consolas, monospace">',
        "<title>Six dimensions of client selection, and how many selectors have each value</title>",
        f'<rect {frame} fill="#ffffff"/>',
    ]
    for number, (head, colour, values) in enumerate(boxes):
        row, column = divmod(number, 3)
        left, top = column * (WIDTH + GAP), row * (heights[0] + GAP)
        box = f'x="{left}" y="{top}" width="{WIDTH}" height="{heights[row]}"'
        lines.append(f'<rect {box} rx="4" fill="{colour}" stroke="#5b6b7b"/>')
        lines.append(f'<text x="{left + 10}" y="{top + 19}" font-weight="bold" fill="#1c2733">{head}</text>')
        for place, (value, count) in enumerate(values):
            height_of_line = top + HEAD + LINE * place + 13
            lines.append(f'<text x="{left + 10}" y="{height_of_line}" fill="#1c2733">{escape(_short(value))}</text>')
            end = f'x="{left + WIDTH - 10}" y="{height_of_line}" text-anchor="end"'
            lines.append(f'<text {end} fill="#1c2733">{count}</text>')
    return "\n".join([*lines, "</svg>", ""])


def _short(value: str) -> str:
    """Return a value without what it is found on, as in "bandit on gradients of the server's samples"."""
    return value.partition(" on ")[0]


if __name__ == "__main__":
    Path(__file__).with_name("taxonomy.svg").write_text(picture(), encoding="utf-8")
