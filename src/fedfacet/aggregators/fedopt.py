"""Adaptive server optimizers: FedAdam, FedYogi and FedAdagrad."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

import torch

from fedfacet import state
from fedfacet.aggregators.base import Aggregator
from fedfacet.arguments import Choice, Number, Within
from fedfacet.types import ClientUpdate, Facts, ServerState, State


@dataclass(eq=False, kw_only=True)
class FedOpt(Aggregator):
    r"""Average the updates, then take an adaptive step on the server, with the mean update as the negative gradient.

    .. math::
        m \leftarrow \beta_1 m + (1 - \beta_1) \bar\Delta, \qquad
        v \leftarrow \begin{cases}
            v + \bar\Delta^2 & \text{adagrad} \\
            v - (1 - \beta_2) \, \bar\Delta^2 \operatorname{sign}(v - \bar\Delta^2) & \text{yogi} \\
            \beta_2 v + (1 - \beta_2) \bar\Delta^2 & \text{adam}
        \end{cases} \qquad
        w \leftarrow w + \eta \frac{m}{\sqrt{v} + \tau}

    entry by entry, with :math:`m_0 = 0` and :math:`v_0 = \tau^2`. Floating-point buffers are averaged plainly.

    Source: Reddi et al., Adaptive Federated Optimization, ICLR 2021, arXiv:2003.00295, algorithm 2.

    Args:
        second_moment: ``"adam"``, ``"yogi"`` or ``"adagrad"``.
        server_lr: eta, larger than 0.
        momentum: beta_1 in [0, 1); the paper takes 0.9, and 0 for Adagrad.
        decay: beta_2 in [0, 1), of adam and yogi; the paper takes 0.99.
        tau: how adaptive the step is, larger than 0; the paper recommends 1e-3.
        bias_correction: divide m by :math:`1 - \beta_1^t` and v by :math:`1 - \beta_2^t` in the server's t-th step, and start
            from :math:`v_0 = 0`, as ``torch.optim.Adam`` does and the paper does not; of adam only.
    """

    takes_mean = True

    second_moment: Annotated[str, Choice("adam", "yogi", "adagrad")]
    server_lr: Annotated[float, Number("larger than 0 and finite")] = 0.01
    momentum: Annotated[float, Within("[0, 1)")] = 0.9
    decay: Annotated[float, Within("[0, 1)")] = 0.99
    tau: Annotated[float, Number("larger than 0 and finite")] = 1e-3
    bias_correction: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bias_correction and self.second_moment != "adam":
            raise ValueError(f"Expected `bias_correction` with second_moment=adam only, but got {self.second_moment}.")

    @property
    def entrywise(self) -> bool:
        """Unless biases are corrected, by a number of steps that all entries share."""
        return not self.bias_correction

    def init(self, facts: Facts) -> ServerState:
        """Return m, v and the number of steps taken."""
        parameters = {name: facts.model[name] for name in facts.parameters}
        start = 0.0 if self.bias_correction else self.tau**2
        return {
            "m": {name: torch.zeros_like(tensor) for name, tensor in parameters.items()},
            "v": {name: torch.full_like(tensor, start) for name, tensor in parameters.items()},
            "steps": 0,
        }

    def aggregate(self, server: ServerState, model: State, updates: Iterable[ClientUpdate]) -> tuple[ServerState, State]:
        """Return the moments and the model after one server step."""
        delta, buffers = self.average(updates)
        steps = server["steps"] + 1
        m_scale = 1 - self.momentum**steps if self.bias_correction else 1.0
        v_scale = 1 - self.decay**steps if self.bias_correction else 1.0
        m, v, moved = {}, {}, {}
        for name, mean in delta.items():
            m[name] = self.momentum * server["m"][name] + (1 - self.momentum) * mean
            v[name] = self._second_moment(server["v"][name], mean.square())
            moved[name] = self.server_lr * (m[name] / m_scale) / ((v[name] / v_scale).sqrt() + self.tau)
        return {"m": m, "v": v, "steps": steps}, state.add(state.add(model, moved), buffers)

    def _second_moment(self, v: torch.Tensor, squares: torch.Tensor) -> torch.Tensor:
        if self.second_moment == "adagrad":
            return v + squares
        if self.second_moment == "yogi":
            return v - (1 - self.decay) * squares * (v - squares).sign()
        return self.decay * v + (1 - self.decay) * squares
