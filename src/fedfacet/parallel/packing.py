"""Tasks on their way to other processes: what several of them share travels once."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from fedfacet.types import ClientTask, State


class PackedTask(NamedTuple):
    """A task without its bundles, where these are among the common ones and its own after them, and its own."""

    task: ClientTask
    places: tuple[int, int, int]
    bundles: list[State]


def pack_tasks(tasks: Sequence[ClientTask]) -> tuple[list[State], list[PackedTask]]:
    """Take tasks apart for the journey.

    Returns:
        The bundles that several tasks share, which everybody needs, and each task with its own.
    """
    bundles = {id(bundle): bundle for task in tasks for bundle in _bundles_of(task)}
    readers = Counter(key for task in tasks for key in {id(bundle) for bundle in _bundles_of(task)})
    common = [key for key in bundles if readers[key] > 1]
    common_places = {key: place for place, key in enumerate(common)}
    packed = []
    for task in tasks:
        keys = [id(bundle) for bundle in _bundles_of(task)]
        own = [key for key in dict.fromkeys(keys) if key not in common_places]
        places = common_places | {key: len(common) + place for place, key in enumerate(own)}
        model, extras, memory = (places[key] for key in keys)
        packed.append(PackedTask(without_bundles(task), (model, extras, memory), [bundles[key] for key in own]))
    return [bundles[key] for key in common], packed


def unpack_task(task: ClientTask, places: Sequence[int], bundles: Sequence[State]) -> ClientTask:
    """Put a task together again; ``bundles`` are the common ones and its own."""
    return with_bundles(task, *(bundles[place] for place in places))


def _bundles_of(task: ClientTask) -> tuple[State, State, State]:
    return task.broadcast.model, task.broadcast.extras, task.memory


def without_bundles(task: ClientTask) -> ClientTask:
    """Return a task without its tensors."""
    return with_bundles(task, {}, {}, {})


def with_bundles(task: ClientTask, model: State, extras: State, memory: State) -> ClientTask:
    """Return a task with other tensors."""
    return replace(task, broadcast=replace(task.broadcast, model=model, extras=extras), memory=memory)
