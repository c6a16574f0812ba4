"""A data set in the hands of clients: who trains on what, what validates, and what every client holds out for itself."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfacet import rng
from fedfacet.arguments import check_whole, check_within
from fedfacet.data.dataset import Dataset
from fedfacet.data.held_out_clients import HeldOutClients, drawn_clients
from fedfacet.data.validation_of_server import ValidationOfServer
from fedfacet.errors import InfeasiblePartitionError
from fedfacet.heterogeneity import InteractionMatrices
from fedfacet.partitioners.base import Partitioner, checked_partition
from fedfacet.types import Partition, ServerData, cut_partition

log = logging.getLogger(__name__)

MAX_PER_CELL, RESERVED_FRACTION = 300, 0.1


@dataclass(frozen=True, slots=True, eq=False)
class FederatedData:
    """A data set, and whose its samples are: the clients', validation's, held out by a client, or the server's.

    ``partition`` and ``local_holdout`` are of the clients that take part.
    """

    dataset: Dataset
    partition: Partition
    val: NDArray[np.int64]
    local_holdout: tuple[NDArray[np.int64], ...] = ()
    server: ServerData | None = None
    held_out_clients: HeldOutClients | None = None

    @property
    def pooled(self) -> "FederatedData":
        """The same data in the hands of one client, who also measures with what all clients hold out; held-out clients stay."""
        holdout = Partition(self.local_holdout).pooled.indices
        return replace(self, partition=self.partition.pooled, local_holdout=holdout)

    @property
    def holdout_partition(self) -> Partition | None:
        """What each client holds out; ``None`` where nobody holds out anything."""
        return Partition(self.local_holdout) if any(map(len, self.local_holdout)) else None

    @property
    def matrices(self) -> InteractionMatrices:
        """The clients' true interaction matrices."""
        return self.matrices_of(self.partition)

    def matrices_of(self, partition: Partition) -> InteractionMatrices:
        """Return the true interaction matrices of any clients."""
        (positions, sizes), dataset = partition.joined, self.dataset
        shape = dataset.num_classes, dataset.num_attributes
        return InteractionMatrices.of(dataset.y[positions], dataset.a[positions], sizes, *shape)

    @property
    def splits(self) -> dict[str, NDArray[np.int64]]:
        """The positions of the validation and of the test samples, as ``"val"`` and ``"test"``."""
        return {"val": self.val, "test": self.dataset.test}

    @property
    def group_weights(self) -> list[float]:
        """Training samples per group, in the order g = y * num_attributes + a."""
        weights: list[float] = self.matrices.pooled.counts.ravel().tolist()
        return weights


def deal(
    dataset: Dataset,
    partitioner: Partitioner,
    *,
    local_holdout: float | Sequence[float] = 0.0,
    seed: int = 0,
    holdout_seed: int = 0,
    held_out_clients: float | Sequence[int] = 0,
    keep_together: str | None = None,
    server: ValidationOfServer | None = None,
) -> FederatedData:
    """Deal a data set's training samples to clients, as ``partition_and_hold_out`` and ``hold_out_locally`` say.

    The part ``local_holdout`` of every client's samples, in [0, 1), is held out, or a part of its own for each. ``seed`` is of
    the draw of validation samples, ``holdout_seed`` of what clients hold out. ``keep_together`` names a column: all samples of
    one value go to one client.

    ``held_out_clients`` of the clients, as ``drawn_clients`` says, never take part; ``holdout_seed`` is of that draw too. Who
    owns what, what validates and what a client holds out are the same with and without them.

    ``server`` draws the server's samples, after the validation samples and with the same seed, of the training samples that
    are left over. Where these are too few, there are two cases. If the partitioner deals out all samples, the server's are set
    aside before, as those for validation are. If it deals out a certain number, validation gives samples up, and keeps at
    least one of every cell; so clients are the same with and without.

    Raises:
        InfeasiblePartitionError: if the data set has too few samples.
        TypeError, ValueError: if ``local_holdout`` or ``held_out_clients`` is out of range, or if the partitioner returns
            something else than each client's own sorted positions; ValueError too if a label has no name, or a sample is in two
            splits.
    """
    _check(dataset)
    if dataset.targets is not None and vars(partitioner).get("label", "") == "y":
        raise InfeasiblePartitionError(
            f"Expected classes for {type(partitioner).__name__}, but the data have numbers to predict: choose IIDPartitioner, "
            "or give `label` the name of a column."
        )
    deal_samples = partial(partition_and_hold_out, partitioner=partitioner, seed=seed, keep_together=keep_together)
    partition, val = deal_samples(dataset)
    owned = None
    if server is not None:
        undealt = np.setdiff1d(dataset.train, val)
        left = np.setdiff1d(undealt, np.concatenate(partition.indices), assume_unique=True)
        if server.suffices(dataset, left):
            owned = server.draw(dataset, left, seed)
        elif partitioner.uses_all_samples:
            owned = server.draw(dataset, undealt, seed)
            rest = replace(dataset, train=np.setdiff1d(undealt, owned.samples, assume_unique=True), val=val)
            partition, _ = deal_samples(rest)
        else:
            owned = server.draw(dataset, val, seed, keep=1)
            val = np.setdiff1d(val, owned.samples, assume_unique=True)
            log.warning("The partition leaves too few samples over, so the server gets %d of validation's.", len(owned.samples))
    partition, held_out = hold_out_locally(dataset.y, partition, local_holdout, seed=holdout_seed)
    numbers = drawn_clients(partition.num_clients, held_out_clients, seed=holdout_seed)
    if not numbers:
        return FederatedData(dataset, partition, val, held_out, owned)
    others = sorted(set(range(partition.num_clients)) - set(numbers))
    taking_part, never = (
        (Partition(tuple(partition.indices[k] for k in some)), tuple(held_out[k] for k in some)) for some in (others, numbers)
    )
    return FederatedData(dataset, taking_part[0], val, taking_part[1], owned, HeldOutClients(numbers, *never))


def _check(dataset: Dataset) -> None:
    """Refuse labels without a name, which would count as those of another group, and samples in two splits."""
    used = np.concatenate([positions for positions in (dataset.train, dataset.test, dataset.val) if positions is not None])
    for name, of_all, names in (("y", dataset.y, dataset.class_names), ("a", dataset.a, dataset.attribute_names)):
        labels = of_all[used]
        if len(labels) and not 0 <= labels.min() <= labels.max() < len(names):
            raise ValueError(
                f"Expected `{name}` from 0 to {len(names) - 1}, since there are {len(names)} names, but got {labels.min()} to "
                f"{labels.max()}: number the labels anew, or give all of their names."
            )
    taken = np.zeros(len(dataset.y), dtype=bool)
    for split, positions in (("train", dataset.train), ("test", dataset.test), ("val", dataset.val)):
        if positions is None:
            continue
        if taken[positions].any():
            raise ValueError(
                f"Expected every sample in one split, but `{split}` has some of another one: leave them out there."
            )
        taken[positions] = True


def partition_and_hold_out(
    dataset: Dataset, partitioner: Partitioner, *, seed: int = 0, keep_together: str | None = None
) -> tuple[Partition, NDArray[np.int64]]:
    """Deal the training samples to clients, and find validation samples that no client holds and that are not the test set.

    An official validation set is taken as it is. Otherwise validation takes equally many samples of every (class, attribute)
    cell, at most 300: from the training samples that the partitioner leaves over, or, where it deals out all samples, a tenth
    of the smallest cell from every cell before the clients get theirs.

    Positions are those of the data set, sorted; there are no validation samples where some cell has nothing left, other than
    one that has no training samples at all. ``seed`` is of the validation draw, and does not follow the run's seed.

    With ``keep_together``, a column such as ``identity``, the partitioner deals the column's values: each counts once, in the
    (label, attribute) cell that most of its samples are in, the first of several, and its samples go with it. Validation
    samples of a partitioner that deals out all samples are drawn before, and are of the same values.

    Raises:
        InfeasiblePartitionError: if the partitioner finds too few samples, or leaves a client without any.
        TypeError, ValueError: if it returns something else than each client's own sorted positions.
    """
    pool = dataset.train
    val = dataset.val
    if val is None and partitioner.uses_all_samples:
        val = _balanced_draw(dataset, pool, RESERVED_FRACTION, seed)
        pool = np.setdiff1d(pool, val, assume_unique=True)
    labels = _labels(dataset, partitioner.label)
    units = None if keep_together is None else _labels(dataset, keep_together, "keep_together")[pool]
    dealt = _dealt(partitioner, labels[pool].astype(np.int64, copy=False), dataset.a[pool], units)
    if not all(map(len, dealt.indices)):
        empty = [client_id for client_id, client in enumerate(dealt.indices) if not len(client)]
        raise InfeasiblePartitionError(
            f"Expected every client to hold at least one sample, but {len(empty)} of {len(dealt.indices)} would hold none, "
            f"client {empty[0]} the first of them: choose another partition."
        )
    positions, sizes = dealt.joined
    partition = cut_partition(pool[positions], sizes)
    if val is None:
        val = _balanced_draw(dataset, np.setdiff1d(pool, np.concatenate(partition.indices), assume_unique=True), 1.0, seed)
    return partition, val


def hold_out_locally(
    y: NDArray[np.int64], partition: Partition, share: float | Sequence[float], *, seed: int = 0
) -> tuple[Partition, tuple[NDArray[np.int64], ...]]:
    """Set a share of every client's samples aside for measuring personal models; nobody trains on it.

    A client with n_k samples holds out ``share * n_k`` of them, rounded, but never all. Each class gives the whole part of
    ``share`` times its samples; the classes with the largest remainders give one more each until there are enough, and a draw
    decides between equal remainders. (scikit-learn's stratified split refuses classes of one sample.)

    ``y`` has the classes, shape (N,), and ``share`` is in [0, 1), or one for each client. The ``seed`` of the draw does not
    follow the run's seed. The results are the partition of what is left for training, and per client the sorted positions of
    what is held out.

    Raises:
        ValueError: if ``share`` or ``seed`` is out of range.

    Example:
        >>> left, held_out = hold_out_locally(np.array([0, 0, 0, 0, 1, 1]), Partition((np.arange(6),)), 0.5)
        >>> np.array([0, 0, 0, 0, 1, 1])[held_out[0]]
        array([0, 0, 1])
    """
    shares = tuple(share) if isinstance(share, Sequence) else (share,) * partition.num_clients
    if len(shares) != partition.num_clients:
        raise ValueError(
            f"Expected `partition.local_holdout` to be one number, or one for each of {partition.num_clients} clients, but got "
            f"{len(shares)}: give as many."
        )
    for one in set(shares):
        check_within("partition.local_holdout", one, "[0, 1)")
    check_whole("partition.holdout_seed", seed, 0)
    nothing = np.empty(0, np.int64)
    if not any(shares):
        return partition, (nothing,) * partition.num_clients
    held_out = tuple(
        _held_out(y, client, part, rng.stream(seed, "local_holdout", k)) if part else nothing
        for k, (client, part) in enumerate(zip(partition.indices, shares, strict=True))
    )
    left = (np.setdiff1d(client, held, assume_unique=True) for client, held in zip(partition.indices, held_out, strict=True))
    return Partition(tuple(left)), held_out


def _dealt(
    partitioner: Partitioner, labels: NDArray[np.int64], a: NDArray[np.int64], units: NDArray[np.integer[Any]] | None
) -> Partition:
    """Have a partitioner deal samples, or units of them."""
    who = type(partitioner).__name__
    if units is None:
        return checked_partition(partitioner.partition(labels, a), len(labels), who)
    cells, of_cell = np.unique(np.stack([labels, a], axis=1), axis=0, return_inverse=True)
    values, of_unit = np.unique(units, return_inverse=True)
    counts = np.zeros((len(values), len(cells)), dtype=np.int64)
    np.add.at(counts, (of_unit, of_cell.ravel()), 1)
    usual = cells[counts.argmax(axis=1)]
    owned = checked_partition(partitioner.partition(usual[:, 0], usual[:, 1]), len(usual), who)
    return Partition(tuple(np.flatnonzero(np.isin(of_unit, client)) for client in owned.indices))


def _labels(dataset: Dataset, name: str, setting: str = "label") -> NDArray[np.integer[Any]]:
    """Return the labels called ``name``, shape (N,): the classes for ``"y"``, the attribute values for ``"a"``."""
    known = {"y": dataset.y, "a": dataset.a}
    if name not in known and name not in dataset.columns:
        raise InfeasiblePartitionError(
            f"Expected `partition.{setting}` to be one of {', '.join([*known, *dataset.columns])}, which this data set has, "
            f"but got {name!r}: choose one of them or another `dataset`; of csv and hf, `dataset.columns` names further ones."
        )
    return known[name] if name in known else dataset.columns[name]


def _balanced_draw(dataset: Dataset, indices: NDArray[np.int64], part: float, seed: int) -> NDArray[np.int64]:
    """Draw equally many samples of every cell with training samples: a part of what the smallest has, at most 300."""
    cells = dataset.y * dataset.num_attributes + dataset.a
    present, of = np.unique(cells[dataset.train]), cells[indices]
    per_cell = min(MAX_PER_CELL, int(part * np.bincount(of, minlength=present[-1] + 1)[present].min()))
    drawn = [rng.stream(seed, "validation", cell).permutation(indices[of == cell])[:per_cell] for cell in present.tolist()]
    return np.sort(np.concatenate(drawn))


def _held_out(y: NDArray[np.int64], client: NDArray[np.int64], share: float, draw: np.random.Generator) -> NDArray[np.int64]:
    """Return the sorted positions that one client holds out."""
    classes, of_class, sizes = np.unique(y[client], return_inverse=True, return_counts=True)
    wanted = min(int(share * len(client) + 0.5), len(client) - 1)
    # A part of a hundred-millionth more, so that 0.29 * 100 is 29.
    counts = np.floor(min(share, 1 - 1e-6) * sizes + 1e-8).astype(np.int64)
    order = draw.permutation(len(classes))
    by_remainder = order[np.argsort((counts - share * sizes)[order], kind="stable")]
    counts[by_remainder[: max(0, wanted - counts.sum())]] += 1
    chosen = [draw.permutation(client[of_class == position])[:count] for position, count in enumerate(counts)]
    return np.sort(np.concatenate(chosen))
