"""The loop over the jobs of a command line: each alone in its folder, skipped where it is finished, noted where it fails."""

import contextlib
import functools
import json
import logging
import math
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core import utils
from hydra.core.global_hydra import GlobalHydra
from hydra.experimental.callback import Callback
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig, OmegaConf

from fedfacet import config as configuration
from fedfacet.config import make
from fedfacet.config.command_line import options_of
from fedfacet.config.composition import composed, initialized
from fedfacet.config.sweeping import Sweep, is_cell
from fedfacet.entry import num_started, print_error
from fedfacet.errors import ConfigError, DatasetCorruptError, DatasetNotFoundError, FedFacetError
from fedfacet.runs.ending import Refused, ending_in_a_sentence, refuse
from fedfacet.runs.job import ETA, Job, failures
from fedfacet.storage.lock import lock, sole
from fedfacet.storage.run_files import is_whole, summary_of
from fedfacet.terminal import fitted


def launch(jobs: Sequence[tuple[DictConfig, Path]], task: Callable[[DictConfig], Any], otherwise: Callable[[], None]) -> None:
    """Have ``task`` run each job; one of a sweep whose overrides do not go together is noted among the failures.

    Args:
        jobs: of the command line in ``sys.argv``, as ``preflight`` returns them.
        task: as ``hydra.main`` would call it, in the job's folder and with its log.
        otherwise: what is to be done where Hydra is asked for help, or another sweeper, launcher or callback of its kind is.
    """
    sweep = jobs if isinstance(jobs, Sweep) else None
    if not jobs or (sweep and not sweep.goes_one_by_one):
        return otherwise()
    ended: list[utils.JobReturn] = []
    with initialized():
        loader, given = GlobalHydra.instance().config_loader(), options_of(sys.argv[1:])[0].overrides
        if sweep and not is_cell(sweep.looked_at[0][0]):  # as Hydra's sweeper does
            common = loader.load_configuration("train", [*given, "hydra.mode=MULTIRUN"], run_mode=RunMode.MULTIRUN)
            Path(common.hydra.sweep.dir).mkdir(parents=True, exist_ok=True)
            OmegaConf.save(common, Path(common.hydra.sweep.dir) / "multirun.yaml")
        for number in range(len(jobs)):
            try:
                config = sweep.composed(number) if sweep else composed("train", [*given, "hydra.mode=RUN"])
            except ConfigError as error:
                print_error(error)
                failures[Path(f"job {number + 1}")] = f"{' '.join(sweep.overrides_of(number) if sweep else given)}: {error}"
                continue
            if config.hydra.callbacks:
                break
            folder, inside = ("hydra.sweep.dir", "hydra.sweep.subdir") if sweep else ("hydra.run.dir", None)
            context = HydraContext(loader, callbacks=Callback())  # type: ignore[arg-type]
            ended.append(utils.run_job(task, config, folder, inside, context))
            utils.configure_log(
                config.hydra.hydra_logging, config.hydra.verbose
            )  # what is logged from here on is not the job's
        else:
            for one in ended:
                _ = one.return_value  # raises what the job has raised
            return None
    return otherwise()


log = logging.getLogger("fedfacet.train")


def check(config: DictConfig, run_dir: Path) -> None:
    """Have every part of a job made once, so that what one of them refuses comes out before anything is written."""
    from fedfacet.build import build  # torch and lightning load here, so that --help need not wait for them
    from fedfacet.storage import checkpoint

    federation = build(config, run_dir)
    if config.resume is not None:
        federation.restore(checkpoint.load(checkpoint.asked_for(run_dir, config.resume))[0])


def check_data(jobs: Iterable[tuple[DictConfig, Path]]) -> None:
    """Load the data of all jobs that are not finished, so that what is missing is said before the first of them begins.

    Each data set is loaded once, whatever seeds the jobs draw from it by. What else may be wrong with a job is said when its
    turn comes, and the others run.

    Args:
        jobs: configurations and run folders.

    Raises:
        DatasetNotFoundError, DatasetCorruptError: of the first data set that is missing or damaged.
    """
    from fedfacet.build import load_data

    wanted: dict[str, DictConfig] = {}
    for config, run_dir in jobs:
        if not configuration.is_complete(run_dir, config.federation.rounds):
            of_data = {**configuration.plain(config)["dataset"], "seed": None, "smoke": config.smoke}
            wanted.setdefault(json.dumps(of_data, sort_keys=True), config)
    before = logging.root.manager.disable
    logging.disable()
    try:
        for config in wanted.values():
            try:
                load_data(config)
            except (DatasetNotFoundError, DatasetCorruptError):
                raise
            except Exception:
                log.debug("Not loaded.", exc_info=True)  # the job's own fault
    finally:
        logging.disable(before)


def run_job(
    job: Job,
    train: Callable[[Job], None],
    *,
    verify: Callable[[], None] | None,
    others_go_on: bool,
    eta: ETA,
    number: int = 0,
    is_worker: bool = False,
) -> float | None:
    """Run one job in its run folder; return the validation worst-group accuracy of the last round, for sweepers.

    A cell of a sweep is skipped where it is finished or another process works at it, and resumed where it was saved.

    Args:
        job: of a command line that was checked.
        train: runs it.
        verify: checks the job's configuration; ``None`` where that was done before.
        others_go_on: whether a job that fails is only noted, because others of this process come after it.
        eta: of the sweep that it is a job of.
        number: of the job in its sweep, from 0.
        is_worker: whether this process is one of ``sweep.workers``, among which it is no news who works at a cell.
    """
    with lock(job.run_dir) if configuration.is_cell(job.config) else contextlib.nullcontext() as holder:
        if job.is_new_cell:
            if configuration.is_complete(job.run_dir, job.config.federation.rounds):
                with contextlib.suppress(FedFacetError):  # damaged since then
                    return _validation_of(summary_of(job.run_dir))
                return None
            if holder is not None:
                if not is_worker:
                    left = f"{job.run_dir} is left to {holder}; ten minutes after that is gone, the same command takes it over"
                    print(fitted(left))
                return None
            if job.was_saved:
                job.config.resume = str(job.run_dir)
            how = "goes on" if job.config.resume else "begins"
            print(fitted(f"{job.run_dir} {how}: {job} ({eta.begins(number)})"), flush=True)
        elif holder is not None:
            refuse(ConfigError(f"Expected a run that nobody works at, but {job.run_dir} is held by {holder}: wait for it."))
        elif others_go_on:
            place = eta.begins(number)
            print(fitted(f"job {place}: {job}"), flush=True)
            log.info("Job %s: %s", place, job)
        try:
            validation = _run(job, train, is_one_of_many=eta.total != 1) if _is_to_run(job, verify) else None
            eta.ended()
            return validation
        except Refused as refusal:
            # The ranks of a distributed job would lose count.
            if not job.is_new_cell and (not others_go_on or configuration.make(job.config.engine).spans_processes):
                raise
            fault = str(refusal)
        except Exception as error:
            if not (others_go_on or job.is_new_cell):
                raise
            fault = f"{type(error).__name__}: {error}"
            traceback.print_exc()
        failures[job.run_dir] = f"{job}: {fault}"
        return None


def _is_to_run(job: Job, verify: Callable[[], None] | None) -> bool:
    """Check a job whose turn has come; tell whether this process runs it, and does not serve another one that does."""
    with _refusing():
        if verify is not None:
            verify()
        if job.is_new_cell:
            check_alone(job.config)
            configuration.check_links(job.run_dir)
            if job.config.resume is not None:
                configuration.check_resume(job.config, job.run_dir)
            check(job.config, job.run_dir)
        elif not configuration.is_cell(job.config):
            if serve(job.config):  # where Hydra's launcher started several processes
                return False
            if verify is not None:
                configuration.check_new(job.run_dir)
    return True


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    """Say in one sentence what of a job is wrong."""
    try:
        yield
    except (FedFacetError, ValueError, TypeError) as error:
        log.info("Refused: %s", error)
        refuse(error)


def _run(job: Job, train: Callable[[Job], None], *, is_one_of_many: bool) -> float | None:
    """Run one job and print what came out, of one of many on a single line: they have a table in the end."""
    from fedfacet.build import load_data
    from fedfacet.runs.console import print_results, results_line

    is_sole = contextlib.nullcontext(True) if configuration.is_cell(job.config) else sole(job.run_dir / "train.log")
    with is_sole as alone, ending_in_a_sentence(job):
        if not alone:
            refuse(ConfigError(f"Expected a run that nobody works at, but another process is at {job.run_dir}: wait for it."))
        train(job)
        if (summary := summary_of(job.run_dir)) is None:  # the callback that writes it was left out
            print(f"run folder  {job.run_dir}")
            print("It has no summary: `callbacks=NAME` replaces the usual ones, `callbacks=[default,NAME]` adds to them.")
            return None
        if is_one_of_many:
            print(fitted(f"{job.run_dir} is finished, {results_line(summary)}"), flush=True)
        else:
            print_results(summary, load_data(job.config), job.run_dir)
        return _validation_of(summary)


def _validation_of(summary: Mapping[str, Any] | None) -> float | None:
    """Return the validation worst-group accuracy of a finished run's last round, for sweepers."""
    final: Mapping[str, Any] = (summary or {}).get("final") or {}
    value: Any = final.get("val/acc_worst_group")
    if value is None and "val/acc_worst_group" in final:
        return math.nan
    return float(value) if isinstance(value, float) or is_whole(value) else None


def serve(config: DictConfig) -> bool:
    """Run clients for rank 0, if this is another rank of ``engine=distributed``; tell whether it was.

    Such a process takes its configuration from rank 0, so that nothing is decided twice, and leaves nothing on the disk.

    Raises:
        ConfigError: as ``check_started``.
    """
    from fedfacet.build import build, load_data, settle

    check_started(config)
    engine = make(config.engine)
    if engine.rank == 0:
        return False
    settings = OmegaConf.create(engine.share())
    settle(settings)
    data = engine.one_copy(functools.partial(load_data, settings))
    build(settings, Path(settings.paths.output_dir), data).engine.serve()
    return True


def check_started(config: DictConfig) -> None:
    """Refuse to run an engine of one process where torchrun started several.

    Raises:
        ConfigError: naming the engine.
    """
    engine = make(config.engine)
    if (started := num_started()) > 1 and not engine.spans_processes:
        raise ConfigError(
            f"Expected engine=distributed where torchrun starts {started} processes, but got {engine.name}: add it, or start "
            "the script with python."
        )


def check_alone(config: DictConfig) -> None:
    """Refuse to have several processes run the cells of a sweep together, which could not agree on what is left to do."""
    processes = num_started()
    if make(config.engine).spans_processes:
        from fedfacet.parallel.place import find_place

        processes = find_place().num_ranks
    if processes > 1:
        raise ConfigError(
            f"Expected a process per cell of a sweep, but {processes} were started together: give the same command in as many "
            "processes as there is room for, with another engine than distributed."
        )
