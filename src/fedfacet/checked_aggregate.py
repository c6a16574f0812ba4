"""Hands a round's updates to the aggregator, and holds one that is not ours to its contract."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, TypeAlias

from torch import Tensor

from fedfacet.aggregators.base import Aggregator
from fedfacet.algorithm import Algorithm
from fedfacet.builtin import is_builtin
from fedfacet.errors import AggregationError
from fedfacet.types import ClientUpdate, ServerState, State

Fold: TypeAlias = Callable[[ServerState, State, Iterable[ClientUpdate]], tuple[ServerState, State]]


def checked_aggregate(aggregator: Aggregator) -> Fold:
    """Return what makes the next state and model: an aggregator's ``aggregate``, watched where it is of the user's own.

    Ours are not watched: the tests hold them to the contract, and a round is as long as before.
    """
    if isinstance(aggregator, Algorithm):
        return partial(watched, aggregator.round, f"{type(aggregator).__name__}.round")
    name = f"{type(aggregator).__name__}.aggregate"
    once: Fold = lambda server, model, updates: aggregator.aggregate(server, model, _Once(updates, name))  # noqa: E731
    return aggregator.aggregate if is_builtin(aggregator) else partial(watched, once, name)


def watched(fold: Any, name: str, server: ServerState, model: State, given: Any) -> tuple[ServerState, State]:
    """Aggregate, or have an algorithm go through its round.

    Raises:
        AggregationError: if the aggregator reads updates twice, writes to the model, or returns anything but a state and a
            whole model of the same tensors.
    """
    written = {key: tensor._version for key, tensor in model.items()}
    returned = fold(server, dict(model), given)  # a copy: tensors may take others' places there
    for key, tensor in model.items():
        if tensor._version != written[key]:
            raise AggregationError(
                f"Expected {name} to leave the model as it is, since clients still train on it, but it has written to {key!r}: "
                "make new tensors, as in `model[name] + mean[name]`."
            )
    pair = isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], Mapping)
    if not pair or returned[1].keys() != model.keys():
        differ = sorted(returned[1].keys() ^ model.keys()) if pair else ()
        came = f"a model that differs in {differ[0]!r}" if differ else type(returned).__name__
        raise AggregationError(
            f"Expected {name} to return two things, its state and a model of the same {len(model)} tensors, but got {came}: "
            "fix what it returns."
        )
    for key, tensor in model.items():
        new = returned[1][key]
        if not isinstance(new, Tensor) or new.shape != tensor.shape or new.dtype != tensor.dtype:
            came = f"{new.dtype} of shape {tuple(new.shape)}" if isinstance(new, Tensor) else type(new).__name__
            raise AggregationError(
                f"Expected {name} to return {key!r} as the model has it, {tensor.dtype} of shape {tuple(tensor.shape)}, but "
                f"got {came}: convert it, as in `mean.to(tensor.dtype)`."
            )
    return returned  # type: ignore[no-any-return]


class _Once(Iterator[ClientUpdate]):
    """Updates as they arrive. Whoever reads them a second time is told so, and does not find nothing in silence."""

    def __init__(self, updates: Iterable[ClientUpdate], reader: str) -> None:
        self._updates, self._reader, self._over = iter(updates), reader, False

    def __iter__(self) -> Iterator[ClientUpdate]:
        if self._over:
            raise AggregationError(
                f"Expected {self._reader} to read the updates once, as they arrive, but it reads them again: add up what it "
                "needs as it goes, or begin with `updates = list(updates)`, which holds all of them at once."
            )
        return self

    def __next__(self) -> ClientUpdate:
        for update in self._updates:
            return update
        self._over = True
        raise StopIteration
