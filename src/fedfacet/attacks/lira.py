"""The likelihood ratio attack."""

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from fedfacet.arguments import check_choice
from fedfacet.attacks.base import SHADOWS, Attack, Scores, Signals, log_odds_of


class LiRA(Attack):
    r"""A sample is taken for a member where the model is surer of it than shadow models that were not trained on it.

    With :math:`\varphi = \log(p_y / (1 - p_y))` and normal distributions of the shadow models' :math:`\varphi`, per sample,

    .. math::
        \text{offline: } \frac{\varphi - \mu_{out}}{\sigma_{out}}, \quad \text{online: }
        \log \mathcal{N}(\varphi; \mu_{in}, \sigma_{in}^2) - \log \mathcal{N}(\varphi; \mu_{out}, \sigma_{out}^2).

    The offline score ranks as the paper's :math:`1 - \Pr[Z > \varphi]` does, without its ties where that rounds to 1.

    Source: Carlini et al., Membership Inference Attacks From First Principles, S&P 2022, arXiv:2112.03570, algorithm 1 and
    section VI. The thesis' equation 13 prints the direction the other way round; its released code has the right one, with the
    largest probability in place of the true class's.

    Args:
        mode: ``"offline"``, or ``"online"``, which takes shadow models that were trained on a sample too.
        statistic: ``"true_class"``, or ``"max_probability"``, the log-odds of the largest probability, clipped to 1e-4 from 0
            and 1.
        variance: ``"per_sample"``, or ``"global"``, the mean over all samples, steadier with few shadow models.
        min_std: added to every standard deviation, 0 or larger.
    """

    needs = frozenset({SHADOWS})
    least_out = 2

    def __init__(
        self,
        *,
        mode: str = "offline",
        statistic: str = "true_class",
        variance: str = "per_sample",
        min_std: float = 1e-6,
    ) -> None:
        check_choice("attack.mode", mode, ("offline", "online"))
        check_choice("attack.statistic", statistic, ("true_class", "max_probability"))
        check_choice("attack.variance", variance, ("per_sample", "global"))
        if not 0 <= min_std < float("inf"):
            raise ValueError(f"Expected `attack.min_std` to be 0 or larger and finite, but got {min_std}.")
        self.mode, self.statistic, self.variance, self.min_std = mode, statistic, variance, min_std
        self.least_in = 2 if mode == "online" else 0

    def scores(self, signals: Signals) -> Scores:
        """Return z-values offline, log-likelihood ratios online.

        Raises:
            ValueError: if a sample has fewer than two shadow models of a kind that is needed.
        """
        self.check_shadows(signals)
        target, shadows = (self._statistic(logits, signals) for logits in (signals.logits, signals.shadow_logits))
        mean, std = self._normal(shadows, ~signals.shadow_members)
        if self.mode == "offline":
            scores: Scores = (target - mean) / std
            return scores
        mean_in, std_in = self._normal(shadows, signals.shadow_members)
        ratio: Scores = norm.logpdf(target, mean_in, std_in) - norm.logpdf(target, mean, std)
        return ratio

    def _statistic(self, logits: Scores, signals: Signals) -> Scores:
        if self.statistic == "true_class":
            return log_odds_of(logits, signals.y)
        z = logits - logits.max(axis=-1, keepdims=True)
        largest = np.clip(1 / np.exp(z).sum(axis=-1), 1e-4, 1 - 1e-4)
        odds: Scores = np.log(largest / (1 - largest))
        return odds

    def _normal(self, shadows: Scores, chosen: NDArray[np.bool_]) -> tuple[Scores, Scores]:
        """Return mean and standard deviation per sample over the shadow models that are chosen for it."""
        counts = chosen.sum(axis=0)
        mean = np.where(chosen, shadows, 0).sum(axis=0) / counts
        squares = np.where(chosen, shadows - mean, 0) ** 2
        variance = squares.sum(axis=0) / (counts - 1)
        if self.variance == "global":
            variance = np.full_like(variance, variance.mean())
        return mean, np.sqrt(variance) + self.min_std
