"""A model cut into the parts that clients hold, and what comes back put together."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedfacet import rng
from fedfacet.submodels.base import Channels, Holder, Submodel, kept
from fedfacet.types import ChannelPlan, ClientUpdate, ServerState, State

Entries = Mapping[str, tuple[Tensor, ...] | tuple[slice, ...]]
"""Tensor -> the positions along each of its axes that a client holds, shaped so that they index the whole tensor.

Slices where they are ranges on every axis: copying these takes a fraction of the time.
"""

Key = tuple[bytes, ...]
"""By which equal parts are known."""


class Rates(Protocol):
    """What of a capacity matters here."""

    levels: tuple[float, ...]
    every_round: bool

    def rates(self, num_samples_K: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.float64]:
        """Return every client's rate."""


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """Which entries of the model each client holds in a round; which these are stays with the server.

    Deviation: the thesis' released code sets entries that nobody held to 0. Here they keep their value, as in HeteroFL; in the
    thesis' own runs at least two clients hold everything, so that nothing there depends on it.

    Attributes:
        submodel: chooses channels.
        capacity: says how many.
        plan: of the model.
        num_samples_K: how many samples each client holds.
        seed: the run's.
    """

    submodel: Submodel
    capacity: Rates
    plan: ChannelPlan
    num_samples_K: NDArray[np.int64]
    seed: int
    _last: dict[str, Any] = field(default_factory=dict)  # of the last round and model: equal parts are one object

    @property
    def levels(self) -> tuple[float, ...]:
        """The rates below 1 that may occur."""
        return self.capacity.levels

    def sizes(self, rate: float) -> dict[str, int]:
        """Return how many channels of each group a client of some rate holds."""
        return {group: kept(rate, size) for group, size in self.plan.sizes.items()}

    def rates(self, round: int) -> NDArray[np.float64]:
        """Return the clients' rates in a round, shape (K,)."""
        drawn = round if self.capacity.every_round else 0
        if self._last.get("rates", (None,))[0] != drawn:
            generator = rng.stream(self.seed, "capacity", drawn)
            self._last["rates"] = drawn, self.capacity.rates(self.num_samples_K, generator)
        rates_K: NDArray[np.float64] = self._last["rates"][1]
        return rates_K

    def channels(self, client_id: int, round: int) -> Channels | None:
        """Return the channels that a client holds; ``None`` for all. A name that ends in `` in`` is of a group as input."""
        rates_K = self.rates(round)
        if rates_K[client_id] == 1:
            return None
        sizes = dict(self.plan.sizes)
        if not self.submodel.coupled:
            sizes |= {f"{group} in": size for group, size in self.plan.sizes.items()}
        return self.submodel.channels(Holder(client_id, round, self.seed, rates_K), sizes)

    def cut(self, model: State, client_id: int, round: int) -> State:
        """Return the part of a model that a client is sent."""
        key, entries = self._entries(client_id, round, model)
        if self._last.get("cut", (None,))[0] is not model:
            self._last["cut"] = model, {}
        cuts: dict[Key, State] = self._last["cut"][1]
        if key not in cuts:
            cuts[key] = {name: _part(tensor, entries.get(name)) for name, tensor in model.items()}
        return cuts[key]

    def aggregate(
        self,
        fold: Callable[[ServerState, State, Iterable[ClientUpdate]], tuple[ServerState, State]],
        round: int,
        server: ServerState,
        model: State,
        updates: Iterable[ClientUpdate],
    ) -> tuple[ServerState, State]:
        """Have an aggregator make the next model of updates of parts; entries that nobody held keep value and momentum.

        Args:
            fold: an aggregator's ``aggregate``, which averages each entry over its holders.
            round: number of the round.
            server: the aggregator's state.
            model: the whole model.
            updates: of parts, in cohort order.
        """
        covered: State = {}
        seen: set[Key] = set()

        def whole() -> Iterator[ClientUpdate]:
            last: Key | None = None  # whoever holds the same as the client before needs no new mask; all masks would be many
            mask: State = {}
            for update in updates:
                key, entries = self._entries(update.client_id, round, model)
                if key != last:
                    names = [*update.delta, *update.buffers]
                    last, mask = key, {name: _whole(torch.ones(()), model[name], entries.get(name)) for name in names}
                if key not in seen:
                    seen.add(key)
                    covered.update({n: mask[n].maximum(covered[n]) if n in covered else mask[n] for n in mask})
                delta, buffers = (
                    {name: _whole(part, model[name], entries.get(name)) for name, part in parts.items()}
                    for parts in (update.delta, update.buffers)
                )
                yield replace(update, delta=delta, buffers=buffers, mask=mask)

        next_server, next_model = fold(server, model, whole())
        if () in seen:  # whoever is whole has held every entry
            return next_server, next_model
        return only_where(covered, server, next_server), only_where(covered, model, next_model)

    def count(self, counts: State, model: State, client_id: int, round: int) -> None:
        """Add 1, in place, to the entries that a client holds; ``counts`` has zeros or counts like the model's tensors."""
        _, entries = self._entries(client_id, round, model)
        for name, tensor in counts.items():
            tensor[entries.get(name, ...)] += 1

    def _entries(self, client_id: int, round: int, model: State) -> tuple[Key, Entries]:
        """Return the entries that a client holds, none named for all, and a key that equal ones share."""
        if self._last.get("entries", (None,))[0] != round:
            self._last["entries"] = round, {}
        known: dict[Key, Entries] = self._last["entries"][1]
        channels = self.channels(client_id, round)
        if channels is None:
            return (), {}
        key = tuple(positions.tobytes() for positions in channels.values())
        if key not in known:
            known[key] = {name: _indices(model[name], axes, self.plan, channels) for name, axes in self.plan.axes.items()}
        return key, known[key]


def _indices(
    tensor: Tensor, axes: tuple[str | None, ...], plan: ChannelPlan, channels: Channels
) -> tuple[Tensor, ...] | tuple[slice, ...]:
    positions = []
    for axis, length in enumerate(tensor.shape):
        group = axes[axis] if axis < len(axes) else None
        along = torch.arange(length)
        if group is not None:
            kept = channels.get(f"{group} in", channels[group]) if axis else channels[group]
            along = along.view(plan.sizes[group], -1)[torch.from_numpy(kept)].reshape(-1)
        positions.append(along)
    if all(torch.equal(along, torch.arange(int(along[0]), int(along[0]) + len(along))) for along in positions):
        return tuple(slice(int(along[0]), int(along[-1]) + 1) for along in positions)
    return tuple(along.view(-1, *[1] * (len(positions) - axis - 1)) for axis, along in enumerate(positions))


def _part(tensor: Tensor, entries: tuple[Tensor, ...] | tuple[slice, ...] | None) -> Tensor:
    # A slice is a view; sent to another process it would take the whole tensor along.
    return tensor if entries is None else tensor[entries].clone(memory_format=torch.contiguous_format)


def _whole(part: Tensor, like: Tensor, entries: tuple[Tensor, ...] | tuple[slice, ...] | None) -> Tensor:
    """Return a tensor like the whole one that has the part where it was cut, and 0 elsewhere."""
    if part.dtype != like.dtype:
        part = part.to(like.dtype)
    if entries is None:
        return part if part.shape == like.shape else part.expand_as(like)
    whole = torch.zeros_like(like)
    whole[entries] = part
    return whole


def only_where(covered: State, before: Any, after: Any) -> Any:
    """Return what a server part made, but for tensors named as the model's: these are as before where nobody held an entry."""
    if not isinstance(after, Mapping) or not isinstance(before, Mapping):
        return after
    return {
        name: torch.where(covered[name] > 0, value, before[name])
        if isinstance(value, Tensor) and name in covered and name in before and value.shape == covered[name].shape
        else only_where(covered, before.get(name), value)
        for name, value in after.items()
    }
