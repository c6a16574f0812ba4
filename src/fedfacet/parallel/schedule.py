"""Who does what, and in which order, so that all are done at the same time."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

MAX_DEATHS = 3  # work that has cost so many processes their lives is given up, and the run with it
_TOLERANCE = 0.02  # handing a client over costs something too


class Piece(NamedTuple):
    """A stretch of one client's steps: ``start`` counts from 0, ``stop`` is one past the last; ``position`` is its task's."""

    position: int
    start: int
    stop: int

    @property
    def num_steps(self) -> int:
        """How many steps it is."""
        return self.stop - self.start


def pieces(steps: Sequence[int], num_workers: int, *, divisible: bool = True) -> list[Piece]:
    r"""Cut a round's clients into pieces and put them into the order in which idle workers take them up.

    Nine equal clients on two workers would keep one of them idle for a ninth of the round. A client's steps follow one another,
    but different workers may take them: with at most ``num_workers - 1`` clients cut in two, everybody works until
    :math:`T = \max(\max_k \tau_k, \lceil \sum_k \tau_k / w \rceil)`, which no schedule can beat. Workers are filled up to T one
    after another, longest clients first; a client that does not fit has its last steps at the end of one worker's time and its
    first steps at the beginning of the next one's.

    A worker that something else slows down takes up fewer pieces. That works best if the longest go first, so the planned times
    give the order only where it would take longer without them.

    Source: McNaughton, Scheduling with Deadlines and Loss Functions, Management Science 6(1), 1959 (the wrap-around rule).

    Args:
        steps: of each client, 1 or larger.
        num_workers: w, 1 or larger.
        divisible: whether clients may be cut.

    Returns:
        The pieces; a client's first steps stand before its last ones.

    Example:
        >>> [tuple(piece) for piece in pieces([4, 4, 4], 2)]
        [(2, 0, 2), (0, 0, 4), (1, 0, 4), (2, 2, 4)]
    """
    longest_first = sorted(range(len(steps)), key=lambda position: (-steps[position], position))
    whole = [Piece(position, 0, steps[position]) for position in longest_first]
    length = max(max(steps, default=0), -(-sum(steps) // num_workers))
    enough = length * (1 + _TOLERANCE)
    if not divisible or makespan(whole, num_workers) <= enough:
        return whole
    room = length
    planned: list[tuple[int, Piece]] = []  # with the time at which it starts
    for position in longest_first:
        count = steps[position]
        if count <= room:
            planned.append((length - room, Piece(position, 0, count)))
            room -= count
            continue
        # What fits are the client's last steps: by then another worker will have taken the first.
        head = count - room
        planned.append((0, Piece(position, 0, head)))
        if room:
            planned.append((length - room, Piece(position, head, count)))
        room = length - head
    planned = _cut_last(planned, steps)
    cut = {piece.position for _, piece in planned if piece.start}
    ordered = sorted(
        (piece for _, piece in planned),
        key=lambda piece: (piece.start > 0 or piece.position not in cut, -piece.num_steps, piece.position),
    )
    if makespan(ordered, num_workers) <= enough:
        return ordered
    return [piece for _, piece in sorted(planned, key=lambda entry: (entry[0], entry[1].start))]


def _cut_last(planned: Sequence[tuple[int, Piece]], steps: Sequence[int]) -> list[tuple[int, Piece]]:
    """Have equally long clients change places, so that those that are cut come last in the cohort.

    Their updates come last, too, and updates are handed on in cohort order: that of another client need not wait for them.
    """
    cut = {piece.position for _, piece in planned if piece.start}
    place = list(range(len(steps)))
    for length in {steps[position] for position in cut}:
        equal = [position for position, count in enumerate(steps) if count == length]
        for position, new in zip(sorted(equal, key=lambda position: position in cut), equal, strict=True):
            place[position] = new
    return [(begins, piece._replace(position=place[piece.position])) for begins, piece in planned]


def batches(splits: Sequence[NDArray[np.int64]], batch_size: int, num_shares: int) -> list[list[NDArray[np.int64]]]:
    """Cut splits (positions of samples) into batches, and deal these out in order; some shares may have none.

    A batch is never cut and holds no samples of two splits: a sample's logits may depend on how many are in its batch.

    Example:
        >>> [[len(batch) for batch in share] for share in batches([np.arange(5), np.arange(4)], 2, 2)]
        [[2, 2], [1, 2, 2]]
    """
    whole = [indices[start : start + batch_size] for indices in splits for start in range(0, len(indices), batch_size)]
    ends = [len(whole) * share // num_shares for share in range(num_shares + 1)]
    return [whole[start:end] for start, end in itertools.pairwise(ends)]


def makespan(plan: Sequence[Piece], num_workers: int) -> int:
    """Return after how many steps' time the last worker is done, each taking up the first piece that may start.

    ``plan`` is as ``pieces`` returns it: a client's last steps wait until its first are done.
    """
    waiting = list(plan)
    done: dict[int, int] = {}  # when a client's piece is over
    free = [0] * num_workers
    while waiting:
        now = min(free)
        worker = free.index(now)
        startable = (i for i, piece in enumerate(waiting) if not piece.start or done.get(piece.position, now + 1) <= now)
        if (first := next(startable, None)) is None:
            free[worker] = min(time for time in done.values() if time > now)
            continue
        piece = waiting.pop(first)
        done[piece.position] = free[worker] = now + piece.num_steps
    return max(free)
