"""Knowledge distillation: a student learns what a teacher says of samples, and not their classes."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from fedfacet.objectives.classification import ClassificationObjective
from fedfacet.types import Batch, ClientStart

SAMPLES, TEACHER = "distillation/samples", "distillation/teacher"
"""Names of what is sent along: which samples the teacher has judged, ascending (n,), and its logits for them (n, Y)."""


class DistillationObjective(ClassificationObjective):
    r"""The Kullback-Leibler divergence of the student's probabilities q from the teacher's p, the mean over the batch.

    .. math:: \sum_c p_c (\log p_c - \log q_c)

    The teacher's logits come with the broadcast, so that a teacher of any shape will do. A batch's third part has the position
    of each sample in the data set in the place of its attribute value: give it a data set with ``a=np.arange(len(y))``. The
    correction and the loss of ``ClassificationObjective`` are not used.

    Source: Hinton et al., Distilling the Knowledge in a Neural Network, arXiv:1503.02531, at temperature 1, as in Liu et al.,
    Membership Inference Attacks by Exploiting Loss Trajectory, CCS 2022, arXiv:2208.14933.
    """

    divisible = False
    requires = frozenset({SAMPLES, TEACHER})

    def on_client_start(self, start: ClientStart) -> None:
        """Take note of what the teacher says."""
        extras = start.broadcast.extras
        self._samples, self._teacher = extras[SAMPLES].to(self.device), extras[TEACHER].to(self.device)

    def training_step(self, batch: Batch | Sequence[Tensor], batch_idx: int) -> Tensor:
        """Return the divergence for one batch of (x, y, positions)."""
        batch = Batch(*batch)
        teacher = self._teacher[torch.searchsorted(self._samples, batch.a)]
        student, teacher = (functional.log_softmax(logits, dim=1) for logits in (self(batch.x), teacher))
        return functional.kl_div(student, teacher, reduction="batchmean", log_target=True)
