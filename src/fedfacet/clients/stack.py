"""Copies of a model side by side, and the optimizer of them all."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, optim

_ELEMENTWISE = (
    *(optim.SGD, optim.Adam, optim.AdamW, optim.Adagrad, optim.RMSprop),
    *(optim.Adadelta, optim.Adamax, optim.NAdam, optim.RAdam),
)
"""Optimizers that treat every number by itself, so that one on a stack is one per client; a subclass may do otherwise."""


class CannotStackError(Exception):
    """Says "Expected X, but Y", without a full stop; the clients can still be trained one after another."""


def complaint(error: Exception) -> str:
    """Return the first sentence of an error's message."""
    return str(error).partition("\n")[0].partition(". ")[0].rstrip(". ")


class Group(NamedTuple):
    """The rows of a stack whose next batches have the same size, and these batches.

    Attributes:
        rows: which they are, all or by number.
        num_rows: how many.
        size: of each batch.
        source: a batch of all rows' samples one after another; or their positions, classes and attribute values, int64 of shape
            (3, num_rows size), where the inputs are on the device.
    """

    rows: slice | Tensor
    num_rows: int
    size: int
    source: tuple[Tensor, ...]


class Stack:
    """Copies of a model side by side, the rows still at work first, and the optimizer of them all.

    Args:
        tensors: the rows' start, each of shape (rows, ...): those of ``parameters``, then buffers; training writes to them.
        parameters: of the single model.
        optimizer: of the single model; it gets the stacked parameters in place of its own.

    Raises:
        CannotStackError: if the optimizer may mix numbers.
    """

    def __init__(self, tensors: Sequence[Tensor], parameters: Sequence[Tensor], optimizer: optim.Optimizer) -> None:
        if type(optimizer) not in _ELEMENTWISE:
            name = type(optimizer).__name__
            raise CannotStackError(f"Expected an optimizer that treats every number by itself, but {name} may not")
        self.tensors = list(tensors)
        self.buffers = self.tensors[len(parameters) :]
        self.optimizer = optimizer
        self.leaves = parameters
        rows = len(self.tensors[0])
        self._replace_leaves(self.tensors[: len(parameters)], lambda moment: repeated(moment, rows))

    def narrow(self, rows: int) -> None:
        """Leave all but the first rows as they are from now on."""
        if rows < len(self.leaves[0]):
            self._replace_leaves([leaf[:rows] for leaf in self.leaves], lambda moment: moment[:rows])
            self.buffers = [buffer[:rows] for buffer in self.buffers]

    def clip_gradients(self, max_norm: float) -> None:
        """Do what torch's ``clip_grad_norm_`` does, row by row."""
        gradients = [leaf.grad for group in self.optimizer.param_groups for leaf in group["params"] if leaf.grad is not None]
        norms = torch.stack([torch.linalg.vector_norm(gradient.reshape(len(gradient), -1), dim=1) for gradient in gradients])
        factors = (max_norm / (torch.linalg.vector_norm(norms, dim=0) + 1e-6)).clamp(max=1)
        for gradient in gradients:
            gradient *= factors.view(-1, *[1] * (gradient.dim() - 1))

    def _replace_leaves(self, tensors: Sequence[Tensor], convert: Callable[[Tensor], Tensor]) -> None:
        """Have the optimizer work on other tensors, in whose memory it will write."""
        leaves = [tensor.detach().requires_grad_() for tensor in tensors]
        successors = dict(zip(map(id, self.leaves), leaves, strict=True))
        for group in self.optimizer.param_groups:
            predecessors = [parameter for parameter in group["params"] if parameter.requires_grad]
            group["params"] = [successors[id(parameter)] for parameter in predecessors]
            for old, new in zip(predecessors, group["params"], strict=True):
                # A moment has its parameter's shape. The step count has not; it is that of all rows at work.
                for name, value in self.optimizer.state.pop(old, {}).items():
                    is_moment = name != "step" and isinstance(value, Tensor) and value.shape == old.shape
                    self.optimizer.state[new][name] = convert(value) if is_moment else value
        self.leaves = leaves


def repeated(tensor: Tensor, rows: int) -> Tensor:
    """Return so many copies, one beside the other."""
    return tensor.expand(rows, *tensor.shape).clone(memory_format=torch.contiguous_format)
