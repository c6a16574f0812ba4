"""Selectors in the taxonomy of client selection: cards, filters, comparison, what they cost, and the thesis' table 4."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from inspect import getdoc, signature
from typing import Any

from hydra.utils import get_class
from omegaconf import OmegaConf

from fedfacet.analysis.names import CHECKED, option_checked
from fedfacet.analysis.writers import Table
from fedfacet.commands.output import Output
from fedfacet.config import conf_dir, targets
from fedfacet.errors import ConfigError
from fedfacet.papers.selection.table4 import HEADS, SLIPS, Row, load_table4
from fedfacet.privacy.disclosure import UNDECLARED
from fedfacet.query import Query
from fedfacet.selectors.base import CHARACTERISTICS, Taxonomy
from fedfacet.types import DEVICES

_KINDS = {"callbacks": "valuation", "transforms": "channel", "submodel": "model"}


@dataclass(frozen=True, slots=True)
class Card:
    """What an option says of itself.

    Attributes:
        option: its name, as the user types it after the group.
        group: of ``conf/``.
        taxonomy: the method in six fields, of its class, or of its row of the thesis' table 4 where it is no selector.
        source: the paper that its docstring names.
        checked: with what its rule was compared, a key of ``CHECKED``; empty for an option of no publication.
        needs: what a run must have for it, of ``NEEDS``.
        discloses: kinds of answers that it may ask clients for, of ``KINDS``.
        sizes_itself: whether it decides how many clients take part.
    """

    option: str
    group: str
    taxonomy: Taxonomy
    source: str
    checked: str
    needs: tuple[str, ...]
    discloses: tuple[str, ...]
    sizes_itself: bool

    @property
    def kind(self) -> str:
        """What it is: a selector, an aggregator, a channel, a valuation or a model."""
        return _KINDS.get(self.group, self.group)

    @property
    def explores(self) -> bool:
        """Whether some places are for clients at random."""
        return "exploration" in self.taxonomy.value_interpretation

    @property
    def stops_early(self) -> bool:
        """Whether the method ends training otherwise than after fixed rounds."""
        return self.taxonomy.termination_condition not in ("-", "fixed rounds")

    def as_dict(self) -> dict[str, Any]:
        """Return the card as JSON-able data."""
        kept = {name: value for name, value in asdict(self).items() if name not in ("option", "taxonomy", "sizes_itself")}
        return {**asdict(self.taxonomy), "kind": self.kind, **kept, **{flag: getattr(self, flag) for flag in FLAGS}}


FLAGS = ("sizes_itself", "explores", "stops_early")
NEEDS = ("devices", "server data", "updates", "attributes")
"""Devices, samples of the server's own, updates kept for the round, clients that know the attributes of their samples."""


def all_cards() -> dict[str, Card]:
    """Return a card for every option of ``conf/selector``, and for the others that are rows of table 4.

    Their names are those of options; of others than selectors with the group before them, as in ``aggregator=rank_trimmed``.
    """
    cards = {file.stem: _card("selector", file.stem) for file in sorted((conf_dir() / "selector").glob("*.yaml"))}
    for row in load_table4():
        group, _, option = row.here[0].partition("=")
        if group != "selector" and (conf_dir() / group / f"{option}.yaml").is_file():
            cards[row.here[0]] = _card(group, option, row.taxonomy)
    return cards


def present(option: str) -> bool:
    """Tell whether ``conf/`` has an option, given as ``group=name``."""
    group, _, name = option.partition("=")
    return (conf_dir() / group / f"{name}.yaml").is_file()


def card_of(row: Row, cards: Mapping[str, Card]) -> Card | None:
    """Return the card that a row is held to; ``None`` where its option is not there."""
    return cards.get(row.here[0].removeprefix("selector="))


def filtered(cards: Mapping[str, Card], wanted: Mapping[str, str]) -> dict[str, Card]:
    """Return the cards that have all that is wanted.

    ``wanted`` maps a field of ``FIELDS`` to a value, or to several with commas between, all of which a card must have.

    Raises:
        ConfigError: if no card has such a value, naming the nearest.
    """
    for name, text in wanted.items():
        possible = sorted({value for card in cards.values() for value in FIELDS[name](card)} | _ALWAYS.get(name, set()))
        if strange := [value for value in _values(text) if value not in possible]:
            near = get_close_matches(strange[0], possible, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else f"it is one of {', '.join(possible)}."
            raise ConfigError(f"Expected a value of `{name}` that some card has, but got {strange[0]!r}: {hint}")
    return {
        option: card
        for option, card in cards.items()
        if all(set(_values(text)) <= set(FIELDS[name](card)) for name, text in wanted.items())
    }


def _yes_or_no(name: str) -> Callable[[Card], Iterable[str]]:
    return lambda card: (_shown(name.replace("_", " ") in card.needs or bool(getattr(card, name, False))),)


YES_OR_NO = (*(need.replace(" ", "_") for need in NEEDS), *FLAGS)
FIELDS: dict[str, Callable[[Card], Iterable[str]]] = {
    "kind": lambda card: (card.kind,),
    "policy": lambda card: _values(card.taxonomy.policy),
    "requires": lambda card: card.taxonomy.client_characteristics.replace("-", ""),
    "without": lambda card: set(CHARACTERISTICS) - set(card.taxonomy.client_characteristics),
    "shares": lambda card: card.taxonomy.shared_information,
    "generation": lambda card: (card.taxonomy.value_generation,),
    "interpretation": lambda card: card.taxonomy.value_interpretation.replace(" and ", ", ").split(", "),
    "termination": lambda card: _values(card.taxonomy.termination_condition),
    "discloses": lambda card: card.discloses or ("nothing",),
    "checked": lambda card: (card.checked,) if card.checked else (),
    **{name: _yes_or_no(name) for name in YES_OR_NO},
}
"""What cards can be chosen by: field -> the values that a card has."""

_ALWAYS = {name: {"yes", "no"} for name in YES_OR_NO}
_ALWAYS |= {"requires": set(CHARACTERISTICS), "without": set(CHARACTERISTICS)}


def _card(group: str, option: str, taxonomy: Taxonomy | None = None) -> Card:
    nodes = [node for _, node in targets(OmegaConf.load(conf_dir() / group / f"{option}.yaml"))]
    part: Any
    part, *others = (get_class(str(node["_target_"])) for node in nodes)
    queries: list[Any] = [each for each in others if issubclass(each, Query)]
    # `heterogeneity=` chooses that query, whichever it is.
    chosen = {"triplet"} if "heterogeneity" in signature(part).parameters else set()
    judges = getattr(part, "judges", None) is not None
    needs = {
        "devices": DEVICES in getattr(part, "requires", ()),
        "server data": judges or "server_data" in _head(group, option),
        "updates": getattr(part, "needs_updates", None) not in (None, False),
        "attributes": any("a" in query.reads for query in queries),
    }
    return Card(
        option=option,
        group=group,
        taxonomy=taxonomy if taxonomy is not None else part.taxonomy,
        source=_source(part),
        checked=option_checked(group, option) or "",
        needs=tuple(name for name in NEEDS if needs[name]),
        discloses=tuple(sorted(({query.kind for query in queries} | chosen) - {UNDECLARED})),
        sizes_itself=bool(getattr(part, "sizes_itself", False)),
    )


def _head(group: str, option: str) -> str:
    """Return the comments before the first setting of a yaml."""
    lines = (conf_dir() / group / f"{option}.yaml").read_text(encoding="utf-8").splitlines()
    return " ".join(line for line in lines[: next(n for n, line in enumerate(lines) if not line.startswith("#"))])


def _source(part: Any) -> str:
    """Return the paragraph after `Source:` in a docstring as plain text, on one line; empty where there is none."""
    _, _, after = (getdoc(part) or "").partition("Source: ")
    return re.sub(r"(:\w+:)?`+([^`]*)`+", r"\2", " ".join(after.split("\n\n")[0].split())).replace("\\", "").rstrip(".")


def _values(text: str) -> Sequence[str]:
    return [value.strip() for value in text.split(",")]


COLUMNS = (
    *("selector", "policy", "client", "shared information"),
    *("value generation", "value interpretation", "termination condition", "checked"),
)
OUTPUTS = ("text", "json", "markdown")
_OWN = ("output", "table", "compare", "cost", "rounds")


def run(options: Sequence[str]) -> Output:
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
        return Output(output, *_thesis(cards), remarks=[] if output == "json" else list(SLIPS))
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
    data = {option: card.as_dict() for option, card in chosen.items()}
    if names is not None:
        return Output(output, data, [_side_by_side(chosen)])
    rows = [[option, *_cells(card)] for option, card in chosen.items()]
    table = Table("Selectors in the taxonomy of client selection (thesis, table 4)", COLUMNS, rows, words=True)
    letters = ", ".join(f"{letter} {meaning}" for letter, meaning in CHARACTERISTICS.items())
    remarks = [
        f"client: what the method as published requires of clients: {letters}.",
        f"checked: its rule was compared with {', '.join(f'{meaning} ({word})' for word, meaning in CHECKED.items())}.",
        "θ: weights, |D|: number of samples. Here a run ends after federation.rounds, or when termination= says so.",
    ]
    return Output(output, data, [table], remarks=remarks)


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


def _cells(card: Card) -> list[str]:
    of = card.taxonomy
    return [
        *(of.policy, of.client_characteristics, ", ".join(of.shared_information)),
        *(of.value_generation, of.value_interpretation, of.termination_condition, _shown(card.checked)),
    ]


def _side_by_side(cards: Mapping[str, Card]) -> Table:
    """Return a table with a column per card."""
    lines = {name: _cells(card) for name, card in cards.items()}
    rows = [[head, *(lines[name][place] for name in cards)] for place, head in enumerate(COLUMNS[1:])]
    for field in ("kind", "needs", "discloses", "sizes_itself", "explores", "source"):
        rows.append([field.replace("_", " "), *(_shown(getattr(card, field)) for card in cards.values())])
    return Table("Side by side", ["", *cards], rows, words=True)


def _shown(value: str | bool | tuple[str, ...]) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return (value if isinstance(value, str) else ", ".join(value)) or "-"


def _thesis(cards: Mapping[str, Card]) -> tuple[list[dict[str, Any]], list[Table]]:
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
    return data, [Table("The thesis' table 4, and what runs its rows here", [*HEADS, "here", "notes"], rows, words=True)]


def _costs(cards: Mapping[str, Card], rounds: str, output: str) -> Output:
    from fedfacet.commands.selector_costs import COLUMNS as HEADS_OF_COSTS
    from fedfacet.commands.selector_costs import SETTING, measure

    if not rounds.isdecimal() or not 1 <= int(rounds) <= 1000:
        raise ConfigError(f"Expected `rounds` from 1 to 1000, but got {rounds}.")
    if not (selectors := [name for name, card in cards.items() if card.group == "selector"]):
        raise ConfigError(f"Expected a selector for cost=measured, but got {', '.join(cards)}: choose selectors.")
    costs = {name: measure(name, int(rounds)) for name in selectors}
    rows = [[name, *cost.cells] for name, cost in costs.items()]
    table = Table(f"What selecting costs, measured over {rounds} rounds", HEADS_OF_COSTS, rows)
    data = {name: cost.as_dict() for name, cost in costs.items()}
    remarks = [SETTING]
    if output == "text":
        times = ", ".join(f"{name} {cost.milliseconds:.1f}" for name, cost in costs.items())
        remarks.append(f"By the clock, milliseconds a round at the server: {times}.")
    return Output(output, data, [table], remarks=remarks)
