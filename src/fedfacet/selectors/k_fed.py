"""Selection from every cluster of clients, as k-FED finds them in one shot."""

import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import ThreadpoolController

from fedfacet.arguments import Choice, Whole
from fedfacet.errors import SelectionError
from fedfacet.selectors.base import ClientSelector, Taxonomy, warn_of
from fedfacet.types import Query, SelectionContext, ServerState

Floats = NDArray[np.float64]

_threads = cache(ThreadpoolController)  # it looks for thread pools among all loaded libraries, which takes milliseconds


@dataclass(eq=False, kw_only=True)
class KFedSelector(ClientSelector):
    r"""Have clients cluster their samples, cluster the centres, and take clients from one cluster after another.

    Each client is asked, once, for the centres of its local clusters (``Centroids``). The server clusters all these centres
    into k (``clusters_of_centres``):

    1. The set M starts with a centre. While it has fewer than k, the centre that is farthest from M joins it.
    2. Lloyd's iterations over all centres start from M.

    A client's main cluster is that of its first centre, which is that of its largest local cluster. The cohort takes clusters
    in an order drawn anew in each round, and of each in turn a client whose main cluster it is and that has not been taken in
    this round. So a cohort of k or more meets every cluster that is the main one of somebody available. Clients without
    centres, or whose centres are not finite, join where too few others are available.

    Source: Dennis et al., Heterogeneity for the Win: One-Shot Federated Clustering, ICML 2021, arXiv:2103.00697, algorithm 2;
    thesis, table 4. It was compared with the authors' released code (``kfed`` in ``fkms/algorithms.py``), not with the paper.
    That code selects no clients, which follows the thesis' description.

    Deviations: M starts with one centre, of the client with the lowest number, where the code starts with all of that client.
    These are of different clusters if every client's k' is the number of clusters it has; here k' is the same for all, and a
    client of one cluster has two centres in it. The paper says nothing of a client's main cluster. The thesis leaves clients of
    similar centres out of the training; here they fill the cohort where there are fewer clusters than places. Clients that come
    later are asked then, and all centres are clustered anew.

    A round costs O(K k k' d) for the clusters, with d numbers a centre, and O(K log K) besides. A client discloses its
    centres, k' d numbers, once; checkpoints hold these. With ``within="loss"`` it discloses its loss, in every round.

    Args:
        centroids: asked of every client, once.
        local_loss: asked of all who are available in every round, for ``within="loss"``.
        num_clusters: k, 1 or larger, and at most as many as there are centres; ``None`` for the cohort size, or as many as
            there are different centres.
        within: how clients are taken from their cluster: ``"uniform"`` at random, ``"loss"`` the highest loss first, NaN last.
    """

    taxonomy = Taxonomy("efficiency", "DT", ("θ", "centroids"), "clustering", "clusters", "fixed rounds")

    centroids: Query
    local_loss: Query | None
    num_clusters: Annotated[int | None, Whole()] = None
    within: Annotated[str, Choice("uniform", "loss")] = "uniform"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.within != "loss":
            self.local_loss = None  # or the ledger would name it

    def select(self, server: ServerState, context: SelectionContext) -> list[int]:
        """Return one client of every cluster after another.

        Raises:
            SelectionError: if ``num_clusters`` are more than there can be centres.
        """
        known = set(context.disclosed.get(self.centroids.name, {}))
        context.ask_once(self.centroids, context.available)
        # Of all who ever answered, so that clusters do not depend on who is away today.
        answers = sorted(context.disclosed[self.centroids.name].items())
        centres = {k: np.array(answer, dtype=np.float64).reshape(len(answer), -1) for k, answer in answers if len(answer)}
        widths = Counter(centres_RD.shape[1] for centres_RD in centres.values()).most_common(1)
        if unusable := [k for k in centres if centres[k].shape[1] != widths[0][0]]:
            new = [k for k in unusable if k not in known]
            reason = "clients have another length than most, and they come last"
            warn_of(context.round, "centres", new, len(context.available), reason)
            centres = {k: centres_RD for k, centres_RD in centres.items() if k not in unusable}
        # As many as if all clients had found as many as the one with most: no client ends a run by having few.
        number = len(context.available) * max(map(len, centres.values()), default=0)
        if self.num_clusters is not None and self.num_clusters > number:
            raise SelectionError(
                f"Expected selector.num_clusters={self.num_clusters} to be at most the {number} centres that clients have at "
                "most: lower it, or have clients find more."
            )
        clusters = _main_clusters(centres, self.num_clusters or context.cohort_size)
        clusters_K = np.array([clusters.get(k, -1) for k in context.available])
        picked = taken_in_turn(clusters_K, self._losses(context), context.num_slots, context.rng)
        return [context.available[position] for position in picked]

    def _losses(self, context: SelectionContext) -> Floats:
        """Return by what clients of a cluster are ranked, shape (K,)."""
        if self.local_loss is None:
            return np.zeros(len(context.available))
        losses = context.ask(self.local_loss, context.available)
        return np.array([losses[client_id] for client_id in context.available], dtype=np.float64)


def taken_in_turn(
    clusters_K: NDArray[np.int64], losses_K: Floats, num_slots: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return the positions of a cohort: one of each cluster, in an order drawn for the round, then a second of each, ...

    Args:
        clusters_K: 0 or larger; -1 for none, which comes last. Shape (K,).
        losses_K: the highest of a cluster is taken first, NaN last, equal ones by lot. Shape (K,).
        num_slots: at most K.
        rng: draws order and lots.
    """
    order = np.lexsort((rng.random(len(losses_K)), -losses_K, np.isnan(losses_K), clusters_K))
    _, firsts, sizes = np.unique(clusters_K[order], return_index=True, return_counts=True)
    ranks_K = np.empty(len(order), dtype=np.int64)  # how many of its cluster come before a client
    ranks_K[order] = np.arange(len(order)) - np.repeat(firsts, sizes)
    turns_K = np.append(rng.permutation(int(clusters_K.max()) + 1), 0)[clusters_K]
    picked: NDArray[np.int64] = np.lexsort((turns_K, ranks_K, clusters_K < 0))[:num_slots]
    return picked


def clusters_of_centres(centres_MD: Floats, number: int) -> NDArray[np.int64]:
    """Return the cluster of each centre, shape (M,): farthest-first seeds, then Lloyd's iterations over all centres.

    Args:
        centres_MD: finite, shape (M, D).
        number: k, 1 or larger; with fewer different centres there are as many clusters as these.

    Example:
        >>> clusters_of_centres(np.array([[0.0], [10.0], [1.0], [11.0], [30.0]]), 3).tolist()
        [0, 2, 0, 2, 1]
    """
    chosen = [0]
    distances_M = cdist(centres_MD, centres_MD[:1])[:, 0]
    while len(chosen) < number and distances_M.max() > 0:
        chosen.append(int(distances_M.argmax()))
        distances_M = np.minimum(distances_M, cdist(centres_MD, centres_MD[chosen[-1:]])[:, 0])
    # Threads would have sums differ from machine to machine.
    with _threads().limit(limits=1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # of centres that differ by rounding, which share a cluster
        labels = KMeans(len(chosen), init=centres_MD[chosen], n_init=1).fit_predict(centres_MD)
    return labels.astype(np.int64)  # type: ignore[no-any-return]


def _main_clusters(centres: Mapping[int, Floats], number: int) -> dict[int, int]:
    """Return the main cluster of every client, all of which have centres of one length."""
    if not centres:
        return {}
    labels = clusters_of_centres(np.concatenate(list(centres.values())), number)
    firsts = np.cumsum([0, *(len(centres_RD) for centres_RD in centres.values())])[:-1]
    return {k: int(labels[first]) for k, first in zip(centres, firsts, strict=True)}
