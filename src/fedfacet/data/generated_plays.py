"""Plays of nonsense in the layout of Shakespeare's collected works, so that the real loader can run anywhere."""

from pathlib import Path

import numpy as np

from fedfacet import rng
from fedfacet.data.generated import write_whole

_LETTERS = np.array(list("aeioubcdfghklmnprstvw"))


def write_plays(
    root: Path, *, num_plays: int = 2, characters_per_play: int = 4, lines_per_character: int = 16, seed: int = 0
) -> None:
    """Write ``<root>/t8.shakespeare.txt``: a preface, sonnets, and plays whose roles say random words.

    At least one play of two characters with three lines each, of about 40 letters. Equal arguments write equal files.

    Raises:
        ValueError: if a number is too small.
    """
    if num_plays < 1 or characters_per_play < 2 or lines_per_character < 3:
        raise ValueError(
            "Expected at least 1 play of 2 characters with 3 lines, but got "
            f"{num_plays}, {characters_per_play} and {lines_per_character}."
        )
    draw = rng.stream(seed, "generated-plays")

    def line() -> str:
        words = ["".join(draw.choice(_LETTERS, size=draw.integers(2, 8))) for _ in range(8)]
        return f"{words[0].capitalize()} {' '.join(words[1:])}{draw.choice(list(',.;?!'))}"

    lines = ["This is a generated text.", "", "1609", "", "THE SONNETS", "", "by William Shakespeare", "", "  " + line(), ""]
    for play in range(num_plays):
        lines += ["1600", "", f"THE TRAGEDY OF NUMBER {play + 1}", "", "by William Shakespeare", "", "ACT I. Scene 1", ""]
        names = ["".join(draw.choice(_LETTERS, size=6)).capitalize() for _ in range(characters_per_play)]
        for position in draw.permutation(np.repeat(np.arange(characters_per_play), -(-lines_per_character // 2))).tolist():
            lines += [f"  {names[position]}. {line()}", f"    {line()}"]
        lines += ["", "THE END", ""]
    Path(root).mkdir(parents=True, exist_ok=True)
    write_whole(Path(root) / "t8.shakespeare.txt", "\n".join(lines).encode("ascii"))
