"""A worker whose run is killed while it starts says nothing; any other fault of its start is told. None is left behind."""

import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time

import numpy as np
import pytest
from torch import nn

from fedfacet.parallel import shared_memory, start, worker
from fedfacet.parallel.processes import Child

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the run that is killed is a fork of this process")


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_worker_whose_data_are_gone(tmp_path, is_killed):
    said, context = tmp_path / "said.txt", multiprocessing.get_context("fork")
    over, is_over = os.pipe()
    run = os.fork()
    if run == 0:
        os.close(over)
        killed, lives_on = context.Pipe(duplex=False)
        data, held = shared_memory.dumps({"dataset": np.zeros(1 << 16)})
        arguments = {"memory_format": "contiguous_format", "objective": nn.Identity(), "other_objectives": ()}

        def work():
            sys.stderr = said.open("w", encoding="utf-8")
            lives_on.close()
            killed.poll(60)  # until the run is killed, or its memory is gone
            connection, _ = context.Pipe()
            settings = {"threads": 1, "deterministic": False, "device": "cpu", "temporary": str(tmp_path / "none")}
            worker.serve(connection, pickle.dumps((arguments, data)), settings)

        process = context.Process(target=work)
        process.start()
        if is_killed:
            os.kill(os.getpid(), signal.SIGKILL)
        del held
        lives_on.send("gone")
        process.join()
        os._exit(0)
    os.close(is_over)
    os.read(over, 1)  # until the worker has ended too
    os.waitpid(run, 0)
    assert ("its process is gone" in said.read_text(), "Traceback" in said.read_text()) == (not is_killed, not is_killed)


@pytest.mark.parametrize(
    ("error", "is_said"), [(EOFError(), False), (pickle.UnpicklingError("truncated"), False), (ValueError("x"), True)]
)
def test_a_start_that_is_cut_short_is_not_told(capsys, error, is_said):
    start.print_unless_orphaned(type(error), error, None)
    assert bool(capsys.readouterr().err) is is_said


def idle(connection):
    time.sleep(60)


def stop(*_):
    raise KeyboardInterrupt


def test_a_signal_that_comes_while_a_process_starts_leaves_none_behind():
    Child(idle, name="first").kill()  # the tracker of multiprocessing has started, whose start has the signal heard at once
    before, usual = set(multiprocessing.active_children()), signal.signal(signal.SIGTERM, stop)
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        # Heard once the process has started; of other threads of this process one might take `os.kill`'s at once.
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            Child(idle, name="idle")
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        signal.signal(signal.SIGTERM, usual)
    assert set(multiprocessing.active_children()) == before
