"""Tensors of a model that follow from its other tensors: clients do not send them, and no aggregator makes means of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.parametrize import ParametrizationList
from torch.nn.utils.spectral_norm import SpectralNorm

from fedfacet.types import State


@dataclass(frozen=True, slots=True)
class Tie:
    """Another name of a tensor.

    Attributes:
        name: the other name.
        source: the tensor's first name, under which clients send it.
    """

    name: str
    source: str

    @property
    def names(self) -> tuple[str, ...]:
        """What follows."""
        return (self.name,)

    def of(self, tensor: Tensor) -> State:
        """Return the tensor under its other name."""
        return {self.name: tensor}


@dataclass(frozen=True, slots=True)
class SingularVectors:
    """The unit vectors by which spectral normalisation finds a weight's largest singular value.

    Attributes:
        source: the weight as it is trained.
        left: the vector of the weight's rows.
        right: the vector of the weight's columns.
        dim: the axis of the weight that makes its rows.
    """

    source: str
    left: str
    right: str
    dim: int

    @property
    def names(self) -> tuple[str, ...]:
        """What follows."""
        return self.left, self.right

    def of(self, tensor: Tensor) -> State:
        """Return both vectors of a weight, exactly: a step of a power iteration would start from vectors of another one."""
        matrix = tensor.detach().double().movedim(self.dim, 0).flatten(1)
        gram = matrix @ matrix.T if len(matrix) <= matrix.shape[1] else matrix.T @ matrix
        top = torch.linalg.eigh(gram).eigenvectors[:, -1]
        top = top * top.sum().sign().where(top.sum() != 0, 1)  # of two that are as good, always the same
        left = top if len(matrix) <= matrix.shape[1] else nn.functional.normalize(matrix @ top, dim=0)
        right = nn.functional.normalize(matrix.T @ left, dim=0)
        return {self.left: left.to(tensor.dtype), self.right: right.to(tensor.dtype)}


Derived = Tie | SingularVectors


def derive(model: State, derived: Sequence[Derived]) -> State:
    """Return a model whose derived tensors follow from its others."""
    return model | {
        name: tensor for one in derived if one.source in model for name, tensor in one.of(model[one.source]).items()
    }


def other_names(derived: Sequence[Derived]) -> frozenset[str]:
    """Return the names of tensors that are there under another name already."""
    return frozenset(one.name for one in derived if isinstance(one, Tie))


def derived_of(module: nn.Module) -> tuple[Derived, ...]:
    """Return what of a module's ``state_dict`` follows from the rest of it.

    Example:
        >>> network = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        >>> network[1].weight = network[0].weight
        >>> derived_of(network)
        (Tie(name='1.weight', source='0.weight'),)
    """
    found: list[Derived] = []
    first: dict[tuple[int, str], str] = {}
    for prefix, part in module.named_modules(remove_duplicate=False):
        prefix = f"{prefix}." if prefix else ""
        trained = [(key, one) for key, one in part._parameters.items() if one is not None and one.requires_grad]
        of_part = [((id(tensor), ""), key) for key, tensor in trained]  # what is frozen does not travel
        of_part += [((id(part._buffers), key), key) for key in part._buffers if key not in part._non_persistent_buffers_set]
        for place, key in of_part:
            source = first.setdefault(place, prefix + key)
            if source != prefix + key:
                found.append(Tie(prefix + key, source))
    tied = other_names(found)
    vectors = [one for one in _singular(module) if one.left not in tied]
    return (*vectors, *found)  # ties last, of vectors too


def _singular(module: nn.Module) -> Iterator[SingularVectors]:
    for prefix, part in module.named_modules(remove_duplicate=False):
        prefix = f"{prefix}." if prefix else ""
        if isinstance(part, ParametrizationList) and isinstance(part[0], _SpectralNorm) and hasattr(part[0], "_u"):
            yield SingularVectors(f"{prefix}original", f"{prefix}0._u", f"{prefix}0._v", part[0].dim)
        for hook in part._forward_pre_hooks.values():
            if isinstance(hook, SpectralNorm):
                name = prefix + hook.name
                yield SingularVectors(f"{name}_orig", f"{name}_u", f"{name}_v", hook.dim)
