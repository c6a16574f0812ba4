"""Real CIFAR images in the binary version's layout, made once of the data folder's contact sheets; and a server of files."""

import functools
import runpy
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def cifar100_root(data_dir, pytestconfig, tmp_path_factory):
    """The folder that holds cifar-100-binary: as it is in the data folder, or converted into pytest's cache, which is kept."""
    return _root(data_dir / "cifar100", "cifar-100-binary", pytestconfig, tmp_path_factory)


@pytest.fixture(scope="session")
def cifar10_root(data_dir, pytestconfig, tmp_path_factory):
    """The folder that holds cifar-10-batches-bin, of 10,000 training and 5,000 test images, made as ``cifar100_root``."""
    return _root(data_dir / "cifar10_subset", "cifar-10-batches-bin", pytestconfig, tmp_path_factory)


def _root(sheets, folder, pytestconfig, tmp_path_factory):
    if (sheets / folder).is_dir():
        return sheets
    if not (sheets / "classes.csv").is_file():
        pytest.skip(f"no {sheets.name} in {sheets.parent}: point FEDFACET_DATA at a folder that holds {sheets.name}/")
    cache = getattr(pytestconfig, "cache", None)  # not there with `-p no:cacheprovider`
    root = Path(cache.mkdir(sheets.name)) if cache is not None else tmp_path_factory.mktemp(sheets.name)
    if not (root / folder).is_dir():
        runpy.run_path(str(Path(__file__).with_name("cifar_sheets.py")))["to_binary"](sheets, root)
    return root


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@pytest.fixture
def serve():
    """Serve a folder's files from this machine until the test ends; returns the address."""
    running = []

    def serve(folder):
        http = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=folder))
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        running.append((http, thread))
        return f"http://127.0.0.1:{http.server_port}"

    yield serve
    for http, thread in running:
        http.shutdown()
        thread.join()
        http.server_close()
