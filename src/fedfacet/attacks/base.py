"""The contract of a membership inference attack, and what it may look at."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

SHADOWS = "shadows"
"""What an attack needs that compares with models of the attacker's own."""

TRAJECTORY = "trajectory"
"""What an attack needs that looks at losses of students, while they learn from the model."""

Scores = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Trajectories:
    """Losses of students after each of E epochs, and last the loss of the model that they learn from.

    Attributes:
        target: of the n samples, with the attacked model for a teacher, shape (n, E + 1).
        shadow: of samples of the attacker's own, with a shadow model for a teacher, shape (s, E + 1).
        shadow_members: which of these the shadow model was trained on, shape (s,); some, not all.
    """

    target: Scores
    shadow: Scores
    shadow_members: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Signals:
    """What an attacker sees of n samples, some of them trained on.

    Attributes:
        logits: the attacked model's, shape (n, Y).
        y: classes, shape (n,).
        known_members: positions of the samples that the attacker knows to be members; they are not scored against.
        known_others: positions of those known to be none.
        shadow_logits: what S shadow models say, shape (S, n, Y); S is 0 where there are none.
        shadow_members: whether each shadow model was trained on each sample, shape (S, n).
        trajectories: ``None`` where no attack needs them.
    """

    logits: NDArray[np.float64]
    y: NDArray[np.int64]
    known_members: NDArray[np.int64]
    known_others: NDArray[np.int64]
    shadow_logits: NDArray[np.float64]
    shadow_members: NDArray[np.bool_]
    trajectories: Trajectories | None = None

    @property
    def losses(self) -> Scores:
        """Cross entropies under the attacked model, shape (n,)."""
        return losses_of(self.logits, self.y)


class Attack(ABC):
    """Gives every sample a score; the higher, the more an attacker takes it for a member.

    Arguments that are out of range raise ``ValueError``. An attack draws nothing.
    """

    needs: frozenset[str] = frozenset()
    """What signals must hold besides what the attacked model says."""

    threshold: float | None = None
    """From which score on the attack calls a sample a member; ``None`` where it only ranks."""

    least_out: int = 0
    """How many shadow models that were not trained on it every sample needs."""

    least_in: int = 0
    """How many shadow models that were trained on it every sample needs."""

    @abstractmethod
    def scores(self, signals: Signals) -> Scores:
        """Return a finite score per sample, shape (n,)."""

    def has_enough(self, signals: Signals) -> bool:
        """Tell whether there are enough shadow models for every sample, and trajectories where they are needed."""
        if TRAJECTORY in self.needs and signals.trajectories is None:
            return False
        num_in = signals.shadow_members.sum(axis=0)
        num_out = len(signals.shadow_members) - num_in
        return bool((num_in >= self.least_in).all() and (num_out >= self.least_out).all())

    def check_shadows(self, signals: Signals) -> None:
        """Raise ``ValueError`` if there are not."""
        if not self.has_enough(signals):
            trained = f", and {self.least_in} that were" if self.least_in else ""
            raise ValueError(
                f"Expected {self.least_out} shadow models or more that were not trained on it{trained}, for every sample, but "
                f"some sample lacks them among the {len(signals.shadow_members)} there are: train more."
            )


def losses_of(logits: NDArray[np.float64], y: NDArray[np.int64]) -> Scores:
    """Return cross entropies, of shape (..., n) for logits of shape (..., n, Y)."""
    z = logits.astype(np.float64)
    own = np.take_along_axis(z, np.broadcast_to(y, z.shape[:-1])[..., None], axis=-1)[..., 0]
    loss: Scores = logsumexp(z, axis=-1) - own
    return loss


def log_odds_of(logits: NDArray[np.float64], y: NDArray[np.int64]) -> Scores:
    r"""Return how sure a model is of the true class, :math:`\varphi = \log(p_y / (1 - p_y))`.

    Written as :math:`z_y - \log \sum_{c \ne y} e^{z_c}` it is finite also where the loss rounds to 0.
    """
    z = logits.astype(np.float64)
    true = np.broadcast_to(y, z.shape[:-1])[..., None]
    own = np.take_along_axis(z, true, axis=-1)[..., 0]
    others = z.copy()
    np.put_along_axis(others, true, -np.inf, axis=-1)
    odds: Scores = own - logsumexp(others, axis=-1)
    return odds
