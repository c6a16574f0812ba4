"""What a run is refused for whose aggregator judges models, before its first round; what its name and its resume hang on."""

import numpy as np
import pytest

from fedfacet import state
from fedfacet.assembly import assemble
from fedfacet.build import build, load_data
from fedfacet.config import cell_digest, compose_job, plain
from fedfacet.config.resuming import differing_key
from fedfacet.errors import ConfigError

JOB = ("experiment=digits_gsc", "callbacks=[]", "logger=[]", "selector=uniform")
JUDGES = ("aggregator=fair_fate", "aggregator=fair_accuracy")


@pytest.mark.parametrize("judge", JUDGES)
@pytest.mark.parametrize(
    ("also", "said"),
    [
        ((), "the server has no samples: choose server_data=validation, or another aggregator."),
        (("server_data=validation", "server_data.attributes=false"), "does not know the attributes of its samples: give"),
        (("server_data=validation", "personal=head"), "`personal` keeps layers with the clients"),
        (("server_data=validation", "aggregator.positive_class=2"), "one of the data set's 2 classes, from 0, but got 2"),
        (("server_data=validation", "capacity=proportions", "submodel=heterofl"), "needs whole models: choose"),
    ],
)
def test_it_is_refused_in_one_sentence(judge, also, said, job_of, tmp_path):
    with pytest.raises(ConfigError, match=said) as info:
        build(job_of(*JOB, judge, *also), tmp_path / "run")
    assert "\n" not in str(info.value)
    assert list(tmp_path.iterdir()) == []


def test_fairfed_is_held_to_the_classes_too(job_of, tmp_path):
    with pytest.raises(ConfigError, match="one of the data set's 2 classes"):
        build(job_of(*JOB, "aggregator=fairfed", "aggregator.positive_class=2"), tmp_path)


def test_groups_need_two_attribute_values(job_of, tmp_path):
    job = job_of("dataset=cifar10", "partition=iid", "debug=smoke", "callbacks=[]", "logger=[]", "method=fair_fate")
    with pytest.raises(ConfigError, match="all samples have one attribute value: choose a data set with groups"):
        build(job, tmp_path)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("server_data=test", "Expected `server_data` to be|server_data"),
        ("server_data.samples_per_cell=20", "samples_per_cell"),
        ("server_data=validation server_data.samples_per_cell=many", "Expected `server_data.samples_per_cell` to be a whole"),
        ("server_data=validation server_data.attributes=3", "Expected `server_data.attributes` to be true or false"),
        ("server_data=validation server_data.seed=1", "server_data.seed"),
        ("server_data=validation server_data._target_=fedfacet.selectors.all.AllSelector", "a class derived from"),
    ],
)
def test_hostile_settings_are_refused(override, said):
    with pytest.raises(ConfigError, match=said):
        compose_job("train", override.split())


def test_idle_samples_are_said_and_change_no_number(job_of, tmp_path, caplog):
    jobs = [job_of(*JOB, "aggregator=fedavg", f"server_data={option}") for option in ("none", "validation")]
    runs = [build(job, tmp_path) for job in jobs]
    assert "The server's samples lie idle: aggregator=fedavg does not judge models." in caplog.text
    assert len({state.digest((run.run_round(), run)[1].state.model) for run in runs}) == 1


def test_they_are_not_those_that_choose_the_best_round(job_of):
    data = load_data(job_of(*JOB, "server_data=validation"))
    assert not np.isin(data.server.samples, [*data.val, *data.dataset.test]).any()
    assert data.splits.keys() == {"val", "test"}
    assert (data.pooled.server.samples == data.server.samples).all()


def test_no_cell_has_another_name_for_a_group_that_does_nothing(job_of):
    settings = plain(job_of(*JOB))
    older = {key: value for key, value in settings.items() if key != "server_data"}
    assert cell_digest(settings) == cell_digest(older)
    names = [cell_digest(plain(job_of(*JOB, "server_data=validation", f"server_data.samples_per_cell={n}"))) for n in (3, 4)]
    assert len({cell_digest(settings), *names}) == 3


def test_an_older_run_goes_on(job_of):
    """Its configuration has no such group."""
    settings = plain(job_of(*JOB))
    older = {key: value for key, value in settings.items() if key != "server_data"}
    assert differing_key(older, settings) is None
    assert differing_key(older, plain(job_of(*JOB, "server_data=validation")))[0] == "server_data"


def test_real_objects_are_held_to_the_same(tiny_federation):
    from fedfacet.aggregators.fair_accuracy import FairAccuracy

    run = tiny_federation()
    parts = {"engine": run.engine, "selector": run.selector, "aggregator": FairAccuracy(), "participation": None}
    with pytest.raises(ConfigError, match="aggregator=FairAccuracy, but the server has no samples"):
        assemble(run.engine.clients, **parts, rounds=1, cohort_size=1, seed=0)
