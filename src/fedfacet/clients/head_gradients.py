"""How far a model's head is from where samples would have it, class by class."""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from fedfacet import rng
from fedfacet.clients.client_data import ClientData
from fedfacet.types import State

if TYPE_CHECKING:  # it builds on this file
    from fedfacet.clients.program import Clients

_BATCH = 128


def network_with_head(module: nn.Module) -> Any:
    """Return what has ``features(x)`` and a linear ``head``: a module itself, or an objective's model; else ``None``."""
    for network in (module, getattr(module, "model", None)):
        if isinstance(getattr(network, "head", None), nn.Linear) and callable(getattr(network, "features", None)):
            return network
    return None


def head_gradients(clients: "Clients", model: State, indices: NDArray[np.int64]) -> NDArray[np.float64]:
    r"""Return the squared norms :math:`\|\partial L_c / \partial W_c\|^2` of a head's rows, shape (Y,), in eval mode.

    :math:`L_c` is the mean cross entropy of the samples of class c, and its gradient the mean of :math:`(p_c(x) - 1) \, h(x)`
    over them, with h what ``features`` returns and p the softmax. So one forward pass is enough. A class without samples has
    NaN. Where a model normalises by batches, these are drawn by the samples' number alone.

    Not the gradient of all samples' loss: with two classes that of one row is minus that of the other, whatever the model.

    Args:
        clients: everybody's data and programs; the model is that of the first program's shape.
        model: its weights.
        indices: of the samples in the data set, one or more.
    """
    program = clients.program_of(model)
    program.load(model)
    program.train(False)
    network = network_with_head(program.module)
    total_YF = torch.zeros_like(network.head.weight, dtype=torch.float64, device="cpu")
    order = rng.stream(0, "prediction-order", len(indices)).permutation(len(indices))
    with torch.inference_mode():
        for part in np.array_split(indices[order], -(-len(indices) // _BATCH)):
            batch = ClientData(clients.dataset, part, clients.device, clients.memory_format).batch(np.arange(len(part)))
            h = network.features(batch.x)
            p = network.head(h).softmax(dim=1)
            residual = (p - 1) * functional.one_hot(batch.y, p.shape[1])
            total_YF += (residual.double().T @ h.double()).cpu()
    counts_Y = np.bincount(clients.dataset.y[indices], minlength=len(total_YF))
    with np.errstate(invalid="ignore"):
        squares: NDArray[np.float64] = total_YF.square().sum(dim=1).numpy() / counts_Y.astype(np.float64) ** 2
    return squares
