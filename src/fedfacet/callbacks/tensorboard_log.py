"""TensorBoard."""

import math
from functools import partial
from pathlib import Path

from fedfacet.callbacks.base import Callback
from fedfacet.errors import ConfigError
from fedfacet.federation import Federation
from fedfacet.types import RoundResult


class TensorBoardLog(Callback):
    """The same numbers as the csv files, with the round as the step, in ``tensorboard/`` of the run folder.

    Raises:
        ConfigError: if the package ``tensorboard`` is not installed.
    """

    def __init__(self, *, run_dir: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ConfigError(
                "Expected the package tensorboard for `logger=tensorboard`, but it is not installed: run "
                "`pip install tensorboard`, or leave the logger out; `metrics.csv` holds the same numbers."
            ) from None
        self._open = partial(SummaryWriter, str(run_dir / "tensorboard"))
        self._writer: SummaryWriter | None = None

    def on_fit_start(self, federation: Federation) -> None:
        """Open the event file; TensorBoard drops the events after a resumed run's checkpoint."""
        self._writer = self._open(purge_step=federation.state.round + 1)

    def on_round_end(self, federation: Federation, result: RoundResult) -> None:
        """Write the round's numbers."""
        assert self._writer is not None
        for name, value in result.metrics.items():
            if not math.isnan(value):
                self._writer.add_scalar(name, value, result.round)

    def on_fit_end(self, federation: Federation, status: str) -> None:
        """Close the event file."""
        if self._writer is not None:
            self._writer.close()
