"""Comments on Reddit in LEAF's layout."""

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedfacet import rng
from fedfacet.arguments import Whole
from fedfacet.data.dataset import Dataset, InMemoryInputs
from fedfacet.data.leaf import read_users, rows_of, vocabulary_of, write_users
from fedfacet.data.source import DatasetSource, located

LENGTH = 10
"""Tokens of a row, as LEAF cuts comments."""

PARTS = ("train", "val", "test")
_PAD = "<PAD>"

Rows = tuple[list[list[str]], list[str]]


@dataclass(eq=False, kw_only=True)
class Reddit(DatasetSource):
    """Comments of many users in rows of ten tokens, y = the token that follows, no attribute.

    LEAF cuts a comment, with ``<BOS>`` before and ``<EOS>`` after it, into rows of ten tokens; -1 pads the last one at its end.
    Tokens are numbered by how often the training rows have them; 0 is any other token. ``model=causal_lm
    objective=next_token`` learns from each token of a row, and is measured on the one after its last. ``partition=natural
    partition.label=user`` makes a client of each user. The three splits are those of LEAF's files: of each user's comments the
    first 60 % train, the next 20 % validate, the last 20 % test.

    Source: LEAF (Caldas et al., arXiv:1812.01097), which has comments of December 2017 from pushshift.io, and its vocabulary of
    10,000 tokens. The thesis, table 5, lists it with clients by writer.

    Deviation: a prediction of the token for all others counts as right where that is the label. LEAF counts it as wrong. A row
    of nothing but padding and ``<EOS>`` is left out.

    Args:
        root: folder that holds ``data/train/*.json``, ``data/val/*.json`` and ``data/test/*.json`` as LEAF offers them.
        vocabulary: how many tokens there are, with the one for all others, 2 or larger.
    """

    root: str
    vocabulary: Annotated[int, Whole(2)] = 10_000

    def __post_init__(self) -> None:
        super().__post_init__()
        self.folder = located(self.root) / "data"

    def generate(self, demand: NDArray[np.int64] | None) -> None:
        """Write nonsense in LEAF's layout, eight users; see ``DatasetSource.generate``."""
        draw = rng.stream(0, "generated-comments")
        for part, count in zip(PARTS, (20, 4, 4), strict=True):
            data: dict[str, dict[str, list[Any]]] = {}
            for user in range(8):
                comments = [["<BOS>", *draw.choice(list("abcdef"), size=13).tolist(), "<EOS>"] for _ in range(count)]
                x = [_cut(comment) for comment in comments]
                y = [{"subreddit": "r", "target_tokens": _cut([*one[1:], _PAD])} for one in comments]
                data[str(user + 1)] = {"x": x, "y": y}
            write_users(self.folder / part / "reddit_0.json", data)

    def load(self, demand: NDArray[np.int64] | None = None) -> Dataset:
        """Read the files; see ``DatasetSource.load``."""
        parts = [read_users(self.folder / part, _rows_of, missing=self._missing(part)) for part in PARTS]
        names = sorted({name for part in parts for name in part})
        numbers = {name: number for number, name in enumerate(names)}
        ordered = [(numbers[name], *own) for part in parts for name, own in sorted(part.items())]
        rows = [row for _, own, _ in ordered for row in own]
        follow = [token for _, _, own in ordered for token in own]
        users = np.array([user for user, own, _ in ordered for _ in own], dtype=np.int64)
        ends = np.cumsum([sum(len(own) for own, _ in part.values()) for part in parts])
        read = [token for row in rows[: ends[0]] for token in row] + follow[: ends[0]]
        known = vocabulary_of(read, self.vocabulary)
        y = np.array([known.get(token, 0) for token in follow], dtype=np.int64)
        train, val, test = np.split(np.arange(len(y)), ends[:-1])
        inputs = InMemoryInputs(torch.from_numpy(rows_of(rows, known, LENGTH)))
        return Dataset(inputs, y, np.zeros_like(y), train, test, val, tuple(known), columns={"user": users})

    def _missing(self, part: str) -> str:
        return (
            f"There are no json files of LEAF in {self.folder / part}: fetch them, and give dataset.root=DIR "
            "(data/README.md says where they come from)."
        )


def _cut(tokens: list[str]) -> list[list[str]]:
    padded = [*tokens, *[_PAD] * (-len(tokens) % LENGTH)]
    return [padded[start : start + LENGTH] for start in range(0, len(padded), LENGTH)]


def _rows_of(comments: Any, labels: Any) -> Rows:
    """Return the rows of a user's comments without padding, and the token after each."""
    rows, follow = [], []
    for pieces, label in zip(comments, labels, strict=True):
        for piece, targets in zip(pieces, label["target_tokens"], strict=False):  # which may have one row more, of padding
            if not len(piece) == len(targets) == LENGTH or not all(isinstance(token, str) for token in (*piece, *targets)):
                raise ValueError(f"rows: one is not {LENGTH} words and as many that follow")
            tokens = [token for token in piece if token != _PAD]
            tokens = tokens[:-1] if tokens[-1:] == ["<EOS>"] else tokens
            if tokens:
                rows.append(tokens)
                follow.append(targets[len(tokens) - 1])
    if _PAD in follow:
        raise ValueError("rows: one without <EOS> is followed by padding")
    return rows, follow
