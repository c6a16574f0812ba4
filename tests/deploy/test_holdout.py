"""What clients of sites hold out, and what the server learns of it."""

import functools
import shutil

import numpy as np
import pytest
import yaml

from fedfacet.build import load_data, rebuild
from fedfacet.commands import client
from fedfacet.config import plain
from fedfacet.deploy.journal import read_journal, replay
from fedfacet.deploy.pilot import write_pilot
from fedfacet.deploy.protocol import Message, pack, unpack
from fedfacet.deploy.questions import known_queries
from fedfacet.errors import ConfigError, FedFacetError

SHARE = "partition.local_holdout=0.25"
EVALUATE = "callbacks=[csv_log,disclosures,summary,federated_evaluate]"


@pytest.fixture(scope="session")
def pilots(tmp_path_factory, job_of):
    """Return a function: overrides -> the folder of a pilot whose clients hold out a quarter, which is left as it is."""

    @functools.cache
    def make(*overrides):
        folder = tmp_path_factory.mktemp("pilots") / "pilot"
        data = load_data(job_of("experiment=digits_gsc", "partition.scale=0.1", SHARE, *overrides))
        write_pilot(data, "digits", folder, 2, 0.25, sorted(known_queries()))
        return folder

    return make


@pytest.fixture
def held_out(pilots, tmp_path):
    """Return a function: overrides -> the folder of a copy of such a pilot."""
    return lambda *overrides: shutil.copytree(pilots(*overrides), tmp_path / "pilot")


def change(folder, site, **changed):
    file = folder / f"site_{site}" / "client.yaml"
    table = yaml.safe_load(file.read_text())
    file.write_text(yaml.safe_dump({**table, **changed}))
    return table


METHODS = {
    "feddiverse": ("method=feddiverse", "callbacks.federated_evaluate.every_n_rounds=2"),
    "pow_d": (
        "method=pow_d",
        "participation=check_in",
        "participation.num_clients=12",
    ),  # asks for another answer on another model in the same round
    "fedbn": ("method=fedbn", "model=resnet8"),  # whose clients measure with their own layers
    "heterofl": ("method=fedavg", "submodel=heterofl", "capacity=largest"),
    "another draw": ("method=fedavg", "partition.seed=5", "partition.holdout_seed=3"),
}


@pytest.mark.parametrize("method", METHODS)
def test_accuracy_of_a_deployed_run_is_that_of_the_simulation(
    method, held_out, sites_of, simulated, deployed, rounds_of, tmp_path
):
    overrides = (*METHODS[method], EVALUATE)
    folder = held_out(*(one for one in overrides if one.startswith("partition.")))
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    here = simulated(*overrides, SHARE, run_dir=tmp_path / "here")
    there = deployed(*overrides, run_dir=tmp_path / "there", transport=sites_of(folder), folder=folder)
    table = rounds_of(there, 2)
    assert table == rounds_of(here, 2)
    names, *rows = (line.split(",") for line in table.decode().splitlines())
    last = dict(zip(names, rows[-1], strict=True))
    assert 0 < float(last["holdout/acc"]) < 1
    assert int(last["holdout/num_samples"]) == 5 * int(last["holdout/num_clients"])
    assert int(last["holdout/num_clients"]) + int(last["holdout/num_away"]) == 24
    assert (float(last["holdout/num_away"]) > 0) == (method == "pow_d")
    assert there.state.disclosures == here.state.disclosures
    lines = [(tmp_path / run / "disclosures.csv").read_bytes() for run in ("here", "there")]
    assert lines[0] == lines[1]
    best = there.callbacks["summary"].best
    assert best is not None
    assert best["round"] == here.callbacks["summary"].best["round"]


def test_a_client_that_does_not_answer_is_left_out_and_counted(held_out, sites_of, deployed, meddler, tmp_path, caplog):
    lost = []

    def meddle(request, ticket, content):
        if request.kind == "query" and request.body["client"] in (3, 8):
            lost.append(request.body["round"])
            return [(ticket, content[:-1])]
        return [(ticket, content)]

    folder = held_out()
    there = deployed("method=fedavg", EVALUATE, run_dir=tmp_path, transport=meddler(sites_of(folder), meddle), folder=folder)
    measured = there.run_round().metrics
    assert (measured["holdout/num_clients"], measured["holdout/num_away"]) == (22, 2)
    assert measured["holdout/num_samples"] == 22 * 5
    assert lost == [1, 1]
    assert there.state.round == 1
    (line,) = read_journal(there.callbacks["journal"].file).values()
    assert sorted(line["answered"]["HoldoutCounts"]) == sorted(set(range(24)) - {3, 8})
    assert "Round 1: client 3 (client_03) is away" in caplog.text
    assert there.run_round().round == 2


def test_answers_that_are_no_counts_are_left_out(held_out, sites_of, deployed, meddler, tmp_path, caplog):
    """Each of nine clients forges its own; the metrics are those of the other fifteen."""
    forged = [
        lambda right, known: None,
        lambda right, known: 7,
        lambda right, known: [[1]],
        lambda right, known: [[[0.5, *right[0][1:]], *right[1:]], known],
        lambda right, known: [[[one + 1 for one in row] for row in known], known],
        lambda right, known: [[[-1, *right[0][1:]], *right[1:]], known],
        lambda right, known: [right, [[2**70, *known[0][1:]], *known[1:]]],
        lambda right, known: [right, [[2**20, *known[0][1:]], *known[1:]]],
        lambda right, known: [[1, 2], [[3]]],
    ]

    def meddle(request, ticket, content):
        message = unpack(content, len(content))
        if message.kind != "answer" or message.body["client"] >= len(forged):
            return [(ticket, content)]
        body = {**message.body, "value": forged[message.body["client"]](*message.body["value"])}
        return [(ticket, pack(Message("answer", message.run, body)))]

    folder = held_out()
    there = deployed("method=fedavg", EVALUATE, run_dir=tmp_path, transport=meddler(sites_of(folder), meddle), folder=folder)
    result = there.run_round()
    assert (result.metrics["holdout/num_away"], result.metrics["holdout/num_clients"]) == (9, 15)
    assert 0 <= result.metrics["holdout/acc"] <= 1
    assert sorted(one.client_id for one in result.disclosed) == list(range(24))
    assert read_journal(tmp_path / "journal.jsonl")[1]["answered"] == {"HoldoutCounts": list(range(9, 24))}
    for client_id in range(9):
        assert caplog.text.count(f"Round 1: client {client_id} (client_{client_id:02d}) is away: its holdout_counts is ") == 1


def test_a_class_and_an_attribute_that_nobody_holds(held_out, sites_of, deployed, rounds_of, tmp_path):
    folder = held_out()
    card = yaml.safe_load((folder / "card.yaml").read_text())
    card = {**card, "class_names": [*card["class_names"], "letter"], "attribute_names": [*card["attribute_names"], "blue"]}
    (folder / "card.yaml").write_text(yaml.safe_dump(card))
    there = deployed("method=fedavg", EVALUATE, run_dir=tmp_path, transport=sites_of(folder), folder=folder)
    measured = there.run_round().metrics
    assert np.isnan([measured[f"holdout/acc_group/{group}"] for group in ("y0_a2", "y1_a2", "y2_a0", "y2_a2")]).all()
    assert 0 <= measured["holdout/acc"] <= 1
    assert not np.isnan(measured["holdout/acc_worst_group"])


def test_what_is_refused(held_out, sites_of, deployed, simulated, tmp_path):
    folder = held_out()
    clients = change(folder, 1, policy={"queries": ["NumSamples"]})["clients"]
    with pytest.raises(
        ConfigError, match=r"answer `HoldoutCounts`, which callbacks.federated_evaluate asks, but site_1 does not: have its"
    ):
        deployed("method=fedavg", EVALUATE, run_dir=tmp_path, transport=sites_of(folder), folder=folder)
    change(folder, 1, clients={**clients, "client_03": {"file": "client_03.npz", "holdout": 1.0}})
    with pytest.raises(ConfigError, match=r"client.yaml, client client_03 to hold settings .*`holdout` in \[0, 1\), but got 1"):
        sites_of(folder)
    change(folder, 1, clients={**clients, "client_03": {"file": "client_03.npz", "share": 0.5}})
    with pytest.raises(ConfigError, match="client client_03 to have the keys file, but it has `share`"):
        sites_of(folder)
    for overrides, error, sentence in (
        (("partition.local_holdout=0",), FedFacetError, "but nobody does: set partition.local_holdout=0.2"),
        ((SHARE, "disclosure=joint_counts"), FedFacetError, "`holdout_counts` is of kind group_performance"),
        (
            (SHARE, "privacy=central", "selector=poisson", "aggregator=fedavg", "aggregator.weighting=equal"),
            ConfigError,
            "callbacks.federated_evaluate asks clients for `holdout_counts`, which it does not count",
        ),
    ):
        with pytest.raises(error, match=sentence):
            simulated("method=fedavg", EVALUATE, *overrides, run_dir=tmp_path)


def test_a_count_of_few_samples_is_not_told(held_out, sites_of, deployed, tmp_path, caplog):
    folder = held_out()
    policy = change(folder, 0)["policy"]
    change(folder, 0, policy={**policy, "min_counted": 2})
    sites = sites_of(folder)
    there = deployed("method=fedavg", EVALUATE, run_dir=tmp_path, transport=sites, folder=folder)
    measured = there.run_round().metrics
    clients = sites.by_name["site_0"]._run.clients
    held = [clients.local_holdout.indices[number] for number in range(0, 24, 2)]
    groups = [np.unique([clients.dataset.y[own], clients.dataset.a[own]], axis=1, return_counts=True)[1] for own in held]
    silent = sum(1 in sizes for sizes in groups)
    assert 0 < silent < 12
    assert measured["holdout/num_away"] == silent
    assert caplog.text.count("fewer samples than the 2 of its operator's `policy.min_counted`") == silent
    assert there.run_round().round == 2


def test_noise_that_a_server_chooses_hides_no_small_count(held_out, sites_of, deployed, tmp_path):
    folder = held_out()
    change(folder, 0, policy={**change(folder, 0)["policy"], "min_counted": 4})
    sites = sites_of(folder)
    there = deployed("method=fedavg", run_dir=tmp_path, transport=sites, folder=folder)
    order = {"client": 0, "round": 1, "seed": 0, "model": None, "memory_round": None, "step_fraction": 1.0, "lr_factor": 1.0}

    def told(name, **arguments):
        body = {**order, "query": {"name": name, "arguments": arguments}}
        content = sites.by_name["site_0"].answer(pack(Message("query", there.engine.exchange.run, body)))
        return unpack(content, len(content)).body

    assert told("LabelHistogram")["code"] == told("DisclosedInteractionMatrix")["code"] == "too_few_samples"
    assert told("DisclosedInteractionMatrix", epsilon=1e6)["code"] == "too_few_samples"
    assert told("NumSamples")["value"] == 15


@pytest.mark.parametrize("changed", ["seed", "number"])
def test_a_server_cannot_have_other_samples_held_out_than_earlier_runs_did(
    changed, held_out, sites_of, deployed, serve_job, tmp_path
):
    folder = held_out()
    deployed("method=fedavg", EVALUATE, run_dir=tmp_path / "a", transport=sites_of(folder), folder=folder)
    deployed("method=fedavg", "seed=7", EVALUATE, run_dir=tmp_path / "b", transport=sites_of(folder), folder=folder)
    if changed == "number":
        roster = yaml.safe_load((folder / "roster.yaml").read_text())
        roster["clients"].insert(0, roster["clients"].pop(2))
        (folder / "roster.yaml").write_text(yaml.safe_dump(roster))
    overrides = ("partition.holdout_seed=3",) if changed == "seed" else ()
    now = "partition.holdout_seed=3 and as client 0" if changed == "seed" else "partition.holdout_seed=0 and as client 1"
    with pytest.raises(ConfigError) as refusal:
        deployed("method=fedavg", *overrides, run_dir=tmp_path / "c", transport=sites_of(folder), folder=folder)
    assert str(refusal.value) == (
        "site_0 refuses the run (data): client_00 held samples out by partition.holdout_seed=0 and as client 0 in earlier "
        f"runs, and would now hold out others, by {now}: take the former, or have its operator remove holdout.json, beside "
        "audit.jsonl."
    )
    for state in folder.glob("*/state/holdout.json"):
        state.unlink()
    deployed("method=fedavg", *overrides, run_dir=tmp_path / "d", transport=sites_of(folder), folder=folder)


def test_another_holdout_stops_a_resume_and_a_replay_holds_out_what_the_run_did(
    held_out, sites_of, deployed, serve_job, capsys, tmp_path
):
    folder = held_out()
    clients = change(folder, 1)["clients"]
    change(folder, 1, clients={**clients, "client_03": "client_03.npz"})  # which holds nothing out
    there = deployed("method=fedavg", EVALUATE, run_dir=tmp_path, transport=sites_of(folder), folder=folder)
    assert there.run_round().metrics["holdout/num_clients"] == 23
    reached = there.state
    config = serve_job("method=fedavg", "partition.local_holdout=[" + ",".join(["0.25"] * 3 + ["0"] + ["0.25"] * 20) + "]")[0]
    again = rebuild({**plain(config), "callbacks": {}, "logger": {}}, tmp_path)
    replay(again, there.callbacks["journal"].file)
    again.run_round()  # which compares the model with the journal's
    change(folder, 1, clients=clients)
    with pytest.raises(FedFacetError, match="partition"):
        deployed("method=fedavg", EVALUATE, run_dir=tmp_path, transport=sites_of(folder), folder=folder).restore(reached)
    assert client.main(["check", f"config={folder / 'site_1' / 'client.yaml'}"]) == 0
    assert "client_03: 20 samples (2 digit<5, 18 digit>=5), of which the part 0.25 is held out" in capsys.readouterr().out
