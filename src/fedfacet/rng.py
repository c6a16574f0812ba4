"""Stateless named random streams: every draw of a run has a name and a key (laws 1 and 2)."""

import contextlib
import hashlib
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

Update = TypeVar("Update")

_CPU = torch.device("cpu")


def _entropy(seed: int, purpose: str, keys: tuple[int, ...]) -> bytes:
    if seed < 0:
        raise ValueError(f"Expected `seed` to be 0 or larger, but got {seed}.")
    # A digest of the whole key, because numpy's SeedSequence([1, 2]) and SeedSequence([1, 2, 0]) are the same stream.
    return hashlib.sha256(repr((int(seed), purpose, tuple(map(int, keys)))).encode()).digest()


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
    """
    return np.random.default_rng(int.from_bytes(_entropy(seed, purpose, keys)[:16], "big"))


def draw(
    generator: np.random.Generator, numbers: Sequence[int], size: int, log_weights: NDArray[np.float64] | None = None
) -> list[int]:
    """Return ``size`` of some numbers, drawn without replacement: uniformly, or each next one in proportion to its weight.

    Args:
        generator: of the draw.
        numbers: to draw from, for example clients.
        size: at most as many as there are numbers.
        log_weights: logarithms of the weights, indexed by the numbers themselves; ``None`` for all alike.
    """
    if log_weights is None:
        return [int(numbers[place]) for place in generator.choice(len(numbers), size=size, replace=False).tolist()]
    # The largest of log w plus Gumbel noise are such draws, also where weights are too small for a float.
    luck = log_weights[list(numbers)] + generator.gumbel(size=len(numbers))
    return [numbers[position] for position in np.argsort(-luck)[:size].tolist()]


def torch_seed(seed: int, purpose: str, *keys: int) -> int:
    """Return the 63-bit seed under which torch draws what ``stream`` would draw with numpy."""
    return int.from_bytes(_entropy(seed, purpose, keys)[16:24], "big") >> 1


@contextlib.contextmanager
def kept(device: torch.device = _CPU, *, others: bool = False) -> Iterator[None]:
    """Put torch's global generators back as they were, after a block; with ``others`` also numpy's and Python's.

    Copying states takes as long as a part of a small client's training, so the block is a round's, not a client's.
    """
    before = get_states(device, others=others)
    try:
        yield
    finally:
        set_states(before, device, others=others)


def seed_all(number: int, device: torch.device = _CPU, *, others: bool = False) -> None:
    """Seed by ``torch_seed`` all generators that ``kept`` puts back; to be used inside it."""
    if others:
        np.random.seed(number % 2**32)  # noqa: NPY002
        random.seed(number)
    # Not torch.manual_seed, which seeds the generators of all accelerators, also of those that are not put back.
    torch.default_generator.manual_seed(number)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(number)


@contextlib.contextmanager
def forked(seed: int, purpose: str, *keys: int, device: torch.device | None = None, others: bool = False) -> Iterator[None]:
    """Seed global generators inside a ``with`` block and put them back as they were afterwards.

    For layers that draw from the global generator (dropout, stochastic depth, weight initialisation).

    Args:
        seed: as in ``stream``.
        purpose: as in ``stream``.
        keys: as in ``stream``.
        device: the accelerator whose generator is forked too; ``None`` or a CPU device forks the CPU's alone.
        others: whether numpy's and Python's global generators are seeded too, for a user's own parts, which may draw from
            them, as mixup often does.
    """
    with kept(device or _CPU, others=others):
        seed_all(torch_seed(seed, purpose, *keys), device or _CPU, others=others)
        yield


def drawn_below(number: int, device: torch.device) -> int:
    """Return a number in 0 .. ``number`` - 1, drawn as layers such as dropout do; to be used inside ``forked``."""
    return int(torch.randint(number, (), device=device))


def get_states(device: torch.device, *, others: bool = False) -> list[torch.Tensor]:
    """Return the states of torch's generators, of the CPU and ``device``; ``others`` adds numpy's and Python's in one."""
    states = [torch.default_generator.get_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]
    return [*states, get_other_states()] if others else states


def set_states(states: list[torch.Tensor], device: torch.device, *, others: bool = False) -> None:
    """Put back what ``get_states`` returned; to be used inside ``forked``."""
    torch.default_generator.set_state(states[0].clone())  # torch reads from the start of the memory that a view lies in
    if device.type == "cuda":
        torch.cuda.set_rng_state(states[1], device)
    if others:
        set_other_states(states[-1])


def apart(updates: Iterable[Update], device: torch.device, *, others: bool) -> Iterator[Update]:
    """Yield updates; whoever takes them draws from the global generators as if no client had trained in between."""
    waiting = iter(updates)
    while True:
        with kept(device, others=others):
            try:
                update = next(waiting)
            except StopIteration:
                return
        yield update
        del update  # or it would be held while the next is waited for


def get_other_states() -> torch.Tensor:
    """Return the states of numpy's and Python's global generators as numbers, which another process can take up."""
    numpys, (_, pythons, waiting) = np.random.get_state(legacy=False), random.getstate()  # noqa: NPY002
    ends = [numpys["state"]["pos"], numpys["has_gauss"], numpys["gauss"], waiting is not None, waiting or 0.0]
    return torch.from_numpy(np.concatenate([numpys["state"]["key"], pythons, ends]).astype(np.float64))  # 32 bits each fit


def set_other_states(states: torch.Tensor) -> None:
    """Put back what ``get_other_states`` returned; to be used inside ``forked``."""
    numbers = states.numpy()
    pos, has_gauss, gauss, waits, waiting = numbers[-5:].tolist()
    key, pythons = numbers[:-5][:624].astype(np.uint32), numbers[:-5][624:].astype(np.int64).tolist()
    np.random.set_state(("MT19937", key, int(pos), int(has_gauss), gauss))  # noqa: NPY002
    random.setstate((3, tuple(pythons), waiting if waits else None))
