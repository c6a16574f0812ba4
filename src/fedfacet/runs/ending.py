"""How a run that does not end well ends: in one sentence, with a status, and with the command that resumes it."""

import contextlib
import logging
import os
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from omegaconf import DictConfig

from fedfacet.config import is_cell, needed_to_resume, override_of
from fedfacet.entry import leave, print_error, sentence_of, short_of, shortage
from fedfacet.errors import FedFacetError, Interrupted
from fedfacet.runs.job import Job
from fedfacet.shell_words import typed
from fedfacet.storage.atomic_write import folder_gone

log = logging.getLogger("fedfacet.train")


class Refused(SystemExit):
    """The end of a run that cannot go on for a reason that was said in one sentence; status 2."""

    def __init__(self, sentence: str) -> None:
        super().__init__(2)
        self.sentence = sentence

    def __str__(self) -> str:
        """Return what was said."""
        return self.sentence


def refuse(error: Exception, *, aloud: bool = True) -> NoReturn:
    """Exit with status 2, and print what is wrong in one sentence if ``aloud``."""
    sentence = sentence_of(error)
    if aloud:
        print_error(sentence)
    raise Refused(sentence)


@contextlib.contextmanager
def short_in_a_sentence() -> Iterator[None]:
    """Refuse what runs short before a run begins, and while it ends."""
    try:
        yield
    except Exception as error:
        if shortage(error) is None:
            raise
        refuse(error)


@contextlib.contextmanager
def ending_in_a_sentence(job: Job) -> Iterator[None]:
    """Turn what stops a run into a sentence and an exit status."""
    try:
        yield
    except Interrupted as stop:
        print(f"Stopped; {how_to_go_on(job)}", file=sys.stderr)
        sys.exit(128 + stop.signal)
    except KeyboardInterrupt:
        log.info("Stopped at once.")
        print(f"Stopped at once; {how_to_go_on(job)}", file=sys.stderr)
        sys.exit(130)
    except FedFacetError as error:
        log.info("Refused: %s", error)
        refuse(error)
    except Exception as error:
        log.info("Failed.", exc_info=True)
        if isinstance(error, OSError) and not job.run_dir.is_dir():
            refuse(folder_gone(job.run_dir))
        if (found := short_of(error)) is None:
            raise
        lacking, remedy = found
        refuse(FedFacetError(f"Expected {lacking} for {job.run_dir}, but there is none left: {remedy}; {how_to_go_on(job)}"))
    finally:
        signal.signal(signal.SIGINT, leave)


def how_to_go_on(job: Job) -> str:
    """Return the command that goes on with a run that was stopped."""
    if is_cell(job.config):
        return "to go on, give the same command again."
    if not job.was_saved:
        return f"nothing was saved, so remove {job.run_dir} and start again."
    overrides = [override_of("resume", job.run_dir), *needed_to_resume(job.overrides)]
    return f"to go on:\n  {same_command()} {typed(overrides)}"


def command_name() -> str:
    """Return how the command is called: the script of a checkout, or the command of an installed package."""
    started = Path(sys.argv[0])
    if started.name == "__main__.py":
        return "python -m fedfacet train"
    return "fedfacet train" if started.stem == "fedfacet" else "python src/train.py"


def same_command() -> str:
    """Return what starts this command again, as the user or ``make`` has started it: with this interpreter."""
    started = Path(sys.argv[0])
    if command_name() != "python src/train.py":
        return command_name()
    script = sys.argv[0] if started.name == "train.py" else "src/train.py"
    if _is_usual(Path(sys.executable)):
        return f"python {script}"
    inside = os.path.relpath(sys.executable)
    return f"{sys.executable if inside.startswith(os.pardir) else inside} {script}"


def _is_usual(interpreter: Path) -> bool:
    """Tell whether ``python`` starts this interpreter, as in an active virtual environment."""
    found = shutil.which("python")
    return found is not None and Path(found).parent == interpreter.parent


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
