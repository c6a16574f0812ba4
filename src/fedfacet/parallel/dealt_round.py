"""A round in progress on several ranks."""

import contextlib
import threading
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import Any

from fedfacet.errors import EngineError
from fedfacet.parallel.dealing import Dealer
from fedfacet.parallel.message import Message
from fedfacet.parallel.orders import Dealt
from fedfacet.parallel.packing import PackedTask
from fedfacet.parallel.ranks import MAX_RANKS_WITH_0, RankLost, Ranks, in_background

MAX_DEATHS = 3  # a handful that so many ranks were lost over is given up, and the run with it


class DealtRound:
    """The handfuls of a round in progress: which rank has which, and the results that wait for their turn.

    The others' results are taken, and the next handfuls dealt, by the threads that hear from them: rank 0's main thread may be
    at work at a client for long. The handfuls of a rank that is lost are dealt again.

    Args:
        ranks: the connection.
        hands: the tasks in cohort order, packed, by the handful.
        costs: of each handful.
        stays: whether what is made of a handful stays with its rank, and is lost with it.
    """

    def __init__(self, ranks: Ranks, hands: Sequence[Sequence[PackedTask]], costs: Sequence[float], *, stays: bool) -> None:
        self._ranks = ranks
        self._hands = hands
        self._starts = [sum(map(len, hands[:turn])) for turn in range(len(hands))]
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
                        self._ranks.post(rank, self._message(turn))
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

    def _message(self, turn: int) -> Message:
        start = self._starts[turn]
        tasks = [
            Message(Dealt(one.task, one.places, position), one.bundles) for position, one in enumerate(self._hands[turn], start)
        ]
        return Message.joined(tasks)

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
        self._ranks.lose(error, sum(len(self._hands[turn]) for turn in [*in_hand, *done]))
        self._dealer.lost(error.rank, in_hand, done)
        self._deaths.update(in_hand[:1])
        if in_hand and self._deaths[in_hand[0]] == MAX_DEATHS:
            clients = ", ".join(str(one.task.client_id) for one in self._hands[in_hand[0]])
            raise EngineError(
                f"{MAX_DEATHS} ranks were lost while they worked at client {clients}: look for the reason in what they said, "
                "or at the client by itself with engine=debug."
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
