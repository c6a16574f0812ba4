"""The bits of a sum along the tree are the same whoever adds what; ``tests/engines`` has the ranks do it."""

import random

import pytest
import torch

from fedfacet.parallel.sums import TreeSum, Weighed, blocks, node_of, plan


def leaf(position):
    draw = torch.Generator().manual_seed(position)
    return None if position % 5 == 3 else Weighed(position + 1.0, [{"w": torch.randn(7, generator=draw)}, {}])


def by_hand(level, index, size):
    """The value of a node, by its definition."""
    if index << level >= size:
        return None
    if level == 0:
        return leaf(index)
    children = [by_hand(level - 1, 2 * index + side, size) for side in (0, 1)]
    here = [child for child in children if child is not None]
    return here[0].plus(here[1]) if len(here) == 2 else (here or [None])[0]


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 9, 24, 37])
def test_any_number_of_ranks_comes_to_the_same_bits(size, num_ranks):
    """Each block goes to a rank at random; the steps of all ranks are taken in any order in which they can be."""
    draw = random.Random(size * 100 + num_ranks)
    sums = [TreeSum(size) for _ in range(num_ranks)]
    holders = {}
    for block in blocks(size, num_ranks):
        rank = draw.randrange(num_ranks)
        for position in block:
            sums[rank].add((0, position), leaf(position))
        holders[node_of(block)] = rank
    for attempt in range(2):  # what was added up stays, so that it can be put together again
        copies = [tree.copy() for tree in sums]
        steps, given = {rank: list(of) for rank, of in plan(holders, size).items()}, {}
        while any(steps.values()):
            rank = draw.choice([rank for rank, left in steps.items() if left])
            step = steps[rank][0]
            if step.gives:
                given[step.node, step.rank] = copies[rank].pop(step.node)
            elif (step.node, rank) in given:
                copies[rank].add(step.node, given.pop((step.node, rank)))
            else:
                continue
            steps[rank].pop(0)
        assert not given
        root = copies[0].pop(copies[0].root)
        expected = by_hand(*copies[0].root, size)
        assert root.weight == expected.weight, attempt
        assert torch.equal(root.bundles[0]["w"], expected.bundles[0]["w"]), attempt
        torch.testing.assert_close(root.mean()[0]["w"], expected.bundles[0]["w"] / expected.weight)


def test_a_sum_without_leaves_is_none():
    tree = TreeSum(2)
    tree.add((0, 0), None)
    tree.add((0, 1), None)
    assert tree.pop(tree.root) is None
