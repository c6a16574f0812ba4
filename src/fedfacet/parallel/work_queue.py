"""The tasks of a round in progress: which rank gets which is decided while the round runs, by who is done."""

import contextlib
import itertools
import threading
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from fedfacet.errors import EngineError
from fedfacet.parallel.messages import Message
from fedfacet.parallel.ranks import MAX_RANKS_WITH_0, RankLost, Ranks, in_background
from fedfacet.parallel.schedule import MAX_DEATHS

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


class DealtRound:
    """The handfuls of a round in progress: which rank has which, and the results that wait for their turn.

    The others' results are taken, and the next handfuls dealt, by the threads that hear from them: rank 0's main thread may be
    at work at a client for long. The handfuls of a rank that is lost are dealt again.

    Args:
        ranks: the connection.
        hands: the orders in cohort order, by the handful.
        costs: of each handful.
        stays: whether what is made of a handful stays with its rank, and is lost with it.
    """

    def __init__(self, ranks: Ranks, hands: Sequence[Sequence[Message]], costs: Sequence[float], *, stays: bool) -> None:
        self._ranks = ranks
        self._hands = hands
        self._stays = stays
        self.holders: dict[int, int] = {}
        """Which rank has what was made of a handful, where that stays with it."""
        self._dealer = Dealer(costs, ranks.place.num_ranks)
        for rank in set(range(1, ranks.place.num_ranks)) - set(ranks.others):
            self._dealer.lost(rank, ())
        self._dealt: dict[int, deque[int]] = {rank: deque() for rank in ranks.others}
        self._results: dict[int, Sequence[Any]] = {}
        self._deaths: Counter[int] = Counter()
        self._error: Exception | None = None
        self._over = False
        self._changed = threading.Condition()  # whoever has it may touch all this, and send tasks
        ranks.owed = dict.fromkeys(ranks.others, 0)

    def deal(self) -> None:
        """Send tasks to ranks that should have more; not for the main thread, where an interrupt could leave one halfway."""
        with self._changed, self._minded():
            for in_hand in (0, 1):  # no rank gets a second handful before every rank has a first
                for rank in list(self._dealt):
                    dealt = self._dealt.get(rank)
                    if dealt is None or self._over or len(dealt) != in_hand:
                        continue
                    if (turn := self._dealer.take(rank)) is None:
                        continue
                    self._ranks.owed[rank] += 1
                    dealt.append(turn)
                    try:
                        self._ranks.post(rank, Message.joined(self._hands[turn]))
                    except RankLost as error:
                        self._lose(error)
                    else:
                        if not in_hand:
                            self._listen(rank)

    def take(self, turn: int) -> int | None:
        """Return a handful for rank 0; or ``None``, once the results of the one whose turn it is are there.

        Where ``turn`` is the number of handfuls, it is ``None`` once all that stays with the ranks is with ranks that live.

        Raises:
            EngineError: if no rank survives a handful.
        """
        with self._changed:
            assert not self._over, "one round at a time"
            while not (turn in self._results if turn < len(self._hands) else len(self.holders) == len(self._hands)):
                if self._error is not None:
                    raise self._error
                works = len(self._ranks.others) < MAX_RANKS_WITH_0 or not self._dealt
                if works and (mine := self._dealer.take(0)) is not None:
                    return mine
                if not self._changed.wait(self._ranks.timeout_seconds):
                    for rank in [rank for rank, dealt in self._dealt.items() if dealt]:
                        self._lose(self._ranks.silent(rank))
                    in_background(self.deal)
            return None

    def add(self, rank: int, turn: int, results: Sequence[Any]) -> None:
        """Keep the results of a handful until its turn."""
        with self._changed:
            self._results[turn] = results
            if self._stays:
                self.holders[turn] = rank
            self._dealer.done(rank, turn)
            self._changed.notify()

    def pop(self, turn: int) -> Sequence[Any]:
        """Return the results whose turn has come."""
        with self._changed:
            if self._dealer.used(turn):
                in_background(self.deal)
            return self._results.pop(turn)

    def lose(self, errors: Sequence[RankLost]) -> None:
        """Deal again what ranks had that were found to be lost."""
        with self._changed:
            for error in errors:
                self._lose(error)
        in_background(self.deal)

    def stop(self) -> None:
        """Deal no more, and leave what is still to come to the beginning of the next round."""
        with self._changed:
            self._over = True

    def _listen(self, rank: int) -> None:
        self._ranks.expect(rank).add_done_callback(lambda _: self._heard(rank))

    def _heard(self, rank: int) -> None:
        """Take a rank's results, and deal on."""
        with self._changed, self._minded():
            if self._over or rank not in self._dealt:
                return
            try:
                message = self._ranks.receive(rank)
            except RankLost as error:
                self._lose(error)
            else:
                self._ranks.owed[rank] -= 1
                dealt = self._dealt[rank]
                self.add(rank, dealt.popleft(), message.parted())
                if dealt:
                    self._listen(rank)
            self.deal()

    def _lose(self, error: RankLost) -> None:
        if error.rank not in self._dealt:
            return
        in_hand = list(self._dealt.pop(error.rank))
        done = [turn for turn, holder in self.holders.items() if holder == error.rank]
        for turn in done:
            del self.holders[turn]
        tasks = [one.body.task for turn in [*in_hand, *done] for one in self._hands[turn]]
        self._ranks.lose(error, len(tasks) - tasks.count(None))
        self._dealer.lost(error.rank, in_hand, done)
        self._deaths.update(in_hand[:1])
        if in_hand and self._deaths[in_hand[0]] == MAX_DEATHS:
            clients = ", ".join(str(task.client_id) for task in tasks[: len(self._hands[in_hand[0]])] if task)
            what, it = (f"client {clients}", "the client") if clients else ("an evaluation", "it")
            raise EngineError(
                f"{MAX_DEATHS} ranks were lost while they worked at {what}: look for the reason in what they said, "
                f"or at {it} by itself with engine=debug."
            )
        self._changed.notify()

    @contextlib.contextmanager
    def _minded(self) -> Iterator[None]:
        """Leave an error for the main thread: no other code looks at what a thread raises."""
        try:
            yield
        except Exception as error:
            self._error = self._error or error
            self._changed.notify()
