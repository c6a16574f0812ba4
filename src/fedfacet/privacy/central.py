"""Central differential privacy of clients."""

import hashlib
import hmac
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from fedfacet import rng, state
from fedfacet.arguments import check_within
from fedfacet.errors import CheckpointError, ConfigError
from fedfacet.privacy.base import Privacy
from fedfacet.types import ClientUpdate, ServerState, State

_SHORTEST_KEY = 16


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
    ``privacy/epsilon`` (``proven_epsilon`` is the accountant): neighbours differ by one client, who is there or not. A client
    whose update did not come counts as one of zeros, and a round without updates adds noise alone.

    The guarantee is one towards whoever sees the server's models. The server, which adds the noise, is trusted, and so is
    whoever sees who took part, training losses and sample counts (``metrics.csv``). Since epsilon covers models only, a
    selector that learns from clients, or asks them anything, is refused.

    Source: McMahan et al., Learning Differentially Private Recurrent Language Models, ICLR 2018, arXiv:1710.06963, algorithm 1,
    with flat clipping, equal weights and the fixed denominator :math:`f_f`. Deviations: the server clips, so that no client
    needs to be trusted with it; the accountant is ``proven_epsilon``, and not the moments accountant.

    Args:
        clip_norm: C, larger than 0 and finite, over all trainable parameters together.
        noise_multiplier: z, 0 or larger and finite; 0 only clips, and proves nothing.
        delta: of epsilon, in (0, 1); smaller than one over the number of clients, or it promises nothing.
        noise_key_file: a file of 16 bytes or more that only the server can read, from which the noise follows together with the
            seed. Without one, whoever knows the run's seed can take the noise off: epsilon is then that of a simulation.

    Raises:
        ConfigError: if the file cannot be read or is too short.
        ValueError: if a value is out of range.
    """

    clip_norm: float = 1.0
    noise_multiplier: float = 1.0
    delta: float = 1e-5
    noise_key_file: str | None = None
    _key: bytes = field(default=b"", init=False, repr=False)

    def __post_init__(self) -> None:
        """Check the values, and read the key."""
        if not 0 < self.clip_norm < math.inf:
            raise ValueError(f"Expected `privacy.clip_norm` to be larger than 0 and finite, but got {self.clip_norm}.")
        if not 0 <= self.noise_multiplier < math.inf:
            raise ValueError(
                f"Expected `privacy.noise_multiplier` to be 0 or larger and finite, but got {self.noise_multiplier}."
            )
        check_within("privacy.delta", self.delta, "(0, 1)")
        if self.noise_key_file is not None:
            object.__setattr__(self, "_key", _key_in(Path(self.noise_key_file)))

    def released(self, updates: Iterable[ClientUpdate], shapes: State, *, expected: int, seed: int, round: int) -> ClientUpdate:
        """Return the noised mean of a round's updates, as an update of nobody.

        Args:
            updates: each is freed once it is added.
            shapes: tensors like those in every update's ``delta``.
            expected: m, how many clients a round takes by plan.
            seed: the run's.
            round: its number.
        """
        draw = rng.stream(int(self._mixed(f"{seed}"), 16) if self._key else seed, "central-noise", round)
        std = self.noise_multiplier * self.clip_norm
        total = {
            name: torch.as_tensor(std * draw.standard_normal(tuple(tensor.shape)), dtype=torch.float64)
            for name, tensor in shapes.items()
        }
        for update in updates:
            norm = state.norm(update.delta)
            factor = 1.0 if norm <= self.clip_norm else self.clip_norm / norm
            for name, tensor in update.delta.items():
                total[name].add_(tensor, alpha=factor)
        mean = {name: (tensor / expected).to(shapes[name].dtype) for name, tensor in total.items()}
        return ClientUpdate(-1, mean, {}, 1, 1, 1.0, {})

    def init(self) -> ServerState:
        """Return by what the key is known again, which tells nothing of the noise; nothing where there is no key."""
        return {"key": self._mixed("fingerprint")[:16] if self._key else ""}

    def check(self, saved: ServerState) -> None:
        """Refuse to go on with a run that began with another key.

        Raises:
            CheckpointError: saying what to do.
        """
        if saved != self.init():
            raise CheckpointError(
                "Expected the noise key that the run began with, but `privacy.noise_key_file` holds another, or none: give the "
                "file that it was started with."
            )

    def _mixed(self, what: str) -> str:
        """Return what only those can tell who know the key."""
        return hmac.new(self._key, what.encode(), hashlib.sha256).hexdigest()


def _key_in(file: Path) -> bytes:
    remedy = "make one with `head -c 32 /dev/urandom > FILE`, outside the run folder"
    try:
        key = file.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"Expected `privacy.noise_key_file` to be a file that can be read, but got {file} ({error.strerror}): {remedy}."
        ) from None
    if len(key) < _SHORTEST_KEY:
        raise ConfigError(
            f"Expected at least {_SHORTEST_KEY} bytes in `privacy.noise_key_file`, but {file} has {len(key)}: {remedy}."
        )
    return key
