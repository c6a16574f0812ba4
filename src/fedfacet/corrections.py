"""What restrains client drift."""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedfacet.types import ClientEnd, ClientStart, State


class Correction(nn.Module):
    """What restrains a client's drift from the global model: a term added to its loss. This one is none at all.

    A correction keeps what it needs in plain attributes, not in registered buffers, so that the objective's ``state_dict``
    stays the bare model.
    """

    gives: frozenset[str] = frozenset()
    """Names of what clients send along with their updates for it; some other part must need each of them.

    ``discloses`` says of what kind each is, or no disclosure policy allows it.
    """

    discloses: ClassVar[Mapping[str, str]] = {}
    """Name -> kind, of ``privacy.disclosure.KINDS``; ``UPDATE`` for what tells no more than the update does."""

    needs: frozenset[str] = frozenset()
    """Names of what the server must send along with the model; some other part must give each of them."""

    curvature: float = 0.0
    """The term's second derivative in every direction, a constant: mu of a proximal term, 0 of a linear term or of none."""

    divisible: bool = True
    """Whether a client's steps may be divided between processes: ``False`` where it keeps something that a step changes."""

    def __init__(self) -> None:
        super().__init__()  # without nn.Module's *args and **kwargs, so that a misspelt option is noticed

    def on_client_start(self, parameters: Mapping[str, Tensor], start: ClientStart) -> None:
        """Take note of the weights that a client starts from; ``parameters`` are the trainable ones, just loaded."""

    def on_client_end(self, end: ClientEnd) -> tuple[State, State]:
        """Return what goes to the server along with the update, and what the client keeps."""
        return {}, {}

    def forward(self, parameters: Mapping[str, Tensor]) -> Tensor | float:
        """Return the scalar to add to the loss at the current trainable parameters."""
        return 0.0


class ProximalCorrection(Correction):
    r"""Add :math:`\frac{\mu}{2} \lVert w - w_g \rVert_2^2` to the loss, over the trainable parameters.

    Source: Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020, arXiv:1812.06127, equation 2.

    Args:
        mu: 0 or larger; 0 changes nothing.

    Raises:
        ValueError: if ``mu`` is negative.

    Note:
        FedDiverse and the thesis print the norm without its square. In their code the global weights are an iterator that the
        first batch uses up, where the distance is still zero, so their FedProx never acts; here the weights are copied when
        the client starts. Before any client has started (under a plain Trainer) the term is zero.
    """

    def __init__(self, *, mu: float = 0.1) -> None:
        super().__init__()
        if not mu >= 0:
            raise ValueError(f"Expected `mu` to be 0 or larger, but got {mu}.")
        self.mu = mu
        self.curvature = mu
        self._anchor: dict[str, Tensor] = {}

    def on_client_start(self, parameters: Mapping[str, Tensor], start: ClientStart) -> None:
        """Copy the weights that the client starts from."""
        self._anchor = {name: parameter.detach().clone() for name, parameter in parameters.items()}

    def forward(self, parameters: Mapping[str, Tensor]) -> Tensor | float:
        """Return the proximal term."""
        if not self._anchor or self.mu == 0:
            return 0.0
        squares = [(parameter - self._anchor[name]).square().sum() for name, parameter in parameters.items()]
        return self.mu / 2 * torch.stack(squares).sum()
