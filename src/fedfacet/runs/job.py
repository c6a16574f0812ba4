"""One job of a command line."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig

from fedfacet.config import is_cell


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """What is to be run, and where.

    Attributes:
        config: finalised; ``resume`` names the run folder where the run is to go on.
        run_dir: the run folder.
        overrides: from which a resume composes the configuration again.
    """

    config: DictConfig
    run_dir: Path
    overrides: Sequence[str]

    @property
    def is_new_cell(self) -> bool:
        """Whether this is a cell of a sweep, and not one that ``resume`` names."""
        return is_cell(self.config) and self.config.resume is None

    @property
    def was_saved(self) -> bool:
        """Whether there is a checkpoint to go on from."""
        return any((self.run_dir / "checkpoints").glob("*.ckpt"))

    def __str__(self) -> str:
        """Return what was asked for, for a user."""
        return " ".join(override for override in self.overrides if not override.startswith("sweep="))
