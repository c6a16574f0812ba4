"""Dealing, by a clock of its own: rank r needs ``pace[r]`` for each step."""

import heapq

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedfacet.parallel.work_queue import Dealer, handfuls

COSTS = st.lists(st.integers(1, 50), max_size=60)
PACES = st.lists(st.integers(1, 20), min_size=1, max_size=6)


def play(costs, paces):
    """Return each task's rank, when the last is done, and how many results waited at most; rank 0 takes no task ahead."""
    dealer = Dealer(costs, len(paces))
    in_hand = [[] for _ in paces]
    owners, waiting, most, used, now = {}, set(), 0, 0, 0
    events = []

    def deal():
        for limit in (1, 2):
            for rank in (*range(1, len(paces)), 0)[: len(paces) if limit == 1 else -1]:
                if len(in_hand[rank]) < limit and (position := dealer.take(rank)) is not None:
                    assert position not in owners
                    owners[position] = rank
                    in_hand[rank].append(position)
                    if len(in_hand[rank]) == 1:
                        heapq.heappush(events, (now + costs[position] * paces[rank], rank))

    deal()
    while events:
        now, rank = heapq.heappop(events)
        position = in_hand[rank].pop(0)
        if in_hand[rank]:
            heapq.heappush(events, (now + costs[in_hand[rank][0]] * paces[rank], rank))
        dealer.done(rank, position)
        waiting.add(position)
        most = max(most, len(waiting))
        while used in waiting:
            waiting.remove(used)
            dealer.used(used)
            used += 1
        deal()
    assert used == len(costs)
    return [owners[position] for position in range(len(costs))], now, most


@given(COSTS, PACES)
def test_every_task_is_done_once_and_few_results_wait(costs, paces):
    owners, _, most = play(costs, paces)
    assert len(owners) == len(costs)
    assert most <= 8 * len(paces)


@given(st.lists(st.integers(1, 50), max_size=30), st.integers(2, 6))
def test_of_equal_ranks_none_waits_for_longer_than_the_longest_task_takes(costs, num_ranks):
    _, end, _ = play(costs, [1] * num_ranks)
    assert end <= sum(costs) / num_ranks + max(costs, default=0)


@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_equal_tasks_are_shared_out_evenly(num_ranks):
    for number in range(1, 25):
        _, end, _ = play([7] * number, [1] * num_ranks)
        assert end == 7 * -(-number // num_ranks), number


def test_rank_0_which_aggregates_besides_is_the_last_choice():
    assert play([5], [1, 1])[0] == [1]
    assert play([1, 1, 8, 1], [1, 1])[0] == [0, 0, 1, 0]


@pytest.mark.parametrize("slow", [0, 1])
def test_a_slow_rank_gets_fewer(slow):
    paces = [4 if rank == slow else 1 for rank in range(2)]
    owners, end, _ = play([10] * 100, paces)
    assert owners.count(slow) in range(18, 23)
    assert end <= 10 * 100 / (1 + 1 / 4) + 2 * 10 * 4


def test_a_rank_that_does_nothing_keeps_two_tasks():
    dealer = Dealer([1] * 14, 2)
    kept = [dealer.take(1), dealer.take(1), dealer.take(1)]
    assert kept == [0, 1, None]
    taken = []
    while (position := dealer.take(0)) is not None:
        taken.append(position)
        dealer.done(0, position)
    assert taken == list(range(2, 14))


def test_no_task_is_dealt_far_ahead_of_a_missing_result():
    dealer = Dealer([1] * 100, 2)
    assert dealer.take(1) == 0
    count = 0
    while (position := dealer.take(0)) is not None:
        dealer.done(0, position)
        count += 1
    assert count == 15
    assert [dealer.used(position) for position in range(8)] == [False] * 7 + [True]
    assert dealer.take(0) == 16


@given(COSTS, st.integers(1, 6), st.floats(0, 200))
def test_handfuls_are_small_and_leave_out_nobody(costs, num_ranks, largest):
    hands = handfuls(costs, num_ranks, largest)
    assert [position for hand in hands for position in hand] == list(range(len(costs)))
    for hand in hands:
        cost = sum(costs[position] for position in hand)
        assert hand
        assert len(hand) == 1 or cost <= min(largest, sum(costs) / (8 * num_ranks))


def test_a_handful_takes_in_what_fits():
    assert handfuls([1] * 200, 2, 1000) == [range(start, min(start + 12, 200)) for start in range(0, 200, 12)]
    assert handfuls([3] * 200, 2, 6) == [range(start, start + 2) for start in range(0, 200, 2)]
    assert handfuls([1, 2], 2, 0) == [range(0, 1), range(1, 2)]
