"""LAG-WK: clients that say nothing where they would say what they said before."""

from dataclasses import replace

import numpy as np
import torch

from fedfacet import state
from fedfacet.arguments import check_whole, check_within
from fedfacet.transforms.base import UpdateTransform
from fedfacet.types import STORED_GRADIENTS, ClientTask, ClientUpdate, State

_LAST, _SEEN, _MOVED = "silence/last|", "silence/seen|", "silence/moved"


class Silence(UpdateTransform):
    r"""Have a client send nothing if its update is about the one that it sent last.

    .. math::
        \lVert \Delta_m^t - \hat\Delta_m \rVert^2 \le \xi \sum_{d=1}^{D} \lVert w^{t+1-d} - w^{t-d} \rVert^2

    with :math:`\hat\Delta_m` the last update that the client sent, with which ``aggregator=lag`` goes on, and w the models that
    it was sent. A client that is silent has trained; 0 floats leave it, and it does not count as one that took part. With
    :math:`\xi = 0` it is silent if its update is the same bit for bit, which leaves gradient descent as it is.

    A client keeps the update that it sent last, the model that it was sent last, and D numbers. The right side needs no
    message: with ``selector=all`` a client sees every step of the model; one that was away takes the way that the model has
    gone since for one step.

    Source: Chen, Giannakis, Sun and Yin, LAG: Lazily Aggregated Gradient for Communication-Efficient Distributed Learning,
    NeurIPS 2018, arXiv:1805.09965, algorithm 1 (LAG-WK). D = 10 and :math:`\xi = 1 / D` are those of the authors' code; the
    paper was not read.

    Deviation: the paper compares gradients, with :math:`\xi / (\alpha M)^2` on the right; an update is
    :math:`-\eta` times the gradient, and :math:`\alpha = \eta / M`, so that this is the same if clients weigh the same.

    Args:
        xi: 0 or larger.
        window: D, 1 or larger.

    Raises:
        ValueError: if a value is out of range.
    """

    needs = frozenset({STORED_GRADIENTS})
    needs_full_batch = True

    def __init__(self, *, xi: float = 0.1, window: int = 10) -> None:
        check_within("xi", xi, "[0, 3.4e38]")
        check_whole("window", window)
        self.xi = xi
        self.window = window

    def apply(self, update: ClientUpdate, rng: np.random.Generator) -> ClientUpdate:
        """Return the update as it is: ``consider`` does it."""
        return update

    def consider(self, update: ClientUpdate, task: ClientTask) -> ClientUpdate:
        """Return the update, or a silent one without tensors; either remembers what the next round needs."""
        sent = {name: task.broadcast.model[name] for name in update.delta}
        seen, last = _of(_SEEN, task.memory), _of(_LAST, task.memory)
        moved = task.memory.get(_MOVED, torch.zeros(0, dtype=torch.float64))
        if seen:
            step = torch.tensor([state.norm(state.subtract(sent, seen)) ** 2], dtype=torch.float64)
            moved = torch.cat([moved, step])[-self.window :]
        memory = update.memory | _named(_SEEN, sent) | {_MOVED: moved}
        bound = self.xi * float(moved.sum())
        if last and state.norm(state.subtract(update.delta, last)) ** 2 <= bound:
            return replace(update, delta={}, buffers={}, extras={}, memory=memory | _named(_LAST, last), silent=True)
        return replace(update, memory=memory | _named(_LAST, update.delta))


def _of(prefix: str, memory: State) -> State:
    return {name.removeprefix(prefix): tensor for name, tensor in memory.items() if name.startswith(prefix)}


def _named(prefix: str, bundle: State) -> State:
    return {prefix + name: tensor for name, tensor in state.clone(bundle).items()}
