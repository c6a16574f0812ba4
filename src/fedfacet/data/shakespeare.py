"""Shakespeare: the next character of what a role says, by LEAF's rules for the Gutenberg text of January 1994."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedfacet import rng
from fedfacet.arguments import Choice, Whole
from fedfacet.data.dataset import Dataset
from fedfacet.data.generated import write_lines
from fedfacet.data.reading import reading, unpacked
from fedfacet.data.source import DatasetSource, located
from fedfacet.errors import DatasetCorruptError, DatasetNotFoundError

FILES = ("t8.shakespeare.txt.gz", "t8.shakespeare.txt", "raw_data.txt")
URL = "https://www.gutenberg.org/files/100/old/1994-01-100.zip"
ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""LEAF's 80 characters, which are the classes."""

WINDOW = 80
_AUTHOR = "by William Shakespeare"
_UNINDENTED = "THE COMEDY OF ERRORS"
# How a speech begins ("  Ham. To be, ..."), and how it goes on.
_SPEECH, _MORE = re.compile(r"  ([a-zA-Z][a-zA-Z ]*)\. (.*)"), re.compile(r"    (.*)")
_SPEECH_UNINDENTED, _MORE_UNINDENTED = re.compile(r"([a-zA-Z][a-zA-Z ]*)\. (.*)"), re.compile(r"(.*)")
_TITLE_ABOVE = range(2, 8)  # lines between a play's title and its author
_LAST_LINE = 124_195  # of the plays; a poem follows
_MIN_LINES = 3  # LEAF leaves out roles with fewer: they could not both train and test


class Role(NamedTuple):
    """One character of a play, and all that is said, in order; lines end with a space, and no two spaces stand together."""

    play: str
    character: str
    text: str


def roles_in(text: str) -> list[Role]:
    """Return the roles of all plays, in the order in which they first speak.

    Everything before the second "by William Shakespeare" is left out, which is the table of contents and the sonnets. A play
    starts at each such line; its title is the first line that is not empty 2 to 7 lines above. A speech starts with two
    spaces, a name and a full stop, and goes on with four spaces, except in The Comedy of Errors, whose lines are not indented.
    Names are written in capitals. Plays with a single character are no plays, and roles with two lines or fewer are left out.

    Source: LEAF (arXiv:1812.01097) and its preprocessing; on the text with the md5 d2028225a89d8b0b3093dddb720da91f both find
    1,145 roles in 36 plays.
    """
    lines = text.splitlines()[1:]
    authors = [number for number, line in enumerate(lines) if _AUTHOR in line]
    plays: list[tuple[str, dict[str, list[str]]]] = []
    unindented = False
    current: list[str] | None = None
    for number in range(authors[1] if len(authors) > 1 else len(lines), min(len(lines), _LAST_LINE + 1)):
        line = lines[number]
        if _AUTHOR in line:
            above = (lines[number - distance].strip() for distance in _TITLE_ABOVE if distance <= number)
            title = next(filter(None, above), "")
            unindented, current = title == _UNINDENTED, None
            plays.append((title, {}))
        elif speech := (_SPEECH_UNINDENTED if unindented else _SPEECH).match(line):
            name = speech.group(1).upper()
            # Without indentation "ACT I. SCENE 1" looks like a speech.
            is_heading = unindented and name.startswith("ACT ")
            current = None if is_heading else plays[-1][1].setdefault(name, [])
            if current is not None:
                current.append(speech.group(2))
        elif current is not None and (more := (_MORE_UNINDENTED if unindented else _MORE).match(line)):
            if unindented and more.group(1).startswith("<"):  # a notice of the publisher's between two pages
                current = None
            else:
                current.append(more.group(1))
    return [
        Role(title, name, re.sub(" {2,}", " ", "".join(f"{line} " for line in spoken)))
        for title, characters in plays
        if len(characters) > 1
        for name, spoken in characters.items()
        if len(spoken) >= _MIN_LINES
    ]


@dataclass(eq=False, kw_only=True)
class Shakespeare(DatasetSource):
    """All windows of 80 characters in what each role says, y = the character that follows, no attribute.

    1,130 roles in 36 plays, and 4,226,206 windows. Label columns are ``role`` (a character of one play, in the order in which
    roles first speak), ``character`` (those of one name in all plays together) and ``play``; ``partition=natural
    partition.label=role`` makes a client of every role. Inputs are positions in the alphabet, bytes of shape (80,). Windows
    are cut when they are asked for: they take one byte a character, their labels and positions 8 bytes a window.

    Source: LEAF (Caldas et al., arXiv:1812.01097), table 1 and its preprocessing (1,129 roles and 4,226,158 samples by its own
    count); the parts of 90, 5 and 5 % as in De Cesare et al., Federated Learning Beyond Uniform Participation, section 2.

    Note: a random split is what the paper does, but neighbouring windows share 79 of their 80 characters: what is tested has
    been read in training, as the input of other windows. With ``split: contiguous`` each role's last windows validate and test,
    and the 80 that would overlap with what comes before are left out. A role with fewer than some 1,600 windows then has none
    to validate or test: 486 of the 1,130 roles validate and 485 test, each with 3.7 % of all windows instead of 5 %.

    Args:
        root: folder that holds the text as ``t8.shakespeare.txt.gz``, ``t8.shakespeare.txt`` or ``raw_data.txt``.
        num_roles: how many roles there are, drawn at random; ``None`` for all.
        min_samples: windows that a role must have, 1 or larger.
        split: ``"random"`` or ``"contiguous"``.
        val_fraction: the part of the windows that validate, in (0, 1).
        test_fraction: the part of the windows that test, in (0, 1); with ``val_fraction`` less than 1.
        seed: of the roles and the split; it does not follow the run's seed.
    """

    root: str
    num_roles: Annotated[int | None, Whole(words="1 or larger, or null for all")] = None
    min_samples: Annotated[int, Whole(words="1 or larger")] = 1
    split: Annotated[str, Choice("random", "contiguous")] = "random"
    val_fraction: float = 0.05
    test_fraction: float = 0.05
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        val, test = self.val_fraction, self.test_fraction
        if not (0 < val < 1 and 0 < test < 1 and val + test < 1):
            raise ValueError(
                "Expected `dataset.val_fraction` and `dataset.test_fraction` in (0, 1) and together less than 1, but got "
                f"{val} and {test}."
            )
        self.folder = located(self.root)

    def generate(self, demand: NDArray[np.int64] | None) -> None:
        """Write two plays of nonsense in the text's layout; see ``DatasetSource.generate``."""
        draw = rng.stream(0, "generated-plays")

        def words(count: int) -> str:
            return " ".join("".join(draw.choice(list("aeioudfghlmnrst"), size=draw.integers(3, 8))) for _ in range(count))

        lines = ["A generated text.", "", "THE SONNETS", "", "by William Shakespeare", ""]
        for play in ("FIRST", "SECOND"):
            lines += [f"THE {play} TRAGEDY", "", "by William Shakespeare", ""]
            names = [words(1).capitalize() for _ in range(max(2, -(-(self.num_roles or 8) // 2)))]
            speeches = 8 + self.min_samples // WINDOW  # of some 90 characters each
            if self.split == "contiguous":  # by which the tested end of a role has more than one window
                speeches = max(speeches, int(2 / min(self.val_fraction, self.test_fraction)))
            for name in names * speeches:
                lines += [f"  {name}. {words(8)},", f"    {words(8)}."]
        write_lines(self.folder / FILES[1], lines)

    def load(self, demand: NDArray[np.int64] | None = None) -> Dataset:
        """Read the text and find out who says what; see ``DatasetSource.load``."""
        file = next((self.folder / name for name in FILES if (self.folder / name).is_file()), None)
        roles = self._chosen(roles_in(_read(file, self.folder)), file)
        windows = Windows(roles)
        y = windows.following()
        train, val, test = self._split(windows.sizes)
        nobody = np.broadcast_to(np.int64(0), y.shape)
        characters, plays = [role.character for role in roles], [role.play for role in roles]
        of_roles = {"role": _numbered(range(len(roles))), "character": _numbered(characters), "play": _numbered(plays)}
        columns = _RoleColumns(of_roles, windows.sizes)
        return Dataset(windows, y, nobody, train, test, val, tuple(ALPHABET), columns=columns)

    def _chosen(self, roles: Sequence[Role], file: Path | None) -> list[Role]:
        enough = [role for role in roles if len(role.text) - WINDOW >= self.min_samples]
        wanted = self.num_roles if self.num_roles is not None else max(1, len(enough))
        if len(enough) < wanted:
            raise DatasetCorruptError(
                f"Expected {wanted} roles with at least {self.min_samples} windows in {file}, but it has {len(enough)}: lower "
                "`dataset.num_roles` or `dataset.min_samples`, or fetch the text that LEAF uses."
            )
        chosen = rng.stream(self.seed, "shakespeare-roles").permutation(len(enough))[:wanted]
        return [enough[position] for position in np.sort(chosen).tolist()]

    def _split(self, sizes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        total = int(sizes.sum())
        if self.split == "random":
            order = rng.stream(self.seed, "shakespeare-split").permutation(total)
            cuts = np.rint(np.cumsum([self.test_fraction, self.val_fraction]) * total).astype(np.int64)
            test, val, train = (np.sort(part) for part in np.split(order, cuts))
            return train, val, test
        first = np.cumsum(sizes) - sizes
        cut_val = np.rint((1 - self.val_fraction - self.test_fraction) * sizes).astype(np.int64)
        cut_test = np.rint((1 - self.test_fraction) * sizes).astype(np.int64)
        ranges = ((np.zeros_like(sizes), cut_val), (cut_val + WINDOW, cut_test), (cut_test + WINDOW, sizes))
        train, val, test = (
            np.concatenate([np.arange(start + low, start + high) for start, low, high in zip(first, lows, highs, strict=True)])
            for lows, highs in ranges
        )
        return train, val, test


def _read(file: Path | None, root: Path) -> str:
    if file is None:
        raise DatasetNotFoundError(
            f"Expected Shakespeare's works as {' or '.join(FILES)} in {root}, but there is no such file: unpack "
            f"{URL} (2 MB, for personal use) there, name another folder with dataset.root=DIR, point FEDFACET_DATA at a folder "
            "that holds shakespeare/, or use `experiment=digits_gsc` instead, which needs no download."
        )
    with reading(file, "the text in ASCII", "delete it and fetch it again"):
        return unpacked(file).decode("ascii")


class Windows:
    """The windows of some roles' texts, in their order, cut when they are asked for.

    Attributes:
        sizes: how many windows each role has, shape (R,).

    Raises:
        DatasetCorruptError: if a character is not in the alphabet.
    """

    def __init__(self, roles: Sequence[Role]) -> None:
        codes = np.full(256, 255, dtype=np.uint8)
        codes[np.frombuffer(ALPHABET.encode("ascii"), np.uint8)] = np.arange(len(ALPHABET))
        spoken = "".join(role.text for role in roles)
        self._text = torch.from_numpy(codes[np.frombuffer(spoken.encode("ascii"), np.uint8)])
        if int(self._text.max()) == 255:
            strangers = sorted(set(spoken) - set(ALPHABET))
            raise DatasetCorruptError(
                f"Expected the {len(ALPHABET)} characters that LEAF knows, but the roles also say {''.join(strangers)!r}: it "
                "is another edition, so fetch the text that LEAF uses."
            )
        self.sizes = np.array([len(role.text) - WINDOW for role in roles], dtype=np.int64)
        self._ends = np.cumsum(self.sizes)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def fetch(self, indices: NDArray[np.int64]) -> Tensor:
        """Return the windows at ``indices``, uint8 of shape (B, 80)."""
        starts = torch.from_numpy(self._starts(indices))
        return self._text[starts[:, None] + torch.arange(WINDOW)]

    def following(self) -> NDArray[np.int64]:
        """Return the characters after all windows, shape (N,)."""
        follows = np.ones(len(self._text), dtype=bool)
        for start in np.cumsum(self.sizes + WINDOW) - self.sizes - WINDOW:
            follows[start : start + WINDOW] = False  # before the end of a role's first window
        return self._text.numpy()[follows].astype(np.int64)

    def _starts(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return where windows begin in the text, in which each role has as many windows as characters less 80."""
        return indices + WINDOW * np.searchsorted(self._ends, indices, side="right")


def _numbered(values: Sequence[Any]) -> NDArray[np.int16]:
    """Return each value's number in the order in which they first appear."""
    number_of = {value: number for number, value in enumerate(dict.fromkeys(values))}
    return np.array([number_of[value] for value in values], dtype=np.int16)


@dataclass(frozen=True, eq=False)
class _RoleColumns(Mapping[str, NDArray[np.int16]]):
    """Labels that all windows of a role share, written out when they are asked for."""

    of_roles: Mapping[str, NDArray[np.int16]]
    sizes: NDArray[np.int64]

    def __getitem__(self, name: str) -> NDArray[np.int16]:
        return np.repeat(self.of_roles[name], self.sizes)

    def __iter__(self) -> Iterator[str]:
        return iter(self.of_roles)

    def __len__(self) -> int:
        return len(self.of_roles)
