"""LEAF's layout: json files that hold the samples of many users."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedfacet.data.generated import write_whole
from fedfacet.data.reading import reading
from fedfacet.errors import DatasetCorruptError, DatasetNotFoundError

Own = TypeVar("Own")
UNKNOWN = "<UNK>"


def read_users(folder: Path, parse: Callable[[Any, Any], Own], *, missing: str, user: str = "user") -> dict[str, Own]:
    """Return what ``parse`` makes of each user's ``x`` and ``y``, by the user's name.

    Args:
        folder: that holds the files.
        parse: of samples and labels; raises ``ValueError`` for those that are not what they should be.
        missing: the message where there are no files.
        user: what a user is called in messages.

    Raises:
        DatasetNotFoundError: if there are no files.
        DatasetCorruptError: if one is not LEAF's, or a user is in two.
    """
    files = sorted(folder.glob("*.json"))
    if not files:
        raise DatasetNotFoundError(missing)
    known: dict[str, Own] = {}
    for file in files:
        for name, own in _users_in(file, parse, user).items():
            if name in known:
                raise DatasetCorruptError(
                    f"Expected each {user} in one file of {folder}, but {name!r} is in {file.name} and in another: "
                    "delete the folder and make it again."
                )
            known[name] = own
    return known


def write_users(file: Path, data: dict[str, dict[str, list[Any]]]) -> None:
    """Write such a file of each user's ``x`` and ``y``."""
    written = {"users": list(data), "num_samples": [len(own["y"]) for own in data.values()], "user_data": data}
    write_whole(file, json.dumps(written).encode())


def _users_in(file: Path, parse: Callable[[Any, Any], Own], called: str) -> dict[str, Own]:
    def parsed(pairs: Sequence[tuple[str, Any]]) -> Any:
        """Return an object of a file; a user's is parsed at once, since lists of numbers take ten times what bytes do."""
        content = dict(pairs)
        if len(content) < len(pairs):
            raise ValueError("one object: a name is there twice")
        return (len(content["y"]), parse(content["x"], content["y"])) if content.keys() == {"x", "y"} else content

    with reading(file, "a file as LEAF writes it", "delete the folder and make it again"):
        content = json.loads(file.read_bytes(), object_pairs_hook=parsed)
        users, data = content["users"], content["user_data"]
        if set(users) != set(data) or len(set(users)) < len(users) or not users:
            raise ValueError(f"names: `users` and `user_data` do not name the same {called}s, each once")
        counts = [data[name][0] for name in users]
        if content.get("num_samples", counts) != counts:
            raise ValueError("numbers: `num_samples` are not those of samples")
        return {str(name): data[name][1] for name in users}


def vocabulary_of(words: Sequence[str], most: int) -> dict[str, int]:
    """Return the number of each of the ``most - 1`` commonest words, from 1. The number 0 is ``UNKNOWN``.

    Words of one count are in alphabetical order.
    """
    found, counts = np.unique(np.array(words, dtype=np.str_), return_counts=True)
    order = np.argsort(-counts, kind="stable")
    known = [str(word) for word in found[order] if word != UNKNOWN]
    return {word: number for number, word in enumerate([UNKNOWN, *known[: most - 1]])}


def rows_of(texts: Sequence[Sequence[str]], known: dict[str, int], length: int) -> NDArray[np.int64]:
    """Return the numbers of each text's first words, shape (N, length), padded by -1 at the end."""
    rows = np.full((len(texts), length), -1, dtype=np.int64)
    for row, words in zip(rows, texts, strict=True):
        numbers = [known.get(word, 0) for word in words[:length]]
        row[: len(numbers)] = numbers
    return rows
