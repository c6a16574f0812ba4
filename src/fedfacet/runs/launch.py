"""The loop over the jobs of a command line, as Hydra's own launcher has it, but of one composition each."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.core.utils import JobReturn, configure_log, run_job
from hydra.experimental.callback import Callback
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig, OmegaConf

from fedfacet.config.command_line import options_of
from fedfacet.config.composition import composed, initialized
from fedfacet.config.sweeping import Sweep, is_cell
from fedfacet.entry import tell_error
from fedfacet.errors import ConfigError
from fedfacet.runs.stock import failures


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
    ended: list[JobReturn] = []
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
                tell_error(error)
                failures[Path(f"job {number + 1}")] = f"{' '.join(sweep.overrides_of(number) if sweep else given)}: {error}"
                continue
            if config.hydra.callbacks:
                break
            folder, inside = ("hydra.sweep.dir", "hydra.sweep.subdir") if sweep else ("hydra.run.dir", None)
            context = HydraContext(loader, callbacks=Callback())  # type: ignore[arg-type]
            ended.append(run_job(task, config, folder, inside, context))
            configure_log(config.hydra.hydra_logging, config.hydra.verbose)  # what is logged from here on is not the job's
        else:
            for one in ended:
                _ = one.return_value  # raises what the job has raised
            return None
    return otherwise()
