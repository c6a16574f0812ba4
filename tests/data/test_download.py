import hashlib
import json
import re
import shutil
import threading
from collections import namedtuple
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from fedfacet.data import transfer
from fedfacet.data.download import download
from fedfacet.errors import DatasetCorruptError, DatasetNotFoundError, FedFacetError

CONTENT = np.random.default_rng(0).bytes(300_000)
OTHER = np.random.default_rng(1).bytes(300_000)


class Server:
    """A web server with the manners that a test asks for; it remembers what it was asked."""

    def __init__(self):
        self.content = CONTENT
        self.etag = '"one"'
        self.modified = "Mon, 01 Jan 2024 00:00:00 GMT"
        self.ranges = True
        self.honours_if_range = True
        self.sends_length = True
        self.content_type = "application/gzip"
        self.statuses = []
        self.moved_to = "/archive.tar.gz?dl=1"
        self.drops = []  # after how many bytes of the body each of the first answers breaks off
        self.requests = []
        self.sent = 0
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                server.answer(self)

            def log_message(self, *args):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.http.server_port}/archive.tar.gz?dl=1"

    def close(self):
        self.http.shutdown()
        self.thread.join()
        self.http.server_close()

    def answer(self, handler):
        self.requests.append({name.lower(): value for name, value in handler.headers.items()})
        if handler.path == "/moved":
            handler.send_response(302)
            handler.send_header("Location", self.moved_to)
            handler.end_headers()
            return
        if self.statuses and (status := self.statuses.pop(0)) != 200:
            handler.send_error(status)
            return
        start, wanted = 0, handler.headers.get("Range")
        condition = handler.headers.get("If-Range")
        if self.honours_if_range and condition not in (None, self.etag, self.modified):
            wanted = None
        if self.ranges and wanted:
            start = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1])
            if start >= len(self.content):
                handler.send_error(416)
                return
            handler.send_response(206)
            handler.send_header("Content-Range", f"bytes {start}-{len(self.content) - 1}/{len(self.content)}")
        else:
            handler.send_response(200)
        body = self.content[start:]
        if self.sends_length:
            handler.send_header("Content-Length", str(len(body)))
        for name, value in (("ETag", self.etag), ("Last-Modified", self.modified), ("Content-Type", self.content_type)):
            if value:
                handler.send_header(name, value)
        handler.end_headers()
        body = body[: self.drops.pop(0)] if self.drops else body
        self.sent += len(body)
        handler.wfile.write(body)


@pytest.fixture
def server():
    server = Server()
    yield server
    server.close()


def get(server, destination, **options):
    return download(server.url, destination, pause_seconds=0.001, **options)


def test_file_arrives_with_its_digest(server, tmp_path):
    file = get(server, tmp_path / "new" / "archive.tar.gz")
    assert file.read_bytes() == CONTENT
    assert (
        tmp_path / "new" / "archive.tar.gz.sha256"
    ).read_text() == f"{hashlib.sha256(CONTENT).hexdigest()}  archive.tar.gz\n"
    assert sorted(path.name for path in file.parent.iterdir()) == ["archive.tar.gz", "archive.tar.gz.sha256"]


def test_dropped_connections_are_resumed_without_asking_for_a_byte_twice(server, tmp_path):
    server.drops = [70_000, 1, 0, 100_000]
    assert get(server, tmp_path / "a").read_bytes() == CONTENT
    assert [request.get("range") for request in server.requests] == [
        None,
        "bytes=70000-",
        "bytes=70001-",
        "bytes=70001-",
        "bytes=170001-",
    ]
    assert {request.get("if-range") for request in server.requests[1:]} == {'"one"'}
    assert server.sent == len(CONTENT)


def test_later_call_goes_on_where_an_earlier_one_gave_up(server, tmp_path):
    server.drops = [200_000, 0, 0]
    with pytest.raises(DatasetNotFoundError, match=r"2 attempts in a row .* from the 200\.0 kB kept in .*a\.part"):
        get(server, tmp_path / "a", retries=1)
    assert (tmp_path / "a.part").read_bytes() == CONTENT[:200_000]
    assert get(server, tmp_path / "a").read_bytes() == CONTENT
    assert server.requests[-1]["range"] == "bytes=200000-"


def test_attempts_that_bring_something_are_not_counted(server, tmp_path):
    server.drops = [20_000] * 10
    assert get(server, tmp_path / "a", retries=0).read_bytes() == CONTENT


@pytest.mark.parametrize("honours_if_range", [True, False])
def test_changed_file_is_not_spliced(server, tmp_path, honours_if_range):
    server.honours_if_range = honours_if_range
    server.drops = [100_000, 0]
    with pytest.raises(DatasetNotFoundError):
        get(server, tmp_path / "a", retries=0)
    server.content, server.etag, server.modified = OTHER, '"two"', "Tue, 02 Jan 2024 00:00:00 GMT"
    assert get(server, tmp_path / "a").read_bytes() == OTHER


@pytest.mark.parametrize("length", [50_000, 100_000, 400_000])
def test_file_of_another_length_is_not_spliced_where_there_is_no_validator(server, tmp_path, length):
    server.etag = server.modified = None
    server.drops = [100_000, 0]
    with pytest.raises(DatasetNotFoundError):
        get(server, tmp_path / "a", retries=0)
    server.content = (OTHER * 2)[:length]
    assert get(server, tmp_path / "a").read_bytes() == server.content


def test_weak_entity_tag_is_compared_but_not_sent(server, tmp_path):
    server.etag, server.modified = 'W/"one"', None
    server.drops = [100_000, 0]
    with pytest.raises(DatasetNotFoundError):
        get(server, tmp_path / "a", retries=0)
    server.content, server.etag = OTHER, 'W/"two"'
    assert get(server, tmp_path / "a").read_bytes() == OTHER
    assert all("if-range" not in request for request in server.requests)


def test_server_without_ranges_sends_the_file_again(server, tmp_path):
    server.ranges = False
    server.drops = [100_000, 150_000]
    assert get(server, tmp_path / "a").read_bytes() == CONTENT
    assert server.sent == 250_000 + len(CONTENT)


def test_server_without_ranges_that_always_drops_comes_to_an_end(server, tmp_path):
    server.ranges = False
    server.drops = [100_000] * 50
    with pytest.raises(DatasetNotFoundError):
        get(server, tmp_path / "a", retries=2)
    assert len(server.requests) == 4


def test_server_without_length(server, tmp_path):
    server.sends_length = False
    assert get(server, tmp_path / "a").read_bytes() == CONTENT


def test_part_of_unknown_origin_is_not_trusted(server, tmp_path):
    (tmp_path / "a.part").write_bytes(OTHER[:1000])
    assert get(server, tmp_path / "a").read_bytes() == CONTENT
    assert "range" not in server.requests[0]


def test_part_from_another_address_is_not_trusted(server, tmp_path):
    server.drops = [1000, 0]
    with pytest.raises(DatasetNotFoundError):
        get(server, tmp_path / "a", retries=0)
    download(server.url + "&other", tmp_path / "a")
    assert "range" not in server.requests[-1]


def test_whole_part_needs_no_network(server, tmp_path):
    (tmp_path / "a.part").write_bytes(CONTENT)
    note = {"url": server.url, "size": len(CONTENT), "etag": None, "modified": None}
    (tmp_path / "a.part.json").write_text(json.dumps(note))
    assert get(server, tmp_path / "a").read_bytes() == CONTENT
    assert server.requests == []


def test_redirect_keeps_the_range(server, tmp_path):
    server.drops = [1000]
    download(server.url.replace("/archive.tar.gz?dl=1", "/moved"), tmp_path / "a", pause_seconds=0.001)
    assert (tmp_path / "a").read_bytes() == CONTENT
    assert [request.get("range") for request in server.requests] == [None, None, "bytes=1000-", "bytes=1000-"]


def test_busy_server_is_asked_again(server, tmp_path):
    server.statuses = [503, 429, 200]
    assert get(server, tmp_path / "a").read_bytes() == CONTENT


def test_missing_file_is_not_asked_for_again(server, tmp_path):
    server.statuses = [404]
    with pytest.raises(DatasetNotFoundError, match="answered 404"):
        get(server, tmp_path / "a")
    assert len(server.requests) == 1


def test_web_page_is_not_taken_for_the_file_and_spares_what_was_kept(server, tmp_path):
    server.drops = [100_000, 0]
    with pytest.raises(DatasetNotFoundError):
        get(server, tmp_path / "a", retries=0)
    server.content_type, server.ranges = "text/html; charset=utf-8", False
    with pytest.raises(DatasetNotFoundError, match="web page"):
        get(server, tmp_path / "a")
    assert (tmp_path / "a.part").stat().st_size == 100_000


def test_nobody_listens(tmp_path):
    server = Server()
    server.close()
    with pytest.raises(DatasetNotFoundError, match=r"2 attempts in a row .*Connection refused"):
        get(server, tmp_path / "a", retries=1)


@pytest.mark.parametrize("url", ["ftp://example.org/a", "http://example.org/a", "http://127.0.0.1.example.org/a", "a"])
def test_other_kinds_of_address_are_refused(tmp_path, url):
    with pytest.raises(ValueError, match=f"https or file address, but got '{re.escape(url)}'"):
        download(url, tmp_path / "a")


def test_nobody_is_led_from_an_address_to_an_unsafe_one(server, tmp_path):
    server.moved_to = "http://example.org/archive.tar.gz"
    with pytest.raises(DatasetNotFoundError, match=r"leads to http://example\.org/archive\.tar\.gz"):
        download(server.url.replace("/archive.tar.gz?dl=1", "/moved"), tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_file_address(tmp_path):
    (tmp_path / "source").write_bytes(CONTENT)
    assert download((tmp_path / "source").as_uri(), tmp_path / "a").read_bytes() == CONTENT


def test_recorded_digest_is_verified_without_network(server, tmp_path):
    file = get(server, tmp_path / "a")
    assert get(server, file) == file
    assert len(server.requests) == 1
    file.write_bytes(CONTENT[:-1] + b"?")
    with pytest.raises(DatasetCorruptError, match=rf"Expected {file} to have the sha256 .* delete it"):
        get(server, file)


def test_recorded_digest_outlives_the_file(server, tmp_path):
    get(server, tmp_path / "a").unlink()
    server.content = OTHER
    with pytest.raises(DatasetCorruptError, match=r"a\.sha256 too"):
        get(server, tmp_path / "a")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("algorithm", ["md5", "sha256"])
def test_a_published_digest_is_verified_before_the_file_appears(server, tmp_path, algorithm):
    with pytest.raises(DatasetCorruptError, match=f"Expected the file at .* to have the published {algorithm} 00"):
        get(server, tmp_path / "a", published=f"{algorithm}:{'0' * 32}")
    assert not (tmp_path / "a").exists()
    assert not (tmp_path / "a.sha256").exists()
    assert get(server, tmp_path / "a", published=f"{algorithm}:{hashlib.new(algorithm, CONTENT).hexdigest()}").exists()


def test_full_disk_is_noticed_before_the_first_byte(server, tmp_path, monkeypatch):
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(free=599_999))
    with pytest.raises(FedFacetError, match=r"Expected 600\.0 kB of free disk space in .* but got 600\.0 kB"):
        get(server, tmp_path / "a", disk_factor=2.0)
    assert not (tmp_path / "a.part").exists()
    get(server, tmp_path / "a", disk_factor=1.9)


def test_what_is_kept_needs_no_room_again(server, tmp_path, monkeypatch):
    server.drops = [200_000, 0]
    with pytest.raises(DatasetNotFoundError):
        get(server, tmp_path / "a", retries=0)
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(free=100_000))
    assert get(server, tmp_path / "a").read_bytes() == CONTENT


def test_folder_that_cannot_be_written_to(server, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(FedFacetError, match=r"write in .*file/folder"):
        get(server, tmp_path / "file" / "folder" / "a")


def test_progress_goes_to_standard_error_as_lines(server, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(transfer, "_LINE_EVERY_SECONDS", 0.0)
    server.drops = [150_000]
    get(server, tmp_path / "a")
    out, err = capsys.readouterr()
    assert out == ""
    assert "fetching a: 150.0 kB of 300.0 kB (50%)\n" in err
    assert "no connection (150000 of 300000 bytes arrived), trying again" in err
