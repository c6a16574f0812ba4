"""Large files over HTTP: resumed after a dropped connection, and checked."""

import hashlib
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any, NamedTuple

from rich.filesize import decimal

from fedfacet.data.transfer import progress, require_space, say, writing
from fedfacet.errors import DatasetCorruptError, DatasetNotFoundError
from fedfacet.storage.atomic_write import atomic_write

_CHUNK_BYTES = 1 << 20
_TIMEOUT_SECONDS = 60.0
_LONGEST_PAUSE_SECONDS = 60.0
_LOCAL = ("localhost", "127.0.0.1", "::1")
_RETRIED_STATUS = {408, 416, 425, 429, 500, 502, 503, 504}


class _Version(NamedTuple):
    """What a server says about the file it sends, by which a changed file is told from the same one."""

    url: str
    size: int | None
    etag: str | None
    modified: str | None

    def contradicts(self, other: "_Version") -> bool:
        """Whether both say something, and not the same; an answer to ``If-Range`` may leave fields out."""
        return any(None not in pair and pair[0] != pair[1] for pair in zip(self, other, strict=True))


class _ConnectionDropped(Exception):
    """The file has not arrived in full, and asking again may help."""


class _StaysSafe(urllib.request.HTTPRedirectHandler):
    """Follows redirects to addresses that ``download`` would take too."""

    def redirect_request(self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        """Return the request for the new address."""
        if not _is_safe(newurl):
            raise DatasetNotFoundError(
                f"Expected {req.full_url} to lead to an https address, but it leads to {newurl}: set dataset.url to an address "
                "that you trust."
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _is_safe(url: str) -> bool:
    """Tell whether nobody on the way can change what comes from an address."""
    parts = urllib.parse.urlsplit(url)
    return parts.scheme in ("https", "file") or (parts.scheme == "http" and parts.hostname in _LOCAL)


def download(
    url: str,
    destination: Path,
    *,
    published: str | None = None,
    disk_factor: float = 1.0,
    retries: int = 5,
    pause_seconds: float = 1.0,
) -> Path:
    """Fetch a file, going on where an earlier attempt has stopped, check it, and return ``destination``.

    Bytes arrive in ``<destination>.part``, beside ``<destination>.part.json`` with what the server said about the file; the
    destination appears only when the file is whole. The first call writes its sha256 to ``<destination>.sha256`` (as
    ``sha256sum`` does); every later one compares, without a network. Where a server tells neither size nor digest, a connection
    that ends early looks like the end of the file; unpacking it will show.

    Args:
        url: https or file address, or an http address of this machine; redirects to such addresses are followed.
        destination: the file to write; missing folders are made.
        published: the digest that the file's authors publish, as ``"md5:<hexadecimal>"`` or ``"sha256:..."``. It is verified
            when the file arrives; from then on, and where nobody publishes one, the recorded digest counts.
        disk_factor: the free disk space to ask for, as a multiple of the file's size.
        retries: how many attempts in a row may end without getting further than before, 0 or larger.
        pause_seconds: before the first of them; it doubles with each, up to a minute.

    Raises:
        DatasetNotFoundError: if the server cannot be reached or does not have the file; what has arrived is kept.
        DatasetCorruptError: if the file's digest is not the published or the recorded one.
        FedFacetError: if the disk has not enough room or cannot be written to.
        ValueError: if ``url`` is of another kind.
    """
    if not _is_safe(url):
        raise ValueError(f"Expected `url` to be an https or file address, but got {url!r}: set dataset.url to one.")
    record = destination.with_name(destination.name + ".sha256")
    part = destination.with_name(destination.name + ".part")
    with writing(destination.parent):
        arriving = destination
        if not destination.exists():
            destination.parent.mkdir(parents=True, exist_ok=True)
            _fetch(url, part, disk_factor, retries, pause_seconds)
            arriving = part
        recorded = record.read_text().partition(" ")[0] if record.exists() else None
        digest = _digest(arriving, "sha256")
        if recorded is not None and digest != recorded.lower():
            raise DatasetCorruptError(
                f"Expected {arriving} to have the sha256 {recorded}, but got {digest}: delete it to download it again, and "
                f"{record} too if the file at {url} has been replaced by a newer one."
            )
        if published is not None and arriving is part:
            algorithm, _, expected = published.partition(":")
            if (got := _digest(arriving, algorithm)) != expected:
                raise DatasetCorruptError(
                    f"Expected the file at {url} to have the published {algorithm} {expected}, but got {got}: delete "
                    f"{arriving} to download it again, or put a file that you trust in its place."
                )
        if arriving is part:
            part.replace(destination)
            _note(part).unlink(missing_ok=True)
        if not record.exists():
            with atomic_write(record) as unfinished:
                unfinished.write_text(f"{digest}  {destination.name}\n")
    return destination


def _fetch(url: str, part: Path, disk_factor: float, retries: int, pause_seconds: float) -> None:
    """Bring ``part`` to its full size, with as many attempts as bring it further."""
    furthest, failures = _size(part), 0
    while True:
        try:
            return _attempt(url, part, disk_factor)
        except _ConnectionDropped as error:
            failures = 0 if _size(part) > furthest else failures + 1
            furthest = max(furthest, _size(part))
            if failures > retries:
                raise DatasetNotFoundError(
                    f"Expected to fetch {part.stem} from {url}, but {failures} attempts in a row brought nothing ({error}): "
                    f"run the command again to go on from the {decimal(_size(part))} kept in {part}, or put the file there "
                    f"yourself as {part.with_suffix('')}."
                ) from error
            pause = min(pause_seconds * 2 ** max(failures - 1, 0), _LONGEST_PAUSE_SECONDS)
            say(f"fetching {part.stem}: no connection ({error}), trying again in {pause:.0f} s")
            time.sleep(pause)


def _attempt(url: str, part: Path, disk_factor: float) -> None:
    """Ask once for what is missing, or for everything where that would mix two files."""
    known = _read_note(part, url)
    have = _size(part) if known is not None else 0
    headers = {"User-Agent": "fedfacet", "Accept-Encoding": "identity"}
    if known is not None and have:
        if have == known.size:
            return
        headers["Range"] = f"bytes={have}-"
        # A weak entity tag will not do (RFC 9110, section 13.1.5).
        if validator := known.etag if known.etag and not known.etag.startswith("W/") else known.modified:
            headers["If-Range"] = validator
    with _open(urllib.request.Request(url, headers=headers), part) as response:
        resumed = response.status == 206
        length = response.headers.get("Content-Range", "").rpartition("/")[2] if resumed else response.headers["Content-Length"]
        size = int(length) if length and length.isdecimal() else None
        sent = _Version(url, size, response.headers["ETag"], response.headers["Last-Modified"])
        goes_on = response.headers.get("Content-Range", "").startswith(f"bytes {have}-")
        if resumed and (known is None or known.contradicts(sent) or not goes_on):
            part.unlink(missing_ok=True)
            raise _ConnectionDropped("the server's file has changed, so that what was kept of it is discarded")
        if response.headers.get_content_type() == "text/html":
            raise DatasetNotFoundError(
                f"Expected a file at {url}, but got a web page: open the address in a browser to see what it says."
            )
        if size is not None:
            require_space(part.parent, int(size * disk_factor) - _size(part), f"fetch {part.stem} ({decimal(size)})")
        if not resumed:
            have = 0
            # In this order, so that a kill in between cannot leave the old file's bytes beside the new one's description.
            part.unlink(missing_ok=True)
            with atomic_write(_note(part)) as unfinished:
                unfinished.write_text(json.dumps(sent._asdict()))
        _receive(response, part, have, size)


def _open(request: urllib.request.Request, part: Path) -> HTTPResponse:
    try:
        return urllib.request.build_opener(_StaysSafe).open(request, timeout=_TIMEOUT_SECONDS)  # type: ignore[no-any-return]
    except urllib.error.HTTPError as error:
        error.close()
        answer = f"the server answered {error.code} {error.reason}"
        if error.code == 416:
            part.unlink(missing_ok=True)
            answer = "the server's file is shorter than what was kept, which is discarded"
        if error.code in _RETRIED_STATUS:
            raise _ConnectionDropped(answer) from error
        raise DatasetNotFoundError(
            f"Expected a file at {request.full_url}, but {answer}: look for its new address and set dataset.url."
        ) from error
    except (OSError, HTTPException) as error:
        raise _ConnectionDropped(str(error) or type(error).__name__) from error


def _receive(response: HTTPResponse, part: Path, have: int, size: int | None) -> None:
    with part.open("ab", buffering=_CHUNK_BYTES) as file, progress(f"fetching {part.stem}", size) as show:
        while size is None or have < size:
            show(have)
            try:
                # read1 hands over what has come so far, where read would lose it when the connection drops.
                chunk = response.read1(_CHUNK_BYTES)
            except (OSError, HTTPException) as error:
                raise _ConnectionDropped(str(error) or type(error).__name__) from error
            if not chunk:
                break
            file.write(chunk)
            have += len(chunk)
        show(have)
    if size is not None and have != size:
        raise _ConnectionDropped(f"{have} of {size} bytes arrived")


def _note(part: Path) -> Path:
    return part.with_name(part.name + ".json")


def _read_note(part: Path, url: str) -> _Version | None:
    """What is known of the file of which ``part`` is the beginning; ``None`` if nothing, or it came from elsewhere."""
    try:
        note = _Version(**json.loads(_note(part).read_text()))
    except (OSError, ValueError, TypeError):
        return None
    return note if note.url == url else None


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _digest(path: Path, algorithm: str) -> str:
    sha = hashlib.new(algorithm, usedforsecurity=False)
    have = 0
    with path.open("rb") as file, progress(f"checking {path.name}", _size(path)) as show:
        while chunk := file.read(_CHUNK_BYTES):
            sha.update(chunk)
            have += len(chunk)
            show(have)
    return sha.hexdigest()
