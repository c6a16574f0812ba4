"""Which rank runs which task, decided while the round goes on: whoever is done gets the next one."""

import itertools
from collections import deque
from collections.abc import Iterable, Sequence

_IN_HAND = 2  # tasks that a rank may have: one at work, and one that is there when the first is done
_TOGETHER = 4  # tasks per rank that are dealt in another order than the cohort's
_HANDFULS = 8  # per rank at least, so that at a round's end nobody waits long for another


def handfuls(costs: Sequence[float], num_ranks: int, largest: float) -> list[range]:
    """Put tasks that follow one another together, as handing one over costs something too.

    Args:
        costs: of each task, larger than 0, in cohort order.
        num_ranks: 1 or larger.
        largest: what a handful of several may cost at most; less where a rank would otherwise get fewer than eight of them.

    Returns:
        The positions of each handful, in cohort order.

    Example:
        >>> handfuls([1, 1, 1, 9, 1, 1, 50], 1, 2)
        [range(0, 2), range(2, 3), range(3, 4), range(4, 6), range(6, 7)]
    """
    largest = min(largest, sum(costs) / (_HANDFULS * num_ranks))
    starts, cost = [0], 0.0
    for position, one in enumerate(costs):
        if position > starts[-1] and cost + one > largest:
            starts.append(position)
            cost = 0.0
        cost += one
    return [range(*ends) for ends in itertools.pairwise([*starts, len(costs)])] if costs else []


class Dealer:
    """Deal a round's tasks one by one, the longest first, so that a rank that is slow gets fewer.

    Results are used in cohort order and wait for their turn. So a long cohort is dealt in stretches of a few tasks per rank,
    and none is begun before the last but one is used up: fewer than eight results per rank have to wait.

    A rank gets a task ahead, before it is done with the one at hand, unless it then had more than its part of what is left: at
    the end of a round the task would wait behind another one while somebody else is idle.

    Args:
        costs: of each task, larger than 0, in cohort order.
        num_ranks: 1 or larger.

    Example:
        >>> dealer = Dealer([1, 1, 8, 1], 2)
        >>> [dealer.take(rank) for rank in (1, 1, 0)]
        [2, None, 0]
    """

    def __init__(self, costs: Sequence[float], num_ranks: int) -> None:
        together = _TOGETHER * num_ranks if len(costs) > 2 * _TOGETHER * num_ranks else max(1, len(costs))
        self._costs = costs
        self._stretch = [position // together for position in range(len(costs))]
        self._waiting = deque(self._in_order(range(len(costs))))
        self._missing = 0
        self._left = sum(costs)
        self._in_hand = [0] * num_ranks
        self._load = [0.0] * num_ranks
        self._given = dict.fromkeys(range(num_ranks), 0.0)  # of ranks that live

    def take(self, rank: int) -> int | None:
        """Return the position of a rank's next task; ``None`` if it should get none now."""
        if not self._waiting or self._in_hand[rank] == _IN_HAND:
            return None
        position = self._waiting[0]
        if self._stretch[position] > self._stretch[self._missing] + 1:
            return None
        load = self._load[rank] + self._costs[position]
        if self._in_hand[rank] and load > self._left * self._part(rank):
            return None
        self._waiting.popleft()
        self._in_hand[rank] += 1
        self._load[rank] = load
        self._given[rank] += self._costs[position]
        return position

    def done(self, rank: int, position: int) -> None:
        """Note that a rank has done a task."""
        self._in_hand[rank] -= 1
        self._load[rank] -= self._costs[position]
        self._left -= self._costs[position]

    def lost(self, rank: int, in_hand: Sequence[int], done: Sequence[int] = ()) -> None:
        """Give a rank no more, and take back the tasks that it has in hand, and those that it has done in vain."""
        self._left += sum(self._costs[position] for position in done)
        self._waiting = deque(self._in_order([*self._waiting, *in_hand, *done]))
        del self._given[rank]

    def used(self, position: int) -> bool:
        """Note that the result of a task is used, as those of all before it are; tell whether more tasks may be dealt now."""
        before, self._missing = self._missing, min(position + 1, len(self._costs) - 1)
        return self._stretch[before] != self._stretch[self._missing]

    def _in_order(self, positions: Iterable[int]) -> list[int]:
        """Return tasks in the order in which they are dealt."""
        return sorted(positions, key=lambda position: (self._stretch[position], -self._costs[position], position))

    def _part(self, rank: int) -> float:
        """Return a rank's part of what is left: an equal one, or less if it has been given less, as it was slower."""
        return min(1 / len(self._given), self._given[rank] / sum(self._given.values()))
