"""The attack that looks at how a student's losses fall while it learns from a model."""

import warnings

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fedfacet.arguments import check_whole
from fedfacet.attacks.base import TRAJECTORY, Attack, Scores, Signals

HIDDEN, BATCH_SIZE, MOMENTUM, WEIGHT_DECAY = (512, 128, 32), 128, 0.9, 1e-4


class Trajectory(Attack):
    """A network that was taught on a shadow model tells members from others by their loss trajectories.

    The model that is attacked is distilled into a fresh student on data of other clients. After every epoch the student's loss
    of each sample is noted; the features of a sample are these losses and the model's own. The same is done with a shadow
    model, of which the attacker knows on what it was trained; on its samples the network learns.

    Source: Liu et al., Membership Inference Attacks by Exploiting Loss Trajectory, CCS 2022, arXiv:2208.14933; the thesis,
    section 4.5 (tMIA), whose network this is. Deviations: features are standardised, by the shadow model's; the network has one
    output in place of two; its released code computes a shuffle and does not apply it, takes the cross entropy of softmax
    outputs, and keeps the epoch that is best on the test data: here samples are shuffled, and the last epoch is kept.

    Args:
        distill_epochs: of a student, 1 or larger.
        distill_lr: of plain SGD, larger than 0.
        attack_epochs: of the network, 1 or larger.
        attack_lr: of SGD with momentum 0.9 and weight decay 1e-4, larger than 0.
        seed: of splits, students and network, 0 or larger.
    """

    needs = frozenset({TRAJECTORY})
    threshold = 0.5

    def __init__(
        self,
        *,
        distill_epochs: int = 25,
        distill_lr: float = 0.01,
        attack_epochs: int = 30,
        attack_lr: float = 0.005,
        seed: int = 0,
    ) -> None:
        check_whole("attack.distill_epochs", distill_epochs)
        check_whole("attack.attack_epochs", attack_epochs)
        check_whole("attack.seed", seed, 0)
        for name, lr in (("distill_lr", distill_lr), ("attack_lr", attack_lr)):
            if not 0 < lr < float("inf"):
                raise ValueError(f"Expected `attack.{name}` to be larger than 0 and finite, but got {lr}.")
        self.distill_epochs, self.distill_lr = distill_epochs, distill_lr
        self.attack_epochs, self.attack_lr, self.seed = attack_epochs, attack_lr, seed

    def scores(self, signals: Signals) -> Scores:
        """Return the network's probabilities.

        Raises:
            ValueError: if there are no trajectories.
        """
        if signals.trajectories is None:
            raise ValueError("Expected loss trajectories of the model and of a shadow model, but got none: record them.")
        seen = signals.trajectories
        network = MLPClassifier(
            HIDDEN,
            solver="sgd",
            alpha=WEIGHT_DECAY,
            batch_size=min(BATCH_SIZE, len(seen.shadow)),
            learning_rate_init=self.attack_lr,
            max_iter=self.attack_epochs,
            n_iter_no_change=self.attack_epochs,
            momentum=MOMENTUM,
            nesterovs_momentum=False,
            random_state=self.seed,
        )
        judge = make_pipeline(StandardScaler(), network)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # so many epochs were asked for
            judge.fit(seen.shadow, seen.shadow_members.astype(np.int64))
        probabilities: Scores = judge.predict_proba(seen.target)[:, 1]
        return probabilities
