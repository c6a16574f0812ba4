import csv
import json

import numpy as np
import pytest

from fedfacet import rng
from fedfacet.build import build, load_data
from fedfacet.config import compose_job
from fedfacet.mechanisms.participation import ClientParticipation
from fedfacet.metrics.estimation import read_triplets

SMALL = ("model.width=2", "model.hidden=4", "local.unit=steps", "local.amount=1", "federation.cohort_size=3", "threads=1")
CALLBACKS = "callbacks=[csv_log,heterogeneity_error,summary]"


@pytest.fixture
def run(tmp_path):
    """Return a function that runs a small federation of digits: overrides -> (summary, run folder, true triplets)."""

    def run(*overrides, rounds=3):
        settings = [*SMALL, CALLBACKS, f"federation.rounds={rounds}", *overrides]
        config, _ = compose_job("train", [*settings, f"paths.output_dir={tmp_path}"])
        federation = build(config, tmp_path)
        federation.fit()
        true = np.array([matrix.triplet for matrix in load_data(config).matrices])
        return json.loads((tmp_path / "summary.json").read_text()), federation, true

    return run


def test_estimates_are_compared_with_the_truth_and_metrics_keep_their_columns(run, tmp_path):
    summary, federation, true = run("heterogeneity=estimated", "heterogeneity.bias_steps=3")
    disclosed = federation.state.disclosures["heterogeneity"]
    distances = np.linalg.norm(true - np.array([disclosed[client] for client in range(24)]), axis=1)
    error = summary["heterogeneity_error"]
    assert error["clients"] == 24
    assert error["distance_mean"] == pytest.approx(distances.mean())
    assert error["distance_max"] == pytest.approx(distances.max())
    assert error["distance_mean"] > 0.1, "three steps on a tiny network are no estimate"
    assert read_triplets(tmp_path).distances == pytest.approx(distances)
    with open(tmp_path / "metrics.csv") as file:
        assert not any("heterogeneity" in column for column in next(csv.reader(file)))


def test_true_triplets_have_no_error(run):
    summary, *_ = run("heterogeneity=true")
    assert summary["heterogeneity_error"]["distance_max"] == pytest.approx(0, abs=1e-12)
    assert summary["heterogeneity_error"]["correlation"]["spurious_correlation"] == pytest.approx(1)


def test_where_nobody_is_asked_nothing_is_said(run, tmp_path):
    summary, *_ = run("selector=uniform")
    assert "heterogeneity_error" not in summary
    assert not (tmp_path / "heterogeneity.csv").exists()


def test_clients_that_come_later_are_added(run, tmp_path):
    """Half of them are away in a round: some never come."""
    summary, federation, true = run("heterogeneity=true", "participation=dropouts", "participation.away_probability=0.5")
    asked = sorted(federation.state.disclosures["heterogeneity"])
    triplets = read_triplets(tmp_path)
    assert triplets.clients == tuple(asked)
    assert triplets.true == pytest.approx(true[asked])
    assert summary["heterogeneity_error"]["clients"] == len(asked)
    first = federation.find(ClientParticipation).participation.available(24, rng.stream(0, "available", 1))
    assert len(asked) > len(first), "the seed has clients that come later"


def test_a_lost_file_comes_back_with_a_resume(run, tmp_path):
    _, federation, _ = run("heterogeneity=true")
    before = (tmp_path / "heterogeneity.csv").read_bytes()
    (tmp_path / "heterogeneity.csv").unlink()
    config, _ = compose_job("train", [*SMALL, CALLBACKS, "federation.rounds=4", "heterogeneity=true"])
    resumed = build(config, tmp_path)
    resumed.restore(federation.state)
    resumed.fit()
    assert (tmp_path / "heterogeneity.csv").read_bytes() == before
