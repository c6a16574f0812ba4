"""FedProx."""

from collections.abc import Mapping

import torch
from torch import Tensor

from fedfacet.corrections.base import Correction
from fedfacet.types import ClientStart


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
