"""The thesis' table 4: the methods of client selection, as it prints them, and where each lives here."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from fedfacet.config import plain
from fedfacet.config.nodes import load_yaml
from fedfacet.selectors.base import CHARACTERISTICS, Taxonomy

HEADS = ("Algorithm", "Policy", "Client", "Message", "Value generation", "Value interpretation", "Termination condition")

SLIPS = (
    "The passage on definitions of fairness cites figure 2 for the taxonomy, which is figure 4.",
    'A "?" marks rows that have no bar at all in our text of the thesis, where it may be lost: the letters are those that the '
    "method's source asks for. A policy in brackets is that of a cell over several rows.",
    "ℒ loss, L_f smoothness of the loss, 𝒯 time, ℰ energy, 𝔾 centroids, |D| number of samples, θ weights. Exp: some places are "
    "for clients at random; ES: early stopping. A letter with a bar is a characteristic that the method does without.",
)
"""What is to be said of the table as a whole."""

_OVERLINE = "\u0305"
_WORDS = {
    "ℒ": "loss",
    "L_f": "smoothness",
    "𝒯": "time",
    "ℰ": "energy",
    "𝔾": "centroids",
    "limit client description": "limit client drain",
    "defense against attacks": "defence against attacks",
    "client incentives": "incentives",
    "loss-based": "loss",
    "time-based": "time",
    "utility game": "utility",
    "bandit-based": "bandit",
    "shapley values, validation set": "Shapley value on the server's samples",
    "shapley values": "Shapley value",
    "validation set": "server's samples",
    "reinforcement learning, validation set": "reinforcement learning on the server's samples",
    "model compression": "compression",
    "auction, utility score": "auction",
    "contract theory, utility score": "contract theory",
    "probability and exp": "probability and exploration",
    "ranking and exp": "ranking and exploration",
    "fixed rounds, es": "fixed rounds, early stopping",
    "reach accuracy": "accuracy reached",
    "fixed rounds, reach accuracy": "fixed rounds, accuracy reached",
}
"""A cell in small letters -> what cards say for it; other cells are said in small letters."""


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
            policy=_said(self.policy.strip("()")),
            client_characteristics=self.required,
            shared_information=tuple(_WORDS.get(word, word) for word in self.message.split(", ")),
            value_generation=_said(self.generation),
            value_interpretation=_said(self.interpretation),
            termination_condition=_said(self.termination),
        )

    def differences(self, card: Taxonomy) -> dict[str, tuple[str, str]]:
        """Return field -> what the row and what a card say, where they do not say the same.

        A card may say more of how a value is generated.
        """
        row = self.taxonomy
        told = {one.name: (_text(getattr(row, one.name)), _text(getattr(card, one.name))) for one in fields(Taxonomy)}
        if told["value_generation"][1].startswith(told["value_generation"][0]):
            del told["value_generation"]
        return {name: both for name, both in told.items() if both[0] != both[1]}


def load_table4() -> list[Row]:
    """Return the twenty rows in the thesis' order.

    Example:
        >>> [row.name for row in load_table4()][:4]
        ['EqRep', 'EqW', 'AFL_G', 'pow-d']
    """
    rows: Any = plain(load_yaml(Path(__file__).with_name("methods.yaml")))  # type: ignore[arg-type]  # it is a list
    return [Row(**{**row, "here": tuple(row["here"])}) for row in rows]


def _said(cell: str) -> str:
    return _WORDS.get(cell.lower(), cell.lower())


def _text(told: str | tuple[str, ...]) -> str:
    return told if isinstance(told, str) else ", ".join(told)
