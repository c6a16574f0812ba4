"""How much data a client has, of which classes, with which attribute values."""

import numpy as np

from fedfacet.clients.queries.base import Query, QueryContext
from fedfacet.types import Answer


class NumSamples(Query):
    """Ask for n_k, the number of a client's samples. One number leaves the client; nothing passes through a model."""

    name = "num_samples"
    needs_model = False

    def answer(self, context: QueryContext) -> Answer:
        """Return n_k."""
        return Answer(len(context.data), floats_up=1, samples=0)


class LabelHistogram(Query):
    """Ask for the number of a client's samples of each class; Y numbers leave the client, and nothing passes through a model.

    Source: De Cesare et al., Federated Learning Beyond Uniform Participation, section 4.2.
    """

    name = "label_histogram"
    needs_model = False

    def answer(self, context: QueryContext) -> Answer:
        """Return the Y counts."""
        num_classes = context.data.dataset.num_classes
        return Answer(np.bincount(context.data.y, minlength=num_classes).tolist(), floats_up=num_classes, samples=0)


class DisclosedInteractionMatrix(Query):
    """Ask for the true interaction matrix N^k itself, as nested lists of whole numbers; |Y| |A| numbers leave the client.

    A real client would have to know the attributes of its samples, and gives away much more than a triplet would.

    Source: FedDiverse (arXiv:2504.11216), section 5.7; thesis, sections 5.6 (FedRK) and 6.5.
    """

    name = "interaction_matrix"
    needs_model = False

    def answer(self, context: QueryContext) -> Answer:
        """Return N^k, row y and column a."""
        counts_YA = context.data.interaction_matrix.counts
        return Answer(counts_YA.astype(int).tolist(), floats_up=counts_YA.size, samples=0)
