"""A mechanism of the user's own takes part in a round by yaml alone, and no file of the package knows of it."""

import sys
import textwrap

import pytest
import torch

from fedfacet import state
from fedfacet.build import build, settle
from fedfacet.config import compose_job, plain
from fedfacet.errors import CheckpointError, ConfigError
from fedfacet.storage import checkpoint

JOB = (
    "experiment=digits_gsc", "selector=uniform", "aggregator=fedavg", "heterogeneity='true'", "callbacks=[]", "logger=[]",
    "model.width=2", "model.hidden=4", "federation.rounds=4", "federation.cohort_size=9", "local.amount=1", "threads=1",
)  # fmt: skip
COOLDOWN = ("+mechanisms.cooldown._target_=cooldown_of_mine.Cooldown", "+mechanisms.cooldown.num_rounds=2")


@pytest.fixture
def federation(tmp_path, monkeypatch):
    """Return a function that makes a federation with a module of the user's on the path; its settings are plain data."""
    (tmp_path / "cooldown_of_mine.py").write_text(
        textwrap.dedent(
            '''
            from fedfacet.round import Mechanism


            class Cooldown(Mechanism):
                """Clients rest for some rounds after each one in which they took part."""

                slot = "cooldown"
                rank = 22

                def __init__(self, *, num_rounds: int) -> None:
                    self.num_rounds = num_rounds

                def init(self):
                    return {"last": {}}

                def available(self, round):
                    last = round.before.slot(self.slot)["last"]
                    rested = [k for k in round.available if round.number - last.get(str(k), -self.num_rounds) > self.num_rounds]
                    round.available = rested

                def after(self, round, new):
                    round.metrics["cooldown/available"] = len(round.available)
                    return {"last": {**round.before.slot(self.slot)["last"], **{str(k): round.number for k in round.cohort}}}
            '''
        )
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "cooldown_of_mine", raising=False)

    def make(*options):
        config, _ = compose_job("train", [*JOB, *options])
        settle(config)
        return build(config, tmp_path / "run"), plain(config)

    return make


def test_it_takes_part_is_saved_and_resumes(federation, tmp_path):
    whole, settings = federation(*COOLDOWN)
    results = [whole.run_round() for _ in range(2)]
    checkpoint.save(tmp_path / "run" / "checkpoints" / "last.ckpt", whole.state, settings)
    results += [whole.run_round() for _ in range(2)]
    assert [result.metrics["cooldown/available"] for result in results] == [24, 15, 6, 9]
    assert not set(results[0].cohort) & {*results[1].cohort, *results[2].cohort}
    assert set(results[3].cohort) == set(results[0].cohort), "who took part first has rested"
    resumed, _ = federation(*COOLDOWN)
    resumed.restore(checkpoint.load(tmp_path / "run" / "checkpoints" / "last.ckpt")[0])
    resumed.fit()
    assert state.digest(resumed.state.model) == state.digest(whole.state.model)
    assert resumed.state.slots == whole.state.slots
    with pytest.raises(CheckpointError, match="its state has 'cooldown', which nothing here keeps"):
        federation()[0].restore(whole.state)


def test_one_that_does_nothing_changes_nothing(federation):
    """All points at which the default stands are left out."""
    usual, idle = federation()[0], federation("+mechanisms.idle._target_=fedfacet.round.Mechanism")[0]
    usual.fit(), idle.fit()
    assert all(torch.equal(tensor, idle.state.model[name]) for name, tensor in usual.state.model.items())


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("fedfacet.FedAvg", "`mechanisms.odd._target_` to name a class derived from fedfacet.round.Mechanism, but got"),
        ("cooldown_of_mine.Nothing", "cooldown_of_mine has no `Nothing`: fix the name"),
    ],
)
def test_what_is_none_is_refused(federation, target, sentence):
    with pytest.raises(ConfigError, match=sentence):
        federation(f"+mechanisms.odd._target_={target}")


def test_two_of_one_slot_are_refused(federation):
    again = [option.replace("mechanisms.cooldown", "mechanisms.again") for option in COOLDOWN]
    with pytest.raises(ValueError, match="two have `cooldown`: leave one out"):
        federation(*COOLDOWN, *again)
