"""How a model's unfairness changes with its weights, on samples of the server's."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fedfacet import state
from fedfacet.clients.client_data import ClientData
from fedfacet.clients.trainer import Clients
from fedfacet.types import Batch, State


def unfairness_gradient(
    clients: Clients, model: State, samples: NDArray[np.int64], *, measure: str, positive_class: int
) -> State:
    """Return the gradient that ``methods.fair_grad.FairGrad`` defines, by trainable parameter.

    The first of two passes finds the groups that are the furthest apart.

    Args:
        clients: all clients' data and programs.
        model: the weights of the whole model.
        samples: positions in the data set, shape (n,).
        measure: as in ``FairGrad``.
        positive_class: as there.
    """
    program = clients.program_of(model)
    program.load(model)
    program.train(False)
    parameters = {name: program.tensors[name] for name in clients.facts.parameters}
    data, logits = ClientData(clients.dataset, samples, clients.device, clients.memory_format), program.objective

    def losses(batch: Batch) -> Tensor:
        return functional.cross_entropy(logits(batch.x), batch.y, reduction="none")

    with torch.no_grad():
        found = torch.cat([losses(batch).double().cpu() for batch in data.batches()]).numpy()
    factors, gradient = _factors(found, clients.dataset.y[samples] == positive_class, clients.dataset.a[samples], measure), None
    begin = 0
    for batch in data.batches():
        part = torch.from_numpy(factors[begin : begin + len(batch.y)]).to(batch.x)
        begin += len(batch.y)
        with torch.enable_grad():
            step = torch.autograd.grad((part * losses(batch)).sum(), list(parameters.values()), allow_unused=True)
        named = zip(parameters.items(), step, strict=True)
        moved = {name: torch.zeros_like(old) if new is None else new for (name, old), new in named}
        gradient = moved if gradient is None else state.add(gradient, moved)
    return {name: tensor.detach().cpu().contiguous() for name, tensor in (gradient or {}).items()}


def _factors(
    losses: NDArray[np.float64], positive: NDArray[np.bool_], a: NDArray[np.int64], measure: str
) -> NDArray[np.float64]:
    """Return each sample's factor, shape (n,): 1 / n in the group that loses most, -1 / n in the one that loses least, or 0."""
    factors, widest = np.zeros(len(losses)), 0.0
    for of_class in (positive, ~positive)[: 1 if measure == "equal_opportunity" else 2]:
        groups = [of_class & (a == group) for group in np.unique(a[of_class])]
        means = [float(losses[group].mean()) for group in groups]
        if len(groups) > 1 and max(means) - min(means) > widest:
            most, least = groups[int(np.argmax(means))], groups[int(np.argmin(means))]
            factors, widest = most / most.sum() - least / least.sum(), max(means) - min(means)
    return factors
