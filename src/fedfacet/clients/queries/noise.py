"""Gaussian noise on answers, of a size that an accountant can count."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedfacet.answer_form import AnswerForm
from fedfacet.clients.queries.base import QueryContext

TRIPLET = AnswerForm(shape=(3,), low=0, high=1 + 1e-9)
TRIPLET_REACH = math.sqrt(3)
"""How far two triplets are apart at most, in the l2 norm: each of three measures lies in [0, 1]."""


@dataclass(frozen=True)
class CountNoise:
    r"""Noise on a table of counts N, which moves by 1 in one entry where one sample counts for nothing.

    .. math:: N \min(1, B / \lVert N \rVert_2) + \mathcal{N}(0, z^2 B^2 I), \quad
        \text{or without B} \quad N + \mathcal{N}(0, z^2 I)

    What is below 0 becomes 0. A sample moves the table by 1 at most, since scaling into a ball brings no two points further
    apart; a whole client moves it by B at most, and without B by any number.

    Args:
        noise_multiplier: z, larger than 0 and finite; ``None`` for no noise.
        max_norm: B, larger than 0 and finite; ``None`` to scale nothing.

    Raises:
        ValueError: if a value is out of range.
    """

    noise_multiplier: float | None = None
    max_norm: float | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        checked_multiplier(self.noise_multiplier)
        if self.max_norm is not None and not (0 < self.max_norm < math.inf and self.noise_multiplier is not None):
            raise ValueError(
                f"Expected `max_norm` to be larger than 0 and finite, with a `noise_multiplier`, but got {self.max_norm} with "
                f"{self.noise_multiplier}: give both, or null."
            )

    def scaled(self, counts: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the table before its noise."""
        norm = float(np.linalg.norm(counts))
        return counts if self.max_norm is None or norm <= self.max_norm else counts * (self.max_norm / norm)

    def on(self, counts: NDArray[np.float64], context: QueryContext, name: str) -> NDArray[np.float64]:
        """Return the table as it leaves the client, 0 or larger; without noise it is as it was."""
        if self.noise_multiplier is None:
            return counts
        std = self.noise_multiplier * (1.0 if self.max_norm is None else self.max_norm)
        noisy: NDArray[np.float64] = self.scaled(counts) + std * context.noise(f"answer-{name}").standard_normal(counts.shape)
        return np.maximum(0.0, noisy)

    def form(self, shape: tuple[str, ...]) -> AnswerForm:
        """Return what a table of counts must be like, with the noise or without."""
        return AnswerForm(shape=shape, low=0, high=2.0**53, counts=... if self.noise_multiplier is None else None)

    def counted(self, unit: str) -> float | None:
        """Return the noise multiplier; see ``Query.counted``."""
        if self.noise_multiplier is None or (unit == "client" and self.max_norm is None):
            return None
        return self.noise_multiplier * (self.max_norm if unit == "sample" and self.max_norm is not None else 1.0)


def noisy_triplet(triplet: tuple[float, ...], noise_multiplier: float | None, context: QueryContext, name: str) -> list[float]:
    r"""Return a triplet with noise of standard deviation :math:`z \sqrt{3}`, brought back to [0, 1].

    A sample may change what a model takes for the attributes of all others, so no less than the whole range bounds what it
    moves; that bounds what a client moves as well.
    """
    if noise_multiplier is None:
        return list(triplet)
    noise = noise_multiplier * TRIPLET_REACH * context.noise(f"answer-{name}").standard_normal(3)
    noisy: list[float] = np.clip(np.array(triplet) + noise, 0.0, 1.0).tolist()
    return noisy


def checked_multiplier(noise_multiplier: float | None) -> float | None:
    """Return it, or raise ``ValueError`` if it is no positive number."""
    if noise_multiplier is not None and not 0 < noise_multiplier < math.inf:
        raise ValueError(
            f"Expected `noise_multiplier` to be larger than 0 and finite, or null for no noise, but got {noise_multiplier}."
        )
    return noise_multiplier
