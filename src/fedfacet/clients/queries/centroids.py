"""Around which points a client's samples lie."""

import warnings
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.extmath import randomized_svd
from threadpoolctl import ThreadpoolController
from torch import nn

from fedfacet.answer_form import AnswerForm
from fedfacet.arguments import check_choice, check_whole
from fedfacet.clients.queries.base import Query, QueryContext
from fedfacet.errors import ConfigError
from fedfacet.types import Answer

Floats = NDArray[np.float64]

_threads = cache(ThreadpoolController)  # it looks for thread pools among all loaded libraries, which takes milliseconds


class Centroids(Query):
    r"""Ask for the centres of k' clusters of a client's samples, by the k-means of Awasthi and Sheffet.

    1. The samples, a matrix of shape (n_k, d), are projected on their k' leading right singular vectors.
    2. k-means of the projected samples gives seeds :math:`\nu_1, \ldots, \nu_{k'}`.
    3. :math:`S_r` holds the samples whose projection is three times nearer to :math:`\nu_r` than to any other seed.
    4. Lloyd's iterations over the samples themselves start from the means of :math:`S_1, \ldots, S_{k'}`.

    The answer is nested lists of shape (k', d), the centre of the client's largest cluster first. A client with fewer
    different samples has fewer centres. One without samples, or whose features are not finite, has none. k' d numbers leave
    the client. Those of a cluster of one sample are that sample, and the centre of a client's images is a mean image.
    Nothing passes through a model for ``space="inputs"``; n_k samples do for ``"features"``.

    Source: Dennis et al., Heterogeneity for the Win: One-Shot Federated Clustering, ICML 2021, arXiv:2103.00697, algorithm 1,
    and the authors' code; Awasthi and Sheffet, Improved Spectral-Norm Bounds for Clustering, 2012.

    Deviations: step 2 is scikit-learn's k-means of ten starts, for a 10-approximation in the paper and the draws of k-means++
    alone in the code. Where no sample is near enough to a seed in step 3, all count that are nearest to it. Centres are in the
    order of their clusters' sizes, so that the server need not be told these.

    Args:
        local_clusters: k', 1 or larger.
        space: ``"inputs"``, samples as the model sees them, or ``"features"``, what the broadcast model's ``features(x)``
            makes of them. Features of clients that are asked in different rounds are those of different models.
    """

    name = "centroids"
    kind = "centroids"
    reads = frozenset({"x"})

    def __init__(self, *, local_clusters: int = 2, space: str = "inputs") -> None:
        check_whole("local_clusters", local_clusters)
        check_choice("space", space, ("inputs", "features"))
        self.local_clusters = local_clusters
        self.space = space
        self.needs_model = space == "features"
        self.form = AnswerForm(shape=(range(local_clusters + 1), range(1, 2**31)))

    def check(self, model: nn.Module) -> None:
        """Refuse a model without ``features(x)``, where they are asked for."""
        if self.space == "features" and not callable(getattr(model, "features", None)):
            raise ConfigError(
                f"Expected a model with `features(x)`, whose centroids are asked for, but {type(model).__name__} lacks it: add "
                "it, or choose space=inputs."
            )

    def answer(self, context: QueryContext) -> Answer:
        """Return the centres.

        Raises:
            ConfigError: if inputs are no numbers of which there are means.
        """
        points_ND = self._points(context)
        generator = context.stream("centroids")
        centres_RD = cluster_centres(points_ND, self.local_clusters, int(generator.integers(1 << 31)))
        samples = len(context.data) if self.needs_model else 0
        return Answer(centres_RD.tolist(), floats_up=centres_RD.size, samples=samples)

    def _points(self, context: QueryContext) -> Floats:
        context.model.eval()
        parts = []
        with torch.inference_mode():
            for batch in context.data.batches():
                if self.space == "inputs" and not batch.x.is_floating_point():
                    raise ConfigError(
                        f"Expected inputs that have means, but the data set's are of type {batch.x.dtype}: choose "
                        "space=features, or another selector."
                    )
                seen = batch.x if self.space == "inputs" else context.model.features(batch.x)  # type: ignore[operator]
                parts.append(seen.flatten(1).double().cpu().numpy())
        return np.concatenate(parts) if parts else np.empty((0, 0))


def cluster_centres(points_ND: Floats, number: int, random_state: int) -> Floats:
    """Return the centres of ``number`` clusters of some points, that of the largest cluster first; see ``Centroids``.

    Args:
        points_ND: shape (N, D); where any is not finite there are no centres.
        number: 1 or larger; with fewer different points there are as many centres as these.
        random_state: of k-means and of the projection.

    Example:
        >>> cluster_centres(np.array([[0.0, 1.0], [9.0, 9.0], [0.0, 3.0]]), 2, 0).tolist()
        [[0.0, 2.0], [9.0, 9.0]]
    """
    if not np.isfinite(points_ND).all() or not len(points_ND):
        return np.empty((0, points_ND.shape[1]))
    number = min(number, len(np.unique(points_ND, axis=0)))
    # Threads would have sums differ from machine to machine, and samples of one client are few.
    with _threads().limit(limits=1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # of points that differ by rounding, which share a cluster
        projected_NR = points_ND
        if number < min(points_ND.shape):
            directions_RD = randomized_svd(points_ND, n_components=number, random_state=random_state)[2]
            projected_NR = points_ND @ directions_RD.T
        seeds_RR = KMeans(number, n_init=10, random_state=random_state).fit(projected_NR).cluster_centers_
        lloyd = KMeans(number, init=_starts(points_ND, cdist(projected_NR, seeds_RR)), n_init=1).fit(points_ND)
    sizes_R = np.bincount(lloyd.labels_, minlength=number)
    centres_RD: Floats = lloyd.cluster_centers_[np.argsort(-sizes_R, kind="stable")]
    return centres_RD


def _starts(points_ND: Floats, distances_NR: Floats) -> Floats:
    """Return the means of the points that are three times nearer to one seed than to any other, or else of those nearest."""
    nearest_N = distances_NR.argmin(axis=1)
    starts = []
    for seed in range(distances_NR.shape[1]):
        others_N = np.delete(distances_NR, seed, axis=1).min(axis=1, initial=np.inf)
        near = 3 * distances_NR[:, seed] <= others_N
        starts.append(points_ND[near if near.any() else nearest_N == seed].mean(axis=0))
    return np.array(starts)
