"""Objectives whose loss depends on how many samples of what a client holds."""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedfacet.arguments import Number, check_choice, check_within
from fedfacet.corrections import Correction
from fedfacet.errors import DisclosureError
from fedfacet.heterogeneity import InteractionMatrix
from fedfacet.objectives.classification import ClassificationObjective, OptimizerFactory, cross_entropy
from fedfacet.objectives.group_weighted import weighted_cross_entropy
from fedfacet.types import Batch


class CountingObjective(ClassificationObjective):
    """Go through a client's samples once before its steps, and count. No model is asked, and nothing is sent."""

    @abstractmethod
    def count(self, batches: Iterable[Batch]) -> None:
        """Take note of what the client holds."""

    def before_steps(self, batches: Iterable[Batch], num_steps: int) -> None:
        """Count the client's samples."""
        self.count(batches)

    def after_steps(self, batches: Iterable[Batch]) -> None:
        """Look at nothing."""

    def on_train_start(self) -> None:
        """Count under a plain ``L.Trainer`` too, from its training samples."""
        loader: Iterable[Sequence[Tensor]] = self.trainer.train_dataloader  # type: ignore[assignment]
        self.count(Batch(*batch) for batch in loader)


def class_counts(batches: Iterable[Batch]) -> Tensor:
    """Return the number of samples of each class, up to the largest class among them; float32."""
    return torch.bincount(torch.cat([batch.y for batch in batches])).float()


def for_all_classes(values: Tensor, logits: Tensor, *, absent: float) -> Tensor:
    """Return a value for each class of the ``logits`` (B, Y), shape (Y,); classes beyond ``values`` have that of ``absent``."""
    return functional.pad(values, (0, logits.shape[1] - len(values)), value=absent)


class FedLCObjective(CountingObjective):
    r"""Take the cross entropy of logits z that are lowered for classes of which a client holds few samples.

    .. math:: -\log \frac{e^{z_y - \tau n_y^{-1/4}}}{\sum_c e^{z_c - \tau n_c^{-1/4}}}

    with :math:`n_c` how many samples of class c the client holds. To bear the lower logit of a rare class, training has to
    raise its z by a margin. A class that the client does not hold has :math:`n_c \to 0`: it leaves the sum, and nothing is
    learnt about its logit. The model that leaves the client, and whoever measures it, has the logits z.

    Before its steps a client goes through its samples once and counts. No model is asked, and nothing is sent. Validation
    and test have the plain cross entropy.

    Source: FedLC (Zhang et al., Federated Learning with Label Distribution Skew via Logits Calibration, ICML 2022,
    arXiv:2209.00189), its calibrated loss with the pairwise margin :math:`\tau (n_y^{-1/4} - n_c^{-1/4})`. The formula and the
    default are those of others' code; they were not checked against the paper.

    Deviation: others take a count of 1e-8 for a class that is absent, which lowers its logit by :math:`100 \tau`.

    Arguments not listed are those of ``ClassificationObjective``.

    Args:
        tau: 0 or larger, and finite; 0 is the plain cross entropy, absent classes included.
    """

    changes_cross_entropy = "fedlc"

    def __init__(
        self,
        model: nn.Module,
        *,
        loss: Callable[[Tensor, Batch], Tensor] = cross_entropy,
        correction: Correction | None = None,
        optimizer: OptimizerFactory | None = None,
        tau: float = 1.0,
    ) -> None:
        super().__init__(model, loss=loss, correction=correction, optimizer=optimizer)
        Number("0 or larger, and finite").check("objective.tau", tau)
        self.tau = tau
        self._shift: Tensor | None = None  # of the classes up to the largest one that the client holds

    def count(self, batches: Iterable[Batch]) -> None:
        """Count the client's samples of each class."""
        self._shift = self.tau * class_counts(batches).pow(-1 / 4) if self.tau else None

    def training_loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the mean cross entropy of the calibrated logits."""
        if self._shift is not None:
            logits = logits - for_all_classes(self._shift.to(logits.device), logits, absent=float("inf"))
        return super().training_loss(logits, batch)


class FedRSObjective(CountingObjective):
    r"""Take the cross entropy of logits z of which those of absent classes are scaled down.

    .. math:: -\log \frac{e^{z_y}}{\sum_c e^{\alpha_c z_c}}, \qquad
        \alpha_c = \begin{cases} 1 & \text{if the client holds samples of class } c \\ \alpha & \text{else} \end{cases}

    A client has nothing to learn about a class that it does not hold but to push its logit down. The gradient of that logit is
    :math:`\alpha` times what it was, so that the head forgets other clients' classes more slowly. A client that holds every
    class trains as ever. The model that leaves the client, and whoever measures it, has the logits z.

    Before its steps a client goes through its samples once and counts. No model is asked, and nothing is sent. Validation
    and test have the plain cross entropy.

    Source: the restricted softmax of FedRS (Li and Zhan, FedRS: Federated Learning with Restricted Softmax for Label
    Distribution Non-IID Data, KDD 2021, doi:10.1145/3447548.3467254). It was compared with the authors' released code, and
    not with the paper's text. The code tries 0.9, 0.75, 0.5, 0.25 and 0.1 for alpha, without a default.

    Deviations: the released code takes :math:`\alpha_c = \alpha + (1 - \alpha) n_c / \max_j n_j`, with :math:`n_c` the client's
    samples of class c, which scales rare classes down too. Its head has no bias; here a bias is scaled with the rest of z.

    Arguments not listed are those of ``ClassificationObjective``.

    Args:
        alpha: in [0, 1]; 1 is the plain cross entropy, and with 0 nothing is learnt about the logits of absent classes.
    """

    changes_cross_entropy = "fedrs"

    def __init__(
        self,
        model: nn.Module,
        *,
        loss: Callable[[Tensor, Batch], Tensor] = cross_entropy,
        correction: Correction | None = None,
        optimizer: OptimizerFactory | None = None,
        alpha: float = 0.5,
    ) -> None:
        super().__init__(model, loss=loss, correction=correction, optimizer=optimizer)
        check_within("objective.alpha", alpha, "[0, 1]")
        self.alpha = alpha
        self._scale: Tensor | None = None  # of the classes up to the largest one that the client holds

    def count(self, batches: Iterable[Batch]) -> None:
        """Find out which classes the client holds."""
        self._scale = torch.where(class_counts(batches) > 0, 1.0, self.alpha)

    def training_loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the mean cross entropy of the restricted softmax."""
        if self._scale is not None:
            logits = logits * for_all_classes(self._scale.to(logits.device), logits, absent=self.alpha)
        return super().training_loss(logits, batch)


class MaskedObjective(CountingObjective):
    r"""Take the cross entropy of logits z of which those of classes that a client does not hold are masked.

    .. math:: -\log \frac{e^{z_y}}{\sum_{c \in H} e^{z_c} + a}

    with H the classes of which the client holds samples. a is the number of the other classes, whose logits are 0. Where they
    leave the sum, a is 0. Nothing is learnt about a masked logit. The model that leaves the client has the logits z, also where
    it is measured.

    Before its steps a client goes through its samples once and counts. No model is asked, and nothing is sent. Validation
    and test have the plain cross entropy.

    Source: Diao et al., HeteroFL, ICLR 2021, arXiv:2010.01264, section 3 (masked cross entropy). Compared with the authors'
    code, which fills masked logits with 0. Their server also leaves a client's rows of masked classes out of its means:
    ``mechanisms=held_classes``.

    Deviation: the code also masks where it measures each client's accuracy.

    Arguments not listed are those of ``ClassificationObjective``.

    Args:
        masked: ``"zero"``, logits of 0 as in the code, or ``"out"``, for a softmax of the client's classes.
    """

    changes_cross_entropy = "masked"
    takes_parts = True

    def __init__(
        self,
        model: nn.Module,
        *,
        loss: Callable[[Tensor, Batch], Tensor] = cross_entropy,
        correction: Correction | None = None,
        optimizer: OptimizerFactory | None = None,
        masked: str = "zero",
    ) -> None:
        super().__init__(model, loss=loss, correction=correction, optimizer=optimizer)
        check_choice("objective.masked", masked, ("zero", "out"))
        self.fill = 0.0 if masked == "zero" else -math.inf
        self._held: Tensor | None = None  # 1 for the classes that the client holds, up to the largest one of these

    def count(self, batches: Iterable[Batch]) -> None:
        """Find out which classes the client holds."""
        self._held = (class_counts(batches) > 0).float()

    def training_loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the mean cross entropy of the masked logits."""
        if self._held is not None:
            logits = logits.masked_fill(for_all_classes(self._held.to(logits.device), logits, absent=0.0) == 0, self.fill)
        return super().training_loss(logits, batch)


class ReweighingObjective(CountingObjective):
    r"""Multiply each sample's cross entropy by :math:`w(y, a) = P(y) P(a) / P(y, a)`, from the client's own counts.

    The weighted counts factorise, :math:`w(y, a) P(y, a) = P(y) P(a)`, and over a client's samples the weights have the mean 1
    unless some pair does not occur. Where class and attribute are independent already, all weights are 1.

    Before its steps a client goes through its samples once and counts. No model is asked, and nothing is sent.

    Source: the local reweighing of Abay et al., Mitigating Bias in Federated Learning, arXiv:2012.02447, with the weights of
    Kamiran and Calders, Data preprocessing techniques for classification without discrimination, 2012. The thesis, section 6.3,
    warns that it may hurt the fairness of the whole federation.

    Arguments are those of ``ClassificationObjective``.
    """

    reads_attributes = True
    """Whether clients must know the attributes of their samples."""
    changes_cross_entropy = "reweighing"

    _weights_YA: Tensor | None = None

    def count(self, batches: Iterable[Batch]) -> None:
        """Count the client's samples of each class with each attribute value.

        Raises:
            DisclosureError: if clients do not know attributes.
        """
        y, a = (torch.cat(column) for column in zip(*((batch.y, batch.a) for batch in batches), strict=True))
        if (a < 0).any():
            raise DisclosureError(
                "Expected clients that know the attributes of their samples for objective=reweighing, but nobody does: choose "
                "another objective, or a disclosure whose clients know them."
            )
        num_attributes = int(a.max()) + 1
        counts = torch.bincount(y * num_attributes + a, minlength=(int(y.max()) + 1) * num_attributes)
        weights = InteractionMatrix(counts.view(-1, num_attributes).cpu().numpy()).independence_weights
        self._weights_YA = torch.from_numpy(weights).float()

    def training_loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the mean of the weighted cross entropies."""
        if self._weights_YA is None:
            return functional.cross_entropy(logits, batch.y, reduction="none").mean()
        return weighted_cross_entropy(logits, batch, self._weights_YA)
