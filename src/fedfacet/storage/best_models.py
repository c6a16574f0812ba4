"""The best model while a run lasts: ``checkpoints/best_<round>.safetensors``, to which checkpoints refer by round."""

import re
from collections.abc import Set
from pathlib import Path

from safetensors.torch import save

from fedfacet.storage.atomic_write import sync, write_synced
from fedfacet.types import State

_OURS = re.compile(r"best_(\d{6,18})\.safetensors")


def path_of(run_dir: Path, round: int) -> Path:
    """Return where the model of a round is, if that round was the best one so far."""
    return run_dir / "checkpoints" / f"best_{round:06d}.safetensors"


def write(run_dir: Path, round: int, model: State) -> None:
    """Write the model of a round to the disk.

    Raises:
        FedFacetError: if the run folder is gone.
    """
    path = path_of(run_dir, round)
    if run_dir.is_dir():
        path.parent.mkdir(exist_ok=True)
    write_synced(path, [save({name: tensor.contiguous() for name, tensor in model.items()})])
    sync(path.parent)


def keep_only(run_dir: Path, rounds: Set[int], until: int) -> None:
    """Remove the models of other rounds, up to a round."""
    for file in list((run_dir / "checkpoints").glob("best_*.safetensors")):
        if (ours := _OURS.fullmatch(file.name)) and int(ours[1]) <= until and int(ours[1]) not in rounds:
            file.unlink(missing_ok=True)
