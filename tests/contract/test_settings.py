"""What every setting keeps to."""

from pathlib import Path

import numpy as np
import pytest

from fedfacet import config
from fedfacet.build import load_data

CONF = Path(__file__).parents[2] / "conf"
NOT_FEDERATED = {
    "selector": "all",
    "aggregator": "fedavg",
    "correction": "none",
    "participation": "always",
    "transforms": "none",
}


FEW = ("cifar100_participation", "digits_gsc", "fedld_pneumonia", "shakespeare", "waterbirds")
"""Recipes that set different things."""


@pytest.mark.parametrize(
    "experiment",
    [
        pytest.param(file.stem, marks=[] if file.stem in FEW else [pytest.mark.slow])
        for file in sorted((CONF / "experiment").glob("*.yaml"))
    ],
)
def test_it_has_the_last_word_over_every_recipe(setting_option, experiment, job_of):
    job, recipe = job_of(f"experiment={experiment}", f"setting={setting_option}"), job_of(f"experiment={experiment}")
    assert job.choices.setting == setting_option
    assert recipe.choices.setting == "federated"
    for group in ("dataset", "partition", "model", "optimizer", "loss"):
        assert job[group] == recipe[group], "the same task"
    assert job.federation.rounds == recipe.federation.rounds
    if setting_option == "federated":
        assert dict(job) | {"paths": None} == dict(recipe) | {"paths": None}, "all but the time of day in the paths"
    else:
        assert {group: job.choices[group] for group in NOT_FEDERATED} == NOT_FEDERATED
        assert job.local.keep_optimizer
    assert job.federation.pooled == (setting_option == "centralized")


def test_the_command_line_has_the_last_word_over_it(setting_option):
    job, _ = config.compose_job("train", [f"setting={setting_option}", "correction=proximal", "local.batch_size=5"])
    assert job.choices.correction == "proximal"
    assert job.local.batch_size == 5


def test_the_same_samples_train_and_measure(setting_option):
    """What each client of the federation holds out for itself does not train in the other settings either."""
    options = ("partition.local_holdout=0.2", "dataset=digits", "partition.scale=0.2")
    federated, ours = (
        load_data(config.compose_job("train", [f"setting={setting}", *options])[0]) for setting in ("federated", setting_option)
    )
    assert len(ours.partition.indices) == len(ours.local_holdout) == (1 if setting_option == "centralized" else 24)
    assert ours.val.tolist() == federated.val.tolist()
    for name in ("partition", "local_holdout"):
        parts = [getattr(data, name) for data in (ours, federated)]
        pooled = [np.sort(np.concatenate(getattr(part, "indices", part))) for part in parts]
        assert np.array_equal(*pooled)
    assert np.array_equal(sum(m.counts for m in ours.matrices), sum(m.counts for m in federated.matrices))


def test_clients_that_never_take_part_are_measured_in_every_setting_and_trained_in_none(setting_option, smoke):
    options = ("partition.held_out_clients=0.34", "partition.local_holdout=0.3", f"setting={setting_option}")
    federation, _ = smoke(*options, "callbacks=[client_fairness,personal_evaluate]")
    data = load_data(config.compose_job("train", [*options, "debug=smoke"])[0])
    never = np.concatenate([*data.held_out_clients.partition.indices, *data.held_out_clients.local_holdout])
    owned = [federation.engine.clients.owned[client_id] for client_id in range(federation.num_clients)]
    assert federation.num_clients == (1 if setting_option == "centralized" else 4)
    assert not np.isin(np.concatenate(owned), never).any()
    metrics = federation.callbacks["client_fairness"].measure(federation, 1)
    assert metrics["client_fairness/held_out_clients/num_clients"] == 2
    assert len(federation.engine.clients.owned[federation.num_clients + 1]) == len(data.held_out_clients.partition.indices[1])


@pytest.mark.parametrize("engine", ["sequential", pytest.param("vectorized", marks=pytest.mark.slow)])
def test_it_runs_with_any_cohort_size_and_engine(setting_option, engine, smoke):
    federation, run_dir = smoke(f"setting={setting_option}", f"engine={engine}", "federation.cohort_size=3")
    assert federation.state.round == 1
    assert len(federation.state.participation_counts) == (1 if setting_option == "centralized" else 6)
    assert bool(federation.state.memory) == (setting_option != "federated")
    expected = {"metrics.csv", "summary.json", "curves.png", "selection.png", "partition.png", "checkpoints", "model"}
    assert expected <= {path.name for path in run_dir.iterdir()}
