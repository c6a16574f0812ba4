"""What clients may be asked for, and whether they know the sensitive attribute of their samples."""

from collections.abc import Iterable, Sequence
from typing import Any

from fedfacet.arguments import check_choice
from fedfacet.errors import DisclosureError

KINDS = {
    "size": "how many samples a client has",
    "label_counts": "how many it has of each class",
    "loss": "a loss of a model on its samples",
    "norm": "the size of an update or a gradient",
    "triplet": "class imbalance, attribute imbalance and spurious correlation",
    "class_means": "the mean features of each class, and how they vary",
    "norm_statistics": "the means and variances of a model's activations on its samples",
    "class_histograms": "how many samples of each class lie where along a direction of features",
    "centroids": "the means of clusters of its samples, or of their features",
    "joint_counts": "how many it has of each class with each attribute value",
    "resources": "how fast a client's device and its connection are, and what energy a round takes",
    "bid": "at what price, or on which of the terms offered, a client takes part",
    "group_performance": "how a model does on its samples of each class with each attribute value, and how many these are",
}
"""Kind of an answer -> what it tells."""

UNDECLARED = "undeclared"
"""The kind of a query that does not say what its answers tell; no policy lists it."""

UPDATE = "update"
"""The kind of what tells no more than the update that it comes with; every policy allows it."""


def kinds_sent(part: Any, names: Iterable[str]) -> dict[str, str]:
    """Return of what kind each thing is that an objective or a correction sends along with updates, by its ``discloses``."""
    declared = getattr(part, "discloses", {})
    return {name: declared.get(name, UNDECLARED) for name in names}


class DisclosurePolicy:
    """Which kinds of answers may leave a client, and whether clients know the attribute values of their samples.

    The policy is held three times: to the queries of a configuration before a run begins, to every query when it is put, and
    at the client. Clients who do not know attributes have data without them, whatever a query says of itself: batches have
    attribute -1 everywhere, the data set's further columns are gone, and the interaction matrix is refused. What the server
    itself measures on validation and test samples is not concerned. What methods send along with updates (FedPAC its classes'
    mean features) counts as answers do; what every update has (the number of samples and steps, the training loss) does not.

    Source: thesis, section 6.6.2, four levels: nothing is shared (``disclosure=none``), unawareness (``estimated_triplet``),
    known to clients (``true_triplet``), known to the server (``joint_counts``).

    The inputs are what they are: where an attribute is a feature, or shows in an image, a model sees it at every level.

    Args:
        allows: kinds of answers, of ``KINDS``.
        attributes: ``"clients"`` or ``"nobody"``: who knows the attribute values of training samples.
    """

    def __init__(self, *, allows: Sequence[str], attributes: str) -> None:
        for kind in allows:
            check_choice("disclosure.allows", kind, tuple(KINDS))
        check_choice("disclosure.attributes", attributes, ("clients", "nobody"))
        self.allows, self.attributes = tuple(allows), attributes

    @property
    def hides_attributes(self) -> bool:
        """Whether clients' data comes without attribute values."""
        return self.attributes == "nobody"

    def check(self, query: Any) -> None:
        """Refuse a query whose answers tell too much, or that reads what clients do not know.

        Raises:
            DisclosureError: naming the query, what it asks for and what is allowed.
        """
        if query.kind not in self.allows:
            allowed = ", ".join(self.allows) or "nothing"
            raise DisclosureError(
                f"Expected queries of the kinds that `disclosure` allows ({allowed}), but `{query.name}` is of kind "
                f"{query.kind}: choose another method, or another disclosure."
            )
        if self.hides_attributes and "a" in query.reads:
            raise DisclosureError(
                f"Expected queries that do without attributes, which nobody knows under this `disclosure`, but `{query.name}` "
                "reads them: choose another method, or a disclosure whose clients know them."
            )
