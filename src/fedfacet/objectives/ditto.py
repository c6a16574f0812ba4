"""Ditto: beside its part in the federation, every client trains a model of its own that stays near the global one."""

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fedfacet import rng, state
from fedfacet.arguments import Number
from fedfacet.corrections import Correction
from fedfacet.objectives.classification import ClassificationObjective, OptimizerFactory, cross_entropy
from fedfacet.types import Batch, ClientEnd, ClientStart, State

_PERSONAL = "ditto/"
"""Before a tensor's name in a client's memory."""


class DittoObjective(ClassificationObjective):
    r"""Train the global model as ever, and beside it, in the same steps and on the same batches, a personal model v.

    .. math:: v \leftarrow v - \eta \left( \nabla F_k(v) + \lambda (v - w_g) \right)

    with w_g the global model that the client starts from. Updates are those of the global model alone, so that any aggregator
    will do. The personal model stays in the client's memory. It is what ``callbacks=evaluate_clients`` and
    ``personal_evaluate`` measure. A client's first v is the first global model that it gets. Queries see the global model only.

    Source: Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021, arXiv:2012.04221,
    algorithm 1.

    Deviation: eta stands for the client's optimizer, with its momentum and this round's learning rate, started anew in every
    round. ``local.keep_optimizer``, ``local.max_grad_norm`` and the correction act on the global model only.

    Arguments not listed are those of ``ClassificationObjective``; either model gets an optimizer from the same ``optimizer``.

    Args:
        personal_weight: lambda, 0 or larger; 0 is training alone, and the larger, the nearer v stays to the global model.
    """

    divisible = False  # every step changes v

    def __init__(
        self,
        model: nn.Module,
        *,
        loss: Callable[[Tensor, Batch], Tensor] = cross_entropy,
        correction: Correction | None = None,
        optimizer: OptimizerFactory | None = None,
        personal_weight: float = 0.1,
    ) -> None:
        super().__init__(model, loss=loss, correction=correction, optimizer=optimizer)
        Number("0 or larger").check("objective.personal_weight", personal_weight)
        self.personal_weight = personal_weight
        self._personal: tuple[nn.Module, ...] = ()  # v; in a tuple, so that it is neither federated nor saved
        self._anchor: dict[str, Tensor] = {}
        self._optimizer_of_v: Optimizer | None = None
        self._answers_with_v = False

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits, shape (B, Y): of the personal model where a client's own answer is asked for."""
        logits: Tensor = self._personal[0](x) if self._answers_with_v else self.model(x)
        return logits

    def training_step(self, batch: Batch | Sequence[Tensor], batch_idx: int) -> Tensor:
        """Take a step of the personal model, and return the loss of the global one."""
        batch = Batch(*batch)
        if self._optimizer_of_v is not None:
            before = rng.get_states(batch.x.device)
            self._step_of_v(batch, self._optimizer_of_v)
            rng.set_states(before, batch.x.device)  # the global model draws what it would draw without v
        return super().training_step(batch, batch_idx)

    def _step_of_v(self, batch: Batch, optimizer: Optimizer) -> None:
        parameters = dict(self._personal[0].named_parameters())
        optimizer.zero_grad(set_to_none=True)
        loss = self.loss(self._personal[0](batch.x), batch)
        if self.personal_weight:
            squares = [(parameters[name] - anchor).square().sum() for name, anchor in self._anchor.items()]
            loss = loss + self.personal_weight / 2 * torch.stack(squares).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    def on_client_start(self, start: ClientStart) -> None:
        """Take up the client's personal model, and take note of the global one."""
        super().on_client_start(start)
        self._load(start.memory)
        self._personal[0].train()
        self._answers_with_v = False
        self._anchor = {name: parameter.detach().clone() for name, parameter in self.trainable.items()}
        parameters = [parameter for parameter in self._personal[0].parameters() if parameter.requires_grad]
        self._optimizer_of_v = self._optimizer(parameters)
        for group in self._optimizer_of_v.param_groups:
            group["lr"] *= start.lr_factor

    def on_client_end(self, end: ClientEnd) -> tuple[State, State]:
        """Return what the correction sends and keeps, and keep the personal model."""
        extras, memory = super().on_client_end(end)
        own = state.clone(state.travelling(self._personal[0]))
        self._optimizer_of_v = None
        return extras, memory | {_PERSONAL + name: tensor.contiguous() for name, tensor in own.items()}

    def before_predict(self, memory: State) -> None:
        """Answer with the personal model of the client whose memory this is, if it has one."""
        self._answers_with_v = self._load(memory)
        if self._answers_with_v:
            self._personal[0].eval()

    def _load(self, memory: State) -> bool:
        """Make v the client's own, or the model as it is where it has none; tell whether it has."""
        kept = {name.removeprefix(_PERSONAL): tensor for name, tensor in memory.items() if name.startswith(_PERSONAL)}
        self._personal = (copy.deepcopy(self.model),)  # anew, or buffers in no state dict would stay those of the last client
        if kept:
            self._personal[0].load_state_dict(self.model.state_dict() | kept)
        return bool(kept)
