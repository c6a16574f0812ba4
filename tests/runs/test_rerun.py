"""Rounds run again from the checkpoints of real runs."""

import csv
import shutil
from dataclasses import replace

import numpy as np
import pytest
from omegaconf import OmegaConf

from fedfacet import state
from fedfacet.build import build, load_data, settle
from fedfacet.config import compose_job, plain
from fedfacet.errors import CheckpointError
from fedfacet.runs.rerun import checkpoints_of, decompose_round
from fedfacet.storage import checkpoint

RUN = (
    "experiment=digits_gsc", "selector=uniform", "federation.rounds=3", "federation.cohort_size=4", "logger=[]",
    "callbacks=[csv_log,save_checkpoint,decomposition]", "model.width=2", "threads=1",
)  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return a function: options -> the folder of a finished run, and its rows of metrics."""
    made = {}

    def make(*overrides):
        if overrides not in made:
            folder = tmp_path_factory.mktemp("run")
            config, _ = compose_job("train", [*RUN, *overrides, f"paths.output_dir={folder}"])
            settle(config)
            build(config, folder).fit()
            (folder / "config.yaml").write_text(OmegaConf.to_yaml(plain(config)))
            with open(folder / "metrics.csv", newline="") as file:
                made[overrides] = folder, list(csv.DictReader(file))
        return made[overrides]

    return make


KEEP = "callbacks.save_checkpoint.keep=all"


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("aggregator=fedld", "loss=margin"),
        ("aggregator=fedpac", "objective=fedpac"),
        (
            *("model=resnet8", "personal=norm_layers", "aggregator=fedgh", "selector=feddiverse", "heterogeneity=true"),
            *("local.unit=steps", "local.amount=1", "selector.pretraining_rounds=0"),
        ),
        ("participation=dropouts", "participation.dropout_probability=0.5", "correction=proximal"),
    ],
    ids=["fedavgm", "fedld", "fedpac", "fedbn", "dropouts"],
)
def test_a_round_run_again_is_the_round(run, options):
    """Law 1, to the last bit: participants, terms and model are those of the run."""
    folder, rows = run(KEEP, *options)
    for round, row in enumerate(rows, 1):
        if not int(row["num_arrived"]):
            with pytest.raises(CheckpointError, match=f"in round {round} of .* none did"):
                decompose_round(folder, round)
            continue
        again = decompose_round(folder, round)
        assert (again.round, again.num_rounds, again.same_model) == (round, 3, True)
        assert {name: repr(value) for name, value in again.decomposition.terms().items()} == {
            name.partition("/")[2]: value for name, value in row.items() if name.startswith("decomposition/")
        }
        assert set(again.client_ids) <= set(map(int, row["cohort"].split()))
        assert len(again.client_ids) == int(row["num_arrived"])


def test_participants_are_weighted_by_what_they_train_on(run):
    folder, _ = run(KEEP, "partition=dirichlet", "partition.num_clients=6", "partition.local_holdout=0.3")
    again = decompose_round(folder, 2)
    data = load_data(OmegaConf.load(folder / "config.yaml"))
    assert again.decomposition.num_samples.tolist() == [len(data.partition.indices[k]) for k in again.client_ids]
    assert len(set(again.decomposition.num_samples.tolist())) > 1
    assert sum(again.decomposition.shares) == pytest.approx(1)
    terms = again.decomposition.terms()
    whole = terms.pop("global_loss")
    assert sum(terms.values()) == pytest.approx(whole, rel=1e-10)


def test_nothing_is_written(run):
    folder, _ = run(KEEP)
    before = {file: file.stat().st_mtime_ns for file in folder.rglob("*") if file.is_file()}
    decompose_round(folder, 1)
    assert {file: file.stat().st_mtime_ns for file in folder.rglob("*") if file.is_file()} == before


def test_by_default_it_is_the_last_round(run):
    folder, _ = run(KEEP)
    assert decompose_round(folder).round == 3


def test_the_previous_checkpoint_is_enough_for_the_last_round(run, tmp_path):
    folder, rows = run()
    again = decompose_round(folder)
    assert (again.round, again.num_rounds, again.same_model) == (3, 3, True)
    assert again.decomposition.global_loss == float(rows[2]["decomposition/global_loss"])
    shutil.copytree(folder, tmp_path / "run")
    (tmp_path / "run" / "checkpoints" / "previous.ckpt").write_bytes(b"damaged")
    assert sorted(checkpoints_of(tmp_path / "run")) == [3]


def test_with_the_last_checkpoint_alone_it_is_the_round_that_would_follow(run, tmp_path):
    shutil.copytree(run()[0], tmp_path / "run")
    (tmp_path / "run" / "checkpoints" / "previous.ckpt").unlink()
    again = decompose_round(tmp_path / "run")
    assert (again.round, again.num_rounds, again.same_model) == (4, 3, None)
    longer, rows = run(KEEP, "federation.rounds=4")
    assert again.decomposition.global_loss == pytest.approx(float(rows[3]["decomposition/global_loss"]), rel=1e-12)
    assert np.array_equal(again.decomposition.losses, decompose_round(longer, 4).decomposition.losses)


def test_another_model_in_the_checkpoint_is_told(run, tmp_path):
    folder, _ = run(KEEP)
    shutil.copytree(folder, tmp_path / "run")
    file = tmp_path / "run" / "checkpoints" / "round_000002.ckpt"
    saved, config = checkpoint.load(file)
    other = state.scaled({k: t.double() for k, t in saved.model.items()}, 1.5)
    checkpoint.save(file, replace(saved, model=other), config)
    assert decompose_round(tmp_path / "run", 2).same_model is False


@pytest.mark.parametrize("round", [0, -1, 5, 17])
def test_a_round_without_a_checkpoint_is_refused(run, round):
    folder, _ = run(KEEP)
    with pytest.raises(
        CheckpointError, match=rf"Expected a round that .* can do again, rounds 1, 2, 3, 4, but got {round}: .*keep=all"
    ):
        decompose_round(folder, round)


def test_a_folder_without_checkpoints_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="Expected a checkpoint at"):
        decompose_round(tmp_path)


def test_checkpoints_are_known_by_their_names(run, tmp_path):
    """A killed run may have left a later one, which its last checkpoint does not know; other files are none."""
    folder, _ = run(KEEP)
    shutil.copytree(folder, tmp_path / "run")
    checkpoints = tmp_path / "run" / "checkpoints"
    for name in ("round_000009.ckpt", "round_two.ckpt", "round_000001.ckpt.part"):
        shutil.copy(checkpoints / "last.ckpt", checkpoints / name)
    found = checkpoints_of(tmp_path / "run")
    assert sorted(found) == [0, 1, 2, 3]
    assert found[3].name == "last.ckpt"


@pytest.mark.parametrize(
    ("callback", "scheduler"),
    [
        ("evaluate", ("scheduler=plateau", "scheduler.metric=val/loss")),
        ("evaluate_clients", ("scheduler=plateau", "scheduler.metric=val/acc_own")),
        ("personal_evaluate", ("scheduler=plateau", "scheduler.metric=personal_holdout/acc_mean")),
        ("evaluate", ("scheduler=exponential",)),
    ],
)
def test_the_learning_rate_of_a_round_run_again_is_that_of_the_round(run, callback, scheduler):
    """It hangs on rounds before, and so is in the saved state, whatever measured the metric that it falls by."""
    # Nothing is ever better by nine tenths, so that it falls after every round but the first.
    falling = ("scheduler.patience=0", "scheduler.threshold=0.9") if "scheduler=plateau" in scheduler else ()
    callbacks = f"callbacks=[{callback},csv_log,save_checkpoint,decomposition]"
    folder, rows = run(KEEP, *scheduler, *falling, callbacks, "partition.local_holdout=0.25")
    assert float(rows[2]["train/lr_factor"]) < 1
    for round in (2, 3):
        again = decompose_round(folder, round)
        assert again.same_model
        assert again.decomposition.global_loss == float(rows[round - 1]["decomposition/global_loss"])
