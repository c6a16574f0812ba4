"""Any logger of Lightning: TensorBoard, MLflow, Comet and others."""

import inspect
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch import loggers
from lightning_utilities.core.rank_zero import rank_zero_only

from fedfacet.callbacks.base import Callback
from fedfacet.errors import CheckpointError, ConfigError, FedFacetError, first_line
from fedfacet.federation import Federation
from fedfacet.optional import required
from fedfacet.records import RoundResult
from fedfacet.storage.run_files import json_of

_STATUS = {"finished": "success", "interrupted": "aborted", "failed": "failed"}


def checked_id(saved: object) -> str | None:
    """Return what a checkpoint says is the id of a service's run; it becomes a part of addresses and of places on the disk.

    Raises:
        CheckpointError: if it is no word.
    """
    if saved is None:
        return None
    if not isinstance(saved, str) or not re.fullmatch(r"[A-Za-z0-9_-]{1,128}", saved):
        raise CheckpointError(
            f"Expected the checkpoint to name a logged run by a word, but got {ascii(saved)[:100]}: leave the logger out."
        )
    return saved


class LoggerAdapter(Callback):
    """Passes the numbers of the csv files to a logger of Lightning, with the round as the step; a subclass opens it."""

    _logger: Any = None
    """Of ``lightning.pytorch.loggers``."""

    def __init__(self) -> None:
        # Variables of a launcher, such as SLURM_PROCID of an array of jobs, make loggers silent in all processes but its first;
        # of a federation only the first process makes one.
        rank_zero_only.rank = 0  # type: ignore[attr-defined]

    def close(self, logger: Any, federation: Federation, status: str) -> None:
        """Log what is known at the end of a run, and close the logger."""

    def numbers(self, result: RoundResult) -> dict[str, float]:
        """Return what is logged of a round."""
        return {**result.metrics, **{f"system/seconds_{phase}": value for phase, value in result.seconds.items()}}

    def on_round_end(self, federation: Federation, result: RoundResult) -> None:
        """Log the round's numbers; NaN, which not every service takes, is left out."""
        assert self._logger is not None
        numbers = {name: value for name, value in self.numbers(result).items() if not math.isnan(value)}
        self._logger.log_metrics(numbers, step=result.round)

    def on_fit_end(self, federation: Federation, status: str) -> None:
        """Close the logger, whatever happened, so that the next job of a sweep gets its own."""
        if self._logger is not None:
            self.close(self._logger, federation, status)
            self._logger = None


class TensorBoardLog(LoggerAdapter):
    """The same numbers as the csv files, with the round as the step, and the run's pictures, in ``tensorboard/`` of its folder.

    Raises:
        ConfigError: if the package ``tensorboard`` is not installed.
    """

    def __init__(self, *, run_dir: Path) -> None:
        required("tensorboard", extra="tensorboard", wanted_by="logger=tensorboard")
        super().__init__()
        self.run_dir = run_dir

    def on_fit_start(self, federation: Federation) -> None:
        """Open the event file; TensorBoard drops the events after a resumed run's checkpoint."""
        after = federation.state.round + 1
        self._logger = loggers.TensorBoardLogger(self.run_dir, name="", version="tensorboard", purge_step=after)

    def numbers(self, result: RoundResult) -> dict[str, float]:
        """Return the metrics."""
        return dict(result.metrics)

    def close(self, logger: Any, federation: Federation, status: str) -> None:
        """Add the pictures that other callbacks have drawn, and close the event file."""
        from PIL import Image

        writer = logger.experiment  # ``finalize`` would write hyperparameters beside the file
        for path in sorted(self.run_dir.glob("*.png")):
            with Image.open(path, formats=("PNG",)) as picture:
                pixels = np.asarray(picture.convert("RGB"))
            writer.add_image(path.stem, pixels, federation.state.round, dataformats="HWC")
        writer.close()


class LightningLog(LoggerAdapter):
    """The same numbers as the csv files through a logger of ``lightning.pytorch.loggers``, with the round as the step.

    The run's configuration becomes its hyperparameters, and the best round's numbers are told with the last one's, as
    ``best/<metric>``. A logger that takes a ``run_id``, as MLflow's does, goes on with its run when the run is resumed; others
    begin another version. Its package is installed by the user.

    Args:
        run_dir: the run folder; the logger's ``save_dir``, if it has one and ``arguments`` give no other.
        run_config: the resolved configuration.
        logger: the name of the class, such as ``MLFlowLogger`` or ``CometLogger``.
        arguments: of that class.

    Raises:
        ConfigError: if there is no such class, if its package is missing, or if it refuses the arguments.
    """

    def __init__(
        self,
        *,
        run_dir: Path,
        run_config: Mapping[str, Any],
        logger: str = "CSVLogger",
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        known = sorted(name for name in loggers.__all__ if name != "Logger")
        if logger not in known:
            raise ConfigError(f"Expected the logger to be one of {', '.join(known)}, but got {logger!r}: choose one of them.")
        self._make = getattr(loggers, logger)
        self._takes = inspect.signature(self._make).parameters
        usual = {"save_dir": str(run_dir)} if "save_dir" in self._takes else {}
        self._arguments = {**usual, **(arguments or {})}
        self._run_config = dict(run_config)
        self._summary = run_dir / "summary.json"
        self._run_id: str | None = None
        super().__init__()
        try:
            self._logger = self._make(**self._arguments)  # which writes nothing yet
        except ImportError as error:
            raise ConfigError(
                f"Expected the package of {logger}, but it is not installed ({first_line(error)}): install it, or choose "
                "another logger."
            ) from None
        except (TypeError, ValueError) as error:
            raise ConfigError(f"Expected arguments that {logger} takes, but got {first_line(error)}: fix them.") from None

    def on_fit_start(self, federation: Federation) -> None:
        """Open the logger, and say with what the run was started."""
        if self._run_id and "run_id" in self._takes:  # which has its hyperparameters, and lets nobody change them
            self._logger = self._make(**{**self._arguments, "run_id": self._run_id})
            return
        assert self._logger is not None
        try:
            self._logger.log_hyperparams(self._run_config)
        except Exception as error:  # each service has errors of its own
            raise FedFacetError(
                f"Expected {self._make.__name__} to open a run, but it says: {first_line(error)} Mend its arguments, or leave "
                "the logger out."
            ) from None
        self._run_id = getattr(self._logger, "run_id", None)

    def close(self, logger: Any, federation: Federation, status: str) -> None:
        """Log what the best round's numbers are, and close the logger."""
        if status == "finished" and self._summary.exists():
            best = json_of(self._summary)["best"] or {}
            numbers = {f"best/{name}": value for name, value in best.items() if value is not None}
            logger.log_metrics(numbers, step=federation.state.round)
        logger.save()
        logger.finalize(_STATUS[status])

    def state_dict(self) -> dict[str, Any]:
        """Return the run's id."""
        return {"run_id": self._run_id}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up the run's id."""
        self._run_id = checked_id(state_dict.get("run_id"))
