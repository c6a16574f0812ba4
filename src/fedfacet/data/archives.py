"""Archives: fetched where they are missing, and unpacked whole or not at all."""

import gzip
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

from rich.filesize import decimal

from fedfacet.data.download import download
from fedfacet.data.transfer import progress, require_space, writing
from fedfacet.errors import DatasetCorruptError, DatasetNotFoundError, FedFacetError

_CHUNK_BYTES = 1 << 20
_MOST_MEMBERS = 2_000_000
_MOST_UNPACKED = 20
_FAULTS = (EOFError, ValueError, RuntimeError, gzip.BadGzipFile, zipfile.BadZipFile, zlib.error, tarfile.TarError)
"""Of damaged archives; ``RuntimeError`` is of those with a password."""


def obtain(wanted: Path, *, url: str, archive: Path, allowed: bool, missing: str, published: str | None = None) -> None:
    """Have a file or folder that comes in an archive of images: where it is missing, fetch and unpack that beside itself.

    The archive is a ``.tar.gz`` or a ``.zip``; ``published`` is its digest as in ``download``.

    Raises ``DatasetNotFoundError`` with the message ``missing`` if fetching is not ``allowed``, ``DatasetCorruptError`` if the
    archive lacks what is ``wanted``, and what ``download`` and ``extract`` raise.
    """
    if wanted.exists():
        return
    if not allowed:
        raise DatasetNotFoundError(missing)
    # The images inside are compressed already, so that unpacked they take as much again.
    extract(download(url, archive, published=published, disk_factor=2.0), archive.parent)
    if not wanted.exists():
        raise DatasetCorruptError(
            f"Expected {archive} to unpack to {wanted}, but it does not: delete it and {archive}.sha256, and set dataset.url "
            "to the archive's address."
        )


def extract(archive: Path, into: Path) -> None:
    """Unpack a ``.tar.gz`` or ``.zip`` archive, so that each of its outermost folders appears in ``into`` whole or not at all.

    A killed attempt leaves a hidden folder, which the next one removes. ``into`` is made if missing, and must not hold any of
    the archive's outermost names. Members that would land outside it, links and devices are refused, and so is an archive that
    unpacks to 20 times its size and more than a gigabyte, or to more than two million files.

    Raises:
        DatasetCorruptError: if the archive is truncated, damaged or holds a refused member.
        FedFacetError: if the disk has not enough room or cannot be written to, a name is taken, or Python is older than
            3.11.4, which cannot unpack safely.
    """
    zipped = archive.suffix == ".zip"
    if not zipped and not hasattr(tarfile, "data_filter"):
        raise FedFacetError(f"Expected Python 3.11.4 or later to unpack {archive}: unpack it yourself with tar -xzf.")
    unpacked = into / f".{archive.name}.unpacking"
    shutil.rmtree(unpacked, ignore_errors=True)
    try:
        with writing(into):
            unpacked.mkdir(parents=True)
            # Images hardly compress, so that the archive's size is a fair guess of what it unpacks to.
            require_space(into, archive.stat().st_size, f"unpack {archive.name}")
            try:
                with progress(f"unpacking {archive.name}", archive.stat().st_size) as show:
                    (_unzip if zipped else _unpack)(archive, unpacked, show)
            except _FAULTS as error:
                raise DatasetCorruptError(
                    f"Expected a whole {'.zip' if zipped else '.tar.gz'} archive, but got {archive} ({type(error).__name__}: "
                    f"{error}): delete it and {archive}.sha256, and download it again."
                ) from error
            entries = sorted(unpacked.iterdir())
            taken = [entry.name for entry in entries if (into / entry.name).exists()]
            if taken:
                raise FedFacetError(f"Expected no {', '.join(taken)} in {into} before unpacking {archive}: delete it first.")
            for entry in entries:
                entry.rename(into / entry.name)
    finally:
        shutil.rmtree(unpacked, ignore_errors=True)


def _unpack(archive: Path, into: Path, show: Callable[[int], None]) -> None:
    with (
        archive.open("rb") as file,
        gzip.GzipFile(fileobj=file) as stream,
        # Streamed ("r|"), because a seek back in gzip starts again at the first byte.
        tarfile.open(fileobj=stream, mode="r|") as tar,
    ):
        unpacked, most = 0, _most_bytes(archive)
        for number, member in enumerate(tar):
            unpacked += member.size
            if number >= _MOST_MEMBERS or unpacked > most:
                raise tarfile.ReadError(_too_much(most))
            if not (member.isfile() or member.isdir()):
                raise tarfile.ReadError(f"{member.name!r} is neither a file nor a folder")
            tar.extract(member, into, filter="data")
            show(file.tell())
        # gzip compares length and checksum at its end, which lies behind the end of the tar.
        while stream.read(_CHUNK_BYTES):
            pass


def _unzip(archive: Path, into: Path, show: Callable[[int], None]) -> None:
    with zipfile.ZipFile(archive) as opened:
        members, most, read = opened.infolist(), _most_bytes(archive), 0
        if len(members) > _MOST_MEMBERS or sum(member.file_size for member in members) > most:  # no more is read of any
            raise zipfile.BadZipFile(_too_much(most))
        for member in members:
            kind = stat.S_IFMT(member.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise zipfile.BadZipFile(f"{member.filename!r} is neither a file nor a folder")
            parts = member.filename.replace("\\", "/").split("/")
            if ".." in parts or not parts[0] or ":" in parts[0]:
                raise zipfile.BadZipFile(f"{member.filename!r} would land outside")
            opened.extract(member, into)  # compares lengths and checksums
            read += member.compress_size
            show(read)


def _most_bytes(archive: Path) -> int:
    return max(1 << 30, _MOST_UNPACKED * archive.stat().st_size)


def _too_much(most: int) -> str:
    return f"it unpacks to more than {_MOST_MEMBERS:,} files or {decimal(most)}"
