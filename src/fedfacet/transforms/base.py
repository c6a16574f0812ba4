"""The contract of a transform."""

from abc import ABC, abstractmethod

import numpy as np

from fedfacet.types import ClientUpdate


class UpdateTransform(ABC):
    """What happens to an update before it leaves the client: its last deed."""

    @abstractmethod
    def apply(self, update: ClientUpdate, rng: np.random.Generator) -> ClientUpdate:
        """Return the update as it is sent, drawing from ``rng`` only."""
