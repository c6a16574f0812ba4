"""What a model says of samples, what of that is right, and how far its head is from where samples would have it."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from fedfacet import rng
from fedfacet.clients.client_data import ClientData
from fedfacet.clients.network_trial import check_logits
from fedfacet.clients.personal_memory import own_model
from fedfacet.clients.trainer import Clients
from fedfacet.data.dataset import Dataset
from fedfacet.derived import derive
from fedfacet.metrics.group_counts import GroupCounts
from fedfacet.types import State

_MIXED = 128


class Predictions(NamedTuple):
    """What a model says of some samples.

    Attributes:
        labels: predicted classes, shape (n,), int64.
        losses: each sample's cross entropy, shape (n,), float32.
        logits: per class, shape (n, Y), float32.
    """

    labels: NDArray[np.int64]
    losses: NDArray[np.float32]
    logits: NDArray[np.float32]

    @classmethod
    def joined(cls, parts: Iterable["Predictions"]) -> "Predictions":
        """Return those of several parts, one after another."""
        return cls(*(np.concatenate(values) for values in zip(*parts, strict=True)))


def predict(clients: Clients, model: State, splits: Iterable[NDArray[np.int64]], memory: State | None = None) -> Predictions:
    """Return what a model says of the samples of all splits, one after another, in eval mode and without gradients.

    No batch holds samples of two splits. The client whose ``memory`` it is may have layers of its own, which take their
    places, and a program that answers otherwise.

    Raises:
        ConfigError: if the model does not return a logit per class.
    """
    program, memory = clients.program_of(model), memory or {}
    weights = own_model(model, memory)
    program.load(derive(weights, program.derived) if program.derived else weights)  # a client's own lacks what follows
    program.train(False)
    if program.predict_hooks is not None:
        program.predict_hooks.before_predict(memory)
    outputs: list[tuple[Tensor, Tensor, Tensor]] = []
    with torch.inference_mode():
        for indices in splits:
            for batch in ClientData(clients.dataset, indices, clients.device, clients.memory_format).batches():
                z = program.forward(batch.x)
                check_logits(z, clients.dataset.num_classes, type(program.module).__name__)
                outputs.append((z.argmax(dim=1), functional.cross_entropy(z, batch.y, reduction="none").float(), z.float()))
        if not outputs:
            nothing = np.empty((0, clients.dataset.num_classes), np.float32)
            return Predictions(np.empty(0, np.int64), np.empty(0, np.float32), nothing)
        labels, losses, logits = (torch.cat(parts).cpu().numpy() for parts in zip(*outputs, strict=True))
        return Predictions(labels, losses, logits)


def split_up(predictions: Predictions, splits: Sequence[NDArray[np.int64]]) -> list[Predictions]:
    """Return the predictions of each split."""
    ends = np.cumsum([len(indices) for indices in splits], dtype=np.int64)
    cuts = [slice(end - len(own), end) for own, end in zip(splits, ends, strict=True)]
    labels, losses, logits = predictions
    return [Predictions(labels[cut], losses[cut], logits[cut]) for cut in cuts]


def predict_mixed(
    predict: Callable[[Sequence[NDArray[np.int64]]], Predictions], splits: Sequence[NDArray[np.int64]]
) -> list[Predictions]:
    """Return the predictions of each split by a model whose logits depend on the batch, such as one that normalises by it.

    Its batches are drawn at random, equally large and of at most 128: in batches of one class such a model knows nothing. The
    draw depends on the split's size alone.

    Args:
        predict: returns the predictions for some batches, one after another.
        splits: as positions of samples.
    """
    outputs = []
    for indices in splits:
        order = rng.stream(0, "prediction-order", len(indices)).permutation(len(indices))
        batches = np.array_split(indices[order], max(1, -(-len(indices) // _MIXED)))
        back = np.argsort(order)
        labels, losses, logits = predict(batches)
        outputs.append(Predictions(labels[back], losses[back], logits[back]))
    return outputs


def count(dataset: Dataset, predictions: Predictions, indices: NDArray[np.int64]) -> GroupCounts:
    """Compare the predictions of some samples with what the data set knows of them, per group."""
    y, a = dataset.y[indices], dataset.a[indices]
    loss_sum = float(predictions.losses.sum(dtype=np.float64))
    return GroupCounts.of(predictions.labels, y, a, dataset.num_classes, dataset.num_attributes, loss_sum)


def network_with_head(module: nn.Module) -> Any:
    """Return what has ``features(x)`` and a linear ``head``: a module itself, or an objective's model; else ``None``."""
    for network in (module, getattr(module, "model", None)):
        if isinstance(getattr(network, "head", None), nn.Linear) and callable(getattr(network, "features", None)):
            return network
    return None


def head_gradients(clients: Clients, model: State, indices: NDArray[np.int64]) -> NDArray[np.float64]:
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
        for part in np.array_split(indices[order], -(-len(indices) // _MIXED)):
            batch = ClientData(clients.dataset, part, clients.device, clients.memory_format).batch(np.arange(len(part)))
            h = network.features(batch.x)
            p = network.head(h).softmax(dim=1)
            residual = (p - 1) * functional.one_hot(batch.y, p.shape[1])
            total_YF += (residual.double().T @ h.double()).cpu()
    counts_Y = np.bincount(clients.dataset.y[indices], minlength=len(total_YF))
    with np.errstate(invalid="ignore"):
        squares: NDArray[np.float64] = total_YF.square().sum(dim=1).numpy() / counts_Y.astype(np.float64) ** 2
    return squares
