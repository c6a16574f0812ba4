"""What a run comes to at a site: overrides, which the site composes on its own yamls and holds to a digest, and versions."""

import functools
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fedfacet import __version__
from fedfacet.config import compose_job, plain
from fedfacet.errors import ConfigError
from fedfacet.moved import with_former_names

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
    return hashlib.sha256(with_former_names(json.dumps(bearing, sort_keys=True)).encode()).hexdigest()


@functools.cache
def package_digest(package: Path = Path(__file__).parents[1]) -> str:
    """Return by what two installations of one version are told apart: the start of a sha256 over the package's code."""
    sha = hashlib.sha256()
    for name in sorted(file.relative_to(package).as_posix() for file in package.rglob("*.py")):
        if not name.startswith("conf/"):  # of a wheel; yamls are held to the digest of the settings
            sha.update(f"{name}\0".encode() + (package / name).read_bytes().replace(b"\r\n", b"\n") + b"\0")
    return sha.hexdigest()[:16]


def versions() -> dict[str, Any]:
    """Return what server and site tell each other of their software."""
    return {"fedfacet": __version__, "package": package_digest(), "torch": torch.__version__}


def differences(theirs: Mapping[str, Any]) -> str:
    """Return in words by what somebody else's software may come to other numbers than ours; nothing where it is the same."""
    found = []
    if str(theirs.get("package"))[:40] != package_digest():
        found.append(f"FedFacet {__version__} with other code than here (is one of both a development checkout?)")
    if (other := str(theirs.get("torch"))[:40]) != torch.__version__:
        found.append(f"torch {other} ({torch.__version__} here)")
    return " and ".join(found)
