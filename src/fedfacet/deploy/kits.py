"""FLARE's startup kits: which classes a machine lets jobs name, and how its FLARE is started."""

import json
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from fedfacet.errors import ConfigError
from fedfacet.optional import required

_NEVER = ("byoc", "shell_commands", "server-predeployed-flwr")
"""What nobody may do on a machine of ours: bring code, run commands."""


def prepare(kit: Path, allowed: str) -> None:
    """Write a kit's ``local/`` so that its FLARE builds one class of ours and runs nobody's code, and its logs stay there.

    A server keeps its jobs in the kit. By default all FLARE servers of a machine keep them in ``/tmp/nvflare``, and take each
    other's jobs, of which they refuse the signatures.

    Args:
        kit: the folder that ``nvflare provision`` has made for a server or a site.
        allowed: the path of the class.

    Raises:
        ConfigError: if it is no kit.
    """
    local = kit / "local"
    resources = _read(local / "resources.json.default")
    resources["class_list_enforcement_mode"], resources["class_allow_list"] = "enforce", [allowed]
    resources["allow_log_streaming"] = False
    resources["components"] = [part for part in resources["components"] if part["id"] != "site_log_streamer"]
    for part in resources["components"]:
        if part["id"] == "job_manager":
            part["args"]["uri_root"] = str(kit.absolute() / "jobs")
    if "snapshot_persistor" in resources:
        resources["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = str(kit.absolute() / "snapshots")
    authorization = _read(local / "authorization.json.default")
    for role, rights in authorization["permissions"].items():
        if isinstance(rights, dict):
            rights.update(dict.fromkeys(_NEVER, "none"))
        elif rights == "any":
            authorization["permissions"][role] = {"view": "any", "operate": "any", "manage_job": "any"}
    for name, content in (("resources.json", resources), ("authorization.json", authorization)):
        (local / name).write_text(json.dumps(content, indent=2), encoding="utf-8")
    if not (local / "log_config.json").exists():
        shutil.copy(local / "log_config.json.default", local / "log_config.json")


def start(kit: Path, allowed: str, environment: Mapping[str, str], site: str | None = None) -> NoReturn:
    """Prepare a kit, and become its FLARE, in the foreground, with this Python.

    Args:
        kit: as in ``prepare``.
        allowed: as in ``prepare``.
        environment: variables to set.
        site: the name that the kit must be for, if it is a site's.

    Raises:
        ConfigError: if it is no kit, or another one's, or FLARE is not installed.
    """
    required("nvflare", extra="deploy", wanted_by="a kit of FLARE")
    prepare(kit, allowed)
    if site is not None and (name := _read(kit / "startup" / "fed_client.json")["client"].get("fqsn", site)) != site:
        raise ConfigError(f"Expected the kit of {site}, as `site` in client.yaml says, but {kit} is that of {name}.")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"  # its script takes the first python3
    script = str(kit.absolute() / "startup" / "sub_start.sh")
    os.execve("/bin/bash", ["bash", script, "--once"], {**os.environ, "PATH": path, **environment})


def _read(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise ConfigError(
            f"Expected the kit of a server or a site, but {file} cannot be read: give kit=DIR, a folder that "
            "`nvflare provision` has made."
        ) from None
