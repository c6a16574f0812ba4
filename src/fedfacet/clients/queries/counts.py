"""How much data a client has, of which classes, with which attribute values."""

import math

import numpy as np

from fedfacet.answer_form import AnswerForm
from fedfacet.clients.queries.base import Query, QueryContext
from fedfacet.clients.queries.noise import CountNoise
from fedfacet.heterogeneity import InteractionMatrix
from fedfacet.types import Answer


class NoisyCounts:
    """What questions for counts have in common, to whose answers the client may add noise."""

    name: str
    shape: tuple[str, ...] | None = None
    """Of the answer; ``None`` where that is no table of counts."""

    def __init__(self, *, noise_multiplier: float | None = None, max_norm: float | None = None) -> None:
        self.noise = CountNoise(noise_multiplier, max_norm)
        if self.shape is not None:
            self.form = self.noise.form(self.shape)

    def counted(self, unit: str) -> float | None:
        """Return the noise multiplier of the counts; see ``Query.counted``."""
        return self.noise.counted(unit)


class NumSamples(NoisyCounts, Query):
    """Ask for n_k, the number of a client's samples. One number leaves the client; nothing passes through a model.

    Args:
        noise_multiplier: as in ``CountNoise``.
        max_norm: as in ``CountNoise``.
    """

    name = "num_samples"
    kind = "size"
    reads = frozenset[str]()
    needs_model = False
    shape = ()

    def counted(self, unit: str) -> float | None:
        """Return the noise multiplier; infinity for samples, since neighbours have as many."""
        return math.inf if unit == "sample" else super().counted(unit)

    def answer(self, context: QueryContext) -> Answer:
        """Return n_k."""
        number = len(context.data)
        if self.noise.noise_multiplier is None:
            return Answer(number, floats_up=1, samples=0)
        return Answer(float(self.noise.on(np.array([float(number)]), context, self.name)[0]), floats_up=1, samples=0)


class LabelHistogram(NoisyCounts, Query):
    """Ask for the number of a client's samples of each class; Y numbers leave the client, and nothing passes through a model.

    Source: De Cesare et al., Federated Learning Beyond Uniform Participation, section 4.2.

    Args:
        noise_multiplier: as in ``CountNoise``.
        max_norm: as in ``CountNoise``.
    """

    name = "label_histogram"
    kind = "label_counts"
    reads = frozenset({"y"})
    needs_model = False
    shape = ("Y",)

    def answer(self, context: QueryContext) -> Answer:
        """Return the Y counts."""
        num_classes = context.data.dataset.num_classes
        counts = np.bincount(context.data.y, minlength=num_classes)
        noisy = self.noise.on(counts.astype(np.float64), context, self.name) if self.noise.noise_multiplier else counts
        return Answer(noisy.tolist(), floats_up=num_classes, samples=0)


class HeldClasses(Query):
    """Ask of which classes a client has samples: Y numbers, 1 or 0, leave it, and nothing passes through a model."""

    name = "held_classes"
    kind = "label_counts"
    form = AnswerForm(shape=("Y",), low=0, high=1)
    reads = frozenset({"y"})
    needs_model = False

    def answer(self, context: QueryContext) -> Answer:
        """Return 1 for each class that the client holds, and 0 for the others."""
        num_classes = context.data.dataset.num_classes
        counts = np.bincount(context.data.y, minlength=num_classes)
        return Answer((counts > 0).astype(int).tolist(), floats_up=num_classes, samples=0)


class NoisyMatrix(NoisyCounts):
    r"""What questions about the true interaction matrix have in common, with noise that hides any one of a client's samples.

    Each count becomes :math:`\max(0, N^k_{ya} + \mathrm{Laplace}(1 / \epsilon))`. A sample more or less changes one count by
    one, so that an answer is :math:`\epsilon`-differentially private; what is computed of it is too. A client that is asked
    in two rounds gives :math:`2 \epsilon` away. The noise is a function of the run's seed: whoever knows that can take it off.

    Args:
        epsilon: larger than 0; ``None`` for no such noise.
        noise_multiplier: of Gaussian noise, as in ``CountNoise``; none where there is an epsilon.
        max_norm: as in ``CountNoise``.
    """

    reads = frozenset({"y", "a"})
    needs_model = False

    def __init__(
        self, *, epsilon: float | None = None, noise_multiplier: float | None = None, max_norm: float | None = None
    ) -> None:
        self.epsilon = checked_epsilon(epsilon, noise_multiplier)
        super().__init__(noise_multiplier=noise_multiplier, max_norm=max_norm)
        if epsilon and self.shape is not None:
            self.form = CountNoise(1.0).form(self.shape)

    def matrix(self, context: QueryContext) -> InteractionMatrix:
        """Return a client's interaction matrix with its noise.

        Raises:
            DisclosureError: if the client does not know the attributes of its samples.
        """
        matrix = context.data.interaction_matrix
        if self.epsilon is None and self.noise.noise_multiplier is None:
            return matrix
        if self.epsilon is None:
            return InteractionMatrix(self.noise.on(matrix.counts, context, self.name))
        laplace = context.noise("disclosure-noise").laplace(scale=1 / self.epsilon, size=matrix.counts.shape)
        return InteractionMatrix(np.maximum(0.0, matrix.counts + laplace))


class DisclosedInteractionMatrix(NoisyMatrix, Query):
    """Ask for the true interaction matrix N^k itself, as nested lists of whole numbers; ``|Y| |A|`` of them leave the client.

    A real client would have to know the attributes of its samples, and gives away much more than a triplet would.

    Source: FedDiverse (arXiv:2504.11216), section 5.7; thesis, sections 5.6 (FedRK) and 6.6.2, neither of which
    has noise. The noise is the Laplace mechanism (Dwork et al., 2006).

    Args:
        epsilon: of Laplace noise, as in ``NoisyMatrix``; ``None`` for none.
        noise_multiplier: of Gaussian noise, as in ``CountNoise``; an epsilon of the run counts this one.
        max_norm: as in ``CountNoise``.
    """

    name = "interaction_matrix"
    kind = "joint_counts"
    shape = ("Y", "A")

    def answer(self, context: QueryContext) -> Answer:
        """Return N^k, row y and column a."""
        counts_YA = self.matrix(context).counts
        exact = self.epsilon is None and self.noise.noise_multiplier is None
        value = counts_YA.astype(int) if exact else counts_YA
        return Answer(value.tolist(), floats_up=counts_YA.size, samples=0)


def checked_epsilon(epsilon: float | None, noise_multiplier: float | None = None) -> float | None:
    """Return it, or raise ``ValueError`` if it is no positive number, or one of two kinds of noise."""
    if epsilon is not None and noise_multiplier is not None:
        raise ValueError("Expected `epsilon`, of Laplace noise, or `noise_multiplier`, of Gaussian noise, but got both.")
    if epsilon is not None and not 1e-9 <= epsilon < float("inf"):
        raise ValueError(f"Expected `epsilon` to be larger than 0 and finite, or null for no noise, but got {epsilon}.")
    return epsilon
