"""A search for settings, trial by trial; see ``USAGE``."""

import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedfacet import __version__
from fedfacet.commands import called, is_answered
from fedfacet.errors import ConfigError, FedFacetError
from fedfacet.shell_words import typed
from fedfacet.waiting import waiting

if TYPE_CHECKING:  # --help need not wait for what these load
    from fedfacet.config.sweeping import Sweep
    from fedfacet.runs.job import ETA
    from fedfacet.runs.study import Dimension

USAGE = """usage: {command} KEY=interval(A,B) GROUP=NAME,NAME ... [KEY=VALUE] ...

Search for settings with Optuna's TPE. Every trial is a cell of a sweep, or one for each seed; equal cells are run
once. The same command goes on with the study until it has tune.n_trials, and several at once share it.

  KEY=interval(A,B)         any number between A and B; 'KEY=int(interval(A,B))' for whole ones
  KEY=tag(log,interval(A,B))  evenly on a log scale
  KEY=range(A,B,STEP)       A, A + STEP, ... below B
  KEY=choice(V,W), KEY=V,W  one of these
  seed=0,1,2                a trial's value is the mean over these seeds

  tune.n_trials=20          trials of the study in the end
  tune.metric=val/acc       a metric of the validation set; val/acc_worst_group by default
  tune.direction=maximize|minimize
  tune.at=last|best|tail    the last round's, the best round's, or the mean over the last tenth of the rounds
  tune.seed=0               of the draws
  tune.study=NAME           one of several studies in a sweep folder (paths.sweep_dir=DIR)

example: {command} experiment=cmnist_gsc selector=uniform,pow_d 'optimizer.lr=tag(log,interval(0.01,0.3))' seed=0,1,2
"""

_SECONDS_BETWEEN_LOOKS = 1.0


def main(argv: Sequence[str] | None = None) -> int:
    """Search, or go on with a search; return the exit status."""
    argv = sys.argv[1:] if argv is None else list(argv)
    if is_answered(argv, "tune", USAGE):
        return 0
    from fedfacet.runs.ending import refuse

    # Trials are jobs of `train`: that is what their logs and the commands that go on with them name.
    sys.argv[0] = "fedfacet" if called("tune").startswith("fedfacet") else str(Path(sys.argv[0]).with_name("train.py"))
    try:
        return _search(argv)
    except (FedFacetError, ValueError, TypeError, OSError) as error:
        refuse(error)


def _search(argv: Sequence[str]) -> int:
    """Check everything, then run trials until there are enough; return the exit status.

    Raises:
        FedFacetError, ValueError: the first mistake, in one sentence; before the study begins nothing was written.
    """
    from fedfacet.arguments import check_choice, check_whole
    from fedfacet.commands.train import name_failures
    from fedfacet.config import compose_job, quoted_options
    from fedfacet.optional import required
    from fedfacet.runs.job import ETA, failures
    from fedfacet.runs.jobs import check_data
    from fedfacet.runs.study import Study, search_space, values_for

    with waiting(f"fedfacet {__version__} checks the settings"):
        if dashed := [argument for argument in argv if argument.startswith("-")]:
            raise ConfigError(f"Expected settings as key=value, without dashes, but got `{dashed[0]}`: see `--help`.")
        own = [argument for argument in argv if argument.lstrip("+~").partition("=")[0].partition(".")[0] == "tune"]
        options = compose_job("tune", own)[0].tune
        check_whole("tune.n_trials", options.n_trials, 1)
        check_whole("tune.seed", options.seed, 0)
        check_choice("tune.direction", options.direction, ("maximize", "minimize"))
        check_choice("tune.at", options.at, ("last", "best", "tail"))
        if not str(options.metric).startswith("val/"):
            raise ConfigError(
                f"Expected `tune.metric` to be one of the validation set, but got {options.metric}: a search that sees other "
                "samples spoils them; give val/acc, for example."
            )
        if not re.fullmatch(r"\w[\w.-]*", str(options.study)):
            raise ConfigError(f"Expected letters, digits, `.` and `-` in `tune.study`, but got {options.study}: fix the name.")
        others = [argument for argument in argv if argument not in own and argument != "sweep=cells"]
        if grids := [one for one in others if one.startswith("sweep=")]:
            raise ConfigError(f"Expected no grid beside what is searched, but got {grids[0]}: leave it out.")
        fixed, seeds, space = search_space(quoted_options(others))
        required("optuna", extra="tune", wanted_by="tune")
        looked_at = _looked_at(fixed, seeds, space)
    check_data(looked_at)
    config, cell = looked_at[0]
    seeds = seeds or (str(config.seed),)
    facts = {"settings": cell.name, "seed": seeds, "tune.metric": options.metric, "tune.at": options.at}
    study = Study(cell.parent, str(options.study), space, facts, direction=options.direction, seed=options.seed)
    print(f"the study {options.study} in {study.file}: {study.counts()[0]} of {options.n_trials} trials have begun", flush=True)
    eta = ETA(options.n_trials * len(seeds))
    failed: set[int] = set()
    while True:
        with study.next(options.n_trials, failed) as trial:
            if trial is None:
                break
            number, drawn = trial
            values = values_for(space, drawn)
            run_dirs = _run(number, [*fixed, *values], seeds, eta)
            value = None if run_dirs is None else _mean(run_dirs, options.metric, options.at)
            result = "failed" if run_dirs is None else "no number" if value is None else f"{options.metric} = {value:.4f}"
            if run_dirs is None:  # as of any sweep, the same command tries again: the disk may have been full
                failed.add(number)
            else:
                study.tell(number, value)
            print(f"trial {number + 1} of {options.n_trials}: {' '.join(values)}: {result}", flush=True)
    begun, done, without = study.counts()
    elsewhere = begun - done - without - len(failed)
    counted = ((without, "without a number"), (len(failed), "failed"), (elsewhere, "under way in other processes"))
    print(f"{done} of {options.n_trials} trials are finished{''.join(f', {n} {what}' for n, what in counted if n)}.")
    if (best := study.best()) is not None:
        number, value, drawn = best
        _print_best(study.tied(value), number, f"{options.metric} = {value:.4f}", fixed, values_for(space, drawn), seeds)
    return name_failures(failures)


def _looked_at(fixed: Sequence[str], seeds: Sequence[str], space: "Mapping[str, Dimension]") -> list[tuple[Any, Path]]:
    """Compose and check the first trial of a grid, and one for each other value in its place; return their jobs.

    Raises:
        ConfigError: the first mistake, in one sentence.
    """
    first = {key: dimension.ends[0] for key, dimension in space.items()}
    trials = [first, *(first | {key: value} for key, one in space.items() for value in one.ends[1:])]
    looked_at = []
    for number, trial in enumerate(trials):
        values = [f"{key}={value}" for key, value in trial.items()]
        jobs = _jobs_of([*fixed, *values], seeds if number == 0 else seeds[:1])[1]
        if not jobs.goes_one_by_one:
            raise ConfigError("Expected Hydra's own sweeper and launcher, but got others: leave them out.")
        if jobs.looked_at[0][0].sweep.workers != 1:
            raise ConfigError("Expected one worker, but got `sweep.workers`: give the same command several times at once.")
        looked_at += jobs.looked_at
    return looked_at


def _jobs_of(overrides: Sequence[str], seeds: Sequence[str]) -> "tuple[list[str], Sweep]":
    """Return the command line of a trial's cells, as Hydra takes it, and the cells."""
    from fedfacet.config import preflight
    from fedfacet.config.sweeping import Sweep

    of_seeds = [f"seed={','.join(seeds)}"] if seeds else []
    argv, jobs = preflight("train", [sys.argv[0], "sweep=cells", *overrides, *of_seeds, "-m"])
    assert isinstance(jobs, Sweep)
    return argv, jobs


def _run(number: int, overrides: Sequence[str], seeds: Sequence[str], eta: "ETA") -> list[Path] | None:
    """Run the cells of a trial; return their run folders, or ``None`` where one failed, which is noted."""
    from fedfacet.commands.train import all_jobs
    from fedfacet.config import is_complete
    from fedfacet.runs.job import failures
    from fedfacet.runs.run import fit
    from fedfacet.storage.lock import holder_of

    command = sys.argv
    try:
        sys.argv, jobs = _jobs_of(overrides, seeds)
        while True:
            reached: dict[Path, int] = {}
            all_jobs(fit, reached, eta, jobs, is_worker=True, first=number * len(seeds))()
            left = {run_dir for run_dir, rounds in reached.items() if not is_complete(run_dir, rounds)}
            if not left:
                return list(reached)
            if left & failures.keys():
                return None
            while any(map(holder_of, left)):  # an equal trial runs it: it is waited for, and run here if its process dies
                time.sleep(_SECONDS_BETWEEN_LOOKS)
    except ConfigError as error:  # of values that do not go together
        failures[Path(f"trial {number + 1}")] = str(error)
        return None
    finally:
        sys.argv = command


def _mean(run_dirs: Sequence[Path], metric: str, at: str) -> float | None:
    """Return the mean of a metric over finished runs; ``None`` where it is not a number.

    Raises:
        ConfigError: if a run does not measure it.
    """
    from fedfacet.analysis.runs import load_run

    found = [load_run(run_dir).at(at) for run_dir in run_dirs]
    if lacking := [measured for measured in found if metric not in measured]:
        known = ", ".join(sorted(name for name in lacking[0] if name.startswith("val/") and "group/" not in name))
        raise ConfigError(
            f"Expected `tune.metric` to be measured, but {metric} is not: give one of {known or 'a run with a summary'}, and "
            "another tune.study=NAME."
        )
    mean = sum(measured[metric] for measured in found) / len(found)
    return mean if mean == mean else None


def _print_best(
    tied: Sequence[int], number: int, result: str, fixed: Sequence[str], values: Sequence[str], seeds: Sequence[str]
) -> None:
    """Print the best trial, and the command that runs it with as many seeds, three at least, that it has not seen.

    ``tied`` are the numbers of all trials with its value.
    """
    from fedfacet.runs.ending import same_command

    unseen = max(map(int, seeds)) + 1
    others = ",".join(map(str, range(unseen, unseen + max(3, len(seeds)))))
    if len(tied) > 1:
        print(f"trials {', '.join(str(one + 1) for one in tied)} tie for the best: this search does not tell them apart")
    print(f"{'the first of them' if len(tied) > 1 else 'the best one'} is trial {number + 1}, {result}: {' '.join(values)}")
    print("to be reported, with seeds that the search has not seen:")
    print(f"  {same_command()} sweep=cells {typed([*fixed, *values, f'seed={others}'])} -m")
