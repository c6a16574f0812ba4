"""The robust membership inference attack."""

import numpy as np

from fedfacet.arguments import check_within
from fedfacet.attacks.base import SHADOWS, Attack, Scores, Signals, losses_of


class RMIA(Attack):
    r"""A sample is taken for a member where training has raised its probability more than that of most others.

    .. math::
        \Pr_z \left[ \frac{p(x \mid \theta) / p(x)}{p(z \mid \theta) / p(z)} \ge \gamma \right], \quad
        p(x) = \tfrac{1}{2} \left( (1 + a) \, \bar{p}_{out}(x) + 1 - a \right),

    with :math:`\bar{p}_{out}` the mean over shadow models that were not trained on x; where some were, p(x) is the mean of the
    two means. The z are the samples that the attacker knows to be no members. Of the highest score, 1, there may be many.

    Source: Zarifzadeh et al., Low-Cost High-Power Membership Inference Attacks, ICML 2024, arXiv:2312.03262.

    Args:
        gamma: how much larger a ratio must be, 1 or larger.
        offline_a: a in [0, 1], how much a sample's probability rises when it is trained on; 1 for not at all. Acts on samples
            that no shadow model was trained on, of which the halves of ``attack.py`` leave none.
    """

    needs = frozenset({SHADOWS})
    least_out = 1

    def __init__(self, *, gamma: float = 1.0, offline_a: float = 0.3) -> None:
        check_within("attack.offline_a", offline_a, "[0, 1]")
        if not 1 <= gamma < float("inf"):
            raise ValueError(f"Expected `attack.gamma` to be 1 or larger and finite, but got {gamma}.")
        self.gamma, self.offline_a = gamma, offline_a

    def scores(self, signals: Signals) -> Scores:
        """Return the share of known others whose ratio a sample's is gamma times.

        Raises:
            ValueError: if a sample has no shadow model that was not trained on it, or if no others are known.
        """
        self.check_shadows(signals)
        if len(signals.known_others) == 0:
            raise ValueError("Expected others that the attacker knows, to compare with, but got none: raise members.min_known.")
        out = ~signals.shadow_members
        probabilities = np.exp(-losses_of(signals.shadow_logits, signals.y))
        mean_out = np.where(out, probabilities, 0).sum(axis=0) / out.sum(axis=0)
        num_in = signals.shadow_members.sum(axis=0)
        mean_in = np.where(signals.shadow_members, probabilities, 0).sum(axis=0) / np.maximum(num_in, 1)
        offline = ((1 + self.offline_a) * mean_out + 1 - self.offline_a) / 2
        usual = np.where(num_in > 0, (mean_out + mean_in) / 2, offline)
        ratios = np.exp(-signals.losses) / np.maximum(usual, np.finfo(np.float64).tiny)
        known = np.sort(ratios[signals.known_others])
        beaten: Scores = np.searchsorted(known, ratios / self.gamma, side="right") / len(known)
        return beaten
