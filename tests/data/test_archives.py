import gzip
import io
import shutil
import stat
import tarfile
import zipfile
from collections import namedtuple

import numpy as np
import pytest

from fedfacet.data import archives as module
from fedfacet.data.archives import extract
from fedfacet.errors import DatasetCorruptError, FedFacetError

CONTENT = np.random.default_rng(0).bytes(300_000)


def pack(path, members):
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def test_extract(tmp_path):
    archive = pack(tmp_path / "x.tar.gz", {"set/0/a.png": CONTENT[:1024], "set/1/b.png": CONTENT[:700]})
    extract(archive, tmp_path / "root")
    assert (tmp_path / "root" / "set" / "0" / "a.png").read_bytes() == CONTENT[:1024]
    assert (tmp_path / "root" / "set" / "1" / "b.png").read_bytes() == CONTENT[:700]
    assert [path.name for path in (tmp_path / "root").iterdir()] == ["set"]
    assert archive.exists()


def test_truncated_archive_leaves_nothing_wherever_it_ends(tmp_path):
    whole = pack(tmp_path / "x.tar.gz", {f"set/{i}.png": CONTENT[512 * i : 512 * (i + 2)] for i in range(20)}).read_bytes()
    archive = tmp_path / "cut.tar.gz"
    lengths = [*range(0, len(whole), 331), *range(len(whole) - 12, len(whole))]
    for length in lengths:
        archive.write_bytes(whole[:length])
        with pytest.raises(DatasetCorruptError, match=r"cut\.tar\.gz .*delete it and .*cut\.tar\.gz\.sha256"):
            extract(archive, tmp_path / "root")
        assert list((tmp_path / "root").iterdir()) == []


def test_damaged_archive(tmp_path):
    content = bytearray(pack(tmp_path / "x.tar.gz", {"set/a.png": CONTENT}).read_bytes())
    content[150_000] ^= 1
    (tmp_path / "x.tar.gz").write_bytes(content)
    with pytest.raises(DatasetCorruptError, match=r"x\.tar\.gz"):
        extract(tmp_path / "x.tar.gz", tmp_path / "root")


def test_something_else_than_an_archive(tmp_path):
    for content in (b"<!doctype html>", gzip.compress(b"hello")):
        (tmp_path / "x.tar.gz").write_bytes(content)
        with pytest.raises(DatasetCorruptError, match=r"x\.tar\.gz"):
            extract(tmp_path / "x.tar.gz", tmp_path / "root")


@pytest.mark.parametrize("name", ["../outside.png", "set/../../outside.png"])
def test_members_outside_are_refused(tmp_path, name):
    with pytest.raises(DatasetCorruptError, match="outside"):
        extract(pack(tmp_path / "x.tar.gz", {"set/a.png": b"1", name: b"2"}), tmp_path / "deep" / "root")
    assert list((tmp_path / "deep" / "root").iterdir()) == []
    assert not list(tmp_path.rglob("outside.png"))


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_links_and_devices_are_refused(tmp_path, kind):
    with tarfile.open(tmp_path / "x.tar.gz", "w:gz") as tar:
        info = tarfile.TarInfo("set/link")
        info.type, info.linkname = kind, "a.png"
        tar.addfile(info)
    with pytest.raises(DatasetCorruptError, match="'set/link' is neither a file nor a folder"):
        extract(tmp_path / "x.tar.gz", tmp_path / "root")
    assert list((tmp_path / "root").iterdir()) == []


def test_what_unpacks_to_far_more_than_it_is_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_MOST_MEMBERS", 2)
    with pytest.raises(DatasetCorruptError, match="it unpacks to more than 2 files"):
        extract(pack(tmp_path / "x.tar.gz", {f"set/{number}": b"1" for number in range(3)}), tmp_path / "root")
    header = tarfile.TarInfo("set/zeros")
    header.size = (1 << 30) + 1
    (tmp_path / "y.tar.gz").write_bytes(gzip.compress(header.tobuf()))  # no more is read of it
    with pytest.raises(DatasetCorruptError, match=r"it unpacks to more than 2 files or 1\.1 GB"):
        extract(tmp_path / "y.tar.gz", tmp_path / "root")
    assert list((tmp_path / "root").iterdir()) == []


def test_leftover_of_a_killed_attempt_is_removed(tmp_path):
    leftover = tmp_path / "root" / ".x.tar.gz.unpacking" / "set"
    leftover.mkdir(parents=True)
    (leftover / "half.png").touch()
    extract(pack(tmp_path / "x.tar.gz", {"set/a.png": b"1"}), tmp_path / "root")
    assert [path.name for path in (tmp_path / "root" / "set").iterdir()] == ["a.png"]


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / "root" / "set").mkdir(parents=True)
    (tmp_path / "root" / "set" / "mine.png").touch()
    with pytest.raises(FedFacetError, match="Expected no set in"):
        extract(pack(tmp_path / "x.tar.gz", {"set/a.png": b"1"}), tmp_path / "root")
    assert [path.name for path in (tmp_path / "root" / "set").iterdir()] == ["mine.png"]


def test_unpacking_needs_room(tmp_path, monkeypatch):
    archive = pack(tmp_path / "x.tar.gz", {"set/a.png": CONTENT})
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(free=1000))
    with pytest.raises(FedFacetError, match=r"free disk space .* to unpack x\.tar\.gz"):
        extract(archive, tmp_path / "root")
    assert list((tmp_path / "root").iterdir()) == []


# Zip archives


def pack_zip(path, members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as opened:
        for name, content in members.items():
            opened.writestr(name, content)
    return path


def test_a_zip_is_unpacked_alike(tmp_path):
    archive = pack_zip(tmp_path / "x.zip", {"set/": b"", "set/0/a.png": CONTENT[:1024], "set/1/b.png": CONTENT[:700]})
    extract(archive, tmp_path / "root")
    assert (tmp_path / "root" / "set" / "0" / "a.png").read_bytes() == CONTENT[:1024]
    assert (tmp_path / "root" / "set" / "1" / "b.png").read_bytes() == CONTENT[:700]
    assert [path.name for path in (tmp_path / "root").iterdir()] == ["set"]


def test_a_truncated_zip_leaves_nothing_wherever_it_ends(tmp_path):
    members = {f"set/{i}.png": CONTENT[512 * i : 512 * (i + 2)] for i in range(20)}
    whole = pack_zip(tmp_path / "x.zip", members).read_bytes()
    archive = tmp_path / "cut.zip"
    for length in [*range(0, len(whole), 331), *range(len(whole) - 12, len(whole))]:
        archive.write_bytes(whole[:length])
        with pytest.raises(DatasetCorruptError, match=r"whole \.zip archive.*cut\.zip .*delete it and .*cut\.zip\.sha256"):
            extract(archive, tmp_path / "root")
        assert list((tmp_path / "root").iterdir()) == []


@pytest.mark.parametrize("at", [40, 100_000, 200_000])
def test_a_damaged_zip(tmp_path, at):
    content = bytearray(pack_zip(tmp_path / "x.zip", {"set/a.png": CONTENT}).read_bytes())
    content[at] ^= 1
    (tmp_path / "x.zip").write_bytes(content)
    with pytest.raises(DatasetCorruptError, match=r"x\.zip"):
        extract(tmp_path / "x.zip", tmp_path / "root")
    assert list((tmp_path / "root").iterdir()) == []


@pytest.mark.parametrize(
    "name", ["../outside.png", "set/../../outside.png", "/outside.png", "set\\..\\outside.png", "c:/outside.png"]
)
def test_members_of_a_zip_outside_are_refused(tmp_path, name):
    with pytest.raises(DatasetCorruptError, match="would land outside"):
        extract(pack_zip(tmp_path / "x.zip", {"set/a.png": b"1", name: b"2"}), tmp_path / "deep" / "root")
    assert list((tmp_path / "deep" / "root").iterdir()) == []
    assert not list(tmp_path.rglob("*outside.png"))


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR])
def test_links_and_devices_in_a_zip_are_refused(tmp_path, kind):
    member = zipfile.ZipInfo("set/link")
    member.external_attr = (kind | 0o644) << 16
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as opened:
        opened.writestr(member, "/etc/passwd")
    with pytest.raises(DatasetCorruptError, match="'set/link' is neither a file nor a folder"):
        extract(tmp_path / "x.zip", tmp_path / "root")
    assert list((tmp_path / "root").iterdir()) == []


def test_a_zip_that_unpacks_to_far_more_than_it_is_is_refused(tmp_path, monkeypatch):
    archive = pack_zip(tmp_path / "x.zip", {f"set/{number}": b"0" * 100_000 for number in range(3)})
    assert archive.stat().st_size < 3000
    monkeypatch.setattr(module, "_most_bytes", lambda archive: 200_000)
    with pytest.raises(DatasetCorruptError, match=r"it unpacks to more than 2,000,000 files or 200\.0 kB"):
        extract(archive, tmp_path / "root")
    monkeypatch.undo()
    monkeypatch.setattr(module, "_MOST_MEMBERS", 2)
    with pytest.raises(DatasetCorruptError, match="it unpacks to more than 2 files"):
        extract(archive, tmp_path / "root")
    assert list((tmp_path / "root").iterdir()) == []
