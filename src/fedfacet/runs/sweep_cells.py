"""The cells of a sweep one after the other, as Hydra's own sweeper and launcher run them, which compose each twice anew."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.core.utils import configure_log, run_job
from hydra.experimental.callback import Callback
from hydra.types import HydraContext
from omegaconf import DictConfig

from fedfacet.config import conf_dir
from fedfacet.config.composition import initialized
from fedfacet.config.sweeping import Sweep
from fedfacet.entry import tell_error
from fedfacet.errors import ConfigError
from fedfacet.runs.stock import failures


def run_cells(cells: Sweep, task: Callable[[DictConfig], Any]) -> None:
    """Have ``task`` run each cell; one whose overrides do not go together is noted among the failures.

    Args:
        cells: for which ``goes_one_by_one`` is true.
        task: as ``hydra.main`` would call it, in the cell's folder and with its log.
    """
    with initialized(str(conf_dir())):
        context = HydraContext(GlobalHydra.instance().config_loader(), callbacks=Callback())  # type: ignore[arg-type]
        for number in range(len(cells)):
            try:
                config = cells.composed(number)
            except ConfigError as error:
                tell_error(error)
                failures[Path(f"job {number + 1}")] = f"{' '.join(cells.overrides_of(number))}: {error}"
                continue
            ended = run_job(task, config, "hydra.sweep.dir", "hydra.sweep.subdir", context)
            configure_log(config.hydra.hydra_logging, config.hydra.verbose)  # what is logged from here on is not the cell's
            _ = ended.return_value  # raises what the task has raised
