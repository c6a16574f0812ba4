"""What a terminal shows first: something, before anything that takes a while is imported."""

import os
import subprocess
import sys

import pytest

pty = pytest.importorskip("pty", reason="Windows has no terminals of this kind")


@pytest.mark.parametrize("command", [["src/train.py"], ["-m", "fedfacet", "train"]], ids=["script", "installed"])
def test_a_terminal_shows_something_before_hydra_loads(command, checkout):
    ours, theirs = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src")}
    with subprocess.Popen(
        [sys.executable, "-X", "importtime", *command, "--version"],
        stderr=theirs, stdout=subprocess.DEVNULL, cwd=checkout, env=environment,
    ) as process:  # fmt: skip
        os.close(theirs)
        shown = b""
        try:
            while part := os.read(ours, 1 << 16):
                shown += part
        except OSError:  # so Linux tells that nobody writes any more
            pass
        os.close(ours)
    assert process.returncode == 0
    assert shown.index(b"fedfacet starts ...") < shown.index(b" hydra")
