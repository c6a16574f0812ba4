"""FedLD's decomposition of the loss after a round into a local loss, a loss from shifted data and one from averaging."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class LossDecomposition:
    r"""The three terms whose sum is the loss of the new global model on all samples of a round's participants.

    With :math:`p_i = n_i / n` over the m participants, :math:`L_j(w_i)` the mean loss of i's local model on j's samples, and
    :math:`L(\cdot) = \sum_j p_j L_j(\cdot)`,

    .. math::
        L(w) = \underbrace{\sum_i p_i L_i(w_i)}_{\text{local}}
        + \underbrace{\sum_i \sum_j p_i p_j (L_j(w_i) - L_i(w_i))}_{\text{distribution shift}}
        + \underbrace{\sum_i p_i (L(w) - L(w_i))}_{\text{aggregation}} .

    The terms are signed, or they would not add up: averaging mostly lowers the loss, so that the aggregation loss is negative.
    The paper calls the absolute values of the last two by these names, and draws those.

    Source: FedLD (Zeng et al., MICCAI 2024), equation 2.

    Args:
        num_samples: n_i, shape (m,), larger than 0.
        losses: row i has client i's local model on the samples of every participant, shape (m, m).
        global_losses: the new global model on the samples of every participant, shape (m,).

    Raises:
        ValueError: if there is no participant, or if the shapes do not fit.

    Example:
        >>> losses = np.array([[0.5, 2.0], [3.0, 1.0]])
        >>> parts = LossDecomposition(np.array([10, 30]), losses, np.array([1.0, 1.2]))
        >>> parts.local_loss, parts.distribution_shift_loss, round(parts.aggregation_loss, 6), parts.global_loss
        (0.875, 0.65625, -0.38125, 1.15)
    """

    num_samples: NDArray[np.int64]
    losses: NDArray[np.float64]
    global_losses: NDArray[np.float64]

    def __post_init__(self) -> None:
        m = len(self.num_samples)
        if not m or self.losses.shape != (m, m) or self.global_losses.shape != (m,):
            raise ValueError(
                f"Expected losses of shape (m, m) and (m,) for m participants, 1 or more, but got {self.losses.shape} and "
                f"{self.global_losses.shape} for {m}."
            )

    @property
    def shares(self) -> NDArray[np.float64]:
        """p_i, shape (m,)."""
        return self.num_samples / self.num_samples.sum()  # type: ignore[no-any-return]

    @property
    def local_loss(self) -> float:
        """The local models' losses on their own samples."""
        return float(self.shares @ np.diag(self.losses))

    @property
    def distribution_shift_loss(self) -> float:
        """By how much the local models' losses are higher on the others' samples than on their own."""
        increase = self.losses - np.diag(self.losses)[:, None]
        return float(self.shares @ increase @ self.shares)

    @property
    def aggregation_loss(self) -> float:
        """By how much the global model's loss on all samples is higher than the local models'."""
        return float(self.shares @ (self.global_loss - self.losses @ self.shares))

    @property
    def global_loss(self) -> float:
        """L(w), the sum of the three."""
        return float(self.shares @ self.global_losses)

    def terms(self) -> dict[str, float]:
        """Return the four by name."""
        names = ("local_loss", "distribution_shift_loss", "aggregation_loss", "global_loss")
        return {name: getattr(self, name) for name in names}
