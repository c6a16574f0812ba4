"""A search: what it draws, and a study of Optuna's in a file that processes share, which take over trials left behind."""

import contextlib
import json
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep

from fedfacet import rng
from fedfacet.config.sweeping import MAX_JOBS, num_values, read_by_key, values_of
from fedfacet.errors import ConfigError, first_line
from fedfacet.optional import required
from fedfacet.storage.lock import lock

JOURNAL = "tune.journal"
"""In a sweep folder: all its studies."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """Numbers from ``low`` to ``high``, both included, by ``step`` if there is one, or evenly on a ``log`` scale."""

    low: float
    high: float
    step: float | None
    log: bool


@dataclass(frozen=True, slots=True)
class Dimension:
    """The values of one key.

    Attributes:
        values: as they are spelt on a command line; of an interval, its two ends.
        numbers: what they are drawn from; ``None`` where they have no order.
    """

    values: tuple[str, ...]
    numbers: Numbers | None

    def spelt(self, drawn: Any) -> str:
        """Return a value that was drawn as it is given on a command line."""
        if self.numbers is None:
            return str(drawn)
        if self.numbers.step is None or isinstance(drawn, int):
            return repr(drawn)
        return min(self.values, key=lambda value: abs(float(value) - drawn))  # 0.3, not 0.30000000000000004

    @property
    def ends(self) -> tuple[str, ...]:
        """The values to be checked before a search begins: all choices, and the ends of what has an order."""
        return self.values if self.numbers is None else (self.values[0], self.values[-1])


def search_space(overrides: Sequence[str]) -> tuple[list[str], tuple[str, ...], dict[str, Dimension]]:
    """Return the overrides that are fixed, the seeds as they are given, and what is drawn, by key.

    Raises:
        ConfigError: if there is nothing to be drawn, or something that cannot be.
    """
    seeds: tuple[str, ...] = ()
    space: dict[str, Dimension] = {}
    with read_by_key(overrides) as given:
        for key, one in sorted(given.items()):  # equal searches draw equally
            if num_values(one) > MAX_JOBS or num_values(one) < 1:
                raise ConfigError(f"Expected 1 to {MAX_JOBS:,} values of `{key}`, but got {one.input_line}: give others.")
            if key == "seed":
                seeds = tuple(values_of(one))
            elif one.is_sweep_override():
                space[key] = _dimension(one)
        fixed = [str(one.input_line) for key, one in given.items() if key not in space and key != "seed"]
    if not space:
        raise ConfigError(
            "Expected something to search, but every setting has one value: give a setting several, for example "
            "'optimizer.lr=tag(log,interval(0.01,0.3))' or selector=uniform,pow_d."
        )
    return fixed, seeds, space


def values_for(space: Mapping[str, Dimension], drawn: Mapping[str, Any]) -> list[str]:
    """Return the overrides of one trial."""
    return [f"{key}={dimension.spelt(drawn[key])}" for key, dimension in space.items()]


def _dimension(one: Override) -> Dimension:
    sweep: Any = one.value()
    log, values, step = "log" in sweep.tags, tuple(values_of(one)), None
    if isinstance(sweep, IntervalSweep):
        if is_whole := "int" in sweep.tags or isinstance(sweep.start, int):  # int(interval(1,10))
            values, step = tuple(str(int(float(end))) for end in values), 1.0
    elif isinstance(sweep, RangeSweep):
        values, step = tuple(sorted(values, key=float)), abs(float(sweep.step))
        is_whole = not any("." in value for value in values)
    else:
        return Dimension(values, None)
    low, high = (int(end) if is_whole else float(end) for end in (values[0], values[-1]))
    if not low < high or (log and low <= 0):
        raise ConfigError(
            f"Expected two numbers in order{', larger than 0,' if log else ''} for `{one.key_or_group}`, but got "
            f"{one.input_line}: fix them."
        )
    if log and step not in (None, 1):
        raise ConfigError(f"Expected steps of 1 on a log scale, but got {one.input_line}: leave the step or the tag out.")
    return Dimension(values, Numbers(low, high, step, log))


class Study:
    """Trials that are asked for and told; see the module.

    What trial number n draws follows from the seed, n and the trials before it, so a study that was broken off ends as if it
    had not been, unless several processes share it.

    Args:
        folder: of the sweep.
        name: of the study.
        space: what is drawn, by key.
        facts: what all trials of the study have in common, JSON-able; its values are comparable under no others.
        direction: ``maximize`` or ``minimize``.
        seed: of the draws, 0 or larger.

    Raises:
        ConfigError: if optuna is not installed, the file cannot be read, or the study has another space or other facts.
    """

    def __init__(
        self, folder: Path, name: str, space: Mapping[str, Dimension], facts: Mapping[str, Any], *, direction: str, seed: int
    ) -> None:
        self._optuna = required("optuna", extra="tune", wanted_by="tune")
        self._optuna.logging.set_verbosity(self._optuna.logging.WARNING)
        self.file = folder / JOURNAL
        self._locks = folder / ".tune" / name
        self._locks.mkdir(parents=True, exist_ok=True)
        self._seed = seed
        self._distributions = {key: self._distribution(dimension) for key, dimension in space.items()}
        journal = self._optuna.storages.journal
        try:
            self._study = self._optuna.create_study(
                storage=journal.JournalStorage(journal.JournalFileBackend(str(self.file))),
                study_name=name,
                direction=direction,
                load_if_exists=True,
            )
        except (ValueError, KeyError) as error:
            raise ConfigError(
                f"Expected {self.file} to be a journal of Optuna's, but it cannot be read ({type(error).__name__}): remove it; "
                "the cells stay."
            ) from error
        own = {key: self._optuna.distributions.distribution_to_json(one) for key, one in self._distributions.items()}
        own |= {key: json.dumps(value) for key, value in facts.items()} | {"tune.direction": direction}
        with self._alone():
            known = self._study.user_attrs.get("facts")
            if known is None:
                self._study.set_user_attr("facts", own)
        if others := sorted(key for key in own | (known or own) if (known or own).get(key) != own.get(key)):
            raise ConfigError(
                f"Expected the study {name!r} in {self.file} to go on as it began, but there are other values of "
                f"{', '.join(others)}: give its own, or begin another study, tune.study=NAME."
            )

    @contextlib.contextmanager
    def next(self, n_trials: int, passed_over: Collection[int]) -> Iterator[tuple[int, dict[str, Any]] | None]:
        """Hold the next trial while entered, and yield its number and what was drawn; ``None`` where there is none left.

        A trial that a process left behind comes first.

        Args:
            n_trials: of the study in the end.
            passed_over: numbers of trials that this process has left behind itself, because a cell failed.
        """
        with contextlib.ExitStack() as holding:
            with self._alone():
                taken = self._left_behind(passed_over, holding)
                if taken is None and self.counts()[0] < n_trials:
                    number = len(self._study.get_trials(deepcopy=False))
                    seed = int(rng.stream(self._seed, "tune", number).integers(2**32))
                    self._study.sampler = self._optuna.samplers.TPESampler(seed=seed)
                    try:
                        trial = self._study.ask(self._distributions)
                    except ValueError as error:
                        raise ConfigError(
                            f"Expected trials of this study's values in {self.file}, but it has others ({first_line(error)}): "
                            "begin another study, tune.study=NAME."
                        ) from None
                    self._hold(trial.number, holding)
                    taken = trial.number, trial.params
            yield taken

    def tell(self, number: int, value: float | None) -> None:
        """Finish a trial with its value; without one it counts, but nothing is learnt from it."""
        failed = self._optuna.trial.TrialState.FAIL if value is None else None
        self._study.tell(number, value, state=failed)

    def counts(self) -> tuple[int, int, int]:
        """Return how many trials there are, how many of them have a value, and how many ended without."""
        # One whose process was killed while it drew is none.
        whole = [one for one in self._study.get_trials(deepcopy=False) if self._is_drawn(one)]
        states = [one.state.name for one in whole]
        return len(whole), states.count("COMPLETE"), states.count("FAIL")

    def best(self) -> tuple[int, float, dict[str, Any]] | None:
        """Return number, value and draw of the best trial; ``None`` where none has a value."""
        if not self.counts()[1]:
            return None
        trial = self._study.best_trial
        if not self._is_drawn(trial):
            raise ConfigError(f"Expected trials of this study's values in {self.file}, but trial {trial.number} has others.")
        return trial.number, trial.value, trial.params

    def tied(self, value: float) -> list[int]:
        """Return the numbers of the trials that have a value, the first of those that drew the same."""
        numbers: dict[str, int] = {}
        for one in self._study.get_trials(deepcopy=False):
            if one.state.name == "COMPLETE" and one.value == value:
                numbers.setdefault(repr(sorted(one.params.items())), one.number)
        return list(numbers.values())

    def _left_behind(self, passed_over: Collection[int], holding: contextlib.ExitStack) -> tuple[int, dict[str, Any]] | None:
        for trial in self._running():
            if trial.number in passed_over or not self._hold(trial.number, holding):
                continue
            if trial.number not in [one.number for one in self._running()]:  # it was told meanwhile
                continue
            if self._is_drawn(trial):
                return trial.number, dict(trial.params)
            self.tell(trial.number, None)
        return None

    def _running(self) -> list[Any]:
        return list(self._study.get_trials(deepcopy=False, states=(self._optuna.trial.TrialState.RUNNING,)))

    def _is_drawn(self, trial: Any) -> bool:
        """Tell whether a trial has a value of every dimension: they become overrides, and a journal may be somebody else's."""
        if trial.params.keys() != self._distributions.keys():
            return False
        for key, of in self._distributions.items():
            value = trial.params[key]
            if hasattr(of, "choices"):
                if value not in of.choices:
                    return False
            elif not (type(value) in (int, float) and of.low <= value <= of.high):
                return False
        return True

    def _hold(self, number: int, holding: contextlib.ExitStack) -> bool:
        """Hold a trial as long as the stack is open; return whether nobody else does."""
        folder = self._locks / str(number)
        folder.mkdir(exist_ok=True)
        return holding.enter_context(lock(folder)) is None

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Wait until no other process counts trials and asks for one."""
        while True:
            with lock(self._locks) as holder:
                if holder is None:
                    yield
                    return
            time.sleep(0.05)

    def _distribution(self, dimension: Dimension) -> Any:
        distributions, numbers = self._optuna.distributions, dimension.numbers
        if numbers is None:
            return distributions.CategoricalDistribution(dimension.values)
        if isinstance(numbers.low, int):
            return distributions.IntDistribution(numbers.low, numbers.high, log=numbers.log, step=int(numbers.step or 1))
        return distributions.FloatDistribution(numbers.low, numbers.high, log=numbers.log, step=numbers.step)
