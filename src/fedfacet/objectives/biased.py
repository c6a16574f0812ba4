"""The biased model: overfit on whatever is easy to learn."""

from functools import partial

from torch import nn

from fedfacet.losses import generalized_cross_entropy
from fedfacet.objectives.classification import ClassificationObjective, OptimizerFactory


def biased_objective(model: nn.Module, *, q: float = 0.3, optimizer: OptimizerFactory | None = None) -> ClassificationObjective:
    """Return the LightningModule that trains ``model`` with the generalised cross entropy.

    Source: FedDiverse (arXiv:2504.11216), algorithm 2; thesis, section 5.4.1, step 2.

    Args:
        model: as in ``ClassificationObjective``.
        q: of the loss, in (0, 1].
        optimizer: as in ``ClassificationObjective``.

    Raises:
        ValueError: if ``q`` is out of range.
    """
    if not 0 < q <= 1:
        raise ValueError(f"Expected `q` in (0, 1], but got {q}.")
    return ClassificationObjective(model, loss=partial(generalized_cross_entropy, q=q), optimizer=optimizer)
