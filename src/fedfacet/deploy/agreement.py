"""The settings that a run has at a site: overrides, which the site composes on its own yamls and holds to a digest."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fedfacet.config import compose_job, plain
from fedfacet.errors import ConfigError

CLIENT_SETTINGS = (
    "seed", "model", "objective", "loss", "correction", "personal", "optimizer", "local", "privacy", "disclosure", "capacity",
    "submodel", "transforms", "threads", "memory_format", "precision", "compile", "deterministic",
)  # fmt: skip
"""What of a run's settings bears on what a client does; all of it goes into the digest."""

_OF_SERVER = {
    *("deploy", "sites", "card", "roster", "callbacks", "logger", "paths", "wandb", "task", "resume", "trust", "engine"),
    *("dataset", "hydra", "sweep", "replay", "fingerprint"),
}
_OVERRIDE = re.compile(r"[a-z_]+(\.[\w.]+)?=[^$\n]*")


def overrides_for_sites(overrides: Sequence[str]) -> list[str]:
    """Return those overrides of a server's command line that a site must know."""
    keys = {override: override.lstrip("+~").partition("=")[0].partition(".")[0] for override in overrides}
    return [override for override, key in keys.items() if key not in _OF_SERVER]


def check_overrides(overrides: Any) -> list[str]:
    """Refuse overrides that do more than to choose among the yamls of this machine and to set values.

    Raises:
        ConfigError: naming the first.
    """
    for override in overrides:
        key = str(override).partition("=")[0].partition(".")[0]
        if not (isinstance(override, str) and _OVERRIDE.fullmatch(override)) or "_target_" in override or key in _OF_SERVER:
            raise ConfigError(
                f"Expected settings of clients, GROUP=OPTION and KEY=VALUE, but got {override!r}: it names code, files or more"
            )
    return list(overrides)


def agreed(overrides: Sequence[str]) -> dict[str, Any]:
    """Return the configuration that overrides come to on this machine.

    Raises:
        ConfigError: as ``compose_job``.
    """
    return plain(compose_job("train", overrides)[0])


def settings_digest(settings: Mapping[str, Any]) -> str:
    """Return the sha256 over what of a configuration bears on clients."""
    bearing = {name: settings.get(name) for name in CLIENT_SETTINGS}
    return hashlib.sha256(json.dumps(bearing, sort_keys=True).encode()).hexdigest()
