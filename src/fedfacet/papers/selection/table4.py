"""The thesis' table 4: the methods of client selection, as it prints them, and where each lives here."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from fedfacet.config import plain
from fedfacet.config.nodes import load_yaml
from fedfacet.selectors.base import CHARACTERISTICS, Taxonomy

_SAID: Any = load_yaml(Path(__file__).with_name("words.yaml"))
_WORDS: Mapping[str, str] = _SAID.words
HEADS, SLIPS = tuple(_SAID.heads), tuple(_SAID.slips)
"""The heads of the table's columns, and what is to be said of it as a whole."""

_OVERLINE = "\u0305"


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table.

    Attributes:
        name: the method's.
        policy: as printed; in brackets where the cell spans several rows.
        client: the letters of VDSRT without a bar, and `` ?`` after them where our text of the thesis shows no bars.
        message: what clients send.
        generation: how a client comes by its value.
        interpretation: how values become a cohort.
        termination: when training ends.
        here: the options that run it, the one that it is held to first.
        kind: what it is in this framework, where that is no selector; else empty.
        slips: where the thesis contradicts itself or the method's source; empty for nowhere.
        differs: field of ``Taxonomy`` -> why the option's card says something else there.
    """

    name: str
    policy: str
    client: str
    message: str
    generation: str
    interpretation: str
    termination: str
    here: tuple[str, ...]
    kind: str = ""
    slips: str = ""
    differs: Mapping[str, str] = field(default_factory=dict)

    @property
    def required(self) -> str:
        """The letters without a bar."""
        return self.client.removesuffix(" ?")

    @property
    def cells(self) -> tuple[str, ...]:
        """The seven cells as the thesis prints them, those of ``HEADS``."""
        barred = "".join(letter if letter in self.required else letter + _OVERLINE for letter in CHARACTERISTICS)
        client = barred + self.client[len(self.required) :]
        return self.name, self.policy, client, self.message, self.generation, self.interpretation, self.termination

    @property
    def taxonomy(self) -> Taxonomy:
        """The row in the words of cards."""
        return Taxonomy(
            policy=_published(self.policy.strip("()")),
            client_characteristics=self.required,
            shared_information=tuple(_WORDS.get(word, word) for word in self.message.split(", ")),
            value_generation=_published(self.generation),
            value_interpretation=_published(self.interpretation),
            termination_condition=_published(self.termination),
        )

    def differences(self, card: Taxonomy) -> dict[str, tuple[str, str]]:
        """Return field -> what the row and what a card say, where they do not say the same.

        A card may say more of how a value is generated.
        """
        row = self.taxonomy
        values = {one.name: (_text(getattr(row, one.name)), _text(getattr(card, one.name))) for one in fields(Taxonomy)}
        if values["value_generation"][1].startswith(values["value_generation"][0]):
            del values["value_generation"]
        return {name: both for name, both in values.items() if both[0] != both[1]}


def load_table4() -> list[Row]:
    """Return the twenty rows in the thesis' order.

    Example:
        >>> [row.name for row in load_table4()][:4]
        ['EqRep', 'EqW', 'AFL_G', 'pow-d']
    """
    rows: Any = plain(load_yaml(Path(__file__).with_name("methods.yaml")))  # type: ignore[arg-type]  # it is a list
    return [Row(**{**row, "here": tuple(row["here"])}) for row in rows]


def _published(cell: str) -> str:
    return _WORDS.get(cell.lower(), cell.lower())


def _text(values: str | tuple[str, ...]) -> str:
    return values if isinstance(values, str) else ", ".join(values)
