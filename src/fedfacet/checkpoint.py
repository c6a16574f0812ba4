"""Save and load the federation's state: one file, written whole or not at all, loadable with ``weights_only=True``."""

import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from fedfacet.errors import CheckpointError
from fedfacet.types import FederationState
from fedfacet.whole_file import written_whole

_FORMAT = 1


def dumps(state: FederationState, config: Mapping[str, Any]) -> memoryview:
    """Return a checkpoint as bytes, in which nothing that happens to the state afterwards shows.

    Args:
        state: tensors and plain data only.
        config: the resolved configuration that the state belongs to, plain JSON-able data.
    """
    # Not asdict() on the whole, which would copy every tensor.
    fields = {name: getattr(state, name) for name in FederationState.__dataclass_fields__}
    content = io.BytesIO()
    torch.save({"format": _FORMAT, "config": json.dumps(config), "state": fields}, content)
    return content.getbuffer()


def write(path: Path, content: memoryview) -> None:
    """Write a file; a reader sees the old one or the new one, whenever the process dies.

    Args:
        path: of the file; its folder is made where missing.
        content: of the file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(path) as unfinished, open(unfinished, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def save(path: Path, state: FederationState, config: Mapping[str, Any]) -> None:
    """Write a checkpoint; see ``dumps`` and ``write``."""
    write(path, dumps(state, config))


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
