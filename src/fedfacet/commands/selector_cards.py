"""The cards of options that select, weigh, pay or spare clients: read off ``conf/``, their classes, and the thesis' table 4."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from inspect import getdoc, signature
from typing import Any

from hydra.utils import get_class
from omegaconf import OmegaConf

from fedfacet.config import conf_dir, targets
from fedfacet.errors import ConfigError
from fedfacet.papers.selection.table4 import Row, load_table4
from fedfacet.privacy.disclosure import UNDECLARED
from fedfacet.query import Query
from fedfacet.selectors.base import CHARACTERISTICS, Taxonomy

_KINDS = {"callbacks": "valuation", "transforms": "channel", "submodel": "model"}


@dataclass(frozen=True, slots=True)
class Card:
    """What an option says of itself.

    Attributes:
        option: its name, as the user types it after the group.
        group: of ``conf/``.
        taxonomy: the method in six fields, of its class, or of its row of the thesis' table 4 where it is no selector.
        source: the paper that its docstring names.
        needs: what a run must have for it, of ``NEEDS``.
        discloses: kinds of answers that it may ask clients for, of ``KINDS``.
        sizes_itself: whether it decides how many clients take part.
    """

    option: str
    group: str
    taxonomy: Taxonomy
    source: str
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

    def told(self) -> dict[str, Any]:
        """Return the card as JSON-able data."""
        kept = {name: value for name, value in asdict(self).items() if name not in ("option", "taxonomy", "sizes_itself")}
        flags = {"sizes_itself": self.sizes_itself, "explores": self.explores, "stops_early": self.stops_early}
        return {**asdict(self.taxonomy), "kind": self.kind, **kept, **flags}


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
    "devices": lambda card: (_yes("devices" in card.needs),),
    "server_data": lambda card: (_yes("server data" in card.needs),),
    "updates": lambda card: (_yes("updates" in card.needs),),
    "attributes": lambda card: (_yes("attributes" in card.needs),),
    "sizes_itself": lambda card: (_yes(card.sizes_itself),),
    "explores": lambda card: (_yes(card.explores),),
    "stops_early": lambda card: (_yes(card.stops_early),),
}
"""What cards can be chosen by: field -> the values that a card has."""

_ALWAYS = {name: {"yes", "no"} for name in ("devices", "server_data", "updates", "attributes", "sizes_itself", "explores")}
_ALWAYS |= {"stops_early": {"yes", "no"}, "requires": set(CHARACTERISTICS), "without": set(CHARACTERISTICS)}


def _card(group: str, option: str, taxonomy: Taxonomy | None = None) -> Card:
    nodes = [node for _, node in targets(OmegaConf.load(conf_dir() / group / f"{option}.yaml"))]
    part: Any
    part, *others = (get_class(str(node["_target_"])) for node in nodes)
    queries: list[Any] = [each for each in others if issubclass(each, Query)]
    # `heterogeneity=` chooses that query, whichever it is.
    chosen = {"triplet"} if "heterogeneity" in signature(part).parameters else set()
    judges = getattr(part, "judges", None) is not None
    needs = {
        "devices": bool(getattr(part, "needs_devices", False)),
        "server data": judges or "server_data" in _head(group, option),
        "updates": getattr(part, "needs_updates", None) not in (None, False),
        "attributes": any("a" in query.reads for query in queries),
    }
    return Card(
        option=option,
        group=group,
        taxonomy=taxonomy if taxonomy is not None else part.taxonomy,
        source=_source(part),
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


def _yes(true: bool) -> str:
    return "yes" if true else "no"
