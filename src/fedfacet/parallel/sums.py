"""Sums along a fixed tree: their bits depend on what is added, and not on which process adds what."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from fedfacet.types import State

Node: TypeAlias = tuple[int, int]
"""A level and an index: the node covers the leaves from ``index << level`` up to ``(index + 1) << level``."""

_BLOCKS = 4  # per rank at least, so that at a round's end no rank waits long for another


@dataclass(frozen=True, slots=True)
class Weighed:
    """A sum of bundles times weights.

    Attributes:
        weight: the sum of the weights.
        bundles: the sums, each over bundles of the same names.
        is_own: whether the tensors may be written to.
    """

    weight: float
    bundles: Sequence[State]
    is_own: bool = False

    def plus(self, other: "Weighed") -> "Weighed":
        """Return the sum of both; one of them is used up if it may be written to."""
        target, added = (self, other) if self.is_own or not other.is_own else (other, self)
        weight, bundles = self.weight + other.weight, []
        for one, two in zip(target.bundles, added.bundles, strict=True):
            summands = list(one.values()), [two[name] for name in one]
            if target.is_own and one:
                torch._foreach_add_(*summands)
            bundles.append(one if target.is_own or not one else dict(zip(one, torch._foreach_add(*summands), strict=True)))
        return Weighed(weight, bundles, is_own=True)

    def times(self, weight: float) -> "Weighed":
        """Return the sum with each of its bundles weighted once more."""
        if weight == 1:
            return self
        return Weighed(
            self.weight * weight, [_each(bundle, torch._foreach_mul, weight) for bundle in self.bundles], is_own=True
        )

    def mean(self) -> list[State]:
        """Return the sums over the sum of the weights."""
        return [_each(bundle, torch._foreach_div, self.weight) for bundle in self.bundles]


class TreeSum:
    """A sum over the leaves of a binary tree, padded to a power of two: a node's value is its left plus its right child's.

    A leaf may be absent, as one of the padding is; then the other child's value is the node's. Values are added as they come,
    in any order, and a node takes the place of its children once both are there.

    Args:
        size: the number of leaves.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._nodes: dict[Node, Weighed | None] = {}

    @property
    def root(self) -> Node:
        """The node over all leaves."""
        return max(self.size - 1, 0).bit_length(), 0

    def copy(self) -> "TreeSum":
        """Return a sum of the same nodes, to which more is added without a change to this one."""
        other = TreeSum(self.size)
        other._nodes = {node: value and replace(value, is_own=False) for node, value in self._nodes.items()}
        return other

    def add(self, node: Node, value: Weighed | None) -> None:
        """Add the value of a node; ``None`` if all its leaves are absent."""
        level, index = node
        while level < self.root[0]:
            sibling = level, index ^ 1
            if sibling[1] << level < self.size:
                if sibling not in self._nodes:
                    break
                other = self._nodes.pop(sibling)
                value = value.plus(other) if value and other else value or other
            level, index = level + 1, index >> 1
        self._nodes[level, index] = value

    def pop(self, node: Node) -> Weighed | None:
        """Return the value of a node, and forget it."""
        return self._nodes.pop(node)


def _each(bundle: State, function: Callable[..., Sequence[Tensor]], number: float) -> State:
    """Return what a function of many tensors makes of a bundle and a number; these functions take no empty list."""
    return dict(zip(bundle, function(list(bundle.values()), number), strict=True)) if bundle else {}


def blocks(size: int, num_ranks: int) -> list[range]:
    """Cut positions into blocks, each all leaves of one node of the tree; about four per rank, or one for each position.

    Example:
        >>> blocks(11, 1)
        [range(0, 2), range(2, 4), range(4, 6), range(6, 8), range(8, 10), range(10, 11)]
    """
    length = 1 << max((size // (_BLOCKS * num_ranks)).bit_length() - 1, 0)
    return [range(start, min(start + length, size)) for start in range(0, size, length)]


def node_of(block: range) -> Node:
    """Return a node whose leaves a block holds; where the tree is padded, ``TreeSum.add`` takes the lowest such node."""
    level = (len(block) - 1).bit_length()
    return level, block.start >> level


class Step(NamedTuple):
    """What a rank does so that ranks' sums become one: give a node's value to another rank, or take it from there."""

    node: Node
    rank: int
    gives: bool


def plan(holders: Mapping[Node, int], size: int) -> dict[int, list[Step]]:
    """Say what each rank gives and takes, in this order, until rank 0 has the sum over all leaves.

    Of two ranks that hold the children of a node, rank 0 takes, or else the rank that holds the left one.

    Args:
        holders: of nodes that together cover every leaf once.
        size: the number of leaves.

    Example:
        >>> for rank, steps in sorted(plan({(0, 0): 1, (0, 1): 2, (0, 2): 1}, 3).items()):
        ...     print(rank, [tuple(step) for step in steps])
        0 [((2, 0), 1, False)]
        1 [((0, 1), 2, False), ((2, 0), 0, True)]
        2 [((0, 1), 1, True)]
    """
    steps: dict[int, list[Step]] = defaultdict(list)

    def move(node: Node, giver: int, taker: int) -> None:
        steps[giver].append(Step(node, taker, gives=True))
        steps[taker].append(Step(node, giver, gives=False))

    here, root = dict(holders), TreeSum(size).root
    for level in range(root[0]):
        for _, index in sorted(node for node in here if node[0] == level):
            if (level, index) not in here:
                continue
            holder = here.pop((level, index))
            sibling = level, index ^ 1
            if (other := here.pop(sibling, None)) is not None and other != holder:
                giver, taker = (holder, other) if other == 0 else (other, holder)
                move(sibling if giver == other else (level, index), giver, taker)
                holder = taker
            here[level + 1, index >> 1] = holder
    if (holder := here[root]) != 0:
        move(root, holder, 0)
    return steps
