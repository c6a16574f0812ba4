"""Pieces of clients, and how long workers take that always take up the first piece that may be started."""

import heapq
import itertools

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedfacet.parallel.schedule import Piece, batches, makespan, pieces

STEPS = st.lists(st.integers(1, 60), min_size=1, max_size=20)
WORKERS = st.integers(1, 8)


def ends_at(plan, num_workers):
    """Return when the last of some workers is done, each step taking 1; a client's last steps wait for its first."""
    waiting, done = list(plan), {}
    idle, busy, now = num_workers, [], 0
    while waiting or busy:
        while idle and (piece := next((piece for piece in waiting if piece.start == done.get(piece.position, 0)), None)):
            waiting.remove(piece)
            heapq.heappush(busy, (now + piece.num_steps, piece))
            idle -= 1
        now = busy[0][0]
        while busy and busy[0][0] == now:
            piece = heapq.heappop(busy)[1]
            done[piece.position] = piece.stop
            idle += 1
    return now


def whole(steps):
    """Return the clients uncut, longest first."""
    order = sorted(range(len(steps)), key=lambda position: (-steps[position], position))
    return [Piece(position, 0, steps[position]) for position in order]


@given(STEPS, WORKERS)
def test_every_step_is_taken_once_and_in_order(steps, num_workers):
    plan = pieces(steps, num_workers)
    for position, count in enumerate(steps):
        own = [range(piece.start, piece.stop) for piece in plan if piece.position == position]
        assert list(itertools.chain(*own)) == list(range(count))
        assert len(own) <= 2
        assert all(own), "nothing to do is no piece"
    assert len(plan) <= len(steps) + num_workers - 1


@given(STEPS, WORKERS)
def test_whoever_is_cut_is_begun_at_once(steps, num_workers):
    """Or the others of its steps would keep somebody waiting at the end."""
    plan = pieces(steps, num_workers)
    assert {piece for piece in plan if piece.stop < steps[piece.position]} <= set(plan[:num_workers])


@given(STEPS, WORKERS)
@example([3, 5, 5, 5], 3)  # whole clients, or the longest pieces first, would take a third longer
@example([117, 116, 62, 185], 2)
@example([30, 49, 42, 40, 16, 8, 7, 24], 4)
def test_all_are_done_at_the_best_time_there_is(steps, num_workers):
    """Up to what handing over is taken to cost, and never later than with whole clients."""
    taken, best = ends_at(pieces(steps, num_workers), num_workers), max(max(steps), -(-sum(steps) // num_workers))
    assert best <= taken <= 1.02 * best
    assert taken <= ends_at(whole(steps), num_workers)


@pytest.mark.parametrize(("num_clients", "num_workers"), [(9, 2), (9, 4), (20, 8), (3, 2)])
def test_where_that_is_in_time_the_longest_pieces_go_first(num_clients, num_workers):
    """Beside a slow worker that is best; only those that somebody waits for go before them."""
    plan = pieces([8] * num_clients, num_workers)
    awaited = [piece.stop < 8 for piece in plan]
    assert awaited == sorted(awaited, reverse=True)
    sizes = [piece.num_steps for piece in plan[sum(awaited) :]]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] < 8


def test_a_long_client_is_cut_rather_than_a_short_one():
    """Until 13: 8 and 5 steps for one worker, 3, 8 and 2 for the other."""
    plan = pieces([2, 8, 8, 8], 2)
    assert plan == [Piece(3, 0, 3), Piece(1, 0, 8), Piece(2, 0, 8), Piece(3, 3, 8), Piece(0, 0, 2)]


@given(STEPS, WORKERS)
def test_of_equally_long_clients_the_last_ones_are_cut(steps, num_workers):
    """Updates are handed on in cohort order, so that the one that is awaited longest keeps no other back."""
    cut = {piece.position for piece in pieces(steps, num_workers) if piece.start}
    for length in set(steps):
        equal = [position in cut for position, count in enumerate(steps) if count == length]
        assert equal == sorted(equal)


@given(STEPS, WORKERS, st.booleans())
def test_the_time_it_takes_is_known_beforehand(steps, num_workers, divisible):
    plan = pieces(steps, num_workers, divisible=divisible)
    assert makespan(plan, num_workers) == ends_at(plan, num_workers)


@pytest.mark.parametrize(
    ("plan", "num_workers", "time"),
    [
        ([], 3, 0),
        ([(0, 0, 4), (0, 4, 6)], 2, 6),
        ([(0, 0, 4), (0, 4, 6), (1, 0, 1), (2, 0, 1)], 2, 6),
        ([(0, 0, 4), (1, 0, 3), (0, 4, 9), (2, 0, 3), (3, 0, 4)], 2, 10),
        ([(0, 0, 2), (1, 0, 3), (0, 2, 4), (1, 3, 9)], 2, 9),
    ],
)
def test_last_steps_wait_for_the_first_ones(plan, num_workers, time):
    """By hand; in the fourth, whoever is idle at 3 takes up client 2, since client 0's last steps must wait until 4."""
    assert makespan([Piece(*piece) for piece in plan], num_workers) == time


@given(STEPS, WORKERS)
def test_who_cannot_be_cut_is_taken_up_longest_first(steps, num_workers):
    assert pieces(steps, num_workers, divisible=False) == whole(steps)


@pytest.mark.parametrize(("steps", "num_workers"), [([7], 4), ([5, 5], 2), ([5] * 401, 8), ([100, 1, 1], 2), ([50, 51], 2)])
def test_nobody_is_cut_for_nothing(steps, num_workers):
    assert pieces(steps, num_workers) == whole(steps)


def test_a_round_without_clients_has_no_pieces():
    assert pieces([], 3) == []


@given(st.lists(st.integers(0, 300), max_size=3), st.integers(1, 64), st.integers(1, 5))
def test_evaluation_is_cut_between_batches(sizes, batch_size, num_shares):
    splits = [1000 * number + np.arange(size) for number, size in enumerate(sizes)]
    shares = batches(splits, batch_size, num_shares)
    assert len(shares) == num_shares
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    dealt = [batch.tolist() for share in shares for batch in share]
    assert dealt == [split[i : i + batch_size].tolist() for split in splits for i in range(0, len(split), batch_size)]
