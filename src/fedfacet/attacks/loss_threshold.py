"""The attack that takes small losses for a sign of membership."""

import numpy as np

from fedfacet.arguments import check_choice
from fedfacet.attacks.base import Attack, Scores, Signals


class LossThreshold(Attack):
    r"""A sample is taken for a member where its loss is below a threshold :math:`\nu`; the score is :math:`\nu - \ell`.

    Source: Yeom et al., Privacy Risk in Machine Learning, CSF 2018, arXiv:1709.01604: nu is the mean loss of the members, here
    of those that the attacker knows. The thesis' released code adds two other thresholds.

    Args:
        rule: ``"mean_member"``, the mean loss of the known members; ``"best"``, the one that tells most of the known samples
            apart; ``"per_class"``, the mean of the known members of a class, and of all where none is known of it.
    """

    threshold = 0.0

    def __init__(self, *, rule: str = "mean_member") -> None:
        check_choice("attack.rule", rule, ("mean_member", "best", "per_class"))
        self.rule = rule

    def scores(self, signals: Signals) -> Scores:
        """Return how far a loss is below the threshold."""
        losses = signals.losses
        below: Scores = self._bounds(losses, signals) - losses
        return below

    def _bounds(self, losses: Scores, signals: Signals) -> Scores | float:
        known = losses[signals.known_members]
        if self.rule == "mean_member":
            return float(known.mean())
        if self.rule == "best":
            return _best(known, losses[signals.known_others])
        classes, bounds = signals.y[signals.known_members], np.full(int(signals.y.max()) + 1, known.mean())
        for label in np.unique(classes):
            bounds[label] = known[classes == label].mean()
        return bounds[signals.y]


def _best(members: Scores, others: Scores) -> float:
    """Return the threshold with the highest mean of true positive and true negative rate, the middle of two losses."""
    losses = np.sort(np.concatenate([members, others]))
    bounds = np.concatenate([[losses[0] - 1], (losses[1:] + losses[:-1]) / 2, [losses[-1] + 1]])
    right = [(members <= bound).mean() + (others > bound).mean() for bound in bounds]
    return float(bounds[int(np.argmax(right))])
