"""Jobs as Hydra's own launcher runs them, of one composition each; Hydra composes a run three times, and a cell twice, anew."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.core.utils import configure_log, run_job
from hydra.experimental.callback import Callback
from hydra.types import HydraContext
from omegaconf import DictConfig

from fedfacet.config.composition import composed, initialized
from fedfacet.config.sweeping import Sweep
from fedfacet.entry import tell_error
from fedfacet.errors import ConfigError
from fedfacet.runs.stock import failures


def run_single(overrides: Sequence[str], task: Callable[[DictConfig], Any], otherwise: Callable[[], None]) -> None:
    """Have ``task`` run one job.

    Args:
        overrides: of a command line that was checked.
        task: as ``hydra.main`` would call it, in the run's folder and with its log.
        otherwise: what is to be done where there are callbacks of Hydra's.
    """
    with initialized():
        config = composed("train", [*overrides, "hydra.mode=RUN"])
        if not config.hydra.callbacks:
            _ = run_job(task, config, "hydra.run.dir", None, _context()).return_value  # raises what the task has raised
            return
    otherwise()


def run_cells(cells: Sweep, task: Callable[[DictConfig], Any]) -> None:
    """Have ``task`` run each cell; one whose overrides do not go together is noted among the failures.

    Args:
        cells: for which ``goes_one_by_one`` is true.
        task: as for ``run_single``.
    """
    with initialized():
        for number in range(len(cells)):
            try:
                config = cells.composed(number)
            except ConfigError as error:
                tell_error(error)
                failures[Path(f"job {number + 1}")] = f"{' '.join(cells.overrides_of(number))}: {error}"
                continue
            ended = run_job(task, config, "hydra.sweep.dir", "hydra.sweep.subdir", _context())
            configure_log(config.hydra.hydra_logging, config.hydra.verbose)  # what is logged from here on is not the cell's
            _ = ended.return_value


def _context() -> HydraContext:
    return HydraContext(GlobalHydra.instance().config_loader(), callbacks=Callback())  # type: ignore[arg-type]
