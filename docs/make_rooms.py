"""Draws the rooms of the package by what they import: ``python docs/make_rooms.py`` writes ``docs/rooms.svg``."""

import ast
import functools
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "fedfacet"
WIDTH, ROW, GAP, LETTER = 880, 34, 8, 7.2
COLOURS = {"round": "#f6c28b", "mechanisms": "#f6c28b", "methods": "#f6c28b", "federation": "#f6c28b"}
"""Where a round and its methods are."""


def rooms() -> dict[str, set[str]]:
    """Return every room or module of the package with those that it imports, also for type checkers and inside functions."""
    files = [file for file in PACKAGE.rglob("*.py") if file.stem not in ("__init__", "__main__") or file.parent != PACKAGE]
    names = {file.relative_to(PACKAGE).with_suffix("").parts[0] for file in files}
    found: dict[str, set[str]] = {name: set() for name in names}
    for file in files:
        name = file.relative_to(PACKAGE).with_suffix("").parts[0]
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.split(".")[0] == "fedfacet":
                room = node.module.split(".")[1:2]
                found[name] |= set(room) or {alias.name for alias in node.names}
    return {name: (imported & names) - {name} for name, imported in found.items()}


def floors() -> list[list[str]]:
    """Return the rooms from the bottom up: each is one floor above the highest that it imports."""
    imports = rooms()

    @functools.cache
    def floor(name: str) -> int:
        return 1 + max((floor(other) for other in imports[name]), default=-1)

    return [sorted(name for name in imports if floor(name) == level) for level in range(1 + max(map(floor, imports)))]


def picture() -> str:
    """Return the drawing: a row for each floor, the highest at the top."""
    rows: list[list[tuple[float, float, str]]] = []
    for names in reversed(floors()):
        rows.append([])
        left = 0.0
        for name in names:
            width = len(name) * LETTER + 16
            if left + width > WIDTH:
                rows.append([])
                left = 0.0
            rows[-1].append((left, width, name))
            left += width + GAP
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-10 -10 {WIDTH + 20} {len(rows) * ROW + 12}" font-size="12" '
        'font-family="ui-monospace, Menlo, Consolas, monospace">',
        "<title>The rooms of the package; each imports from lower rows only</title>",
        f'<rect x="-10" y="-10" width="{WIDTH + 20}" height="{len(rows) * ROW + 12}" fill="#ffffff"/>',
    ]
    for number, row in enumerate(rows):
        for left, width, name in row:
            box = f'x="{left:.1f}" y="{number * ROW}" width="{width:.1f}" height="{ROW - GAP}"'
            lines.append(f'<rect {box} rx="4" fill="{COLOURS.get(name, "#dbe7f3")}" stroke="#5b6b7b"/>')
            place = f'x="{left + width / 2:.1f}" y="{number * ROW + 17}"'
            lines.append(f'<text {place} text-anchor="middle" fill="#1c2733">{name}</text>')
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    Path(__file__).with_name("rooms.svg").write_text(picture(), encoding="utf-8")
