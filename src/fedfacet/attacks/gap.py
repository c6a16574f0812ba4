"""The attack that any model loses to which does better on what it was trained on."""

import numpy as np

from fedfacet.attacks.base import Attack, Scores, Signals


class Gap(Attack):
    """A sample is taken for a member where the model classifies it correctly.

    Its advantage is the model's accuracy on members minus that on others: what a better attack must beat.

    Source: Yeom et al., Privacy Risk in Machine Learning, CSF 2018, arXiv:1709.01604.
    """

    threshold = 1.0

    def scores(self, signals: Signals) -> Scores:
        """Return 1 where the model is right, else 0."""
        right: Scores = (signals.logits.argmax(axis=1) == signals.y).astype(np.float64)
        return right
