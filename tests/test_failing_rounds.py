"""A round is all or nothing: whatever fails in it, wherever, the run continues as if nothing had happened."""

import inspect
import sys

import numpy as np
import pytest

from fedfacet import state
from fedfacet.build import build
from fedfacet.callbacks.base import Callback

RUNS = {
    "pow-d, measured by clients": ("method=pow_d", "callbacks=[default,federated_evaluate]", "partition.local_holdout=0.2"),
    "favor, which learns": ("method=favor",),
    "scaffold on devices": ("method=scaffold", "devices=tiers"),
    "asynchronous": ("method=fedbuff", "devices=tiers"),
    "central privacy": ("method=dp_fedavg", "callbacks=[default,disclosures]"),
    "fairfed, which reports": ("method=fairfed", "scheduler=cosine"),
}


class Fault(Exception):
    """Nothing that any part knows how to handle."""


class Saboteur:
    """Raise in the call with a number, of all those of the package's functions within a block; count them without one."""

    def __init__(self, number=None):
        self.number, self.calls, self.where = number, 0, None

    def __enter__(self):
        sys.setprofile(self._look)
        return self

    def __exit__(self, *error):
        sys.setprofile(None)

    def _look(self, frame, event, argument):
        code = frame.f_code
        resumed = code.co_flags & inspect.CO_GENERATOR and frame.f_lasti > 0  # or closed, where an error is not heard
        if event == "call" and "fedfacet" in code.co_filename and code.co_name != "roll_back" and not resumed:
            self.calls += 1
            if self.calls == self.number:
                self.where = f"{code.co_filename.rpartition('fedfacet/')[2]}:{code.co_qualname}"
                raise Fault(self.where)


def federation_of(job_of, overrides, run_dir):
    job = job_of("experiment=digits_gsc", "model.width=2", "federation.rounds=3", "federation.cohort_size=3", *overrides)
    run_dir.mkdir()
    federation = build(job, run_dir)
    for callback in federation.callbacks.values():
        callback.on_fit_start(federation)
    return federation


def written(run_dir):
    return {file.name: file.read_bytes() for file in sorted(run_dir.glob("*.csv")) if file.name != "timing.csv"}


SLOW = ("scaffold on devices", "fairfed, which reports")


@pytest.mark.parametrize(
    "overrides", [pytest.param(given, id=name, marks=pytest.mark.slow if name in SLOW else ()) for name, given in RUNS.items()]
)
def test_a_run_continues_as_if_a_round_had_not_failed(overrides, job_of, tmp_path):
    whole = federation_of(job_of, overrides, tmp_path / "whole")
    for _ in range(3):
        whole.run_round()
    digest, tables = state.digest(whole.state.model), written(tmp_path / "whole")
    spare = federation_of(job_of, overrides, tmp_path / "spare")  # by when what is computed once in a process has been
    spare.run_round()
    with Saboteur() as counted:
        spare.run_round()
    early = np.random.default_rng(0).integers(2, counted.calls // 2, size=4).tolist()
    first = 1 + list(RUNS.values()).index(overrides) % 2  # each power of two in half of the runs
    late = [counted.calls - 2**power for power in range(first, 13, 2) if 2**power < counted.calls // 2]
    again = federation_of(job_of, overrides, tmp_path / "again")
    again.run_round()
    before = again.state
    for number in early + late:
        with pytest.raises(Fault), Saboteur(number):
            again.run_round()
        assert again.state is before, number
    again.run_round()
    again.run_round()
    assert state.digest(again.state.model) == digest
    assert written(tmp_path / "again") == tables


def test_a_logger_that_came_since_has_nothing_to_return_to(tiny_federation, caplog):
    """As in a resume with another logger whose first round is stopped."""

    class Came(Callback):
        def on_round_end(self, federation, result):
            raise Fault

    federation = tiny_federation(rounds=2)
    federation.run_round()
    resumed = tiny_federation(rounds=2, callbacks={"came": Came()})
    resumed.restore(federation.state)
    with pytest.raises(Fault):
        resumed.run_round()
    assert resumed.state is federation.state
    assert "cannot return" not in caplog.text
