"""What runs call their groups, whose metrics have numbers in their names."""

import functools
import os
import re
from collections.abc import Sequence
from pathlib import Path

from fedfacet.analysis.runs import Run, spelled
from fedfacet.metrics.group_names import group_names
from fedfacet.storage.run_files import is_there, json_of

_GROUP = re.compile(r".*/y(\d{1,9})_a(\d{1,9})")


def named(runs: Sequence[Run], metric: str, mark: str = "") -> str:
    """Return a metric as a reader is to see it: one of a group with the group's name, ``test/acc_group/y0_a1 (cat, night)``.

    Args:
        runs: that have measured it.
        metric: as a run's summary names it.
        mark: around the metric, but not around the name.
    """
    name = name_of_group(runs, metric)
    return f"{mark}{metric}{mark}" + ("" if name is None else f" ({name.replace('`', chr(39))})")


def name_of_group(runs: Sequence[Run], metric: str) -> str | None:
    """Return what the runs call a metric's group; ``None`` where it is none's, or they have no such name, or several."""
    if not (found := _GROUP.fullmatch(metric)):
        return None
    y, a = map(int, found.groups())
    known = {names for run in runs if (names := _read_names(run.path / "partition.json")) is not None}
    if len(known) != 1:
        return None
    classes, attributes = known.pop()
    return group_names(classes, attributes)[y * len(attributes) + a] if y < len(classes) and a < len(attributes) else None


def _read_names(file: Path) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    return _names_in(file, os.lstat(file).st_mtime_ns if os.path.lexists(file) else 0) if is_there(file) else None


@functools.lru_cache(maxsize=1024)
def _names_in(file: Path, written: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of classes and of attribute values; the file also has every sample's place, and is read once."""
    partition = json_of(file, {"class_names": _is_names, "attribute_names": _is_names})
    return tuple(map(spelled, partition["class_names"])), tuple(map(spelled, partition["attribute_names"]))


def _is_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)
