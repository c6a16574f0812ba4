"""Save and load the federation's state: one file, written whole or not at all, loadable with ``weights_only=True``."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from fedfacet.errors import CheckpointError
from fedfacet.types import FederationState

_FORMAT = 1


def save(path: Path, state: FederationState, config: Mapping[str, Any]) -> None:
    """Write a checkpoint; a reader sees the old file or the new one, whenever the process dies.

    Args:
        path: of the file; its folder is made where missing.
        state: tensors and plain data only.
        config: the resolved configuration that the state belongs to, plain JSON-able data.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".part")
    # Not asdict() on the whole, which would copy every tensor.
    fields = {name: getattr(state, name) for name in FederationState.__dataclass_fields__}
    try:
        with open(unfinished, "wb") as file:
            torch.save({"format": _FORMAT, "config": json.dumps(config), "state": fields}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)  # there only if the disk is full or the process is stopped


def load(path: Path) -> tuple[FederationState, dict[str, Any]]:
    """Read a checkpoint.

    Returns:
        The state and the configuration it belongs to.

    Raises:
        CheckpointError: if the file is missing, truncated or of another format.
    """
    if not path.is_file():
        raise CheckpointError(
            f"Expected a checkpoint at {path}, but there is none: check `resume`, or remove the folder and start again."
        )
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise CheckpointError(
            f"Expected {path} to be a whole checkpoint, but it cannot be read ({type(error).__name__}): it is truncated or not "
            "a checkpoint; start the run anew."
        ) from None
    if not isinstance(saved, dict) or saved.get("format") != _FORMAT:
        raise CheckpointError(
            f"Expected {path} to be a FedFacet checkpoint of format {_FORMAT}, but it is something else: start the run anew."
        )
    return FederationState(**saved["state"]), json.loads(saved["config"])
