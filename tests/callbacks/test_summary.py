import contextlib
import json
import math
import os
import stat

import pytest
from safetensors.torch import load_file

from fedfacet import state
from fedfacet.callbacks.base import Callback
from fedfacet.callbacks.summary import Summary
from fedfacet.errors import Interrupted
from fedfacet.selectors.uniform import UniformSelector
from fedfacet.types import PAYMENTS

FACTS = {"seed": 3, "hardware": {"cpu_count": 2}}
MODEL = {"_target_": "fedfacet.models.small_cnn.SmallCNN", "width": 2}


class Scores(Callback):
    """Validation worst-group accuracy, validation average and test average of each round."""

    def __init__(self, scores):
        self.scores = scores

    def measure(self, federation, round):
        worst, average, test = self.scores[round - 1]
        return {"val/acc_worst_group": worst, "val/acc": average, "test/acc": test}


@pytest.fixture
def run(tiny_federation, tmp_path, stop):
    """Return a function that runs a federation that scores as given and returns its summary."""

    def run(scores, *, stop_after=None, resume=None, **how):
        summary = Summary(run_dir=tmp_path, facts=FACTS, model_config=MODEL)
        callbacks = {"scores": Scores(scores), "summary": summary}
        federation = tiny_federation(rounds=len(scores), callbacks=callbacks, **how)
        if resume is not None:
            federation.restore(resume)

        stop(federation, after=stop_after)
        with pytest.raises(Interrupted) if stop_after is not None else contextlib.nullcontext():
            federation.fit()
        return federation, json.loads((tmp_path / "summary.json").read_text())

    return run


@pytest.mark.parametrize(
    ("scores", "best"),
    [
        ([(0.1, 0.9, 0.0), (0.3, 0.5, 0.0), (0.2, 0.9, 1.0)], 2),  # the worst group decides, never the test set
        ([(0.3, 0.5, 0.0), (0.3, 0.6, 0.0), (0.3, 0.4, 0.0)], 2),  # then the average
        ([(0.3, 0.5, 0.0), (0.3, 0.5, 1.0), (0.3, 0.5, 1.0)], 1),  # then the earliest
        ([(0.0, 0.0, 0.0), (0.0, 0.0, 0.0)], 1),
        ([(math.nan, 0.9, 0.0), (0.1, 0.1, 0.0), (math.nan, math.nan, 0.0)], 2),  # rounds that were not measured
    ],
)
def test_the_best_round_is_chosen_by_validation(run, scores, best):
    _, summary = run(scores)
    assert summary["best"]["round"] == best
    assert summary["best"]["val/acc_worst_group"] == scores[best - 1][0]
    assert summary["final"]["round"] == len(scores)


def test_without_validation_there_is_no_best_round_and_nan_becomes_null(run):
    _, summary = run([(math.nan, math.nan, 0.5), (math.nan, math.nan, 0.7)])
    assert summary["best"] is None
    assert summary["final"]["val/acc"] is None
    assert summary["final"]["test/acc"] == 0.7


def test_where_nothing_is_tested_the_last_round_is_the_last(tiny_federation, tmp_path):
    class Rounds(Callback):
        def measure(self, federation, round):
            return {"personal_test/acc_mean": round / 10}

    callbacks = {"rounds": Rounds(), "summary": Summary(run_dir=tmp_path, facts=FACTS, model_config=MODEL)}
    tiny_federation(rounds=3, callbacks=callbacks).fit()
    final = json.loads((tmp_path / "summary.json").read_text())["final"]
    assert (final["round"], final["personal_test/acc_mean"]) == (3, 0.3)


def test_it_holds_the_run_and_its_totals(run):
    federation, summary = run([(0.1, 0.1, 0.1)] * 3)
    floats = sum(tensor.numel() for tensor in federation.state.model.values())
    assert summary["bytes_up"] == summary["bytes_down"] == 4 * floats * 2 * 3  # two clients in each of three rounds
    assert summary["query_bytes_up"] == summary["query_bytes_down"] == 0
    assert summary["model_digest"] == state.digest(federation.state.model)
    assert summary["participation_counts"] == federation.state.participation_counts.tolist()
    assert (summary["status"], summary["rounds"], summary["seed"]) == ("finished", 3, 3)
    assert summary["seconds"] > 0


def test_the_model_is_exported(run, tmp_path):
    _, summary = run([(0.1, 0.1, 0.1)])
    assert state.digest(load_file(tmp_path / "model" / "model.safetensors")) == summary["model_digest"]
    assert json.loads((tmp_path / "model" / "config.json").read_text()) == MODEL


@pytest.mark.parametrize("umask", [0o022, 0o027])
def test_whoever_may_read_the_summary_may_read_the_model(run, tmp_path, umask):
    before = os.umask(umask)
    try:
        run([(0.1, 0.1, 0.1)])
    finally:
        os.umask(before)
    in_model = {"model.safetensors", "best.safetensors", "config.json"}
    files = [tmp_path / "summary.json", *(tmp_path / "model" / name for name in in_model)]
    assert [stat.S_IMODE(file.stat().st_mode) for file in files] == [0o666 & ~umask] * 4
    assert {file.name for file in (tmp_path / "model").iterdir()} == in_model


def test_an_interrupted_run_says_so_and_exports_no_model(run, tmp_path):
    _, summary = run([(0.1, 0.1, 0.1)] * 3, stop_after=2)
    assert (summary["status"], summary["rounds"], summary["final"]["round"]) == ("interrupted", 2, 2)
    assert not (tmp_path / "model").exists()


def test_a_run_stopped_before_its_first_round_has_no_final_round(run):
    _, summary = run([(0.1, 0.1, 0.1)], stop_after=0)
    assert (summary["final"], summary["best"], summary["rounds"]) == (None, None, 0)


def test_it_goes_on_where_it_stopped(run):
    scores = [(0.1, 0.1, 0.1), (0.9, 0.1, 0.1), (0.2, 0.1, 0.1), (0.3, 0.1, 0.1)]
    _, whole = run(scores)
    stopped, _ = run(scores, stop_after=2)
    _, resumed = run(scores, resume=stopped.state)
    assert resumed.pop("seconds") > 0
    assert whole.pop("seconds") > 0
    assert resumed == whole


class Paying(UniformSelector):
    """Half a coin for each client that takes part."""

    provides = frozenset({PAYMENTS})

    def metrics(self, server, result):
        return {"spent": 0.5 * len(result.cohort)}


def test_payments_are_added_up_after_a_resume_too(run):
    scores = [(0.1, 0.1, 0.1)] * 4
    stopped, _ = run(scores, stop_after=2, selector=Paying(), cohort_size=2)
    _, resumed = run(scores, resume=stopped.state, selector=Paying(), cohort_size=2)
    assert resumed["spent"] == 4.0
    assert "spent" not in run(scores)[1]


def test_a_failed_run_leaves_no_summary(tiny_federation, tmp_path, fail):
    federation = tiny_federation(callbacks={"summary": Summary(run_dir=tmp_path, facts=FACTS, model_config=MODEL)})
    fail(federation, round=1)
    with pytest.raises(RuntimeError, match="broken"):
        federation.fit()
    assert list(tmp_path.iterdir()) == []
