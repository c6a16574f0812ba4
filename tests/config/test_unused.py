import lightning as L
import pytest

from fedfacet.config import mistakes, preflight
from fedfacet.errors import ConfigError


class Mine(L.LightningModule):
    """An objective that brings its own loss and optimizer."""

    def __init__(self, model):
        super().__init__()
        self.model = model


@pytest.fixture
def jobs_of(tmp_path, monkeypatch, caplog):
    """Return a function: command line -> its jobs, with warnings in ``caplog`` as in a new process."""
    monkeypatch.chdir(tmp_path)
    mistakes._say.cache_clear()
    return lambda *arguments: preflight("train", ["train.py", *arguments])[1]


MINE = f"objective._target_={__name__}.Mine"


@pytest.mark.parametrize(
    "asked", ["loss=margin", "loss=cross_entropy", "correction=proximal", "optimizer=adam", "optimizer.lr=5"]
)
def test_what_the_objective_does_not_take_is_refused(jobs_of, asked):
    group = asked.partition("=")[0].partition(".")[0]
    with pytest.raises(ConfigError, match=rf"takes `{group}` .*Mine\) has no such argument: leave {asked} out, or give"):
        jobs_of(MINE, "selector=uniform", asked)
    with pytest.raises(ConfigError, match=f"leave {asked} out"):
        jobs_of(MINE, "selector=uniform", "seed=1,2", asked, "-m")


def test_what_it_does_take_is_not(jobs_of, caplog):
    for objective in ("objective=classification", "method=fedpac"):
        jobs_of(objective, "loss=margin", "correction=proximal", "optimizer.lr=5", "model.width=8")
    jobs_of(MINE, "selector=uniform", "model.width=8")
    assert not caplog.messages


def test_an_estimate_trains_with_the_optimizer_too(jobs_of, caplog):
    jobs_of(MINE, "optimizer.lr=0.5")
    assert "optimizer.lr=0.5 is used by heterogeneity=estimated only" in caplog.text
    with pytest.raises(ConfigError, match=r"leave optimizer\.lr=0\.5 out"):
        jobs_of(MINE, "optimizer.lr=0.5", "heterogeneity=true")


def test_a_methods_correction_is_refused_and_a_recipes_loss_said(jobs_of, caplog):
    with pytest.raises(ConfigError, match=r"correction=proximal .*another method than fedprox"):
        jobs_of(MINE, "method=fedprox")
    jobs_of(MINE, "experiment=fedld_pneumonia")
    assert "loss=margin changes nothing" in caplog.text


def test_patience_beyond_what_is_measured_is_said(jobs_of, caplog):
    plateau = ("selector=uniform", "scheduler=plateau", "federation.rounds=26", "callbacks.evaluate.every_n_rounds=2")
    jobs_of(*plateau)  # 13 times: the last one comes after a fall
    assert not caplog.messages
    jobs_of(*plateau, "federation.rounds=24")
    assert (
        "scheduler=plateau changes nothing: val/loss is measured 12 times, too seldom for scheduler.patience=10" in caplog.text
    )


def test_a_selector_that_does_not_ask_is_said_once(jobs_of, caplog):
    assert len(jobs_of("selector=feddiverse,uniform", "heterogeneity=true", "seed=1,2", "-m")) == 4
    assert [message.partition(":")[0] for message in caplog.messages] == ["heterogeneity=true changes nothing"]
    jobs_of("selector=all", "heterogeneity.q=0.5")
    assert "heterogeneity.q=0.5 changes nothing: selector=all" in caplog.messages[-1]


def test_defaults_are_nobodys_wish(jobs_of, caplog):
    jobs_of("selector=uniform")
    jobs_of("method=fedprox")
    jobs_of("method=feddiverse_known")
    jobs_of("debug=smoke", "selector=uniform")
    assert not caplog.messages


def test_clients_that_never_take_part_and_are_not_measured_are_said(jobs_of, caplog):
    given = ("partition.held_out_clients=0.2", "partition.local_holdout=0.2")
    for callback in ("client_fairness", "personal_evaluate"):
        jobs_of(*given, f"callbacks=[default,{callback}]")
    jobs_of(*given, "setting=local")
    jobs_of("partition.held_out_clients=0")
    assert not [message for message in caplog.messages if "held_out" in message]
    jobs_of(*given)
    assert (
        "The clients of partition.held_out_clients are measured by no callback of this run: add callbacks=[default,c"
        in caplog.text
    )
