"""What a cell's name depends on."""

import pytest

from fedfacet.config import cell_digest, compose_job, is_cell, plain


@pytest.fixture(scope="module")
def digest():
    """Return a function: overrides -> the name of that cell."""
    return lambda *overrides: cell_digest(plain(compose_job("train", [*overrides])[0]))


@pytest.fixture(scope="module")
def usual(digest):
    return digest()


FREE = (
    "paths.log_dir=x", "task=x", "engine=workers", "engine.device=cpu", "wandb.mode=offline", "wandb.tags=[a]", "logger=wandb",
    "~callbacks.progress", "~callbacks.figures", "~callbacks.heterogeneity_error",
    "callbacks.save_checkpoint.every_n_rounds=7", "sweep=cells",
)  # fmt: skip
COUNTING = (
    "seed=1", "federation.rounds=99", "federation.cohort_size=8", "optimizer.lr=0.2", "selector=uniform", "partition.scale=0.1",
    "correction=proximal", "callbacks.evaluate.every_n_rounds=2", "threads=2", "precision=bf16-mixed", "partition.seed=1",
    "selector.pretraining_rounds=2", "heterogeneity.q=0.5", "model.width=8", "deterministic=false", "debug=smoke",
)  # fmt: skip


@pytest.mark.parametrize("override", FREE)
def test_what_no_number_depends_on_is_left_out(digest, usual, override):
    assert digest(override) == usual


def test_what_numbers_depend_on_counts_each_in_its_own_way(digest, usual):
    names = [digest(override) for override in COUNTING]
    assert len({usual, *names}) == 1 + len(COUNTING)


def test_it_does_not_matter_how_a_value_was_said(digest, usual):
    assert digest("experiment=digits_gsc", "selector=feddiverse", "seed=0", "optimizer.lr=1e-1") == usual
    assert digest("optimizer.lr=1") == digest("optimizer.lr=1.0")


def test_a_setting_that_came_later_counts_only_where_it_does_something(digest, usual):
    assert digest("partition.held_out_clients=0") == digest("partition.held_out_clients=0.0") == usual
    assert len({usual, digest("partition.held_out_clients=0.2"), digest("partition.held_out_clients=3")}) == 3
    without = plain(compose_job("train", [])[0])
    del without["partition"]["held_out_clients"]
    assert cell_digest(without) == usual, "the name that it had before"


def test_where_a_download_lies_does_not_matter(digest):
    assert digest("dataset=cmnist", "partition.scale=1", "dataset.root=/a") == digest("dataset=cmnist", "partition.scale=1")


def test_a_name_is_sixteen_digits(usual):
    assert len(usual) == 16
    assert int(usual, 16) >= 0


@pytest.mark.parametrize(("overrides", "cell"), [([], False), (["sweep=cells"], True)])
def test_cells_are_told_by_their_sweep(overrides, cell):
    assert is_cell(compose_job("train", overrides)[0]) is cell
