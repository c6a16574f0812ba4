"""Spawrious4, the federation of four breeds in two places, from end to end on the drawn twin of Spawrious."""

import csv

import numpy as np
import pytest

from fedfacet import build, config, state
from fedfacet.data.federated import FederatedData

TWIN = ["experiment=spawrious4", "dataset=synthetic_spawrious", "model=small_cnn", "optimizer.lr=0.1"]
BIAS_STEPS, BATCH_SIZE = 6, 8


def rows_of(run_dir):
    with open(run_dir / "metrics.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_seven_kinds_of_clients_from_end_to_end(smoke):
    """At a tenth of their size; all take part in the first of three rounds, and are asked for their triplets after it."""
    federation, run_dir = smoke(
        *TWIN,
        "federation.rounds=3",
        "dataset.samples_per_cell=60",
        "~callbacks.figures",
        "selector.pretraining_rounds=1",
        f"heterogeneity.bias_steps={BIAS_STEPS}",
        "heterogeneity.attribute_steps=5",
        f"local.batch_size={BATCH_SIZE}",
    )
    runtime = federation.engine.clients
    matrices = FederatedData(runtime.dataset, runtime.partition, np.empty(0, int)).matrices
    assert [matrix.counts.shape for matrix in matrices] == [(4, 2)] * 7
    first, second, third = rows_of(run_dir)
    later = (second, third)

    estimates = federation.state.disclosures["heterogeneity"]
    assert sorted(estimates) == list(range(7))
    samples = 0
    for client_id, matrix in enumerate(matrices):
        assert len(estimates[client_id]) == 3
        assert all(0 <= value <= 1 for value in estimates[client_id])
        # A client knows its own labels, so that the class imbalance is no guess.
        assert estimates[client_id][0] == pytest.approx(matrix.triplet.class_imbalance, abs=1e-12)
        served = int((matrix.counts.sum(axis=1) >= 2).sum())
        samples += served * int(BIAS_STEPS * min(BATCH_SIZE, matrix.total) + matrix.total)
    assert int(second["comm/query_samples"]) == samples, "a biased model per class with two samples or more"
    assert [int(row["comm/query_floats_up"]) for row in (first, second, third)] == [0, 3 * 7, 0], "asked once"

    assert first["cohort"].split() == [str(client_id) for client_id in range(7)]
    assert {len(set(row["cohort"].split())) for row in later} == {3}
    for split in ("val", "test"):
        groups = [f"{split}/acc_group/y{label}_a{place}" for label in range(4) for place in range(2)]
        assert [name for name in first if name.startswith(f"{split}/acc_group/")] == groups
        for row in (first, *later):
            assert float(row[f"{split}/acc_worst_group"]) == min(float(row[name]) for name in groups)
    assert federation.state.model["head.weight"].shape[0] == 4
    assert state.all_finite(federation.state.model)


def test_the_recipe_is_the_papers_federation():
    """Table 5: 8,800 samples of four classes, which the archive's 6,336 a cell and the twin's 2,560 have room for."""
    for overrides in ([], ["dataset=synthetic_spawrious", "model.weights=none"]):
        job, _ = config.compose_job("train", ["experiment=spawrious4", *overrides])
        assert job.dataset.classes == ["labrador", "dachshund", "bulldog", "corgi"]
        assert config.make(job.partition).demand.tolist() == [[2000, 200], [2000, 200], [200, 2000], [200, 2000]]
    data = build.load_data(job)
    assert data.partition.num_clients == 25
    assert np.bincount(data.dataset.y[data.val] * 2 + data.dataset.a[data.val]).tolist() == [300] * 8


@pytest.mark.slow
def test_the_whole_federation(tmp_path):
    """All 25 clients at full size, 9 a round, with the paper's 50 and 10 steps, on small drawings."""
    overrides = [*TWIN, "dataset.image_size=24", "federation.rounds=20", "callbacks.evaluate.every_n_rounds=20"]
    job, _ = config.compose_job("train", [*overrides, f"paths.output_dir={tmp_path}", "engine.device=cpu", "threads=1"])
    federation = build.build(job, tmp_path)
    federation.fit()
    data = build.load_data(job)
    true = np.array([matrix.triplet for matrix in data.matrices])
    estimates = federation.state.disclosures["heterogeneity"]
    estimated = np.array([estimates[client_id] for client_id in range(25)])
    assert estimated[:, 0] == pytest.approx(true[:, 0], abs=1e-12)
    spurious = true[:, 2] > 0.5
    assert estimated[spurious, 2].mean() > estimated[~spurious, 2].mean() + 0.1, "the 16 spurious clients stand out"
    first, *later = rows_of(tmp_path)
    assert len(first["cohort"].split()) == 25
    assert {len(set(row["cohort"].split())) for row in later} == {9}
    assert float(later[-1]["train/loss"]) < float(first["train/loss"])
