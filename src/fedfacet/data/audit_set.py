"""Whose membership an attack is to tell."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from fedfacet import rng
from fedfacet.arguments import Choice, Declared, Whole, Within
from fedfacet.attacks import Signals, Trajectories
from fedfacet.data.federated import FederatedData
from fedfacet.errors import FedFacetError
from fedfacet.metrics.roc import Roc, roc_of

SCORED = 10
"""Members, and others, that are scored at least: with fewer, intervals mean nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class AuditSet:
    """Equally many members and others, members first, and which of them the attacker knows.

    Attributes:
        samples: positions in the data set, shape (2m,).
        is_member: shape (2m,).
        is_known: what the attacker knows beforehand and is not scored on, shape (2m,).
        pairs: positions in the set of a scored member and a scored other, of which a fair coin has chosen the member, each coin
            by itself, shape (p, 2); a sample is in one pair at most.
        references: further others that the attacker knows, positions in the data set, ascending, shape (r,).
    """

    samples: NDArray[np.int64]
    is_member: NDArray[np.bool_]
    is_known: NDArray[np.bool_]
    pairs: NDArray[np.int64] = field(default_factory=lambda: np.empty((0, 2), np.int64))
    references: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))

    def signals(
        self,
        logits: NDArray[np.floating[Any]],
        y: NDArray[np.int64],
        shadow_logits: NDArray[np.float64] | None = None,
        shadow_members: NDArray[np.bool_] | None = None,
        trajectories: Trajectories | None = None,
        references: Signals | None = None,
    ) -> Signals:
        """Return what an attacker sees: a model's logits for ``samples``, (2m, Y), the classes of these, and shadow models'."""
        return Signals(
            logits=logits.astype(np.float64),
            y=y,
            known_members=np.flatnonzero(self.is_known & self.is_member),
            known_others=np.flatnonzero(self.is_known & ~self.is_member),
            shadow_logits=np.empty((0, *logits.shape)) if shadow_logits is None else shadow_logits,
            shadow_members=np.empty((0, len(y)), np.bool_) if shadow_members is None else shadow_members,
            trajectories=trajectories,
            references=references,
        )

    def only(self, keep: NDArray[np.bool_]) -> "AuditSet":
        """Return the set without the samples that are not to be kept, (2m,); there may then be more of one kind."""
        places = np.cumsum(keep) - 1
        pairs = self.pairs[keep[self.pairs].all(axis=1)]
        return AuditSet(self.samples[keep], self.is_member[keep], self.is_known[keep], places[pairs], self.references)

    def roc(self, scores: NDArray[np.float64]) -> Roc:
        """Return the curve of scores, (2m,), of the samples that the attacker did not know."""
        return roc_of(scores[~self.is_known & self.is_member], scores[~self.is_known & ~self.is_member])


@dataclass(frozen=True, slots=True, kw_only=True)
class Members(Declared):
    r"""How an audit set is drawn of a client's training samples and of samples that nobody trained on.

    Of each kind there are :math:`m = \min(n_k, \text{others}, \text{most})`, drawn without replacement. The attacker knows
    ``max(min_known, known_share * m)`` of each, rounded; these are not scored. All others that are not drawn, ``most`` of them
    at most, are references: held out by any client, or of the test set.

    Source: the thesis, section 4.2. It prints the minimum of 3 and 1 % of the client's samples; here it is the maximum, and 1 %
    of m. Its released code takes the first samples in place of drawn ones, and lets the known ones overlap with the scored
    ones.

    What a client holds out is drawn from all that it has of a class, in a number that is settled beforehand. So of a member and
    another of one class and one client either might as well have been the member: once it is settled who makes up a pair, by
    chance, a fair coin of its own has decided each pair. With the test set there are no such pairs.

    Attributes:
        others: ``"holdout"``, what the clients themselves hold out, so that members and others are alike but for membership;
            ``"test"``, as the thesis does, where a difference of distribution passes for membership; ``None`` for ``"holdout"``
            where clients hold out samples, else ``"test"``.
        most: of each kind, 1 or larger.
        known_share: in [0, 1).
        min_known: 1 or larger.
        seed: of the draw, 0 or larger.

    Raises:
        ValueError: if a value is out of range.
    """

    option_group = "members."

    others: Annotated[str | None, Choice("holdout", "test")] = None
    most: Annotated[int, Whole()] = 5000
    known_share: Annotated[float, Within("[0, 1)")] = 0.01
    min_known: Annotated[int, Whole()] = 3
    seed: Annotated[int, Whole(0)] = 0

    def source(self, data: FederatedData) -> str:
        """Return where the others come from: ``"holdout"`` or ``"test"``.

        Raises:
            FedFacetError: if clients are to hold out samples, but none does.
        """
        hold_out = any(map(len, data.local_holdout))
        if self.others == "holdout" and not hold_out:
            raise FedFacetError(
                "Expected clients that hold out samples of their own for `members.others=holdout`, but none does: train with "
                "partition.local_holdout=0.2, or give members.others=test."
            )
        return self.others or ("holdout" if hold_out else "test")

    def of_client(self, data: FederatedData, client_id: int) -> AuditSet:
        """Return the audit set for one client's model.

        Raises:
            FedFacetError: if there are too few samples.
        """
        others = data.local_holdout[client_id] if self.source(data) == "holdout" else data.dataset.test
        return self._drawn(data, data.partition.indices[client_id], others, f"client {client_id}", client_id)

    def of_server(self, data: FederatedData, client_ids: Sequence[int]) -> AuditSet:
        """Return the audit set for the global model, whose members are the samples of those who have taken part.

        Raises:
            FedFacetError: if there are too few samples.
        """
        if not client_ids:
            raise FedFacetError("Expected a server's model that somebody has trained, but nobody has: attack a later round.")
        others = self._all_others(data)
        members = np.concatenate([data.partition.indices[client_id] for client_id in client_ids])
        return self._drawn(data, members, others, "the server", data.partition.num_clients)

    def _all_others(self, data: FederatedData) -> NDArray[np.int64]:
        return np.concatenate(data.local_holdout) if self.source(data) == "holdout" else data.dataset.test

    def num_known(self, size: int) -> int:
        """Return how many samples of a kind the attacker knows, of ``size``."""
        return max(self.min_known, round(self.known_share * size))

    def least(self) -> int:
        """Return how many samples of a kind an attack takes at least: those that the attacker knows, and those to score."""
        return next(size for size in itertools.count(SCORED) if size - self.num_known(size) >= SCORED)

    def _drawn(
        self, data: FederatedData, members: NDArray[np.int64], others: NDArray[np.int64], name: str, key: int
    ) -> AuditSet:
        size = min(len(members), len(others), self.most)
        known = self.num_known(size)
        if size - known < SCORED:
            raise FedFacetError(
                f"Expected {known + SCORED} members and as many others or more to attack {name}, of which {known} are known to "
                f"the attacker, but got {len(members)} members and {len(others)} others: leave it out by clients=[...], or "
                "lower members.min_known."
            )
        # Keyed by who trains on what too: a draw that were the same for all partitions would make some pairs' coins unfair,
        # such as that of the first of the sorted members and the last of the sorted others.
        draw = rng.stream(self.seed, "audit-set", key, int(data.partition.digest, 16))
        drawn = [draw.permutation(kind)[:size] for kind in (members, others)]
        samples, is_known = np.concatenate(drawn), np.tile(np.arange(size) < known, 2)
        rest = rng.stream(self.seed, "references", key).permutation(np.setdiff1d(self._all_others(data), samples))
        references = np.sort(rest[: self.most])
        return AuditSet(samples, np.repeat([True, False], size), is_known, _pairs(data, samples, is_known), references)


def _pairs(data: FederatedData, samples: NDArray[np.int64], is_known: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Pair members with others of the same client and class; both are in the order of a draw already."""
    kinds: list[dict[tuple[int, int], list[int]]] = []
    half = len(samples) // 2
    for positions, owned in ((range(half), data.partition.indices), (range(half, 2 * half), data.local_holdout)):
        owner = _owners(owned, len(data.dataset.y))[samples]
        kinds.append({})
        for position in positions:
            if not is_known[position] and owner[position] >= 0:  # nobody has the test set
                label = int(data.dataset.y[samples[position]])
                kinds[-1].setdefault((int(owner[position]), label), []).append(position)
    members, others = kinds
    pairs = [pair for kind, own in members.items() for pair in zip(own, others.get(kind, ()), strict=False)]
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def _owners(owned: Sequence[NDArray[np.int64]], num_samples: int) -> NDArray[np.int64]:
    """Return whose each sample is, -1 for nobody's, shape (N,)."""
    owner = np.full(num_samples, -1)
    if len(owned):
        owner[np.concatenate(owned)] = np.repeat(np.arange(len(owned)), list(map(len, owned)))
    return owner
