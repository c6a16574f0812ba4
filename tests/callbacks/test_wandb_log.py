"""What can be told without a run; tests/cli/test_wandb.py reads real ones back."""

import pytest

from fedfacet.callbacks.wandb_log import WandbLog
from fedfacet.data.own_data import OWN_DATA

CHOICES = {
    "selector": "feddiverse",
    "aggregator": "fedavgm",
    "correction": "none",
    "experiment": "digits_gsc",
    "dataset": "digits",
}


@pytest.fixture
def log(tmp_path):
    def make(mode="offline", seed=0, digest="0123456789", **choices):
        config = {"seed": seed, "choices": CHOICES | choices}
        return WandbLog(run_dir=tmp_path, run_config=config, facts={"seed": seed, "partition_digest": digest}, mode=mode)

    return make


def test_a_group_is_method_experiment_and_partition(log):
    assert log().group == "feddiverse-fedavgm-digits_gsc-01234567"
    assert log(seed=1).group == log().group
    assert log(correction="proximal").group == "feddiverse-fedavgm-proximal-digits_gsc-01234567"
    assert log(loss="margin", personal="norm_layers").group == "feddiverse-fedavgm-norm_layers-margin-digits_gsc-01234567"
    assert log(heterogeneity="true").group == "feddiverse-fedavgm-true_heterogeneity-digits_gsc-01234567"
    assert log(digest="abcdefghij").group == "feddiverse-fedavgm-digits_gsc-abcdefgh"
    assert log(experiment=None).group == "feddiverse-fedavgm-digits-01234567"


@pytest.mark.parametrize("dataset", sorted(OWN_DATA))
def test_own_data_are_not_called_after_the_recipe_whose_settings_they_have(log, dataset, checkout):
    assert (checkout / "conf" / "dataset" / f"{dataset}.yaml").is_file()
    assert log(dataset=dataset).group == f"feddiverse-fedavgm-{dataset}-01234567"


def test_the_mode_is_checked(log):
    with pytest.raises(ValueError, match="'offline'"):
        log(mode="off")


def test_without_a_mode_the_environment_has_it(log, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert log(mode=None).mode == "offline"
    monkeypatch.setenv("WANDB_MODE", "dryrun")
    assert log(mode="disabled").mode == "disabled"
    with pytest.raises(ValueError, match="'dryrun'"):
        log(mode=None)


def test_a_disabled_run_writes_nothing(log, tiny_federation, tmp_path):
    tiny_federation(callbacks={"wandb": log(mode="disabled")}).fit()
    assert list(tmp_path.iterdir()) == []


def test_the_id_survives_a_resume(log):
    first, second = log(), log()
    assert first.state_dict() != second.state_dict()
    second.load_state_dict(first.state_dict())
    assert first.state_dict() == second.state_dict()


def test_a_run_that_is_stopped_in_its_first_round_has_an_id(log, tiny_federation):
    assert len(tiny_federation(callbacks={"wandb": log()}).state.callbacks["wandb"]["id"]) == 8


def test_without_an_experiment_the_data_set_names_the_group(log):
    """`~experiment` leaves no such choice."""
    callback = log()
    del callback.run_config["choices"]["experiment"]
    assert callback.group == "feddiverse-fedavgm-digits-01234567"
