"""Memory that several processes of one machine see, without the limits and leftovers of /dev/shm, and messages through it."""

import contextlib
import io
import os
import pickle
import tempfile
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedfacet.parallel import wire
from fedfacet.types import State

_SHARED_FROM = 1 << 16  # bytes; smaller arrays are copied


class SharedBytes:
    """``size`` bytes that live as long as a process holds them; pickling hands over the address, not the contents.

    On Linux they are an anonymous file that belongs to its process: it takes memory only as it is written, needs no room in
    /dev/shm (64 MB in many containers) and is gone with its last holder, however that ends. Elsewhere it is a temporary file;
    Windows keeps it where another process still sees it when its owner lets go.
    """

    def __init__(self, size: int) -> None:
        if hasattr(os, "memfd_create"):
            self._descriptor = os.memfd_create("fedfacet")
            self.path = f"/proc/{os.getpid()}/fd/{self._descriptor}"
        else:
            self._descriptor, self.path = tempfile.mkstemp(prefix="fedfacet-")
        self._owner = True
        os.ftruncate(self._descriptor, size)
        self._open(size)

    def _open(self, size: int) -> None:
        self.tensor = torch.from_file(self.path, shared=True, size=size, dtype=torch.uint8)
        """Its bytes, uint8 of shape (size,)."""

    def __getstate__(self) -> tuple[str, int]:
        return self.path, len(self.tensor)

    def __setstate__(self, address: tuple[str, int]) -> None:
        self.path, size = address
        self._owner = False
        try:
            self._open(size)
        except RuntimeError as error:  # torch's, where there is no such file
            raise OSError(f"Expected the memory {self.path} to be there, but its process is gone.") from error

    def __del__(self) -> None:
        if getattr(self, "_owner", False):
            os.close(self._descriptor)
            if not self.path.startswith("/proc/"):
                del self.tensor
                with contextlib.suppress(PermissionError):  # on Windows, where others see it
                    Path(self.path).unlink(missing_ok=True)


def dumps(obj: Any) -> tuple[bytes, list[SharedBytes]]:
    """Pickle an object whose tensors and larger arrays are to be shared instead of copied.

    The tensors move into shared memory in place, so that there is one copy; numpy arrays, which cannot move, are copied there
    once. Whoever unpickles sees the same memory, and what one process writes. Hold the returned memory until all have read the
    pickle.
    """
    buffer = io.BytesIO()
    pickler = _Pickler(buffer)
    pickler.dump(obj)
    return buffer.getvalue(), pickler.held


class _Pickler(pickle.Pickler):
    def __init__(self, buffer: io.BytesIO) -> None:
        super().__init__(buffer, protocol=pickle.HIGHEST_PROTOCOL)
        self.held: list[SharedBytes] = []

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is Tensor and obj.device.type == "cpu" and obj.nbytes >= _SHARED_FROM and _is_dense(obj):
            shared = self._allocate(obj.numel() * obj.element_size())
            target = _tensor(shared, obj.dtype, tuple(obj.shape), obj.stride())
            target.copy_(obj)
            obj.set_(target)  # type: ignore[call-overload]
            return _tensor, (shared, obj.dtype, tuple(obj.shape), obj.stride())
        if type(obj) is np.ndarray and obj.nbytes >= _SHARED_FROM and obj.dtype.kind in "biuf":
            shared = self._allocate(obj.nbytes)
            _array(shared, obj.dtype.str, obj.shape)[...] = obj
            return _array, (shared, obj.dtype.str, obj.shape)
        return NotImplemented

    def _allocate(self, size: int) -> SharedBytes:
        self.held.append(SharedBytes(size))
        return self.held[-1]


def _is_dense(tensor: Tensor) -> bool:
    channels_last = tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    return channels_last or tensor.is_contiguous()


def _tensor(shared: SharedBytes, dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...]) -> Tensor:
    return shared.tensor.view(dtype).as_strided(shape, stride)


def _array(shared: SharedBytes, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    return shared.tensor.numpy().view(dtype).reshape(shape)


class Channel:
    """One end of a duplex pipe.

    The ends take turns: what ``receive`` returns lies in the sender's memory, and its next ``send`` overwrites it. Most
    messages have the same tensors as the one before, so what lies where is sent and looked up only where it has changed.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._manifest: wire.Manifest | None = None
        self._outgoing: SharedBytes | None = None
        self._targets: list[State] = []
        self._incoming: SharedBytes | None = None
        self._sources: list[State] = []

    def send(self, message: Any, bundles: Sequence[State] = ()) -> None:
        """Send a message that can be pickled, and bundles of tensors on the CPU."""
        manifest, outgoing = wire.manifest_of(bundles), self._outgoing
        news: tuple[wire.Manifest, SharedBytes | None] | None = None
        if manifest != self._manifest:
            moved = None
            if manifest.num_bytes and (outgoing is None or len(outgoing.tensor) < manifest.num_bytes):
                outgoing = moved = SharedBytes(manifest.num_bytes)
            news = manifest, moved
        packed = pickle.dumps((message, news), protocol=pickle.HIGHEST_PROTOCOL)
        if news is not None:  # only now, as a message that cannot be packed is news to nobody
            self._manifest, self._outgoing = manifest, outgoing
            self._targets = wire.read(manifest, _bytes_of(outgoing))
        for bundle, targets in zip(bundles, self._targets, strict=True):
            if targets:
                torch._foreach_copy_(list(targets.values()), list(bundle.values()))
        self.connection.send_bytes(packed)

    def receive(self) -> tuple[Any, list[State]]:
        """Return a message and its bundles; ``EOFError`` or ``OSError`` says that the other end is gone."""
        message, news = pickle.loads(self.connection.recv_bytes())
        if news is not None:
            manifest, moved = news
            if moved is not None:
                self._incoming = moved
            self._sources = wire.read(manifest, _bytes_of(self._incoming))
        return message, [{name: tensor.detach() for name, tensor in bundle.items()} for bundle in self._sources]


def _bytes_of(memory: SharedBytes | None) -> torch.Tensor:
    return memory.tensor if memory is not None else torch.empty(0, dtype=torch.uint8)
