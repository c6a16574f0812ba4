"""TensorBoard."""

import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedfacet.callbacks.base import Callback
from fedfacet.federation import Federation
from fedfacet.optional import required
from fedfacet.types import RoundResult

if TYPE_CHECKING:
    pass


class TensorBoardLog(Callback):
    """The same numbers as the csv files, with the round as the step, and the run's pictures, in ``tensorboard/`` of its folder.

    Raises:
        ConfigError: if the package ``tensorboard`` is not installed.
    """

    def __init__(self, *, run_dir: Path) -> None:
        required("tensorboard", extra="tensorboard", wanted_by="logger=tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        self.run_dir = run_dir
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
        """Add the pictures that other callbacks have drawn, and close the event file."""
        if self._writer is None:
            return
        from PIL import Image

        for path in sorted(self.run_dir.glob("*.png")):
            with Image.open(path, formats=("PNG",)) as picture:
                pixels = np.asarray(picture.convert("RGB"))
            self._writer.add_image(path.stem, pixels, federation.state.round, dataformats="HWC")
        self._writer.close()
