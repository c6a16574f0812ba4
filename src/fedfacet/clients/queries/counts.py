"""How much data a client has, of which classes, with which attribute values."""

import numpy as np

from fedfacet.clients.queries.base import Query, QueryContext
from fedfacet.heterogeneity import InteractionMatrix
from fedfacet.types import Answer


class NumSamples(Query):
    """Ask for n_k, the number of a client's samples. One number leaves the client; nothing passes through a model."""

    name = "num_samples"
    kind = "size"
    reads = frozenset[str]()
    needs_model = False

    def answer(self, context: QueryContext) -> Answer:
        """Return n_k."""
        return Answer(len(context.data), floats_up=1, samples=0)


class LabelHistogram(Query):
    """Ask for the number of a client's samples of each class; Y numbers leave the client, and nothing passes through a model.

    Source: De Cesare et al., Federated Learning Beyond Uniform Participation, section 4.2.
    """

    name = "label_histogram"
    kind = "label_counts"
    reads = frozenset({"y"})
    needs_model = False

    def answer(self, context: QueryContext) -> Answer:
        """Return the Y counts."""
        num_classes = context.data.dataset.num_classes
        return Answer(np.bincount(context.data.y, minlength=num_classes).tolist(), floats_up=num_classes, samples=0)


class DisclosedInteractionMatrix(Query):
    """Ask for the true interaction matrix N^k itself, as nested lists of whole numbers; ``|Y| |A|`` of them leave the client.

    A real client would have to know the attributes of its samples, and gives away much more than a triplet would.

    Source: FedDiverse (arXiv:2504.11216), section 5.7; thesis, sections 5.6 (FedRK) and 6.5. The thesis
    suggests noise and gives no rule; this is the Laplace mechanism (Dwork et al., 2006).

    Args:
        epsilon: of the noise, as in ``noisy_matrix``; ``None`` for none.
    """

    name = "interaction_matrix"
    kind = "joint_counts"
    reads = frozenset({"y", "a"})
    needs_model = False

    def __init__(self, *, epsilon: float | None = None) -> None:
        self.epsilon = checked_epsilon(epsilon)

    def answer(self, context: QueryContext) -> Answer:
        """Return N^k, row y and column a."""
        counts_YA = noisy_matrix(context, self.epsilon).counts
        value = counts_YA.astype(int) if self.epsilon is None else counts_YA
        return Answer(value.tolist(), floats_up=counts_YA.size, samples=0)


def noisy_matrix(context: QueryContext, epsilon: float | None) -> InteractionMatrix:
    r"""Return a client's interaction matrix, with noise that hides any one of its samples.

    Each count becomes :math:`\max(0, N^k_{ya} + \mathrm{Laplace}(1 / \epsilon))`. A sample more or less changes one count by
    one, so that an answer is :math:`\epsilon`-differentially private; what is computed of it is too. A client that is asked
    in two rounds gives :math:`2 \epsilon` away. The noise is a function of the run's seed: whoever knows that can take it off.

    Args:
        context: of the query.
        epsilon: larger than 0; ``None`` for no noise.

    Raises:
        DisclosureError: if the client does not know the attributes of its samples.
    """
    matrix = context.data.interaction_matrix
    if epsilon is None:
        return matrix
    noise = context.stream("disclosure-noise").laplace(scale=1 / epsilon, size=matrix.counts.shape)
    return InteractionMatrix(np.maximum(0.0, matrix.counts + noise))


def checked_epsilon(epsilon: float | None) -> float | None:
    """Return it, or raise ``ValueError`` if it is no positive number."""
    if epsilon is not None and not 1e-9 <= epsilon < float("inf"):
        raise ValueError(f"Expected `epsilon` to be larger than 0 and finite, or null for no noise, but got {epsilon}.")
    return epsilon
