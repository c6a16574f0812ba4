"""Selectors in the taxonomy of client selection: cards, filters, comparison, what they cost, and the thesis' table 4."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from fedfacet.analysis.terminal import TextTable, Told
from fedfacet.commands.selector_cards import FIELDS, Card, all_cards, card_of, filtered, present
from fedfacet.errors import ConfigError
from fedfacet.papers.selection.table4 import HEADS, SLIPS, load_table4
from fedfacet.selectors.base import CHARACTERISTICS

COLUMNS = (
    *("selector", "policy", "client", "shared information"),
    *("value generation", "value interpretation", "termination condition"),
)
OUTPUTS = ("text", "json", "markdown")
_OWN = ("output", "table", "compare", "cost", "rounds")


def tell(options: Sequence[str]) -> Told:
    """Return cards, the thesis' table, or measured costs.

    Options are ``FIELD=VALUE`` (``FIELDS``; all must hold), ``compare=NAME,NAME``, ``table=thesis``, ``cost=measured`` with
    ``rounds=N``, and ``output=text|json|markdown``.

    Raises:
        ConfigError: naming what is not one of them.
    """
    asked = _asked(options)
    output = asked.pop("output", "text")
    cards = all_cards()
    if "table" in asked:
        _check_alone("table=thesis by itself", asked, {"table"})
        return Told(output, *_thesis(cards), remarks=[] if output == "json" else list(SLIPS))
    rounds, names = asked.pop("rounds", None), asked.pop("compare", None)
    cost = asked.pop("cost", None)
    if rounds is not None and cost is None:
        raise ConfigError("Expected `rounds` beside cost=measured, but got it alone: add cost=measured, or leave it out.")
    if names is not None:
        _check_alone("compare=NAME,NAME without filters", asked, set())
        chosen = _named(names, cards)
    else:
        everything = {option: card for option, card in cards.items() if asked or card.group == "selector"}
        chosen = filtered(everything, asked)
    if not chosen:
        raise ConfigError("Expected options that have all that is asked for, but none does: ask for less.")
    if cost is not None:
        return _costs(chosen, rounds or "10", output)
    data = {option: card.told() for option, card in chosen.items()}
    if names is not None:
        return Told(output, data, [_side_by_side(chosen)])
    rows = [[option, *_six(card)] for option, card in chosen.items()]
    table = TextTable("Selectors in the taxonomy of client selection (thesis, table 4)", COLUMNS, rows, words=True)
    letters = ", ".join(f"{letter} {meaning}" for letter, meaning in CHARACTERISTICS.items())
    remarks = [
        f"client: what the method as published requires of clients: {letters}.",
        "θ: weights, |D|: number of samples. Here a run ends after federation.rounds, or when termination= says so.",
    ]
    return Told(output, data, [table], remarks=remarks)


def _asked(options: Sequence[str]) -> dict[str, str]:
    asked = {}
    known = [*_OWN, *FIELDS]
    for option in options:
        name, equals, value = option.partition("=")
        if name in asked:
            raise ConfigError(f"Expected `{name}` once, but got it twice: write its values with commas between.")
        if not equals or not value or name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}=...?" if near else f"options are {', '.join(known)}."
            raise ConfigError(f"Expected OPTION=VALUE after `selectors`, but got {option!r}: {hint}")
        asked[name] = value
    for name, values in {"output": OUTPUTS, "table": ("thesis",), "cost": ("measured",)}.items():
        if name in asked and asked[name] not in values:
            raise ConfigError(f"Expected {name}={'|'.join(values)} after `selectors`, but got {name}={asked[name]}.")
    return asked


def _check_alone(what: str, asked: Mapping[str, str], own: set[str]) -> None:
    if others := [name for name in asked if name not in own]:
        raise ConfigError(f"Expected {what}, but got {others[0]}={asked[others[0]]} too: leave one of them out.")


def _named(names: str, cards: Mapping[str, Card]) -> dict[str, Card]:
    chosen = [name.strip() for name in names.split(",")]
    for name in chosen:
        if name not in cards:
            near = [one for one in cards if one.partition("=")[2] == name] or get_close_matches(name, cards, n=1)
            hint = f"did you mean {near[0]}?" if near else f"they are {', '.join(cards)}."
            raise ConfigError(f"Expected options with a card for `compare`, but got {name!r}: {hint}")
    return {name: cards[name] for name in chosen}


def _six(card: Card) -> list[str]:
    of = card.taxonomy
    return [
        *(of.policy, of.client_characteristics, ", ".join(of.shared_information)),
        *(of.value_generation, of.value_interpretation, of.termination_condition),
    ]


def _side_by_side(cards: Mapping[str, Card]) -> TextTable:
    """Return a table with a column per card."""
    lines = {name: _six(card) for name, card in cards.items()}
    rows = [[head, *(lines[name][place] for name in cards)] for place, head in enumerate(COLUMNS[1:])]
    for field in ("kind", "needs", "discloses", "sizes_itself", "explores", "source"):
        rows.append([field.replace("_", " "), *(_shown(getattr(card, field)) for card in cards.values())])
    return TextTable("Side by side", ["", *cards], rows, words=True)


def _shown(value: str | bool | tuple[str, ...]) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return (value if isinstance(value, str) else ", ".join(value)) or "-"


def _thesis(cards: Mapping[str, Card]) -> tuple[list[dict[str, Any]], list[TextTable]]:
    """Return the twenty rows as the thesis prints them, with what each is here."""
    data, rows = [], []
    for row in load_table4():
        card = card_of(row, cards)
        differences = row.differences(card.taxonomy) if card is not None else {}
        others = [f"{name.replace('_', ' ')}: {row.differs.get(name, said[1])}" for name, said in differences.items()]
        notes = [note.rstrip(".") for note in (row.kind, row.slips, *others) if note]
        here = [option for option in row.here if present(option)]
        rows.append([*row.cells, " ".join(here) or "not here", ". ".join(notes)])
        cells = dict(zip(HEADS, row.cells, strict=True))
        data.append({**cells, "here": here, "kind": row.kind, "slips": row.slips, "differs": dict(row.differs)})
    return data, [TextTable("The thesis' table 4, and what runs its rows here", [*HEADS, "here", "notes"], rows, words=True)]


def _costs(cards: Mapping[str, Card], rounds: str, output: str) -> Told:
    from fedfacet.commands.selector_costs import COLUMNS as HEADS_OF_COSTS
    from fedfacet.commands.selector_costs import SETTING, measure

    if not rounds.isdecimal() or not 1 <= int(rounds) <= 1000:
        raise ConfigError(f"Expected `rounds` from 1 to 1000, but got {rounds}.")
    if not (selectors := [name for name, card in cards.items() if card.group == "selector"]):
        raise ConfigError(f"Expected a selector for cost=measured, but got {', '.join(cards)}: choose selectors.")
    costs = {name: measure(name, int(rounds)) for name in selectors}
    rows = [[name, *cost.cells] for name, cost in costs.items()]
    table = TextTable(f"What selecting costs, measured over {rounds} rounds", HEADS_OF_COSTS, rows)
    data = {name: cost.told() for name, cost in costs.items()}
    remarks = [SETTING]
    if output == "text":
        times = ", ".join(f"{name} {cost.milliseconds:.1f}" for name, cost in costs.items())
        remarks.append(f"By the clock, milliseconds a round at the server: {times}.")
    return Told(output, data, [table], remarks=remarks)
