"""Central differential privacy of clients."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from fedfacet import rng, state
from fedfacet.arguments import Number, Within
from fedfacet.errors import ConfigError
from fedfacet.privacy.base import Privacy
from fedfacet.types import CENTRAL_NOISE, NOISE, ClientUpdate, ServerState, State

_COUNT_NOISE = 1 / 20
"""Of the cohort that is expected: the standard deviation that Andrew et al. recommend for the count of unclipped updates."""


@dataclass(frozen=True, kw_only=True)
class CentralDP(Privacy):
    r"""The server clips every update, adds noise to their sum, and divides by the number of clients that is *expected*.

    .. math::
        \bar\Delta = \frac{1}{m} \left( \sum_{k \in S} \Delta_k \min(1, C / \lVert \Delta_k \rVert_2)
        + \mathcal{N}(0, z^2 C^2 I) \right)

    The aggregator gets this as if it were the only update, and whatever it makes of it (``fedavg``, ``fedavgm``, ``fedadam``
    and its kin) is as private. A client moves the sum by C at most, whether it takes part or not, so that a round is one
    Gaussian mechanism with noise multiplier z; m is the size of a cohort, which tells nothing of anybody's data. Under
    ``selector=poisson`` each client takes part with probability q by itself, which makes the rounds' epsilon smaller; under
    another selector every round counts in full. ``metrics.csv`` has the :math:`(\epsilon, \delta)` of all rounds so far as
    ``privacy/epsilon`` (``composed_epsilon`` is the accountant). Neighbours differ by the data of one client, which count, or
    for which zeros stand in its updates and answers. A client whose update did not come counts as one of zeros, and a round
    without updates adds noise alone.

    With ``target_quantile`` :math:`\gamma` the norm C follows the :math:`\gamma`-quantile of the updates' norms:

    .. math::
        \tilde b = \frac{1}{m} \left( \sum_{k \in S} \left( b_k - \tfrac{1}{2} \right) + \mathcal{N}(0, \sigma_b^2) \right)
        + \tfrac{1}{2}, \quad b_k = \mathbb{1}[\lVert \Delta_k \rVert_2 \le C], \quad
        C \leftarrow C \exp(-\eta_C (\tilde b - \gamma))

    The sum then gets noise of :math:`z_\Delta = (z^{-2} - (2 \sigma_b)^{-2})^{-1/2}` times C, so that sum and count together
    are one Gaussian mechanism with noise multiplier z, and epsilon is what it is without.

    An aggregator may have statistics of the clients released along with the updates (``Aggregator.noised``). Each is clipped to
    another norm B and summed, and its sum gets noise of standard deviation :math:`z_s B`. All sums of a round are of the
    same cohort, so together they are one Gaussian mechanism of noise multiplier :math:`(z^{-2} + \sum_s z_s^{-2})^{-1/2}`.

    The guarantee is one towards whoever sees the server's models. The server, which adds the noise, is trusted, and so is
    whoever sees who took part, training losses and sample counts (``metrics.csv``). A selector that asks clients what epsilon
    does not count, or learns from what they send, is refused unless ``cover=updates``.

    Source: McMahan et al., Learning Differentially Private Recurrent Language Models, ICLR 2018, arXiv:1710.06963, algorithm 1,
    with flat clipping, equal weights and the fixed denominator :math:`f_f`; Andrew et al., Differentially Private Learning with
    Adaptive Clipping, NeurIPS 2021, arXiv:1905.03871, algorithm 1 and theorem 1. Deviations: the server clips, so that no
    client needs to be trusted with it; the accountant is ``composed_epsilon``, and not the moments accountant.

    Args:
        clip_norm: C, larger than 0 and finite, over all trainable parameters together; of the first round with
            ``target_quantile``.
        noise_multiplier: z, 0 or larger and finite; 0 only clips, and proves nothing.
        delta: of epsilon, in (0, 1); smaller than one over the number of clients, or it promises nothing.
        accountant: as in ``Privacy``.
        cover: as in ``Privacy``.
        noise_key_file: as in ``Privacy``; one that only the server can read.
        target_quantile: :math:`\gamma` in (0, 1); ``None`` for a norm that stays.
        clip_norm_lr: :math:`\eta_C`, larger than 0 and finite; of ``target_quantile``.
        clipped_count_stddev: :math:`\sigma_b`, larger than z / 2 and finite; ``None`` for m / 20, as the paper recommends.
    """

    provides = frozenset({NOISE, CENTRAL_NOISE})
    unit = "client"

    clip_norm: Annotated[float, Number("larger than 0 and finite")] = 1.0
    delta: float | None = 1e-5
    target_quantile: Annotated[float | None, Within("(0, 1)")] = None
    clip_norm_lr: Annotated[float, Number("larger than 0 and finite")] = 0.2
    clipped_count_stddev: float | None = None

    def __post_init__(self) -> None:
        """Check the values, and read the key."""
        super().__post_init__()
        if self.delta is None:
            raise ValueError("Expected `privacy.delta` to lie in (0, 1), but got null.")
        if (stddev := self.clipped_count_stddev) is not None:
            if self.target_quantile is None:
                raise ValueError("Expected `privacy.clipped_count_stddev` with `privacy.target_quantile` only, but it is null.")
            if not self.noise_multiplier / 2 < stddev < math.inf:
                raise ValueError(
                    "Expected `privacy.clipped_count_stddev` to be larger than half of `privacy.noise_multiplier` and finite, "
                    f"but got {stddev}: or no noise on the sum would be enough."
                )

    def noise(self, expected: int) -> tuple[float, float]:
        r"""Return the noise multiplier of the sum, :math:`z_\Delta`, and the standard deviation of the count, :math:`\sigma_b`.

        Raises:
            ConfigError: if the count's noise alone would be too little for z.
        """
        if self.target_quantile is None or not self.noise_multiplier:
            return self.noise_multiplier, 0.0
        stddev = self.clipped_count_stddev if self.clipped_count_stddev is not None else expected * _COUNT_NOISE
        if not self.noise_multiplier < 2 * stddev:
            raise ConfigError(
                f"Expected cohorts of more than {self.noise_multiplier / (2 * _COUNT_NOISE):g} clients, of whose number a "
                f"twentieth is the noise of `privacy.target_quantile`'s count, but got {expected}: give "
                "`privacy.clipped_count_stddev` more than half of `privacy.noise_multiplier`, or leave `target_quantile` null."
            )
        return (self.noise_multiplier**-2 - (2 * stddev) ** -2) ** -0.5, stddev

    def init(self) -> ServerState:
        """Return the state before the first round."""
        return super().init() | ({"clip_norm": float(self.clip_norm)} if self.target_quantile is not None else {})

    def released(
        self,
        server: ServerState,
        updates: Iterable[ClientUpdate],
        shapes: State,
        statistics: Mapping[str, tuple[Tensor, float, float]] = MappingProxyType({}),
        *,
        expected: int,
        seed: int,
        round: int,
    ) -> tuple[ServerState, ClientUpdate]:
        """Return the next state, and the noised mean of a round's updates, as an update of nobody.

        Args:
            server: the state.
            updates: each is freed once it is added.
            shapes: tensors like those in every update's ``delta``.
            statistics: name in ``extras`` -> a tensor like it, its largest norm B and its noise multiplier.
            expected: m, how many clients a round takes by plan.
            seed: the run's.
            round: its number.
        """
        own, clip_norm = self.seed(seed), float(server.get("clip_norm", self.clip_norm))
        multiplier, count_std = self.noise(expected)
        total = _noise(shapes, multiplier * clip_norm, rng.stream(own, "central-noise", round))
        draw = rng.stream(own, "central-statistics", round)
        sums = {name: _noise({name: like}, z * bound, draw) for name, (like, bound, z) in statistics.items()}
        above_half = 0.0  # the sum of b_k - 1/2, which nobody moves by more than 1/2
        for update in updates:
            above_half += 0.5 if _add(total, update.delta, clip_norm) else -0.5
            for name, (_, bound, _) in statistics.items():
                _add(sums[name], {name: update.extras[name]}, bound)
        mean = {name: (tensor / expected).to(shapes[name].dtype) for name, tensor in total.items()}
        extras = {name: (sums[name][name] / expected).to(like.dtype) for name, (like, _, _) in statistics.items()}
        if self.target_quantile is not None:
            noise = count_std * float(rng.stream(own, "central-clipped-count", round).standard_normal())
            unclipped = (above_half + noise) / expected + 0.5
            server = {**server, "clip_norm": clip_norm * math.exp(-self.clip_norm_lr * (unclipped - self.target_quantile))}
        return server, ClientUpdate(-1, mean, {}, 1, 1, 1.0, {}, extras=extras)


def _noise(shapes: State, std: float, draw: np.random.Generator) -> State:
    """Return Gaussian noise like some tensors, float64: what a sum begins with."""
    return {
        name: torch.as_tensor(std * draw.standard_normal(tuple(tensor.shape)), dtype=torch.float64)
        for name, tensor in shapes.items()
    }


def _add(total: State, vector: State, max_norm: float) -> bool:
    """Add a vector to a sum, cut to an l2 norm; return whether it was within the norm."""
    norm = state.norm(vector)
    factor = 1.0 if norm <= max_norm else max_norm / norm
    for name, tensor in vector.items():
        total[name].add_(tensor, alpha=factor)
    return norm <= max_norm
