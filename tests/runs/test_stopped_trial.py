"""What Optuna's study knows of a job that was stopped."""

import pytest
from omegaconf import OmegaConf

from fedfacet.runs.ending import failed_if_stopped

optuna = pytest.importorskip("optuna", reason="the extra `tune` is not installed")

FIXED = "federation.rounds=7"


@pytest.fixture
def study(tmp_path):
    return optuna.create_study(study_name="mine", storage=f"sqlite:///{tmp_path}/study.db")


@pytest.fixture
def sweeper(tmp_path):
    target = "hydra_plugins.hydra_optuna_sweeper.optuna_sweeper.OptunaSweeper"
    return OmegaConf.create({"_target_": target, "storage": f"sqlite:///{tmp_path}/study.db", "study_name": "mine"})


def asked(study, lr):
    """Ask for a trial as the sweeper does; return its job's overrides."""
    study.enqueue_trial({"lr": lr})
    trial = study.ask({"lr": optuna.distributions.FloatDistribution(0.01, 0.3)})
    trial.set_user_attr(*FIXED.split("="))
    return [FIXED, f"lr={lr}"]


def stopped(sweeper, overrides, status=130):
    with pytest.raises(SystemExit) as stop, failed_if_stopped(sweeper, overrides):
        raise SystemExit(status)
    assert stop.value.code == status


def states(study):
    return [trial.state.name for trial in study.get_trials()]


def test_its_trial_fails_and_those_of_others_run_on(study, sweeper):
    asked(study, 0.1)
    overrides = asked(study, 0.2)
    stopped(sweeper, overrides)
    assert states(study) == ["RUNNING", "FAIL"]


def test_of_two_that_are_alike_none_is_taken_for_the_other(study, sweeper):
    asked(study, 0.1)
    stopped(sweeper, asked(study, 0.1))
    assert states(study) == ["RUNNING", "RUNNING"]


def test_a_job_that_returns_is_left_to_the_sweeper(study, sweeper):
    with failed_if_stopped(sweeper, asked(study, 0.1)):
        pass
    assert states(study) == ["RUNNING"]


@pytest.mark.parametrize("changed", [{"storage": None}, {"study_name": None}, {"_target_": "a.BasicSweeper"}])
def test_without_a_study_that_can_be_found_nothing_is_done(study, sweeper, changed):
    stopped(OmegaConf.merge(sweeper, changed), asked(study, 0.1))
    assert states(study) == ["RUNNING"]
