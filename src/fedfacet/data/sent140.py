"""Sentiment140 in LEAF's layout."""

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

CLASSES = ("negative", "positive")
PARTS = ("train", "test")
_TEXT = 4  # of a row: number, date, query, user and text of a tweet

Tweets = tuple[list[list[str]], list[int]]


@dataclass(eq=False, kw_only=True)
class Sent140(DatasetSource):
    """Tweets of many users, y = negative or positive, no attribute; inputs are rows of words, int64 of shape (max_length,).

    A text is lower-cased and cut at blanks. Words are numbered by how often the training tweets have them; 0 is any other word,
    and -1 pads a row at its end. ``model=text_classifier`` reads such rows. ``partition=natural partition.label=user`` makes a
    client of each user. The splits are those of LEAF's files.

    Source: Go, Bhayani and Huang, Twitter sentiment classification using distant supervision, 2009. The layout and 25 words a
    tweet as in LEAF (Caldas et al., arXiv:1812.01097). The thesis, table 5, lists it with clients by writer.

    Deviation: LEAF's own network reads GloVe vectors, and its vocabulary is GloVe's. In a federation the clients would have to
    agree on the vocabulary, and would learn it of each other.

    Args:
        root: folder that holds ``data/train/*.json`` and ``data/test/*.json`` as LEAF writes them.
        vocabulary: how many words there are, with the one for all others, 2 or larger.
        max_length: words of a tweet that are kept, from its beginning, 1 or larger.
    """

    root: str
    vocabulary: Annotated[int, Whole(2)] = 10_000
    max_length: Annotated[int, Whole()] = 25

    def __post_init__(self) -> None:
        super().__post_init__()
        self.folder = located(self.root) / "data"

    def generate(self, demand: NDArray[np.int64] | None) -> None:
        """Write nonsense in LEAF's layout, eight users; see ``DatasetSource.generate``."""
        draw = rng.stream(0, "generated-tweets")
        for part, count in zip(PARTS, (40, 6), strict=True):
            data: dict[str, dict[str, list[Any]]] = {}
            for user in range(8):
                labels = (np.arange(count) % 2).tolist()
                texts = [" ".join(("bad fine"[4 * y :][:4].strip(), *draw.choice(list("abcdefgh"), size=4))) for y in labels]
                rows = [["1", "Mon Apr 06", "NO_QUERY", f"user_{user}", text] for text in texts]
                data[f"user_{user}"] = {"x": rows, "y": labels}
            write_users(self.folder / part / "all_data_0.json", data)

    def load(self, demand: NDArray[np.int64] | None = None) -> Dataset:
        """Read the files; see ``DatasetSource.load``."""
        parts = [read_users(self.folder / part, _tweets_of, missing=self._missing(part)) for part in PARTS]
        names = sorted({*parts[0], *parts[1]})
        numbers = {name: number for number, name in enumerate(names)}
        texts = [text for part in parts for _, (own, _) in sorted(part.items()) for text in own]
        y = np.array([label for part in parts for _, (_, own) in sorted(part.items()) for label in own], dtype=np.int64)
        users = np.array([numbers[name] for part in parts for name, (own, _) in sorted(part.items()) for _ in own])
        end = sum(len(own) for own, _ in parts[0].values())
        known = vocabulary_of([word for text in texts[:end] for word in text], self.vocabulary)
        return Dataset(
            InMemoryInputs(torch.from_numpy(rows_of(texts, known, self.max_length))),
            y,
            np.zeros_like(y),
            np.arange(end),
            np.arange(end, len(y)),
            None,
            CLASSES,
            columns={"user": users},
        )

    def _missing(self, part: str) -> str:
        return (
            f"There are no json files of LEAF in {self.folder / part}: make them, and give dataset.root=DIR "
            "(data/README.md has LEAF's command)."
        )


def _tweets_of(rows: Any, labels: Any) -> Tweets:
    if not isinstance(rows, list) or not isinstance(labels, list) or len(rows) != len(labels) or not rows:
        raise ValueError("tweets: not as many as labels, or none")
    if not all(isinstance(row, list) and len(row) > _TEXT and isinstance(row[_TEXT], str) for row in rows):
        raise ValueError("tweets: one is not a list of number, date, query, user and text")
    if any(isinstance(label, bool) or label not in (0, 1) for label in labels):
        raise ValueError("labels: one is not 0 or 1")
    return [row[_TEXT].lower().split() or [""] for row in rows], labels
