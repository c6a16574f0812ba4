"""The contract of what makes models private."""

import hashlib
import hmac
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

from fedfacet.arguments import Choice, Declared, Number, Within
from fedfacet.errors import CheckpointError, ConfigError
from fedfacet.types import NOISE, ServerState

_SHORTEST_KEY = 16

ACCOUNTANTS = ("prv", "rdp")
COVERS = ("all", "updates")


@dataclass(frozen=True, kw_only=True)
class Privacy(Declared):
    """Noise that hides samples or whole clients in the models: at the clients (``DPSGD``) or at the server (``CentralDP``).

    Args:
        noise_multiplier: z, by which noise is larger than what a neighbour changes; 0 proves nothing.
        delta: of epsilon; ``None`` where no epsilon is claimed.
        accountant: ``"prv"`` or ``"rdp"``, of Opacus, for what is sampled; what is not is exact. The first is tighter, and
            leaves it to the second where it has no finite bound.
        cover: ``"all"`` refuses parts that learn from clients what epsilon does not count; ``"updates"`` takes them, and the
            summary says what they are.
        noise_key_file: a file of 16 bytes or more, from which noise and sampling follow together with the seed. Without one,
            whoever knows the run's seed can take the noise off: epsilon is then that of a simulation.

    Raises:
        ConfigError: if the file cannot be read or is too short.
        ValueError: if a value is out of range.
    """

    option_group = "privacy."

    provides: ClassVar[frozenset[str]] = frozenset({NOISE})

    unit: ClassVar[str]
    """Of what neighbours differ by one: ``"client"`` or ``"sample"``."""

    noise_multiplier: Annotated[float, Number("0 or larger and finite")] = 1.0
    delta: Annotated[float | None, Within("(0, 1)")] = None
    accountant: Annotated[str, Choice(*ACCOUNTANTS)] = "prv"
    cover: Annotated[str, Choice(*COVERS)] = "all"
    noise_key_file: str | None = None
    _key: bytes = field(default=b"", init=False, repr=False)

    def __post_init__(self) -> None:
        """Check the values, and read the key."""
        super().__post_init__()
        if self.noise_key_file is not None:
            object.__setattr__(self, "_key", _key_in(Path(self.noise_key_file)))

    @property
    def claims(self) -> bool:
        """Whether a run with it has an epsilon."""
        return self.delta is not None and self.noise_multiplier > 0

    @property
    def is_secret(self) -> bool:
        """Whether noise follows from a key, and not from the run's seed alone."""
        return bool(self._key)

    def seed(self, seed: int) -> int:
        """Return what noise and sampling are drawn from: the run's seed, mixed with the key where there is one."""
        return int(self._mixed(f"{seed}"), 16) if self._key else seed

    def init(self) -> ServerState:
        """Return the state before the first round: by what the key is known again, which tells nothing of the noise."""
        return {"key": self._mixed("fingerprint")[:16] if self._key else ""}

    def check(self, saved: ServerState) -> None:
        """Refuse to go on with a run that began with another key.

        Raises:
            CheckpointError: saying what to do.
        """
        if saved.get("key", "") != self.init().get("key", ""):
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
