"""Hybrid client selection: clusters of clients whose first updates look alike, and a share of the cohort for each."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning

from fedfacet import rng
from fedfacet.arguments import Choice, Whole
from fedfacet.records import RoundResult
from fedfacet.selectors.base import ClientSelector, Taxonomy, drawn_order, numbers
from fedfacet.types import ClientUpdate, Facts, SelectionContext, ServerState, State


@dataclass(eq=False, kw_only=True)
class HCSFedSelector(ClientSelector):
    r"""Cluster the clients by their updates of the first round; draw from each cluster, the more the more varied it is.

    In the first round all available clients take part. The server compresses each one's update (``compress``) and clusters the
    results by k-means. In each later round a cluster with :math:`N_h` available clients has

    .. math:: m_h \propto N_h S_h, \quad 1 \le m_h \le N_h, \quad \sum_h m_h = m

    of the cohort's m places (``neyman_slots``), :math:`S_h` being the standard deviation of its clients' compressed updates.
    Who takes them is drawn without replacement, each next one in proportion to the norm of its compressed update or uniformly.

    A client that was away in the first round, or whose update did not arrive, is of no cluster until its first update arrives;
    then all are clustered anew. Until then such clients are a stratum of their own, with the standard deviation of all
    compressed updates there are, and uniform draws.

    Source: Song et al., Fast Heterogeneous Federated Learning with Hybrid Client Selection, UAI 2023, arXiv:2208.05135;
    FedDiverse (arXiv:2504.11216), table 2 (thesis, section 5.5.4 and table 14).

    Deviation: the server compresses the updates of that round; in the paper the clients do, and send the result along.
    FedDiverse's released code compresses the parameters after training instead of the update, into centres in the random order
    of their initialisation, which cannot be compared between clients; and it takes the squared spread for S_h.

    Args:
        num_clusters: 1 or larger; fewer where there are fewer different updates. FedDiverse takes 3.
        compressed_size: how many numbers an update is compressed to, 1 or larger; at most its number of entries. 22 is
            FedDiverse's r = 1e-5 of the 2.2 million parameters of its MobileNetV2.
        within: ``"norm"`` or ``"uniform"``, how clients are drawn within a cluster. FedDiverse's text only says "randomly"; its
            code and HCSFed's own paper draw by norm.
    """

    taxonomy = Taxonomy(
        "efficiency", "DSRT", ("θ", "compressed update"), "clustering", "clusters and probability", "fixed rounds"
    )

    num_clusters: Annotated[int, Whole()] = 3
    compressed_size: Annotated[int, Whole()] = 22
    within: Annotated[str, Choice("norm", "uniform")] = "norm"

    def init(self, facts: Facts) -> ServerState:
        """Return whose update has been seen (ascending), what it was compressed to, and the clusters: nobody's so far."""
        nobody = torch.zeros(0, dtype=torch.int64)
        vectors = torch.zeros((0, 0), dtype=torch.float64)
        return {"clients": nobody, "vectors": vectors, "clusters": nobody, "unseen": facts.num_clients}

    def needs_updates(self, server: ServerState) -> bool:
        """Return whether there is a client whose update has not been seen."""
        return bool(server["unseen"])

    def select(self, server: ServerState, context: SelectionContext) -> list[int]:
        """Return every cluster's draws, one cluster after another; all available clients in the first round."""
        if context.round == 1:
            return list(context.available)
        clients_N, vectors_NQ, clusters_N = (server[name].numpy() for name in ("clients", "vectors", "clusters"))
        available = numbers(context.available)
        rows = np.searchsorted(clients_N, available)
        seen = np.isin(available, clients_N)
        num_clusters = int(clusters_N.max(initial=-1)) + 1
        strata = np.full(len(available), num_clusters)
        strata[seen] = clusters_N[rows[seen]]
        spreads = [_spread(vectors_NQ[clusters_N == h]) for h in range(num_clusters)]
        sizes = np.bincount(strata, minlength=num_clusters + 1)
        slots = neyman_slots(sizes, np.array([*spreads, _spread(vectors_NQ)]), context.num_slots, context.rng)
        weights = np.ones(len(available))
        if self.within == "norm":
            weights[seen] = np.linalg.norm(vectors_NQ[rows[seen]], axis=1)
        order = drawn_order(weights, context.rng)
        return [int(k) for h, number in enumerate(slots) for k in available[order[strata[order] == h][:number]]]

    def observe(
        self, server: ServerState, result: RoundResult, updates: Sequence[ClientUpdate], rng: np.random.Generator
    ) -> ServerState:
        """Compress the updates of clients not seen before and cluster anew."""
        known = set(server["clients"].tolist())
        new = [update for update in updates if update.client_id not in known]
        if not new:
            return server
        clients = np.concatenate([server["clients"].numpy(), [update.client_id for update in new]])
        compressed = [compress(update.delta, self.compressed_size) for update in new]
        vectors = np.stack([*server["vectors"].numpy(), *compressed])
        order = np.argsort(clients)
        clients, vectors = clients[order], vectors[order]
        learnt = {"clients": clients, "vectors": vectors, "clusters": _clustered(vectors, self.num_clusters)}
        unseen = result.num_clients - len(clients)
        return {name: torch.from_numpy(values) for name, values in learnt.items()} | {"unseen": unseen}


def compress(delta: State, size: int) -> NDArray[np.float64]:
    """Return the means of an update's entries, sorted and cut into ``size`` groups as equal as can be, shape (size,).

    Sorted, so that a position means the same for every client; as in the paper, where an entry stood is forgotten. Groups of
    equal size, so that nothing depends on where an iteration starts, as the centres of a k-means over the entries would. Means,
    so that the few large entries count, which quantiles between them would pass over. An update with fewer than ``size``
    entries is only sorted.

    Example:
        >>> compress({"w": torch.tensor([[5.0, 1.0], [0.0, 2.0]]), "b": torch.tensor([9.0, 1.0])}, 3).tolist()
        [0.5, 1.5, 7.0]
    """
    entries = np.sort(torch.cat([tensor.reshape(-1) for tensor in delta.values()]).numpy())
    return np.array([group.mean(dtype=np.float64) for group in np.array_split(entries, min(size, len(entries)))])


def neyman_slots(
    sizes_H: NDArray[np.int64], spreads_H: NDArray[np.float64], total: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    r"""Return how many places each stratum gets: at least one where anybody is, at most as many as it has members.

    Every stratum gets one place, each further one goes to the stratum with the largest :math:`N_h S_h / \sqrt{m_h (m_h + 1)}`
    that is not full. Among all whole numbers this minimises Neyman's variance :math:`\sum_h N_h^2 S_h^2 / m_h`, of which
    :math:`m_h \propto N_h S_h` is the minimum among real ones. Strata without spread get a second place when all others are
    full; where none has any, :math:`N_h` stands for :math:`N_h S_h`. With fewer places than strata, those that get one are
    drawn in proportion to :math:`N_h S_h`, so that none is left out for good.

    Source: Neyman, On the Two Different Aspects of the Representative Method, JRSS 1934; the rounding is that of Wright, The
    Equivalence of Neyman Optimum Allocation for Sampling and Equal Proportions for Apportioning the U.S. House of
    Representatives, The American Statistician 2012.

    ``sizes_H`` are N_h, 0 or larger, ``spreads_H`` S_h, and ``total`` is at most the sum of the sizes.

    Example:
        >>> neyman_slots(np.array([10, 10, 4]), np.array([1.0, 3.0, 0.0]), 9, np.random.default_rng(0)).tolist()
        [2, 6, 1]
    """
    weights = sizes_H * spreads_H
    if not weights.any():
        weights = sizes_H.astype(np.float64)
    slots = np.zeros(len(sizes_H), dtype=np.int64)
    present = np.flatnonzero(sizes_H)
    if total < len(present):
        slots[present[drawn_order(weights[present], rng)[:total]]] = 1
        return slots
    slots[present] = 1
    while slots.sum() < total:
        gains = weights / np.sqrt(np.maximum(slots, 1) * (slots + 1))
        slots[np.argmax(np.where(slots < sizes_H, gains, -1.0))] += 1
    return slots


def _spread(vectors_NQ: NDArray[np.float64]) -> float:
    """Return the standard deviation: the root of the mean squared distance from the centre, by N - 1."""
    if len(vectors_NQ) < 2:
        return 0.0
    return float(np.sqrt(vectors_NQ.var(axis=0, ddof=1).sum()))


def _clustered(vectors_NQ: NDArray[np.float64], num_clusters: int) -> NDArray[np.int64]:
    """Return every vector's cluster: a function of the vectors alone, whatever the run's seed and the round."""
    seed = int(rng.stream(0, "clusters").integers(1 << 31))
    num_clusters = min(num_clusters, len(np.unique(vectors_NQ, axis=0)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # of vectors that differ by rounding, which share a cluster
        labels = KMeans(num_clusters, n_init=10, random_state=seed).fit_predict(vectors_NQ)
    return labels.astype(np.int64)  # type: ignore[no-any-return]
