"""What clients may be asked for."""

from dataclasses import dataclass

from fedfacet.mechanism import Mechanism
from fedfacet.privacy.disclosure import DisclosurePolicy
from fedfacet.types import Query


@dataclass(frozen=True, eq=False)
class DisclosureControl(Mechanism):
    """Refuses questions that a policy does not allow, before any client is asked."""

    policy: DisclosurePolicy

    rank = 25

    def ask(self, query: Query) -> None:
        """Raise ``DisclosureError`` if the answers tell too much."""
        self.policy.check(query)
