"""FLARE's startup kits: which classes a machine lets jobs name, and how its FLARE is started."""

import json
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from fedfacet.errors import ConfigError, fault_of
from fedfacet.optional import required
from fedfacet.storage.atomic_write import write_synced

_NEVER = ("byoc", "shell_commands", "server-predeployed-flwr")
"""What nobody may do on a machine of ours: bring code, run commands."""

_SHELL = {"cat", "grep", "head", "ls", "pwd", "tail"}
"""The commands of FLARE's `shell_commands`; each may be allowed by its own name too."""

_OF_ALL = ("view", "operate", "manage_job")
"""What somebody keeps whom FLARE lets do all that there is."""

_CERTIFICATE = re.compile(r"\[SSL: \w*(?:CERTIFICATE|UNKNOWN_CA)\w*\][^(\n]*")  # as Python says that one is not accepted
_WATCHES = 120.0  # seconds after its start in which a site's FLARE is watched


def prepare(kit: Path, allowed: str) -> None:
    """Tighten a kit's ``local/``: its FLARE builds one class of ours and runs no other code, and its logs stay there.

    What its operator has set there stays, unless it allows more. A server keeps its jobs in the kit. By default all FLARE
    servers of a machine keep them in ``/tmp/nvflare``, and take each other's jobs, of which they refuse the signatures.

    Args:
        kit: the folder that ``nvflare provision`` has made for a server or a site.
        allowed: the path of the class.

    Raises:
        ConfigError: if it is no kit, if its operator does not let the class in, or has filters that would not act.
    """
    local = kit / "local"
    check_filters(local)
    for name, tighten in (("resources.json", _tighten_resources), ("authorization.json", _tighten_rights)):
        file, default = local / name, _read(local / f"{name}.default")
        own = _read(file) if file.exists() else None
        try:
            tightened = tighten(json.loads(json.dumps(default if own is None else own)), default, kit.absolute(), allowed)
        except (AttributeError, KeyError, TypeError) as error:
            raise ConfigError(
                f"Expected {file} to be of the shape that `nvflare provision` gives it, but it is of another one "
                f"({fault_of(error)}): correct it, or remove it."
            ) from None
        if tightened != own:
            write_synced(file, [json.dumps(tightened, indent=2).encode()])
    if not (local / "log_config.json").exists():
        shutil.copy(local / "log_config.json.default", local / "log_config.json")


def check_filters(local: Path) -> None:
    """Refuse filters of FLARE, which would see bytes where they look for weights, and change nothing.

    Raises:
        ConfigError: naming the first, or the file if it cannot be read.
    """
    file = local / "privacy.json"
    if file.exists() and (filters := list(_filters(_read(file)))):
        raise ConfigError(
            f"Expected no filters in {file}, as FLARE's filters let FedFacet's messages pass unchanged, but it has "
            f"{filters[0]}: remove them, and say in the `policy` of client.yaml what may leave."
        )


def _filters(of: Any, listed: bool = False) -> Iterator[str]:
    """Yield the names of all filters within a part of ``privacy.json``."""
    if isinstance(of, dict):
        if listed:
            yield str(of.get("name", of.get("path", "a filter without a name")))
        for name, value in of.items():
            yield from _filters(value, str(name).endswith("filters"))
    elif isinstance(of, list):
        for one in of:
            yield from _filters(one, listed)
    elif listed and of:
        yield str(of)


def _tighten_resources(own: Any, default: Any, kit: Path, allowed: str) -> Any:
    """Return a kit's ``resources.json``, in which no class but one may be built."""
    usual = default.get("class_allow_list", [])
    classes = own.get("class_allow_list", usual)
    if classes != usual and not any(one == "*" or f"{allowed}.".startswith(f"{one}.") for one in classes):
        raise ConfigError(
            f"Expected {kit / 'local' / 'resources.json'} to let FLARE build {allowed}, but its operator's "
            "`class_allow_list` leaves it out: add it there, or take the list out."
        )
    own["class_list_enforcement_mode"], own["class_allow_list"] = "enforce", [allowed]
    own["allow_log_streaming"] = False
    own["components"] = [part for part in own["components"] if part["id"] != "site_log_streamer"]
    for of in (part["args"] for part in own["components"] if part["id"] == "job_manager"):
        of["uri_root"] = _within(kit / "jobs", of["uri_root"])
    if "snapshot_persistor" in own:
        of = own["snapshot_persistor"]["args"]["storage"]["args"]
        of["root_dir"] = _within(kit / "snapshots", of["root_dir"])
    return own


def _within(ours: Path, named: str) -> str:
    """Return a folder of the kit, unless the operator has named another; the kit may have been elsewhere before."""
    moved = Path(named).name == ours.name and not Path(named).parent.is_dir()
    return str(ours) if moved or Path(named).is_relative_to("/tmp/nvflare") else named


def _tighten_rights(own: Any, default: Any, kit: Path, allowed: str) -> Any:
    """Return a kit's ``authorization.json``, by which no user brings code or runs commands."""
    for role, rights in own["permissions"].items():
        if not isinstance(rights, dict):
            rights = {"*": rights}
        named = {" ".join(right.lower().split()): condition for right, condition in rights.items()}  # as FLARE reads it
        if (every := named.pop("*", None)) is not None:  # goes before all others that the role has
            named = dict.fromkeys(_OF_ALL, every)
        own["permissions"][role] = {
            **{right: condition for right, condition in named.items() if right not in _SHELL},
            **dict.fromkeys(_NEVER, "none"),
        }
    return own


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
    if site is not None and (name := _read(kit / "startup" / "fed_client.json")["client"].get("fqsn", site)) != site:
        raise ConfigError(f"Expected the kit of {site}, as `site` in client.yaml says, but {kit} is that of {name}.")
    prepare(kit, allowed)
    if site is not None:
        _watch(kit)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"  # its script takes the first python3
    script = str(kit.absolute() / "startup" / "sub_start.sh")
    os.execve("/bin/bash", ["bash", script, "--once"], {**os.environ, "PATH": path, **environment})


def certificate_fault(printed: str, kit: Path) -> str | None:
    """Return a sentence on a certificate that was not accepted, if what FLARE has said tells of one."""
    if (found := _CERTIFICATE.search(printed)) is None:
        return None
    return (
        f"Expected FLARE's server and the kit {kit} to hold certificates of one project, those that startup/rootCA.pem has "
        f"signed, but FLARE says `{found[0].strip()}`: give the kit of the server's own project."
    )


def _watch(kit: Path) -> None:
    """Have a process tell of a certificate that is not accepted: FLARE says so only in its log, and tries again for ever."""
    flare, log = os.getpid(), kit / "error_log.txt"
    before = log.stat().st_size if log.exists() else 0
    if (child := os.fork()) != 0:
        os.waitpid(child, 0)
        return
    if os.fork() == 0:  # its parent ends at once, so that FLARE need not wait for it
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        until, fault = time.monotonic() + _WATCHES, None
        while fault is None and time.monotonic() < until and _lives(flare):
            time.sleep(0.5)
            new = log.read_bytes()[before:] if log.exists() else b""
            fault = certificate_fault(new.decode(errors="replace"), kit)
        if fault is not None:
            print(f"error: {fault}", file=sys.stderr, flush=True)
    os._exit(0)


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OSError:
        return False
    return True


def _read(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise ConfigError(
            f"Expected the kit of a server or a site, but {file} cannot be read: give kit=DIR, a folder that "
            "`nvflare provision` has made."
        ) from None
