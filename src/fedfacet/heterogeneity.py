"""Interaction matrices and the six measures of data heterogeneity.

Source: FedDiverse (arXiv:2504.11216), section 3.3 (III-C of the shorter version); thesis chapter 5, equations 16-26.
Entropies use natural logarithms.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import entr, gammaincinv, rel_entr

_ROUNDING = 1e-9
"""Measures below this are rounding errors of zero."""


class HeterogeneityTriplet(NamedTuple):
    """One data set's class imbalance, attribute imbalance and spurious correlation, each in [0, 1]."""

    class_imbalance: float
    attribute_imbalance: float
    spurious_correlation: float

    @property
    def type(self) -> str:
        """``"CI"``, ``"AI"`` or ``"SC"``, whichever measure is largest; ``"none"`` where all three are zero.

        An exact tie of class and attribute imbalance (four clients of the GAI federation) counts as ``"AI"``, of which the
        paper's figure 7 then has 80 % (it prints 60, and its shares add up to 80). Any tie with the spurious correlation
        counts as the imbalance; no client of the paper's federations has one.
        """
        if max(self) <= _ROUNDING:
            return "none"
        ranked = (self.attribute_imbalance, self.class_imbalance, self.spurious_correlation)
        return ("AI", "CI", "SC")[int(np.argmax(np.round(ranked, 9)))]


@dataclass(frozen=True, slots=True, eq=False)
class InteractionMatrix:
    r"""How many samples a data set holds of each class with each attribute value.

    .. math::
        \Delta_{CI} = 1 - H(Y) / \log|\mathcal{Y}|, \quad
        \Delta_{AI} = 1 - H(A) / \log|\mathcal{A}|, \quad
        \Delta_{SC} = 2 I(Y; A) / (H(Y) + H(A))

    Args:
        counts: shape (Y, A), non-negative; row ``y`` and column ``a`` count the samples of class ``y`` with attribute ``a``.

    Raises:
        ValueError: if ``counts`` is not a finite, non-negative matrix.

    Note:
        Where the paper divides zero by zero (one class only, one attribute value only, no sample at all) the missing
        entropy counts as zero: a data set of a single class out of several is fully class-imbalanced (1), and a
        correlation with a constant is 0.

    Example:
        >>> from fedfacet.heterogeneity import InteractionMatrix
        >>> [round(value, 2) for value in InteractionMatrix([[90, 10], [10, 90]]).triplet]
        [0.0, 0.0, 0.53]
    """

    counts: NDArray[np.float64]

    def __init__(self, counts: ArrayLike) -> None:
        matrix = np.array(counts, dtype=np.float64)
        if matrix.ndim != 2 or matrix.size == 0 or not np.isfinite(matrix).all() or (matrix < 0).any():
            raise ValueError(
                f"Expected an interaction matrix of shape (classes, attributes) with non-negative counts, but got {counts!r}."
            )
        matrix.flags.writeable = False
        object.__setattr__(self, "counts", matrix)

    @classmethod
    def from_labels(
        cls, y: NDArray[np.int64], a: NDArray[np.int64], num_classes: int, num_attributes: int
    ) -> "InteractionMatrix":
        """Count the samples of each (class, attribute) cell; ``y`` and ``a`` have shape (N,)."""
        flat = np.bincount(y * num_attributes + a, minlength=num_classes * num_attributes)
        return cls(flat.reshape(num_classes, num_attributes))

    @property
    def total(self) -> float:
        """The number of samples."""
        return float(self.counts.sum())

    @property
    def independence_weights(self) -> NDArray[np.float64]:
        r"""Weights of samples with which class and attribute look independent, :math:`P(y) P(a) / P(y, a)`, shape (Y, A).

        Weighted counts factorise, and weights have the mean 1 over all samples if every cell has some; those of empty cells
        are 0.

        Source: Kamiran and Calders, Data preprocessing techniques for classification without discrimination, 2012.

        Example:
            >>> InteractionMatrix([[30, 10], [10, 30]]).independence_weights.round(4).tolist()
            [[0.6667, 2.0], [2.0, 0.6667]]
        """
        expected = self.counts.sum(axis=1, keepdims=True) * self.counts.sum(axis=0, keepdims=True) / (self.total or 1.0)
        weights: NDArray[np.float64] = np.divide(expected, self.counts, out=np.zeros_like(expected), where=self.counts > 0)
        return weights

    @property
    def triplet(self) -> HeterogeneityTriplet:
        """The three measures, clamped to [0, 1]."""
        num_classes, num_attributes = self.counts.shape
        joint_YA = self.counts / (self.total or 1.0)
        entropy_y = float(entr(joint_YA.sum(axis=1)).sum())
        entropy_a = float(entr(joint_YA.sum(axis=0)).sum())
        mutual_information = entropy_y + entropy_a - float(entr(joint_YA).sum())
        class_imbalance = 1 - entropy_y / np.log(num_classes) if num_classes > 1 and self.total else 0.0
        attribute_imbalance = 1 - entropy_a / np.log(num_attributes) if num_attributes > 1 and self.total else 0.0
        marginal = entropy_y + entropy_a
        correlation = 2 * mutual_information / marginal if marginal > 1e-12 else 0.0
        # Rounding must not pass for heterogeneity: FedDiverse compares a client's measures with one another.
        measures = (float(np.clip(value, 0.0, 1.0)) for value in (class_imbalance, attribute_imbalance, correlation))
        return HeterogeneityTriplet(*(0.0 if value < _ROUNDING else value for value in measures))

    @property
    def type(self) -> str:
        r"""The triplet's type, or ``"none"`` where no measure is larger than chance makes it in so few samples.

        A measure counts if a likelihood-ratio test at the level of 1 % refuses equal classes, equal attribute values or their
        independence. With n samples, :math:`2 n \Delta_{CI} \log|\mathcal{Y}|` has :math:`|\mathcal{Y}| - 1` degrees of
        freedom, :math:`2 n \Delta_{AI} \log|\mathcal{A}|` has :math:`|\mathcal{A}| - 1`, and :math:`2 n I(Y; A)` their product.

        Example:
            >>> InteractionMatrix([[11, 9], [8, 12]]).type, InteractionMatrix([[110, 90], [80, 120]]).type
            ('none', 'SC')
        """
        num_classes, num_attributes = self.counts.shape
        triplet = self.triplet
        entropies = [float(entr(self.counts.sum(axis=axis) / (self.total or 1.0)).sum()) for axis in (0, 1)]
        information = triplet.spurious_correlation * sum(entropies) / 2
        tested = (
            (triplet.class_imbalance * np.log(num_classes), num_classes - 1),
            (triplet.attribute_imbalance * np.log(num_attributes), num_attributes - 1),
            (information, (num_classes - 1) * (num_attributes - 1)),
        )
        chance = all(not freedom or 2 * self.total * value <= _critical(freedom) for value, freedom in tested)
        return "none" if chance else triplet.type


@dataclass(frozen=True, eq=False)
class InteractionMatrices(Sequence[InteractionMatrix]):
    """The interaction matrices of many clients; one is made when it is looked at.

    Args:
        counts_KYA: shape (K, Y, A), whole numbers, 0 or larger.

    Example:
        >>> many = InteractionMatrices(np.array([[[9, 1], [1, 9]], [[5, 5], [5, 5]]]))
        >>> len(many), many[0].triplet == HeterogeneityTriplet(*many.triplets_KD[0]), many.types
        (2, True, ['SC', 'none'])
    """

    counts_KYA: NDArray[np.integer[Any]]

    @classmethod
    def of(
        cls, y: NDArray[np.int64], a: NDArray[np.int64], sizes: NDArray[np.int64], num_classes: int, num_attributes: int
    ) -> "InteractionMatrices":
        """Count the samples of each client and cell.

        Args:
            y: classes of the samples, client after client, shape (N,).
            a: attribute values, shape (N,).
            sizes: how many samples each client has, shape (K,).
            num_classes: Y.
            num_attributes: A.
        """
        cells = num_classes * num_attributes
        counts = np.zeros(len(sizes) * cells, dtype=np.int32)  # numpy's bincount makes eight bytes of each
        np.add.at(counts, np.repeat(np.arange(len(sizes)), sizes) * cells + y * num_attributes + a, 1)
        return cls(counts.reshape(len(sizes), num_classes, num_attributes))

    def __len__(self) -> int:
        return len(self.counts_KYA)

    @overload
    def __getitem__(self, place: int) -> InteractionMatrix: ...

    @overload
    def __getitem__(self, place: slice) -> "InteractionMatrices": ...

    def __getitem__(self, place: int | slice) -> "InteractionMatrix | InteractionMatrices":
        if isinstance(place, slice):
            return InteractionMatrices(self.counts_KYA[place])
        return InteractionMatrix(self.counts_KYA[place])

    @property
    def pooled(self) -> InteractionMatrix:
        """The matrix of all samples."""
        return InteractionMatrix(self.counts_KYA.sum(axis=0, dtype=np.int64))

    @property
    def triplets_KD(self) -> NDArray[np.float64]:
        """Each client's ``triplet``, shape (K, 3), to the last bits."""
        return self._measured[0]

    @property
    def types(self) -> list[str]:
        """Each client's ``type``."""
        triplets_KD, entropies_K, totals_K = self._measured
        num_classes, num_attributes = self.counts_KYA.shape[1:]
        freedom = num_classes - 1, num_attributes - 1, (num_classes - 1) * (num_attributes - 1)
        scales = np.log(num_classes), np.log(num_attributes), entropies_K / 2
        chance_K = np.ones(len(self), dtype=bool)
        for dimension, (free, scale) in enumerate(zip(freedom, scales, strict=True)):
            if free:
                chance_K &= 2 * totals_K * triplets_KD[:, dimension] * scale <= _critical(free)
        chance_K |= triplets_KD.max(axis=1) <= _ROUNDING
        largest_K = np.round(triplets_KD[:, [1, 0, 2]], 9).argmax(axis=1)  # ties as in ``HeterogeneityTriplet.type``
        names = np.array(["AI", "CI", "SC", "none"])
        return names[np.where(chance_K, 3, largest_K)].tolist()  # type: ignore[no-any-return]

    @functools.cached_property
    def _measured(self) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        num_classes, num_attributes = self.counts_KYA.shape[1:]
        totals_K = self.counts_KYA.sum(axis=(1, 2)).astype(np.float64)
        joint_KYA = self.counts_KYA / np.maximum(totals_K, 1)[:, None, None]
        y_K, a_K = (entr(joint_KYA.sum(axis=axis)).sum(axis=1) for axis in (2, 1))
        information_K = y_K + a_K - entr(joint_KYA).sum(axis=(1, 2))
        triplets_KD = np.zeros((len(self), 3))
        for dimension, (number, entropy_K) in enumerate(((num_classes, y_K), (num_attributes, a_K))):
            if number > 1:
                triplets_KD[:, dimension] = np.where(totals_K > 0, 1 - entropy_K / np.log(number), 0.0)
        np.divide(2 * information_K, y_K + a_K, out=triplets_KD[:, 2], where=y_K + a_K > 1e-12)
        triplets_KD = triplets_KD.clip(0.0, 1.0)
        triplets_KD[triplets_KD < _ROUNDING] = 0.0
        return triplets_KD, y_K + a_K, totals_K


@functools.cache
def _critical(degrees_of_freedom: int) -> float:
    """Return what a likelihood-ratio statistic exceeds by chance in one of a hundred cases."""
    return float(2 * gammaincinv(degrees_of_freedom / 2, 0.99))


@dataclass(frozen=True, slots=True)
class FederationHeterogeneity:
    """The six measures of a federation: three of the pooled data, three averaged over the clients (equations 21-26)."""

    global_triplet: HeterogeneityTriplet
    client_mean: HeterogeneityTriplet
    clients: tuple[HeterogeneityTriplet, ...]


def measure_federation(matrices: Sequence[InteractionMatrix]) -> FederationHeterogeneity:
    """Measure a federation from its clients' interaction matrices."""
    clients = tuple(matrix.triplet for matrix in matrices)
    pooled = InteractionMatrix(np.sum([matrix.counts for matrix in matrices], axis=0))
    mean = HeterogeneityTriplet(*(float(value) for value in np.mean(clients, axis=0)))
    return FederationHeterogeneity(global_triplet=pooled.triplet, client_mean=mean, clients=clients)


def class_distances(matrices: Sequence[InteractionMatrix]) -> dict[str, float]:
    r"""Return how far clients' class shares p are from those of the pooled data q: means over clients that hold samples.

    .. math::
        \text{Jensen-Shannon} = \sqrt{\tfrac12 KL(p \| m) + \tfrac12 KL(q \| m)}, \; m = \tfrac12 (p + q), \quad
        \text{Hellinger} = \sqrt{1 - \textstyle\sum_y \sqrt{p_y q_y}}, \quad
        \text{total variation} = \tfrac12 \textstyle\sum_y |p_y - q_y|

    All lie in [0, 1]; logarithms are of base 2. Total variation is the earth mover's distance of classes that are all as far
    from each other. Without any sample they are 0.

    Example:
        >>> halves = [InteractionMatrix([[4, 4], [0, 0]]), InteractionMatrix([[0, 0], [4, 4]])]
        >>> {name: round(value, 3) for name, value in class_distances(halves).items()}
        {'jensen_shannon': 0.558, 'hellinger': 0.541, 'total_variation': 0.5}
    """
    counts_KY = np.array([matrix.counts.sum(axis=1) for matrix in matrices])
    counts_KY = counts_KY[counts_KY.sum(axis=1) > 0]
    if not len(counts_KY):
        return {"jensen_shannon": 0.0, "hellinger": 0.0, "total_variation": 0.0}
    p_KY = counts_KY / counts_KY.sum(axis=1, keepdims=True)
    q_Y = counts_KY.sum(axis=0) / counts_KY.sum()
    overlap_K = np.sqrt(p_KY * q_Y).sum(axis=1)
    return {
        "jensen_shannon": float(_jensen_shannon(p_KY, np.broadcast_to(q_Y, p_KY.shape)).mean()),
        "hellinger": float(np.sqrt(np.maximum(1 - overlap_K, 0)).mean()),
        "total_variation": float(np.abs(p_KY - q_Y).sum(axis=1).mean() / 2),
    }


def _jensen_shannon(p_KY: NDArray[np.float64], q_KY: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return each row's distance in bits, as ``scipy.spatial.distance.jensenshannon`` does, whose import takes its time."""
    p_KY, q_KY = p_KY / p_KY.sum(axis=1, keepdims=True), q_KY / q_KY.sum(axis=1, keepdims=True)
    middle_KY = (p_KY + q_KY) / 2.0
    divergence_K = rel_entr(p_KY, middle_KY).sum(axis=1) + rel_entr(q_KY, middle_KY).sum(axis=1)
    distance_K: NDArray[np.float64] = np.sqrt(divergence_K / np.log(2) / 2.0)
    return distance_K
