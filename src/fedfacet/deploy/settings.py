"""An operator's own settings: which data a site serves, and what it answers. They never leave the site."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from fedfacet.arguments import check_within
from fedfacet.deploy.files import made, table_of
from fedfacet.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What a site does for a server; all else it refuses.

    Attributes:
        queries: names of the query classes that its clients answer.
        options: group -> the options of it that a run may take, ``{objective: [classification]}``; any of other groups.
        max_steps: local steps of a client in a round.
        max_step_fraction: the part of its planned steps that a client takes at most.
        max_lr_factor: by what a server may multiply the learning rate of the run's settings.
        min_samples: that a client must have to take part.
        min_counted: that a class or group must have, if it has any, for a client to answer how many it has.
        max_letter_mb: what a message may weigh.
    """

    queries: Sequence[str] = ()
    options: Mapping[str, Sequence[str]] = field(default_factory=dict)
    max_steps: int = 2000
    max_step_fraction: float = 1.0
    max_lr_factor: float = 10.0
    min_samples: int = 1
    min_counted: int = 1
    max_letter_mb: float = 4096

    def __post_init__(self) -> None:
        """Refuse a limit that is none."""
        for limit in fields(self):
            value = getattr(self, limit.name)
            if limit.type in (int, float) and not (type(value) in (int, float) and value >= 0):
                raise ValueError(f"Expected `policy.{limit.name}` to be a number of 0 or more, but got {value!r}")


@dataclass(frozen=True, slots=True)
class Holding:
    """What a client has.

    Attributes:
        folder: from which its paths are seen.
        where: it stands in, for messages.
        options: of the reader.
        reader: of its samples, by the name that ``samples.READERS`` has for it.
        holdout: the part of them that it never trains on, in [0, 1).
    """

    folder: Path
    where: str
    options: Mapping[str, Any]
    reader: str = "npz"
    holdout: float = 0.0

    def __post_init__(self) -> None:
        """Refuse a part that is none."""
        check_within("holdout", self.holdout, "[0, 1)")


@dataclass(frozen=True, slots=True)
class SiteSettings:
    """A site as its operator has set it up.

    Attributes:
        site: its name in the roster.
        card: the file of the data card that the operator agreed to.
        clients: name in the roster -> its samples.
        state: the folder of what clients keep and of ``audit.jsonl``.
        device: where clients train.
        keep_letters: whether messages of the server stay on the disk, so that ``client.py verify`` can answer them again.
        policy: what it answers.
    """

    site: str
    card: Path
    clients: dict[str, Holding]
    state: Path
    device: str = "auto"
    keep_letters: bool = False
    policy: Policy = field(default_factory=Policy)

    @classmethod
    def read(cls, file: Path) -> "SiteSettings":
        """Return the settings of a ``client.yaml``; its paths are relative to its folder.

        Raises:
            ConfigError: if a key is missing or not known.
        """
        table, folder = table_of(file), file.absolute().parent
        given = made(cls, table, file)  # as the file has it
        return replace(
            given,
            card=folder / given.card,
            clients={name: _holding(held, folder, f"{file}, client {name}") for name, held in given.clients.items()},
            state=folder / given.state,
            policy=made(Policy, table.get("policy", {}), f"`policy` in {file}"),
        )


def _holding(given: Any, folder: Path, where: str) -> Holding:
    """Return what a client has; a text is the name of a file of arrays.

    Raises:
        ConfigError: if it is no table, or holds out a part that is none.
    """
    if not isinstance(given, str | Mapping):
        raise ConfigError(f"Expected a file or a table as {where}, but got {given!r}: see docs/deployment.md.")
    options = {"file": given} if isinstance(given, str) else dict(given)
    own = {key: options.pop(key) for key in ("reader", "holdout") if key in options}
    return made(Holding, {**own, "folder": folder, "where": where, "options": options}, where)
