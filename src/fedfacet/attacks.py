"""Membership inference: how sure an attacker is, from what a model says of samples, that these were trained on."""

import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp
from scipy.stats import norm

from fedfacet.arguments import Choice, Declared, Number, Whole, Within

SHADOWS = "shadows"
"""What an attack needs that compares with models of the attacker's own."""

TRAJECTORY = "trajectory"
"""What an attack needs that looks at losses of students, while they learn from the model."""

REFERENCES = "references"
"""What an attack needs that compares with as many known others as there are."""

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
        references: the same of further others that the attacker knows; ``None`` where no attack needs them.
    """

    logits: NDArray[np.float64]
    y: NDArray[np.int64]
    known_members: NDArray[np.int64]
    known_others: NDArray[np.int64]
    shadow_logits: NDArray[np.float64]
    shadow_members: NDArray[np.bool_]
    trajectories: Trajectories | None = None
    references: "Signals | None" = None

    @property
    def losses(self) -> Scores:
        """Cross entropies under the attacked model, shape (n,)."""
        return losses_of(self.logits, self.y)


class Attack(Declared, ABC):
    """Gives every sample a score; the higher, the more an attacker takes it for a member.

    Arguments that are out of range raise ``ValueError``. An attack draws nothing.
    """

    option_group = "attack."

    needs: frozenset[str] = frozenset()
    """What signals must hold besides what the attacked model says."""

    threshold: float | None = None
    """From which score on the attack calls a sample a member; ``None`` where known samples tell, see ``bound``."""

    least_out: int = 0
    """How many shadow models that were not trained on it every sample needs."""

    least_in: int = 0
    """How many shadow models that were trained on it every sample needs."""

    @abstractmethod
    def scores(self, signals: Signals) -> Scores:
        """Return a finite score per sample, shape (n,)."""

    def bound(self, scores: Scores, signals: Signals) -> float:
        """Return the score from which on the attacker calls a sample a member.

        An attack without a ``threshold`` takes the one that tells most of the known samples apart. So does the thesis'
        released code. It is NaN where no member or no other is known.
        """
        if self.threshold is not None:
            return self.threshold
        members, others = scores[signals.known_members], scores[signals.known_others]
        return -_best(-members, -others) if len(members) and len(others) else np.nan

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


@dataclass(eq=False, kw_only=True)
class LiRA(Attack):
    r"""A sample is taken for a member where the model is surer of it than shadow models that were not trained on it.

    With :math:`\varphi = \log(p_y / (1 - p_y))` and normal distributions of the shadow models' :math:`\varphi`, per sample,

    .. math::
        \text{offline: } \frac{\varphi - \mu_{out}}{\sigma_{out}}, \quad \text{online: }
        \log \mathcal{N}(\varphi; \mu_{in}, \sigma_{in}^2) - \log \mathcal{N}(\varphi; \mu_{out}, \sigma_{out}^2).

    The offline score ranks as the paper's :math:`1 - \Pr[Z > \varphi]` does, without its ties where that rounds to 1.

    Source: Carlini et al., Membership Inference Attacks From First Principles, S&P 2022, arXiv:2112.03570, algorithm 1 and
    section VI. The thesis' attack (section 4.5.2) is the offline one. Its equation 13 prints the direction the other way round,
    and its :math:`\varphi` is the probability itself, where Carlini et al. and we take its log-odds. Its released code has the
    right direction, with the largest probability instead of the true class's. Deviations from the authors' code: A mean
    replaces the median. The variance divides by one less than the number of models. The global variance is within samples. The
    offline score has one side, as in the paper, where that code's has two.

    Args:
        mode: ``"offline"``, or ``"online"``, which takes shadow models that were trained on a sample too.
        statistic: ``"true_class"``, or ``"max_probability"``, the log-odds of the largest probability, clipped to 1e-4 from 0
            and 1.
        variance: ``"per_sample"``, or ``"global"``, the mean over all samples, steadier with few shadow models.
        min_std: added to every standard deviation, 0 or larger.
    """

    needs = frozenset({SHADOWS})
    least_out = 2

    mode: Annotated[str, Choice("offline", "online")] = "offline"
    statistic: Annotated[str, Choice("true_class", "max_probability")] = "true_class"
    variance: Annotated[str, Choice("per_sample", "global")] = "per_sample"
    min_std: Annotated[float, Number("0 or larger and finite")] = 1e-6

    def __post_init__(self) -> None:
        super().__post_init__()
        self.least_in = 2 if self.mode == "online" else 0

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


@dataclass(eq=False, kw_only=True)
class LossThreshold(Attack):
    r"""A sample is taken for a member where its loss is below a threshold :math:`\nu`; the score is :math:`\nu - \ell`.

    Source: Yeom et al., Privacy Risk in Machine Learning, CSF 2018, arXiv:1709.01604: nu is the mean loss of the members, here
    of those that the attacker knows. The thesis' released code adds two other thresholds.

    Args:
        rule: ``"mean_member"``, the mean loss of the known members; ``"best"``, the one that tells most of the known samples
            apart; ``"per_class"``, the mean of the known members of a class, and of all where none is known of it.
    """

    threshold = 0.0

    rule: Annotated[str, Choice("mean_member", "best", "per_class")] = "mean_member"

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


@dataclass(eq=False, kw_only=True)
class RMIA(Attack):
    r"""A sample is taken for a member where training has raised its probability more than that of most others.

    .. math::
        \Pr_z \left[ \frac{p(x \mid \theta) / p(x)}{p(z \mid \theta) / p(z)} \ge \gamma \right], \quad
        p(x) = \tfrac{1}{2} \left( (1 + a) \, \bar{p}_{out}(x) + 1 - a \right),

    with :math:`\bar{p}_{out}` the mean over shadow models that were not trained on x; where some were, p(x) is the mean of the
    two means. The z are samples that the attacker knows to be no members. Scores have one value more than there are z. Of the
    highest score, 1, there may be many.

    Source: Zarifzadeh et al., Low-Cost High-Power Membership Inference Attacks, ICML 2024, arXiv:2312.03262, and the authors'
    code, whose gamma is 1 and whose usual a is 0.3. Deviation: That code counts only ratios larger than gamma.

    Args:
        gamma: how much larger a ratio must be, 1 or larger.
        offline_a: a in [0, 1], how much a sample's probability rises when it is trained on; 1 for not at all. Acts on samples
            that no shadow model was trained on, of which the halves of ``attack.py`` leave none.
        references: ``"at_hand"``, z are all others that are not scored; ``"known"``, only those of the audit set.
    """

    needs = frozenset({SHADOWS, REFERENCES})
    least_out = 1

    gamma: Annotated[float, Number("1 or larger and finite")] = 1.0
    offline_a: Annotated[float, Within("[0, 1]")] = 0.3
    references: Annotated[str, Choice("at_hand", "known")] = "at_hand"

    def scores(self, signals: Signals) -> Scores:
        """Return the share of known others whose ratio a sample's is gamma times.

        Raises:
            ValueError: if a sample has no shadow model that was not trained on it, or if no others are known.
        """
        self.check_shadows(signals)
        ratios = self._ratios(signals)
        known = ratios[signals.known_others]
        if self.references == "at_hand" and signals.references is not None:
            known = np.concatenate([known, self._ratios(signals.references)])
        if len(known) == 0:
            raise ValueError("Expected others that the attacker knows, to compare with, but got none: raise members.min_known.")
        beaten: Scores = np.searchsorted(np.sort(known), ratios / self.gamma, side="right") / len(known)
        return beaten

    def _ratios(self, signals: Signals) -> Scores:
        """Return how much more probable the model makes each sample than it usually is."""
        out = ~signals.shadow_members
        probabilities = np.exp(-losses_of(signals.shadow_logits, signals.y))
        mean_out = np.where(out, probabilities, 0).sum(axis=0) / out.sum(axis=0)
        num_in = signals.shadow_members.sum(axis=0)
        mean_in = np.where(signals.shadow_members, probabilities, 0).sum(axis=0) / np.maximum(num_in, 1)
        offline = ((1 + self.offline_a) * mean_out + 1 - self.offline_a) / 2
        usual = np.where(num_in > 0, (mean_out + mean_in) / 2, offline)
        ratios: Scores = np.exp(-signals.losses) / np.maximum(usual, np.finfo(np.float64).tiny)
        return ratios


HIDDEN, BATCH_SIZE, MOMENTUM, WEIGHT_DECAY = (512, 128, 32), 128, 0.9, 1e-4


@dataclass(eq=False, kw_only=True)
class Trajectory(Attack):
    """A network that was taught on a shadow model tells members from others by their loss trajectories.

    The model that is attacked is distilled into a fresh student on data of other clients. After every epoch the student's loss
    of each sample is noted; the features of a sample are these losses and the model's own. The same is done with a shadow
    model, of which the attacker knows on what it was trained; on its samples the network learns.

    Source: Liu et al., Membership Inference Attacks by Exploiting Loss Trajectory, CCS 2022, arXiv:2208.14933; the thesis,
    section 4.5.3 (tMIA), whose released code has this network. Deviations: features are standardised, by the shadow model's.
    The network has one output in place of two. Students learn without augmentation. That code computes a shuffle and does not
    apply it, and takes the cross entropy of softmax outputs; here samples are shuffled.

    Args:
        distill_epochs: of a student, 1 or larger.
        distill_lr: of plain SGD, larger than 0.
        attack_epochs: of the network, 1 or larger.
        attack_lr: of SGD with momentum 0.9 and weight decay 1e-4, larger than 0.
        seed: of splits, students and network, 0 or larger.
    """

    needs = frozenset({TRAJECTORY})

    distill_epochs: Annotated[int, Whole()] = 25
    distill_lr: Annotated[float, Number("larger than 0 and finite")] = 0.01
    attack_epochs: Annotated[int, Whole()] = 30
    attack_lr: Annotated[float, Number("larger than 0 and finite")] = 0.005
    seed: Annotated[int, Whole(0)] = 0

    def scores(self, signals: Signals) -> Scores:
        """Return the network's probabilities.

        Raises:
            ValueError: if there are no trajectories.
        """
        if signals.trajectories is None:
            raise ValueError("Expected loss trajectories of the model and of a shadow model, but got none: record them.")
        from sklearn.exceptions import ConvergenceWarning  # late: other attacks do not wait for scikit-learn
        from sklearn.neural_network import MLPClassifier
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

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
