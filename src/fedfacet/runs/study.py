"""A study of Optuna's in a file that any number of processes share; a trial of a process that was killed is taken over."""

import contextlib
import json
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from fedfacet import rng
from fedfacet.config.sweeping import Dimension
from fedfacet.errors import ConfigError, first_line
from fedfacet.optional import required
from fedfacet.runs.lock import lock

JOURNAL = "tune.journal"
"""In a sweep folder: all its studies."""


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
