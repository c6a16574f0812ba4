"""Run folders read back: what was configured, how it ended, what was measured."""

import functools
import glob
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from fedfacet.analysis.audits import ReadAudit, flat, load_audits, metrics_of
from fedfacet.analysis.writers import as_number
from fedfacet.config.nodes import load_yaml
from fedfacet.errors import ConfigError, FedFacetError
from fedfacet.storage.run_files import measured, rows_of, summary_of, warn_unverified

CONFIG_FILE = "config.yaml"  # what makes a folder a run folder

# `method` and `sweep` are names for choices of other groups, which are compared themselves.
_BESIDE_THE_METHOD = {"seed", "paths", "resume", "engine", "logger", "wandb", "hydra", "method", "sweep"}

_ERROR = "heterogeneity_error"


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """One run folder, by the ``path`` that the caller named.

    ``settings`` holds every value of the resolved config by its dotted key, lists being values; ``choices.<group>`` is the
    chosen Hydra option. ``summary`` is what ``summary.json`` holds, ``None`` where the run has not ended. ``audits`` are what
    ``attack.py`` has left there.
    """

    path: Path
    seed: int
    settings: Mapping[str, Any]
    summary: Mapping[str, Any] | None
    audits: Sequence[ReadAudit] = ()

    @property
    def finished(self) -> bool:
        """Whether the run has done all its rounds, or its `termination` has ended it.

        One that was resumed for more rounds has not finished until it has done those too.
        """
        reached, planned = self._rounds
        saved = self.summary or {}
        all_done = reached is None or planned is None or reached >= planned or bool(saved.get("stopped"))
        return saved.get("status") == "finished" and all_done

    @property
    def progress(self) -> str:
        """How far the run has come, in a few words."""
        if self.summary is None:
            return "no summary.json yet"
        reached, planned = self._rounds
        of = "" if reached is None or planned is None else f" at round {reached:g} of {planned:g}"
        return f"{self.summary.get('status')}{of}"

    @property
    def _rounds(self) -> tuple[float | None, float | None]:
        return (self.summary or {}).get("rounds"), self.settings.get("federation.rounds")

    def at(self, moment: str) -> dict[str, float]:
        """Return the metrics after the ``"last"`` round, or the ``"best"`` by validation, and its number as ``round``.

        ``"tail"`` gives their means over those of the last tenth of the rounds in which they were measured. It is empty where
        there is no such round. A metric without a value is NaN. The error of the clients' disclosed
        heterogeneity, which is one for the whole run, is among them where there is one, and so is what attacks on the models of
        that round have found.
        """
        summary = self.summary or {}
        if moment == "tail":
            return self._tail() if summary.get("final") else {}
        if found := summary.get({"last": "final", "best": "best"}[moment]) or {}:
            found = found | {f"{_ERROR}/{name}": value for name, value in (summary.get(_ERROR) or {}).items()}
            found |= metrics_of(self.audits, found.get("round", math.nan))
        numbers = {name: float("nan") if value is None else value for name, value in found.items()}
        return {name: float(value) for name, value in numbers.items() if isinstance(value, float) or _is_whole(value)}

    def curve(self, metric: str) -> dict[int, float]:
        """Return round -> the metric after it, of the rounds in which it was measured.

        Raises:
            FedFacetError: if ``metrics.csv`` cannot be read.
        """
        return {number: values[metric] for number, values in self._by_round().items() if metric in values}

    def cohorts(self) -> list[tuple[int, ...]]:
        """Return who was selected in each round, in the order of the rounds.

        Raises:
            FedFacetError: if ``metrics.csv`` cannot be read.
        """
        rows = rows_of(self.path / "metrics.csv", ("round", "cohort"), measured, least=1)
        return [row["cohort"] for row in sorted(rows, key=lambda row: int(row["round"]))]

    def _tail(self) -> dict[str, float]:
        """Return the means of what was measured in the last tenth of the rounds, one at least."""
        by_round, first = self._by_round(), self._first_of_tail
        last = [values for number, values in by_round.items() if number >= first]
        measured = {name: [values[name] for values in last if name in values] for name in set().union(*last)}
        means = {name: math.fsum(values) / len(values) for name, values in measured.items()}
        # The table has NaN for what was not measured too, so that the summary tells who has diverged. Nobody may have trained.
        lost = [name for name, value in self.at("last").items() if math.isnan(value) and not name.startswith("train/")]
        return means | dict.fromkeys(lost, math.nan)

    def tail_of(self, metric: str) -> list[int]:
        """Return the rounds in the last tenth in which a metric was measured."""
        return [number for number in self.curve(metric) if number >= self._first_of_tail]

    @property
    def _first_of_tail(self) -> int:
        by_round = self._by_round()
        return max(by_round) - max(1, math.ceil(len(by_round) / 10)) + 1

    def _by_round(self) -> Mapping[int, Mapping[str, float]]:
        file = self.path / "metrics.csv"
        written = os.lstat(file) if os.path.lexists(file) else None
        return _by_round(file, written and (written.st_mtime_ns, written.st_size))

    def setting(self, key: str) -> str | None:
        """Return a config value as text, numbers as ``spelled``; ``None`` where the config has no such key.

        ``key`` is the name of a Hydra group (``selector``), which gives the chosen option, or the dotted key of a single value
        (``aggregator.server_lr``).
        """
        for name in (f"choices.{key}", key):
            if name in self.settings:
                value = self.settings[name]
                return spelled(value) if value is not None else "null"
        return None

    def fits(self, where: Mapping[str, str]) -> bool:
        """Tell whether the run has all of some settings, whose numbers may be spelled in any way (``1e-3`` for 0.001)."""
        return all(self.setting(key) in spellings(text) for key, text in where.items())

    def attacked_as(self, threat_model: Mapping[str, str]) -> "Run":
        """Return the run with those of its audits alone whose threat model has all of some settings, spelled in any way."""
        fitting = [
            audit
            for audit in self.audits
            if all(spelled(audit.threat_model.get(key)) in spellings(text) for key, text in threat_model.items())
        ]
        return replace(self, audits=fitting)


def spelled(value: Any) -> str:
    """Return the text of a setting; equal numbers have one.

    Example:
        >>> [spelled(value) for value in (100.0, 100, 0.001, True, "uniform")]
        ['100', '100', '0.001', 'true', 'uniform']
    """
    if isinstance(value, bool):
        return str(value).lower()
    text = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
    return "".join(character if character.isprintable() else "?" for character in text)  # no commands to a terminal


def spellings(text: str) -> set[str]:
    """Return the ways to write a setting's value that the user writes like this: ``1e-3`` means ``0.001`` too."""
    number = as_number(text)
    return {text} if number is None else {text, spelled(number)}


def find_runs(paths: Iterable[str | Path]) -> list[Run]:
    """Return the runs that the paths lead to, each once, in the order of the paths and by name within one.

    The paths are run folders, folders that hold run folders at any depth, or glob patterns of either. Hidden folders and what
    lies inside a run folder are not searched. Hydra's ``multirun.yaml`` is passed over: a shell's pattern picks it up beside
    the jobs.

    Raises:
        ConfigError: if a path does not exist or leads to no run.
        FedFacetError: if a run's ``config.yaml`` or ``summary.json`` cannot be read.
    """
    folders: dict[Path, Path] = {}
    for path in paths:
        if Path(path).name == "multirun.yaml":
            continue
        found = [folder for start in _expanded(path) for folder in _run_folders(start, set())]
        if not found:
            raise ConfigError(
                f"Expected {path} to be a run folder or to hold some, but found no {CONFIG_FILE} there: name folders that "
                "train.py wrote."
            )
        for folder in found:
            folders.setdefault(folder.resolve(), folder)
    if not folders:
        raise ConfigError("Expected at least one run folder, but got none: name folders that train.py wrote.")
    warn_unverified(folders.values())
    return [load_run(folder) for folder in folders.values()]


def load_run(folder: Path) -> Run:
    """Read one run folder.

    Raises:
        FedFacetError: if either file, or what attacks have left, cannot be read or is not what is written there.
    """
    file = folder / CONFIG_FILE
    config = OmegaConf.to_container(load_yaml(file), resolve=False)
    if not isinstance(config, dict) or type(config.get("seed")) is not int or not isinstance(config.get("choices"), dict):
        raise FedFacetError(
            f"Expected {file} to be the resolved config of a run, with `seed` and `choices`, but it has no such values: name "
            "folders that train.py wrote."
        )
    return Run(folder, config["seed"], flat(config), summary_of(folder), load_audits(folder))


def differing_keys(runs: Iterable[Run]) -> list[str]:
    """Return the config keys in which the runs are not all equal; seed, paths, engine and logger do not count.

    Where the chosen option of a Hydra group differs, the group stands for all its keys. ``partition_digest`` is among the keys
    if the runs trained on different partitions.
    """
    compared = [
        {key: value for key, value in run.settings.items() if _group(key) not in _BESIDE_THE_METHOD}
        | {"partition_digest": (run.summary or {}).get("partition_digest")}
        for run in runs
    ]
    keys = sorted({key for values in compared for key in values})
    absent = object()
    differing = [key for key in keys if any(v.get(key, absent) != compared[0].get(key, absent) for v in compared)]
    groups = [_group(key) for key in differing if key.startswith("choices.")]
    return groups + [key for key in differing if _group(key) not in groups]


def telling_keys(cells: Iterable[Sequence[Run]]) -> list[str]:
    """Return config keys that split the runs so that no cell holds a seed twice; empty if there are none.

    These are all keys in which runs of one cell and seed differ. If such runs differ in ``setting``, it comes first, because it
    chooses most of the rest, and the other keys follow only if runs of one setting still differ. Of more than four keys, and of
    callbacks, only those that are needed are returned.
    """
    clashing = _clashing(cells, [])
    keys = ["setting"] if any("setting" in differing_keys(runs) for runs in clashing) else []
    left = _clashing(clashing, keys)
    differing = dict.fromkeys(key for runs in left for key in differing_keys(runs) if key != "partition_digest")
    usual = [key for key in differing if _group(key) != "callbacks"]
    keys += usual if len(usual) <= 4 else []
    for key in differing:
        if key not in keys and _clashing(clashing, [*keys, key]) != _clashing(clashing, keys):
            keys.append(key)
    return [] if _clashing(clashing, keys) else keys


def _clashing(cells: Iterable[Sequence[Run]], keys: Sequence[str]) -> list[list[Run]]:
    """Return the runs that share a seed, a cell and the values of the keys."""
    same: dict[tuple[object, ...], list[Run]] = {}
    for number, runs in enumerate(cells):
        for run in runs:
            same.setdefault((number, run.seed, *map(run.setting, keys)), []).append(run)
    return [runs for runs in same.values() if len(runs) > 1]


def _group(key: str) -> str:
    return key.removeprefix("choices.").split(".")[0].split("/")[0]


def _expanded(path: str | Path) -> list[Path]:
    plain = Path(path).expanduser()
    # A folder's own name may hold brackets, as those of Hydra's multirun jobs do. `Path.exists` raises an error when a name is
    # too long.
    return [plain] if os.path.exists(plain) else [Path(match) for match in sorted(glob.glob(str(plain), recursive=True))]


def _run_folders(folder: Path, seen: set[Path]) -> Iterator[Path]:
    # Links may lead round in a circle.
    if not folder.is_dir() or folder.resolve() in seen:
        return
    seen.add(folder.resolve())
    # Hydra's own folder holds a config.yaml too, the unresolved one.
    if (folder / CONFIG_FILE).is_file() and folder.name != ".hydra":
        yield folder
        return
    for child in sorted(folder.iterdir()):
        if not child.name.startswith("."):
            yield from _run_folders(child, seen)


@functools.lru_cache(maxsize=1024)
def _by_round(file: Path, written: tuple[int, int] | None) -> dict[int, dict[str, float]]:
    """Return a run's table: round -> what was measured in it. A run that goes on writes its table anew."""
    return {
        row["round"]: {name: cell for name, cell in row.items() if isinstance(cell, float) and not math.isnan(cell)}
        for row in rows_of(file, ("round",), measured, least=1)
    }


def _is_whole(value: Any) -> bool:
    """Tell whether a value is a whole number that a float holds, as not all of JSON's are."""
    return isinstance(value, int) and abs(value) < 2**63
