"""Training the biased model on one client's samples, for the queries that look into it."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedfacet.clients.queries.base import QueryContext
from fedfacet.objectives.biased import biased_objective
from fedfacet.objectives.classification import take_loss


def train_biased(
    context: QueryContext,
    model: nn.Module,
    target: NDArray[np.int64],
    *,
    steps: int,
    q: float,
    class_balanced: bool,
    key: int = 0,
) -> None:
    """Train ``model`` in place on the generalised cross entropy: FedDiverse (arXiv:2504.11216), algorithm 2.

    Args:
        context: of the query; batches are drawn from its stream ``"bias-batches"``.
        model: starts from what it holds.
        target: the class to predict of each of the client's samples, shape (n_k,).
        steps: optimizer steps, 1 or larger.
        q: of the loss, in (0, 1].
        class_balanced: draw batches with every class equally likely.
        key: tells the batches of one model from those of the client's others.
    """
    generator = context.stream("bias-batches", key)
    objective = biased_objective(model, q=q, optimizer=context.make_optimizer)
    optimizer = objective.configure_optimizers()
    objective.train()
    size = min(context.batch_size, len(target))
    weights = balanced_weights(target) if class_balanced else None
    for step in range(steps):
        positions = generator.choice(len(target), size=size, p=weights)
        batch = context.data.batch(positions)._replace(y=torch.from_numpy(target[positions]).to(context.data.device))
        optimizer_step(optimizer, objective.training_step(batch, step))


def optimizer_step(optimizer: torch.optim.Optimizer, loss: object) -> None:
    """Take one step down the gradient of what a ``training_step`` returned."""
    optimizer.zero_grad(set_to_none=True)
    take_loss(loss).backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def balanced_weights(target: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return draw probabilities under which every value that occurs in ``target`` is equally likely."""
    counts = np.bincount(target)
    weights = 1.0 / counts[target]
    return weights / weights.sum()  # type: ignore[no-any-return]
