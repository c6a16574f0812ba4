"""What clients keep for themselves, in a store of its own: a file per client and content, which is named by its sha256."""

import hashlib
import io
import re
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import torch

from fedfacet import state
from fedfacet.errors import CheckpointError, first_line
from fedfacet.storage.atomic_write import sync, write_synced
from fedfacet.storage.fitting import is_whole
from fedfacet.storage.run_files import bytes_of
from fedfacet.types import State

_MOST_BYTES = 1 << 36
_WRITERS = 16
_NAME = r"\d{6,18}_[0-9a-f]{64}\.pt"
_OURS = re.compile(rf"({_NAME}|index_[0-9a-f]{{64}}\.txt)(\.part)?")
"""What may be removed of a folder: nothing that somebody else has put there."""


class ClientMemory:
    """The memory of a run's clients, in ``clients/memory/`` of the run folder.

    A file holds the memory of one client and never changes: its name has the client's number and the sha256 of the content. An
    index, also named by its sha256, lists the files of all clients at one moment, so that a checkpoint need hold only that.

    Args:
        run_dir: the run folder.
    """

    def __init__(self, run_dir: Path) -> None:
        self.folder = run_dir / "clients" / "memory"
        self._packed: dict[int, tuple[State, str]] = {}

    def pack(self, memory: Mapping[int, State]) -> tuple[str, dict[str, bytes]]:
        """Return the index of the memory of all clients, and the files that are new since the last call.

        Args:
            memory: client -> what it keeps; a client whose memory is the very object of the last call has kept it unchanged.

        Returns:
            The sha256 of the index, empty where no client keeps anything; and the files by name, the index among them.
        """
        files = {}
        packed = {}
        for client_id, kept in memory.items():
            before, name = self._packed.get(client_id, (None, ""))
            if before is not kept:
                content = io.BytesIO()
                torch.save(state.clone(kept), content)  # a view would take all that it is a view of along
                name = f"{client_id:06d}_{_sha256(content.getbuffer())}.pt"
                files[name] = content.getvalue()
            packed[client_id] = kept, name
        self._packed = packed
        if not packed:
            return "", {}
        index = "".join(f"{name}\n" for _, name in packed.values()).encode()
        return _sha256(index), files | {_index_name(_sha256(index)): index}

    def write(self, files: Mapping[str, bytes]) -> None:
        """Write what ``pack`` returned; all of it is on the disk when this returns.

        Raises:
            FedFacetError: if the run folder is gone.
        """
        if not files:
            return
        if self.folder.parents[1].is_dir():
            self.folder.mkdir(parents=True, exist_ok=True)

        def write_one(name: str) -> None:
            file, content = self.folder / name, files[name]
            with suppress(OSError, ValueError):
                if bytes_of(file, _MOST_BYTES) == content:  # a resumed run packs all that it has read
                    return
            write_synced(file, [content])

        # Side by side: a disk that is waited for by several has them wait once. The index names the others, and comes last.
        *clients, index = files
        with ThreadPoolExecutor(_WRITERS, "memory") as pool:
            list(pool.map(write_one, clients))
        write_one(index)
        sync(self.folder)

    def read(self, index: str) -> dict[int, State]:
        """Return client -> memory.

        Args:
            index: as ``pack`` returned it.

        Raises:
            CheckpointError: naming the file that is missing or damaged, without a remedy.
        """
        return {int(name.partition("_")[0]): _unpacked(self.folder / name) for name in self._names(index)}

    def keep_only(self, indices: Iterable[str]) -> None:
        """Remove the files of the store that none of some indices lists."""
        if not self.folder.is_dir():
            return
        kept = set()
        for index in set(indices):
            with suppress(CheckpointError):  # without its index nobody can read the rest
                kept |= {_index_name(index), *self._names(index)}
        for file in list(self.folder.iterdir()):
            if file.name not in kept and _OURS.fullmatch(file.name):
                file.unlink(missing_ok=True)

    def _names(self, index: str) -> list[str]:
        if not index:
            return []
        file = self.folder / _index_name(index)
        names = _verified(file, index).decode(errors="replace").splitlines()
        if not all(re.fullmatch(_NAME, name) for name in names):
            raise CheckpointError(f"Expected {file} to list files of clients' memory, but it lists something else")
        return names


def _index_name(index: str) -> str:
    return f"index_{index}.txt"


def _sha256(content: bytes | memoryview) -> str:
    return hashlib.sha256(content).hexdigest()


def _verified(file: Path, sha256: str) -> bytes:
    """Return the content of a file of the store."""
    try:
        content = bytes_of(file, _MOST_BYTES)
    except FileNotFoundError:
        raise CheckpointError(f"Expected {file}, which holds clients' memory, but there is no such file") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"Expected {file} to be readable, but it is not ({first_line(error)})") from None
    if _sha256(content) != sha256:
        raise CheckpointError(f"Expected {file} to hold clients' memory as it was written, but it is damaged")
    return content


def _unpacked(file: Path) -> State:
    content = _verified(file, file.stem.partition("_")[2])
    try:
        kept = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:
        raise CheckpointError(
            f"Expected {file} to hold the memory of a client, but it cannot be read ({type(error).__name__})"
        ) from None
    if not isinstance(kept, dict) or not all(isinstance(key, str) and is_whole(tensor) for key, tensor in kept.items()):
        raise CheckpointError(f"Expected {file} to hold named tensors, but it holds something else")
    return kept
