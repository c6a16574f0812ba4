"""Next-token prediction: a language model learns from every position of a row."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedfacet.corrections import Correction
from fedfacet.objectives.classification import ClassificationObjective, OptimizerFactory, cross_entropy
from fedfacet.types import Batch

_NOTHING = -1  # what pads a row, and what no loss is taken of


class NextTokenObjective(ClassificationObjective):
    r"""Take the mean cross entropy of the next token over all positions of a batch's rows.

    .. math:: -\frac{1}{\sum_i \ell_i} \sum_i \sum_{t=1}^{\ell_i} \log p(x_{i,t+1} \mid x_{i,1}, \dots, x_{i,t}),
        \qquad x_{i,\ell_i+1} = y_i

    with row i of :math:`\ell_i` tokens, whose class is the token that follows. ``objective=classification`` takes the term of
    the last position only. A step costs the same forward pass, and learns from as many targets as the rows have tokens.

    Validation, test and queries are those of the last position, as for any classifier. The training loss is the mean over all
    positions.

    Source: Bengio et al., A Neural Probabilistic Language Model, JMLR 3 (2003), section 2, as usual for causal transformers.

    Arguments not listed are those of ``ClassificationObjective``.

    Args:
        model: with ``states(x)``, shape (B, T, F), at each token of rows of shape (B, T), and a linear ``head``, as
            ``model=causal_lm`` has; its classes are its tokens.

    Raises:
        ValueError: for another model, or for another ``loss`` than the cross entropy.
    """

    changes_cross_entropy = "next_token"

    def __init__(
        self,
        model: nn.Module,
        *,
        loss: Callable[[Tensor, Batch], Tensor] = cross_entropy,
        correction: Correction | None = None,
        optimizer: OptimizerFactory | None = None,
    ) -> None:
        super().__init__(model, loss=loss, correction=correction, optimizer=optimizer)
        if not callable(getattr(model, "states", None)) or not getattr(model, "predicts_tokens", False):
            raise ValueError(
                f"`objective=next_token` trains language models whose classes are tokens, but got {type(model).__name__}: "
                "choose `model=causal_lm` without `model.vocabulary`, or `objective=classification`."
            )

    def training_step(self, batch: Batch | Sequence[Tensor], batch_idx: int) -> Tensor:
        """Return the loss of one batch of (x, y, a)."""
        batch = Batch(*batch)
        logits: Tensor = self.model.head(self.model.states(batch.x))  # type: ignore[operator]
        loss = functional.cross_entropy(logits.flatten(0, 1), following(batch.x, batch.y).flatten(), ignore_index=_NOTHING)
        if self._trainer is not None:
            self.log("train/loss", loss, batch_size=len(batch.y), sync_dist=True)
        return loss if self.correction is None else loss + self.correction(self.trainable)


def following(x: Tensor, y: Tensor) -> Tensor:
    """Return the token after each token of rows, int64 of shape (B, T); -1 after padding.

    Args:
        x: rows of tokens, integers of shape (B, T), padded at their ends by negative numbers.
        y: the token after each row, shape (B,).

    Example:
        >>> following(torch.tensor([[3, 1, 2], [5, 4, -1]]), torch.tensor([7, 8]))
        tensor([[ 1,  2,  7],
                [ 4,  8, -1]])
    """
    last = (x >= 0).sum(dim=1, keepdim=True).sub(1).clamp(min=0)
    shifted = functional.pad(x[:, 1:].long(), (0, 1), value=_NOTHING)
    return torch.where(shifted < 0, _NOTHING, shifted).scatter(1, last, y[:, None])
