"""Federated averaging with central differential privacy of clients."""

import hashlib
import hmac
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from fedfacet import rng, state
from fedfacet.aggregators.base import Aggregator, Noised
from fedfacet.arguments import check_within
from fedfacet.errors import ConfigError
from fedfacet.types import ClientUpdate, Facts, ServerState, State


@dataclass(eq=False, kw_only=True)
class DPFedAvg(Aggregator):
    r"""Clip every update, add noise to their sum, and divide by the number of clients that is *expected*.

    .. math::
        w \leftarrow w + \frac{1}{m} \left( \sum_{k \in S} \Delta_k \min(1, C / \lVert \Delta_k \rVert_2)
        + \mathcal{N}(0, z^2 C^2 I) \right)

    A client moves the sum by C at most, whether it takes part or not, so that a round is one Gaussian mechanism with noise
    multiplier z, and m, which nobody's data have an influence on, tells nothing. Under ``selector=poisson`` each client takes
    part with probability q by itself, which makes the rounds' epsilon smaller; under another selector every round counts in
    full. ``metrics.csv`` has the :math:`(\epsilon, \delta)` of all rounds so far as ``privacy/epsilon`` (``proven_epsilon`` is
    the accountant): neighbours differ by one client, who is there or not. A client whose update did not come counts as one of
    zeros, and a round without updates adds noise alone.

    The guarantee is one towards whoever sees the models: the server, which adds the noise, is trusted, and so is whoever sees
    who took part, training losses and sample counts (``metrics.csv``). A federation whose selector learns from clients, or asks
    them anything, is refused, since epsilon covers models only.

    Source: McMahan et al., Learning Differentially Private Recurrent Language Models, ICLR 2018, arXiv:1710.06963, algorithm 1,
    with flat clipping, equal weights and the fixed denominator :math:`f_f`. Deviations: the server clips, not the client, so
    that no client needs to be trusted with it; the accountant is ``proven_epsilon``'s, and not the moments accountant.

    Args:
        clip_norm: C, larger than 0 and finite, over all trainable parameters together.
        noise_multiplier: z, 0 or larger and finite; 0 only clips, and proves nothing.
        expected_clients: m = q N, larger than 0; usually the size of a cohort.
        delta: of epsilon, in (0, 1); smaller than one over the number of clients, or it promises nothing.
        seed: the run's, from which the noise follows where there is no key.
        noise_key_file: a file of 16 bytes or more that only the server can read, from which the noise follows too. Without one,
            whoever knows the run's seed can take the noise off: epsilon is then that of a simulation.

    Raises:
        ConfigError: if the file cannot be read or is too short.
        ValueError: if a value is out of range, or if updates are not to have equal weights.
    """

    buffers: str = "keep"
    clip_norm: float = 1.0
    noise_multiplier: float = 1.0
    expected_clients: float = 1.0
    delta: float = 1e-5
    seed: int = 0
    noise_key_file: str | None = None

    goes_on = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weighting != "equal" or self.buffers != "keep":
            raise ValueError(
                "Expected `aggregator.weighting` to be equal and `aggregator.buffers` to be keep for noise that covers a "
                f"client, but got {self.weighting} and {self.buffers}: leave both as they are."
            )
        for name, value, lowest in (("clip_norm", self.clip_norm, False), ("noise_multiplier", self.noise_multiplier, True)):
            if not (0 <= value < math.inf and (value or lowest)):
                least = "0 or larger" if lowest else "larger than 0"
                raise ValueError(f"Expected `aggregator.{name}` to be {least} and finite, but got {value}.")
        if not 0 < self.expected_clients < math.inf:
            raise ValueError(f"Expected `aggregator.expected_clients` to be larger than 0, but got {self.expected_clients}.")
        check_within("aggregator.delta", self.delta, "(0, 1)")
        self._key = _key_in(Path(self.noise_key_file)) if self.noise_key_file is not None else b""

    def init(self, facts: Facts) -> ServerState:
        """Return that no round is over, and by what the key is known.

        Raises:
            ConfigError: if clients send running statistics, which no noise covers.
        """
        if facts.buffers:
            raise ConfigError(
                f"Expected a model without running statistics for aggregator=dp_fedavg, but it has {facts.buffers[0]!r}, which "
                "no noise covers: choose a model with group normalisation, or personal=norm_layers."
            )
        return {"rounds": 0, "key": self._fingerprint(), "parameters": list(facts.parameters)}

    def noised(self, server: ServerState) -> Noised | None:
        """Return what noise the rounds so far have added; ``None`` if they only clip."""
        if not self.noise_multiplier:
            return None
        return Noised(self.noise_multiplier, server["rounds"], self.delta)

    def aggregate(self, server: ServerState, model: State, updates: Iterable[ClientUpdate]) -> tuple[ServerState, State]:
        """Return the number of rounds, and the noised model.

        Raises:
            ConfigError: if the run began with another key.
        """
        if server["key"] != self._fingerprint():
            raise ConfigError(
                "Expected the noise key that the run began with, but `aggregator.noise_key_file` holds another, or none: give "
                "the file that it was started with."
            )
        round = server["rounds"] + 1
        draw = rng.stream(int(self._mixed(str(self.seed)), 16) if self._key else self.seed, "central-noise", round)
        std = self.noise_multiplier * self.clip_norm
        total = {
            name: torch.as_tensor(std * draw.standard_normal(tuple(model[name].shape)), dtype=torch.float64)
            for name in server["parameters"]
        }
        for update in updates:
            norm = state.norm(update.delta)
            factor = 1.0 if norm <= self.clip_norm else self.clip_norm / norm
            for name, tensor in update.delta.items():
                total[name].add_(tensor, alpha=factor)
        moved = {name: (tensor / self.expected_clients).to(model[name].dtype) for name, tensor in total.items()}
        return {**server, "rounds": round}, state.add(model, moved)

    def _fingerprint(self) -> str:
        """Return by what the key is known again, which tells nothing of the noise."""
        return self._mixed("fingerprint")[:16] if self._key else ""

    def _mixed(self, what: str) -> str:
        """Return what only those can tell who know the key."""
        return hmac.new(self._key, what.encode(), hashlib.sha256).hexdigest()


def _key_in(file: Path) -> bytes:
    try:
        key = file.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"Expected `aggregator.noise_key_file` to be a file that can be read, but got {file} ({error.strerror}): make one "
            "with `head -c 32 /dev/urandom > FILE`, outside the run folder."
        ) from None
    if len(key) < 16:
        raise ConfigError(
            f"Expected at least 16 bytes in `aggregator.noise_key_file`, but {file} has {len(key)}: make one with `head -c 32 "
            "/dev/urandom > FILE`."
        )
    return key
