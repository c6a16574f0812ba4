"""Stateless named random streams: every draw of a run has a name and a key (laws 1 and 2)."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def _entropy(seed: int, purpose: str, keys: tuple[int, ...]) -> bytes:
    if seed < 0:
        raise ValueError(f"Expected `seed` to be 0 or larger, but got {seed}.")
    # A digest of the whole key, because numpy's SeedSequence([1, 2]) and SeedSequence([1, 2, 0]) are the same stream.
    return hashlib.sha256(repr((int(seed), purpose, tuple(int(key) for key in keys))).encode()).digest()


def stream(seed: int, purpose: str, *keys: int) -> np.random.Generator:
    """Return the generator of one named draw.

    Args:
        seed: the run's (or partition's, or dataset's) seed, 0 or larger.
        purpose: what the numbers are for, for example ``"selection"``.
        keys: what tells this draw from its siblings, usually ``(round, client_id)``.

    Example:
        >>> from fedfacet.rng import stream
        >>> int(stream(0, "selection", 7).integers(1000)) == int(stream(0, "selection", 7).integers(1000))
        True
        >>> int(stream(0, "selection", 7).integers(10**9)) == int(stream(1, "selection", 7).integers(10**9))
        False
    """
    return np.random.default_rng(int.from_bytes(_entropy(seed, purpose, keys)[:16], "big"))


def torch_seed(seed: int, purpose: str, *keys: int) -> int:
    """Return the 63-bit seed under which torch draws what ``stream`` would draw with numpy."""
    return int.from_bytes(_entropy(seed, purpose, keys)[16:24], "big") >> 1


@contextmanager
def forked(seed: int, purpose: str, *keys: int, device: torch.device | None = None) -> Iterator[None]:
    """Seed torch's global generators inside the block and put them back as they were afterwards.

    For layers that draw from the global generator (dropout, stochastic depth, weight initialisation).

    Args:
        seed: as in ``stream``.
        purpose: as in ``stream``.
        keys: as in ``stream``.
        device: the accelerator whose generator is forked too; ``None`` or a CPU device forks the CPU generator alone.
    """
    devices = [device] if device is not None and device.type == "cuda" else []
    number = torch_seed(seed, purpose, *keys)
    with torch.random.fork_rng(devices=devices):
        # Not torch.manual_seed, which seeds the generators of all accelerators, also of those that are not put back.
        torch.default_generator.manual_seed(number)
        if devices:
            with torch.cuda.device(devices[0]):
                torch.cuda.manual_seed(number)
        yield
