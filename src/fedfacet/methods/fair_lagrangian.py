"""FFALM and FPFL: groups are to have the same loss, a constraint that an augmented Lagrangian holds the clients to.

Sources: Dunda and Song, Fairness-aware Federated Minimax Optimization with Convergence Guarantee (FFALM), arXiv:2307.04417;
Rodríguez-Gálvez et al., Enforcing Fairness in Private Federated Learning via the Modified Method of Differential Multipliers
(FPFL), arXiv:2109.08604. Formulas and defaults of FFALM are those of its authors' code (gwmdunda/FairFedAvgALM, the class
``FairFedAvgALM`` and config.yaml), not checked against the paper. FPFL's are those of the baseline in the same code, which is
not by FPFL's authors; they were not checked against its paper.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from fedfacet import state
from fedfacet.aggregators.base import Aggregator
from fedfacet.arguments import Choice, Number
from fedfacet.errors import ConfigError
from fedfacet.objectives.classification import ClassificationObjective
from fedfacet.types import Batch, Broadcast, ClientEnd, ClientStart, ClientUpdate, Facts, ServerState, State

MULTIPLIERS, BETA = "fair_lagrangian/multipliers", "fair_lagrangian/beta"
"""Sent down: lambda, float64 of shape (1,) for FFALM and (A,) for FPFL, and the factor of the squares."""

GAPS = "fair_lagrangian/gaps"
"""Sent up: by how much the client's model violates each constraint, float32 of the multipliers' shape."""


class FairLagrangianObjective(ClassificationObjective):
    r"""Add the terms of an augmented Lagrangian to the mean cross entropy :math:`\ell` of a batch.

    .. math:: \ell + \sum_c \Bigl( \lambda_c \, g_c + \frac{\beta}{2} g_c^2 \Bigr)

    With :math:`\ell_a` the mean cross entropy of the batch's samples of attribute value a, there is one constraint,
    :math:`g = \ell_0 - \ell_1` (FFALM), or one for each value, :math:`g_a = |\ell - \ell_a|` (FPFL): the server sends one
    multiplier or several (``aggregator=fair_lagrangian`` or ``fpfl``). A constraint of a group without samples in the batch is
    left out. Where the server sends nothing, or all factors are 0, the loss is the plain cross entropy, bit for bit.

    After its steps a client goes through its samples once more, in eval mode, and sends up its constraints' values, 0 for one
    of a group that it has no samples of.

    Deviations: FFALM's code takes these values from the client's last batch, and sets the loss of a group without samples to 0,
    which moves lambda.

    Arguments are those of ``ClassificationObjective``.
    """

    reads_attributes = True
    """Whether clients must know the attributes of their samples."""

    discloses: ClassVar[Mapping[str, str]] = {GAPS: "group_performance"}

    changes_cross_entropy = "fair_lagrangian"

    _multipliers: Tensor | None = None
    _beta = 0.0

    @property
    def provides(self) -> frozenset[str]:
        """The constraints' values, beside what the correction gives."""
        return super().provides | {GAPS}

    @property
    def requires(self) -> frozenset[str]:
        """The Lagrangian's factors, beside what the correction needs."""
        return super().requires | {MULTIPLIERS, BETA}

    def on_client_start(self, start: ClientStart) -> None:
        """Take note of the factors."""
        super().on_client_start(start)
        self._multipliers = start.broadcast.extras.get(MULTIPLIERS)
        self._beta = float(start.broadcast.extras.get(BETA, 0.0))
        self._sent: State = {}

    def before_steps(self, batches: Iterable[Batch], num_steps: int) -> None:
        """Look at nothing."""

    def after_steps(self, batches: Iterable[Batch]) -> None:
        """Find the constraints' values on all samples."""
        if self._multipliers is None:
            return
        found = [(functional.cross_entropy(self(b.x), b.y, reduction="none").double().cpu(), b.a.cpu()) for b in batches]
        losses, a = (torch.cat(column) for column in zip(*found, strict=True))
        self._sent = {GAPS: _gaps(losses, a, len(self._multipliers)).float()}

    def on_client_end(self, end: ClientEnd) -> tuple[State, State]:
        """Return the constraints' values beside what the correction sends and keeps."""
        extras, memory = super().on_client_end(end)
        return extras | self._sent, memory

    def training_loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the augmented Lagrangian of a batch."""
        if self._multipliers is None or (self._beta == 0 and not self._multipliers.any()):
            return super().training_loss(logits, batch)
        losses = functional.cross_entropy(logits, batch.y, reduction="none")
        gaps = _gaps(losses, batch.a, len(self._multipliers))
        return losses.mean() + (self._multipliers.to(losses) * gaps + self._beta / 2 * gaps.square()).sum()


@dataclass(eq=False, kw_only=True)
class FairLagrangian(Aggregator):
    r"""Average the updates, and raise the multipliers of constraints that the clients' models violate.

    .. math::
        \lambda \leftarrow \lambda + \eta \sum_k p_k \, g_k(w_k), \quad \beta \leftarrow b \beta, \quad \eta \leftarrow \eta / b

    with :math:`g_k(w_k)` what client k finds on its samples with the model that it ends with. That is the papers'
    :math:`\lambda + \sum_k p_k (\lambda_k - \lambda)` of clients' own :math:`\lambda_k = \lambda + \eta g_k`, which need not be
    sent.

    FPFL trains private models: with ``noise_multiplier`` and ``privacy=central`` the server clips each client's :math:`g_k` and
    adds noise to their sum, as it does to updates. With m the expected size of a cohort and B ``max_norm``,

    .. math::
        \lambda \leftarrow \lambda + \frac{\eta}{m} \Bigl( \sum_k g_k \min(1, B / \lVert g_k \rVert_2)
        + \mathcal{N}(0, z_g^2 B^2 I) \Bigr),

    and T rounds of all clients are one Gaussian mechanism with :math:`\mu^2 = T (z^{-2} + z_g^{-2})`, z being
    ``privacy.noise_multiplier``. Lambda may then fall below 0.

    Deviations: FFALM's code adds noise to each client's :math:`\lambda_k` without clipping. Here the server adds it once to the
    clipped sum, and epsilon counts it. FPFL has no tolerance of its constraints here. b is 1 by default. FFALM's released code
    has 1.05 and clips gradients to the norm 1 (``local.max_grad_norm=1``): with 1.05 beta is 131 times as large after 100
    rounds, and without clipping a run of ``adult_gsc`` then calls everybody the same.

    Args:
        variant: ``"ffalm"``, the difference of the losses of two groups, or ``"fpfl"``, the distance of each group's loss from
            that of all samples. FPFL's distances are not negative, so that its multipliers only rise; and they have a kink
            where groups are equal, around which clients jump the further the larger learning rate and multipliers are.
        beta: of the squares in the first round, 0 or larger.
        eta: how fast multipliers rise in the first round, 0 or larger.
        growth: b, larger than 0.
        multiplier: each lambda in the first round. If it, ``beta`` and ``eta`` are 0, this is FedAvg.
        weighting: p_k, ``"samples"`` (the released code) or ``"equal"``, which ``privacy=central`` needs.
        max_norm: B, larger than 0 and finite; ``None`` without noise.
        noise_multiplier: :math:`z_g`, larger than 0 and finite; ``None`` for no noise.
    """

    provides = frozenset({MULTIPLIERS, BETA})
    requires = frozenset({GAPS})

    variant: Annotated[str, Choice("ffalm", "fpfl")] = "ffalm"
    beta: Annotated[float, Number("0 or larger, and finite")] = 5.0
    eta: Annotated[float, Number("0 or larger, and finite")] = 2.0
    growth: Annotated[float, Number("larger than 0, and finite")] = 1.0
    multiplier: Annotated[float, Number("finite")] = 0.0
    weighting: str = "samples"
    max_norm: Annotated[float | None, Number("larger than 0 and finite")] = None
    noise_multiplier: Annotated[float | None, Number("larger than 0 and finite")] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.max_norm is None) != (self.noise_multiplier is None):
            raise ValueError(
                f"`max_norm` is {self.max_norm} and `noise_multiplier` {self.noise_multiplier}, and noise needs both: give "
                "both or none."
            )

    def noised(self) -> Mapping[str, tuple[float, float]]:
        """Return the norm and the noise multiplier of the constraints' values; nothing without noise, or if this is FedAvg."""
        if self.max_norm is None or self.noise_multiplier is None or self._is_fedavg:
            return {}
        return {GAPS: (self.max_norm, self.noise_multiplier)}

    @property
    def _is_fedavg(self) -> bool:
        return self.beta == self.eta == self.multiplier == 0

    def init(self, facts: Facts) -> ServerState:
        """Return the first factors.

        Raises:
            ConfigError: if there are fewer than two groups, or more than the variant can compare.
        """
        multipliers = torch.full((self._num_gaps(facts),), self.multiplier, dtype=torch.float64)
        return {"multipliers": multipliers, "beta": float(self.beta), "eta": float(self.eta)}

    def extras(self, facts: Facts) -> State:
        """Return a tensor like the constraints' values; nothing if this is FedAvg."""
        return {} if self._is_fedavg else {GAPS: torch.zeros(self._num_gaps(facts))}

    def broadcast(self, server: ServerState, model: State, client_id: int) -> Broadcast:
        """Return the model and the factors; the model alone if this is FedAvg."""
        if self._is_fedavg:
            return Broadcast(model)
        beta = torch.tensor(server["beta"], dtype=torch.float64)
        return Broadcast(model, {MULTIPLIERS: server["multipliers"], BETA: beta})

    def aggregate(self, server: ServerState, model: State, updates: Iterable[ClientUpdate]) -> tuple[ServerState, State]:
        """Return the next factors and the averaged model."""
        gaps, total = torch.zeros_like(server["multipliers"]), 0.0

        def noted() -> Iterator[ClientUpdate]:
            nonlocal gaps, total
            for update in updates:
                gaps = gaps + self.weight(update) * update.extras[GAPS].double()
                total += self.weight(update)
                yield update

        delta, buffers = self.average(updates if self._is_fedavg else noted())
        model = state.add(model, {**delta, **buffers})
        if self._is_fedavg:
            return server, model
        multipliers = server["multipliers"] + server["eta"] * gaps / total
        return {"multipliers": multipliers, "beta": server["beta"] * self.growth, "eta": server["eta"] / self.growth}, model

    def _num_gaps(self, facts: Facts) -> int:
        number = facts.num_attributes
        if self.variant == "ffalm" and number != 2:
            raise ConfigError(
                f"Expected data of two attribute values for variant 'ffalm', which compares two groups, but got {number}: "
                "choose aggregator=fpfl for more."
            )
        if number < 2:
            raise ConfigError(f"Expected data of two attribute values or more, but got {number}: choose aggregator=fedavg.")
        return 1 if self.variant == "ffalm" else number


def _gaps(losses: Tensor, a: Tensor, number: int) -> Tensor:
    """Return the values of one constraint on two groups, or of one for each of ``number`` groups; 0 where one is absent.

    Args:
        losses: shape (B,).
        a: attribute values, shape (B,).
        number: of constraints.
    """
    groups = torch.arange(max(number, 2), device=a.device)
    members = (a[:, None] == groups).to(losses.dtype)
    sizes = members.sum(dim=0)
    means = (losses[:, None] * members).sum(dim=0) / sizes.clamp(min=1)
    if number == 1:
        return torch.where((sizes > 0).all(), means[:1] - means[1:], 0.0)
    return torch.where(sizes > 0, (losses.mean() - means).abs(), 0.0)
