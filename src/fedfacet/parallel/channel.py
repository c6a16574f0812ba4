"""Two processes that talk: small messages through a pipe, tensors through memory that both see."""

import pickle
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch

from fedfacet.parallel import wire
from fedfacet.parallel.shared_memory import SharedBytes
from fedfacet.types import State


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
