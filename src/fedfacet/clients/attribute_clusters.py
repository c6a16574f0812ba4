"""Attribute values found in features: clusters that all classes share, in whichever view shows them best."""

import warnings
from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA, FastICA
from sklearn.mixture import GaussianMixture
from threadpoolctl import ThreadpoolController

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]

_threads = cache(ThreadpoolController)  # it looks for thread pools among all loaded libraries, which takes milliseconds

_SAMPLES_PER_COMPONENT = 10
_REFINED_STARTS = 4
_REFINEMENTS = 3
# Nats per sample and value. The criterion's own limit, 0, is meant for a labelling given beforehand. The best of many cuts
# heavy tails off, which gains up to 0.45 on photographs without an attribute; cut evenly, they lose 0.1 and more.
_LEAST_GAIN = 0.45
_LEAST_EVEN_GAIN = 0.03
# Fewer samples than this are outliers: where features have heavy tails, some always lie apart.
_LEAST_SHARE = 0.03
# In units of the within-class variance: no cluster counts as tighter than this, so that a view whose values are nearly discrete
# does not win by that alone.
_RIDGE = 1e-3
_NEGLIGIBLE = 1e-12


def cluster_attributes(
    views: Sequence[Floats], y: Labels, *, max_attributes: int = 2, max_components: int = 5, random_state: int = 0
) -> Labels:
    r"""Return an attribute value of every sample, found without attribute labels.

    Each view is reduced to the principal components of what is left within the classes, each scaled to variance 1. There,
    sample i of class y and attribute value z is modelled as

    .. math:: s_i = \mu + \alpha_y + \delta_z + \varepsilon_i, \quad \varepsilon_i \sim N(0, \Sigma),

    so that attribute values mean the same in all classes: what tells value 0 from value 1 is one and the same difference
    :math:`\delta_1 - \delta_0`. Labels come from Gaussian mixtures with one covariance, started from k-means on single
    components and on all, with and without the class means; :math:`\alpha_y` is then fitted together with :math:`\delta_z`,
    taken off, and the mixture fitted again. Of all labellings, of all views and of any number of values up to
    ``max_attributes``, of which every one has 3 % of the samples, the one with the largest gain over no attribute at all wins:

    .. math::
        \frac n2 \log \frac{|\Sigma_0|}{|\Sigma|} - \sum_y n_y H(z | y) - \frac{(A - 1)(r + |Y|)}{2} \log n,

    the difference of two integrated classification likelihoods, where :math:`\Sigma_0` is the covariance within classes and r
    the number of components. Every value beyond the first must gain 0.45 (1 - A p) per sample, where p is the share of the
    rarest value, and 0.03 at least, or it is not there. Two Gaussians d standard deviations apart, with shares p and 1 - p in
    each class, gain :math:`\frac12 \log(1 + p (1 - p) d^2) - H(p)` per sample: even shares are found from d = 3.6 on, a tenth
    from d = 5.7 on. A single Gaussian cut in two gains less than nothing: values must lie apart to be told apart.

    Source: the thesis' conclusion on FedDiverse (section 5.8) names clustering as the way on; the criterion is that of
    Biernacki, Celeux and Govaert (IEEE TPAMI 22(7), 2000), conditional on the class.

    Args:
        views: features of the same n samples, each of shape (n, D).
        y: classes, shape (n,), which need not start at 0.
        max_attributes: the largest number A of attribute values looked for, 1 or larger.
        max_components: the largest r; there is also at most one for every 10 samples.
        random_state: of k-means.

    Returns:
        Values in [0, A), shape (n,); which is called 0 means nothing.

    Example:
        Two classes; the first feature tells the attribute, the second the class, and attributes go with classes 9 to 1:

        >>> y = np.repeat([0, 0, 1, 1], [45, 5, 5, 45])
        >>> a = np.repeat([0, 1, 0, 1], [45, 5, 5, 45])
        >>> noise = np.random.default_rng(0).normal(size=(100, 3))
        >>> found = cluster_attributes([noise + 10 * np.stack([a, y, a - a + 5], axis=1)], y)
        >>> bool(np.array_equal(found, a) or np.array_equal(found, 1 - a))
        True
    """
    classes = np.unique(y, return_inverse=True)[1] if len(y) else y
    best, labels = 0.0, np.zeros(len(y), dtype=np.int64)
    # Samples of one client are few: threads would cost more than they save, and sums over them would differ.
    with _threads().limit(limits=1), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what has not converged is a start or a candidate like any other
        for view in views:
            scores_NR = _scores(np.asarray(view, dtype=np.float64), classes, max_components)
            for num_values in range(2, max_attributes + 1) if scores_NR.size else ():
                for candidate in _candidates(scores_NR, classes, num_values, random_state):
                    least = np.bincount(candidate, minlength=num_values).min()
                    if least < max(_LEAST_SHARE * len(y), 3):
                        continue
                    uneven = 1 - num_values * least / len(y)
                    needed = max(_LEAST_GAIN * uneven, _LEAST_EVEN_GAIN) * (num_values - 1) * len(y)
                    gain = _gain(scores_NR, classes, candidate) - needed
                    if gain > best:
                        best, labels = gain, candidate
    return labels


def _scores(view: Floats, y: Labels, max_components: int) -> Floats:
    """Return the samples in the principal components of what is left within the classes, shape (n, r)."""
    num_samples, width = view.shape
    num_components = min(max_components, width, num_samples // _SAMPLES_PER_COMPONENT)
    if num_components < 1 or not np.isfinite(view).all():
        return np.empty((num_samples, 0))
    unit = view - view.mean(axis=0)
    within = unit - _class_means(unit, y)
    if np.square(within).sum() < _NEGLIGIBLE * num_samples:
        return np.empty((num_samples, 0))
    components = PCA(num_components, svd_solver="full").fit(within)
    kept = components.explained_variance_ratio_ > _RIDGE
    deviations = np.sqrt(components.explained_variance_[kept])
    return (unit @ components.components_[kept].T) / deviations  # type: ignore[no-any-return]


def _candidates(scores_NR: Floats, y: Labels, num_values: int, random_state: int) -> Iterator[Labels]:
    """Yield labellings that may be good."""
    starts = []
    for offsets_NR in (np.zeros_like(scores_NR), _class_means(scores_NR, y)):
        free = scores_NR - offsets_NR
        lines = np.hstack([free, _independent_components(free, random_state)]) if free.shape[1] > 1 else free
        for columns in [free, *np.hsplit(lines, lines.shape[1])]:
            if len(np.unique(columns, axis=0)) >= num_values:
                labels = KMeans(num_values, n_init=1, random_state=random_state).fit(columns).labels_.astype(np.int64)
                starts.append((_gain(scores_NR, y, labels), offsets_NR, labels))
    starts.sort(key=lambda start: -start[0])
    for _, offsets_NR, start in starts[:_REFINED_STARTS]:
        labels, offsets = start, offsets_NR
        yield labels
        for _ in range(_REFINEMENTS):
            shares = np.bincount(labels, minlength=num_values) / len(labels)
            if not shares.all():
                break
            free = scores_NR - offsets
            means = np.stack([free[labels == value].mean(axis=0) for value in range(num_values)])
            mixture = GaussianMixture(
                num_values,
                covariance_type="tied",
                init_params="random_from_data",  # of what is not given, which is only where the covariance starts
                means_init=means,
                weights_init=shares,
                reg_covar=_RIDGE,
                max_iter=50,
                random_state=random_state,
            )
            before, labels = labels, mixture.fit(free).predict(free).astype(np.int64)
            yield labels
            if np.array_equal(before, labels):
                break
            class_effects, _ = _additive(scores_NR, y, labels)
            offsets = class_effects[y]


def _independent_components(samples: Floats, random_state: int) -> Floats:
    """Return the samples along the directions in which they look least like a Gaussian, shape (n, r)."""
    analysis = FastICA(whiten="unit-variance", fun="cube", max_iter=100, random_state=random_state)
    found = np.asarray(analysis.fit_transform(samples), dtype=np.float64)
    return found if np.isfinite(found).all() else samples


def _gain(scores_NR: Floats, y: Labels, labels: Labels) -> float:
    """Return by how much an attribute explains the samples better than none; see ``cluster_attributes``."""
    num_samples, num_components = scores_NR.shape
    num_classes, num_values = y.max() + 1, len(np.unique(labels))
    _, residuals = _additive(scores_NR, y, labels)
    explained = _log_determinant(scores_NR - _class_means(scores_NR, y)) - _log_determinant(residuals)
    surprise = 0.0
    for label in range(num_classes):
        counts = np.bincount(labels[y == label])
        counts = counts[counts > 0]
        surprise -= float((counts * np.log(counts / counts.sum())).sum())
    parameters = (num_values - 1) * (num_components + num_classes)
    return float(num_samples / 2 * explained - surprise - parameters / 2 * np.log(num_samples))


def _additive(scores_NR: Floats, y: Labels, labels: Labels) -> tuple[Floats, Floats]:
    """Fit an effect per class and an effect per value; return the classes', which sum to 0, and what is left."""
    design = np.hstack([np.eye(y.max() + 1)[y], np.eye(labels.max() + 1)[labels]])
    effects = np.linalg.lstsq(design, scores_NR, rcond=None)[0]
    of_classes = effects[: y.max() + 1]
    return of_classes - of_classes.mean(axis=0), scores_NR - design @ effects


def _class_means(samples: Floats, y: Labels) -> Floats:
    """Return the mean of each sample's class, shape (n, D)."""
    return np.stack([samples[y == label].mean(axis=0) for label in range(y.max() + 1)])[y]


def _log_determinant(residuals: Floats) -> float:
    num_samples, width = residuals.shape
    return float(np.linalg.slogdet(residuals.T @ residuals / num_samples + _RIDGE * np.eye(width))[1])
