"""The jobs of a sweep as Hydra's basic sweeper makes them, and the names of its cells."""

import contextlib
import hashlib
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence, Set
from fractions import Fraction
from pathlib import Path
from typing import Any

import omegaconf
from hydra import compose
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, Override, OverrideType, RangeSweep
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from fedfacet.config.compose import checked, compose_job, drives, finalized, quoted_options
from fedfacet.config.composition import config_groups, initialized
from fedfacet.config.mistakes import check_used, composed_or_explained
from fedfacet.config.nodes import plain, without_hydra
from fedfacet.config.resuming import FREE_ON_RESUME, check_new, check_writable
from fedfacet.errors import ConfigError
from fedfacet.moved import FORMER

MAX_JOBS = 10_000
"""More jobs than this in one sweep are a slip of the keyboard."""


class Sweep(Sequence[tuple[DictConfig, Path]]):
    """The jobs of a sweep with their run folders; each is composed and checked when it is asked for.

    Args:
        name: of the primary config.
        overrides: of the command line; to be given while Hydra composes.

    Attributes:
        keys: what ``sweep=`` sweeps over.
        looked_at: the jobs that ``check`` has composed, the first one among them.
        are_known: whether the sweeper is Hydra's own, which tries all of them, and not one that draws what it tries; known
            once a job was looked at.
        total: how many jobs there will be; ``None`` where a sweeper draws them and does not say how many. Known once a job was
            looked at.
        goes_one_by_one: whether the jobs go through Hydra's own sweeper and launcher, with no callback of Hydra's; known once a
            job was looked at.
    """

    def __init__(self, name: str, overrides: Sequence[str]) -> None:
        own = _of_the_sweep(name, overrides)
        self.keys = {override.partition("=")[0] for override in own}
        self.are_known = True
        self.goes_one_by_one = False
        self.looked_at: list[tuple[DictConfig, Path]] = []
        self._name = name
        self._jobs = list(_combinations([*own, *overrides]))
        self.total: int | None = len(self._jobs)

    def __len__(self) -> int:
        return len(self._jobs)

    def __getitem__(self, number: int) -> tuple[DictConfig, Path]:  # type: ignore[override]
        """Return one job's configuration and run folder.

        Raises:
            ConfigError: as ``compose_job``, or if the folder cannot be written to, or holds a run.
        """
        job = self._jobs[number]
        with initialized():
            config, hydra_node = compose_job(self._name, job)
            check_used(self._name, config, job)
            with open_dict(hydra_node), read_write(hydra_node):
                hydra_node.job.num = number
            run_dir = Path(hydra_node.sweep.dir) / _folder_of(config, hydra_node)
        basic = [str(hydra_node[part]._target_).rpartition(".")[2] for part in ("sweeper", "launcher")]
        self.are_known = basic[0] == "BasicSweeper"
        self.total = len(self) if self.are_known else hydra_node.sweeper.get("n_trials")
        usual = basic == ["BasicSweeper", "BasicLauncher"] and hydra_node.sweeper.max_batch_size is None
        self.goes_one_by_one = usual and not hydra_node.callbacks
        if is_cell(config):
            check_writable(run_dir)
        elif drives(config):
            check_new(run_dir)
        _check_direction(hydra_node.sweeper)
        return config, run_dir

    def composed(self, number: int) -> DictConfig:
        """Return what Hydra would hand to its job, unchecked.

        Raises:
            ConfigError: if the overrides do not go together.
        """
        overrides = quoted_options([*self._jobs[number], "hydra.mode=MULTIRUN"])
        with initialized():
            config = composed_or_explained(self._name, overrides)
        with open_dict(config.hydra), read_write(config.hydra):
            config.hydra.job.num, config.hydra.job.id = number, str(number)
        return config

    def overrides_of(self, number: int) -> list[str]:
        """Return the overrides of one job."""
        return self._jobs[number]

    def check(self) -> None:
        """Compose and check so many jobs that each override is seen once: in a grid of 6 x 6 x 4, 14 jobs of 144.

        The others are checked when their time comes: a sweep begins soon, and a slip is refused before anything is written.

        Raises:
            ConfigError: the first mistake, in one sentence.
        """
        seen: set[str] = set()
        folders: set[Path] = set()
        for number, job in enumerate(self._jobs):
            if seen.issuperset(job):
                continue
            seen.update(job)
            config, run_dir = self[number]
            if run_dir in folders and not is_cell(config):
                raise ConfigError(
                    f"Expected a folder for each job, but several are to have {run_dir}: let hydra.sweep.subdir tell them "
                    "apart."
                )
            folders.add(run_dir)
            self.looked_at.append((config, run_dir))


def sweep(name: str, overrides: Sequence[str]) -> tuple[list[str], Sweep]:
    """Return the overrides to give to Hydra's sweeper, and the jobs that it will make of them.

    Raises:
        ConfigError: the first mistake, in one sentence.
    """
    for key, remedy in (
        ("resume", "resume the jobs one by one"),
        ("paths.output_dir", "choose the folder of all jobs with paths.sweep_dir=DIR"),
    ):
        if any(override.startswith(f"{key}=") for override in overrides):
            raise ConfigError(f"Expected `{key}` for a single run only, but got it with --multirun: {remedy}.")
    if params := [override for override in overrides if override.lstrip("+~").startswith("hydra.sweeper.params")]:
        raise ConfigError(
            f"Expected the values of a sweep as key=value,value, but got {params[0]}: give seed=0,1,2, for example."
        )
    with initialized():
        jobs = Sweep(name, overrides)
        jobs.check()
        left = _left_to_the_jobs(name, overrides, jobs.keys)
    return left, jobs


def check_job(config: DictConfig, choices: Mapping[str, Any], overrides: Sequence[str]) -> None:
    """Check what Hydra has composed for one job of a sweep, as ``compose_job`` and ``preflight`` check what they compose.

    Raises:
        ConfigError: as they do.
    """
    with initialized():
        check_used("train", checked("train", config.copy(), choices, overrides), overrides)


def _check_direction(sweeper: DictConfig) -> None:
    """Refuse a sweeper that looks for the worst job: what a job returns is the higher, the better."""
    if sweeper.get("direction") is not None and "minimize" in str(sweeper.direction):
        raise ConfigError(
            "Expected hydra.sweeper.direction=maximize, because a job returns its last validation worst-group accuracy, but "
            f"got {str(sweeper.direction).rpartition('.')[2]}: add hydra.sweeper.direction=maximize."
        )


def _folder_of(config: DictConfig, hydra_node: DictConfig) -> str:
    """Return a job's folder within its sweep's; a cell's name is that of its finalized configuration, which is at hand here."""
    spelt = OmegaConf.to_container(hydra_node.sweep, resolve=False)["subdir"]  # type: ignore[index, call-overload]
    return cell_digest(plain(config)) if spelt == "${cell_digest:}" else str(hydra_node.sweep.subdir)


@contextlib.contextmanager
def read_by_key(overrides: Sequence[str]) -> Iterator[dict[str, Override]]:
    """Lend overrides as Hydra reads them, by their keys; where a key is given twice, its last values count.

    Raises:
        ConfigError: if one is none, or what is done with them meanwhile shows that.
    """
    try:
        with initialized():
            read = OverridesParser.create(GlobalHydra.instance().config_loader()).parse_overrides(list(overrides))
            yield {one.get_key_element(): one for one in read}
    except (HydraException, RecursionError, ValueError) as error:
        raise ConfigError(
            f"Expected overrides of the form key=value, but got {' '.join(overrides)}: {str(error).strip().splitlines()[0]}"
        ) from None


def _combinations(overrides: Sequence[str]) -> Iterator[list[str]]:
    """Return the overrides of each job."""
    with read_by_key(overrides) as values:
        number = math.prod(map(num_values, values.values()))
        if number > MAX_JOBS:
            raise ConfigError(
                f"Expected a sweep of at most {MAX_JOBS:,} jobs, but these overrides ask for {number:,}: give fewer values."
            )
        spelt = [
            [str(one.input_line)] if one.is_delete() else [f"{key}={value}" for value in values_of(one)]
            for key, one in values.items()
        ]
    return map(list, itertools.product(*spelt))


def values_of(one: Override) -> Iterator[str]:
    """Yield what an override sweeps over; of an interval, which other sweepers draw from, its two ends."""
    if one.is_discrete_sweep():
        yield from one.sweep_string_iterator()
    elif isinstance(interval := one.value(), IntervalSweep):
        yield from (str(end) for end in (interval.start, interval.end))
    else:
        yield one.get_value_element_as_str()


def num_values(one: Override) -> int:
    """Return over how many values an override sweeps, without making them: nobody waits for a slip of the keyboard."""
    values = one.value()
    if isinstance(values, RangeSweep):
        start, stop, step = (Fraction(str(value)) for value in (values.start, values.stop, values.step))
        if not step:
            raise ValueError("a range has a step other than 0")
        return max(0, math.ceil((stop - start) / step))
    if isinstance(values, ChoiceSweep):
        return len(values.list)
    return sum(1 for _ in one.sweep_string_iterator()) if one.is_discrete_sweep() else 1


def _left_to_the_jobs(name: str, overrides: Sequence[str], swept: Set[str]) -> list[str]:
    """Return the overrides, those of keys that only the jobs have as ``++key=value``.

    Before the jobs Hydra composes what they have in common, without what is swept over, and refuses a plain ``key=value`` whose
    key it does not find there, such as a setting of the data set that a swept ``experiment`` brings. Where ``sweep=`` sweeps
    over that key, a value takes the place of its values only under the very same name, and so as a sweep of one.
    """
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    groups = config_groups()
    fixed = [one for one in parsed if not one.is_sweep_override() and (one.is_hydra_override() or one.key_or_group in groups)]
    common = compose(name, [str(one.input_line) for one in fixed])
    left = []
    for one in parsed:
        given, key = str(one.input_line), one.key_or_group
        parent, _, leaf = key.rpartition(".")
        beside = OmegaConf.select(common, parent) if parent else common
        known = key in groups or one.is_hydra_override() or leaf in (beside or {})
        if not known and one.type is OverrideType.CHANGE and not one.is_sweep_override():
            given = f"{key}=choice({given.partition('=')[2]})" if key in swept else f"++{given}"
        left.append(given)
    return left


def _of_the_sweep(name: str, overrides: Sequence[str]) -> list[str]:
    """Return the overrides that ``sweep=`` stands for, which Hydra puts in front of those of the command line."""
    chosen = [override for override in overrides if override.startswith("sweep=")]
    if not chosen:
        return []
    if any("," in override for override in chosen):
        raise ConfigError(f"Expected one sweep at a time, but got {chosen[0]}: start one after the other, or side by side.")
    _, hydra_node = compose_job(
        name, [*chosen, *(override for override in overrides if override.startswith(("hydra.", "hydra/")))]
    )
    return [f"{key}={value}" for key, value in (hydra_node.sweeper.params or {}).items()]


FREE_IN_A_CELL = frozenset(FREE_ON_RESUME) - {"federation.rounds"}
"""Keys that a cell's name leaves out: no number of a run depends on them, if it runs for as many rounds."""

_ADDED = ("server_data", "termination", "devices", "partition.held_out_clients", "adapter", "selector.candidates")
"""Groups and settings that are younger than the names of cells: a name is what it was where the option does nothing."""

_ADDED_TO_PARTS = ("noise_multiplier", "max_norm", "metrics")
"""Settings of questions and measurements, likewise; null does nothing."""


def cell_digest(settings: Mapping[str, Any]) -> str:
    """Return the name of a run's folder: 16 hexadecimal digits of what its numbers depend on.

    Two ways to ask for one run (``method=uniform`` and ``selector=uniform``) have one name, and so have runs that differ in
    what is free on resume: paths, loggers, the engine. What the machine decides where nobody does (``threads: null``) counts as
    left open. A version that adds, removes or renames a setting names cells anew.

    Args:
        settings: the resolved configuration as it will be used, JSON-able.

    Example:
        >>> one = {"seed": 1, "optimizer": {"lr": 1}, "paths": {"log_dir": "here"}, "federation": {"rounds": 2}}
        >>> cell_digest(one) == cell_digest(one | {"optimizer": {"lr": 1.0}, "paths": {"log_dir": "there"}})
        True
        >>> cell_digest(one) == cell_digest(one | {"federation": {"rounds": 3}})
        False
    """
    return hashlib.sha256(json.dumps(_counting(settings), sort_keys=True).encode()).hexdigest()[:16]


def is_cell(config: DictConfig) -> bool:
    """Tell whether a finalized configuration is one of a sweep's, to be run where nobody else runs it or has."""
    return config.choices.get("sweep") is not None


def _counting(value: Any, path: str = "") -> Any:
    """Return what counts of a configuration's values, each number in one spelling."""
    if isinstance(value, Mapping):
        full = {f"{path}.{key}" if path else str(key): entry for key, entry in value.items()}
        absent = {*FREE_IN_A_CELL, *(key for key in _ADDED if not full.get(key, True))}
        absent |= {key for key in full if full[key] is None and key.rpartition(".")[2] in _ADDED_TO_PARTS}
        return {key: _counting(entry, key) for key, entry in full.items() if key not in absent}
    if isinstance(value, list):
        return [_counting(entry, path) for entry in value]
    if isinstance(value, str):
        return FORMER.get(value, value)
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _digest_of_root(*, _root_: DictConfig) -> str:
    """Name the cell whose whole composed configuration, Hydra's node included, an interpolation lies in."""
    own = _root_.hydra
    return cell_digest(plain(finalized(without_hydra(_root_), own.overrides.task, own.runtime.choices)))


# OmegaConf 2.3 has another function of the later name.
_register = getattr(OmegaConf, "register_new_resolver" if omegaconf.__version__.startswith("2.3.") else "register_resolver")
_register("cell_digest", _digest_of_root, replace=True)
