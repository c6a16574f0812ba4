"""A trial of Optuna's sweeper for Hydra that was stopped: the sweeper tells its study only of jobs that return."""

import contextlib
from collections.abc import Iterator, Sequence

from omegaconf import DictConfig


@contextlib.contextmanager
def failed_if_stopped(sweeper: DictConfig, overrides: Sequence[str]) -> Iterator[None]:
    """Mark a job's trial FAIL in a study that is stored at a URL, where the process exits within the context.

    A trial is known by its overrides. Where several that run have the same ones, none is marked: one is another process's.

    Args:
        sweeper: Hydra's settings of the sweeper.
        overrides: of the job.
    """
    try:
        yield
    except SystemExit:
        storage, name = sweeper.get("storage"), sweeper.get("study_name")
        if sweeper._target_.endswith(".OptunaSweeper") and isinstance(storage, str) and name is not None:
            import optuna

            study, states = optuna.load_study(study_name=name, storage=storage), optuna.trial.TrialState
            running = [
                trial.number
                for trial in study.get_trials(deepcopy=False, states=(states.RUNNING,))
                if {f"{key}={value}" for key, value in {**trial.params, **trial.user_attrs}.items()} == set(overrides)
            ]
            if len(running) == 1:
                study.tell(running[0], state=states.FAIL)
        raise
