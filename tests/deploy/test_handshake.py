"""What server and sites must agree on before a round; here sites are objects, behind a transport of ten lines."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import yaml

from fedfacet.commands import client, serve
from fedfacet.deploy import agreement
from fedfacet.deploy.card import Card
from fedfacet.deploy.files import table_of
from fedfacet.deploy.journal import read_journal
from fedfacet.deploy.loopback import Loopback
from fedfacet.deploy.protocol import Message, pack, unpack
from fedfacet.deploy.server import save_names
from fedfacet.deploy.settings import SiteSettings
from fedfacet.deploy.site import Site
from fedfacet.errors import CheckpointError, ConfigError, DatasetCorruptError


@pytest.fixture
def copy(pilot, tmp_path):
    """The folder of a copy of the pilot, whose files a test may change."""
    return shutil.copytree(pilot, tmp_path / "pilot", ignore=shutil.ignore_patterns("state"))


def change(file, **changed):
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), **changed}))


REFUSALS = {
    "policy of queries": (
        "method=pow_d",
        {"policy": {"queries": ["NumSamples"]}},
        "Expected sites that answer `LocalLoss`, which selector=pow_d asks, but site_1 does not: have its operator list it in "
        "`policy.queries`, or choose another method.",
    ),
    "policy of options": (
        "method=fedavg",
        {"policy": {"options": {"objective": ["fedpac"]}}},
        "site_1 refuses the run (policy): objective=classification is not among the operator's `policy.options`.",
    ),
    "too few samples": (
        "method=fedavg",
        {"policy": {"min_samples": 21}},
        "site_1 refuses the run (too_few_samples): client_01 has fewer samples than the 21 of its operator.",
    ),
    "clients": (
        "method=fedavg",
        {"clients": {"client_01": "client_01.npz"}},
        "site_1 refuses the run (data): the roster and client.yaml do not have the same clients here: client_03 is not in "
        "both.",
    ),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_what_an_operator_does_not_allow_is_one_sentence(what, copy, sites_of, deployed, tmp_path):
    method, changed, sentence = REFUSALS[what]
    change(copy / "site_1" / "client.yaml", **changed)
    with pytest.raises(ConfigError) as refusal:
        deployed(method, run_dir=tmp_path, transport=sites_of(copy), folder=copy)
    assert str(refusal.value) == sentence


def test_another_card_another_version_and_other_yamls(copy, sites_of, deployed, tmp_path, monkeypatch):
    sites = sites_of(copy)
    change(copy / "card.yaml", name="other digits")
    with pytest.raises(
        ConfigError, match=r"site_\d refuses the run \(card\): the server's data card is another one than card.yaml here"
    ):
        deployed("method=fedavg", run_dir=tmp_path, transport=sites, folder=copy)
    sites = sites_of(copy)
    monkeypatch.setattr("fedfacet.deploy.server.settings_digest", lambda settings: "0" * 64)
    with pytest.raises(ConfigError, match=r"site_\d refuses the run \(settings\): the run's settings come to others here"):
        deployed("method=fedavg", run_dir=tmp_path, transport=sites, folder=copy)
    for other in ("7.0.0", "0.1.99"):
        monkeypatch.setattr(agreement, "__version__", other)
        with pytest.raises(ConfigError, match=rf"site_\d refuses the run \(version\): .* here, and the server has {other}"):
            deployed("method=fedavg", run_dir=tmp_path, transport=sites, folder=copy)


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("callbacks=default", "Expected callbacks that need no data, but `evaluate` wants `data`"),
        (
            "partition.local_holdout=0.2",
            "Expected settings that do without the clients' data, but got `partition.local_holdout`",
        ),
        ("devices=uniform", "Expected settings that do without the clients' data, but got `devices`"),
        ("server_data=validation", "Expected settings that do without the clients' data, but got `server_data`"),
        ("engine=workers", "Expected settings that do without the clients' data, but got `engine`"),
    ],
)
def test_what_needs_the_data_is_refused(override, sentence, deployed, tmp_path):
    with pytest.raises(ConfigError) as refusal:
        deployed("method=fedavg", override, run_dir=tmp_path, transport=None)
    assert str(refusal.value).startswith(sentence)


def test_data_that_do_not_fit_the_card(copy, deployed, capsys, tmp_path):
    """An operator is told by ``client.py check``, and the server by the site's process."""
    file, settings = copy / "site_0" / "client_04.npz", copy / "site_0" / "client.yaml"
    with np.load(file) as arrays:
        held = dict(arrays)
    np.savez(file, **{**held, "y": held["y"] + 1})
    sentence = "but `y` holds 2, and there are 2 names: fix the file or the card."
    with pytest.raises(DatasetCorruptError, match=sentence):
        Site(SiteSettings.read(settings))
    assert client.main(["check", f"config={settings}"]) == 2
    assert sentence in capsys.readouterr().err
    transport = Loopback(clients=[str(copy / f"site_{number}" / "client.yaml") for number in (0, 1)])
    try:
        with pytest.raises(
            ConfigError,
            match=r"site_0 refuses the run \(data\): it cannot be opened, as `client.py check` tells its operator",
        ):
            deployed("method=fedavg", run_dir=tmp_path, transport=transport, folder=copy)
    finally:
        transport.close()
    file.write_bytes(b"no arrays")
    assert client.main(["check", f"config={settings}"]) == 2
    assert "to be a client's arrays, but it cannot be read" in capsys.readouterr().err


def test_a_roster_that_has_changed_stops_a_resume(copy, sites_of, deployed, tmp_path):
    """Its file is read once: while a run goes on, nothing of it is looked at."""
    federation = deployed("method=fedavg", run_dir=tmp_path, transport=sites_of(copy), folder=copy)
    save_names(tmp_path, federation)
    roster = table_of(copy / "roster.yaml")
    roster["clients"][3]["site"] = "site_0"
    (copy / "roster.yaml").write_text(yaml.safe_dump(roster))
    federation.run_round()
    with pytest.raises(
        CheckpointError, match=r"Expected the roster that the run was started with, but client 3 was .*client_03"
    ):
        deployed("method=fedavg", run_dir=tmp_path, transport=sites_of(copy), folder=copy)


@pytest.mark.parametrize(
    "override",
    ["optimizer._target_=os.system", "hydra.run.dir=x", "+model.x=1", "optimizer.lr=${oc.env:HOME}", "paths.data_dir=/", "x"],
)
def test_a_site_takes_no_code_and_no_paths(override, copy):
    site = Site(SiteSettings.read(copy / "site_0" / "client.yaml"))
    body = {
        "versions": {"fedfacet": "0.1.0"},
        "card": site.card.digest,
        "clients": {},
        "overrides": [override],
        "num_clients": 24,
    }
    body["clients"] = {name: number for number, name in enumerate(site.samples)}
    answer = site.answer(pack(Message("hello", "a" * 32, body)))
    said = unpack(answer, len(answer))
    assert said.kind == "refusal"
    assert "Expected settings of clients, GROUP=OPTION and KEY=VALUE, but got" in said.body["sentence"]


NAMED = (
    ("weights", {"model": "../../../../evil"}),
    ("weights", {"model": "/tmp/evil"}),
    ("weights", {"round": "../../evil"}),
    ("weights", {"client": "../../../../evil"}),
    ("hello", {"client": "../../../../evil"}),
    ("hello", {"model": "../../../../evil"}),
    ("hello", {"round": "1"}),
    ("hello", {"round": None}),
    ("train", {"client": True}),
    ("train", {"memory_round": 10**12}),
)


def test_a_server_names_no_files(copy, sites_of, deployed, tmp_path):
    transport = sites_of(copy)
    run = deployed("method=fedavg", run_dir=tmp_path, transport=transport, folder=copy).engine.exchange
    versions = {"fedfacet": "0.1.0"}
    bodies = {
        "hello": {**run.greeting, "clients": run.registry.at("site_0"), "num_clients": 24, "versions": versions, "more": 1},
        "weights": {"round": 1, "model": "c" * 64},
        "train": {"round": 1, "client": 0},
    }
    before = {file for file in tmp_path.rglob("*") if file.name != "audit.jsonl"}
    for kind, named in NAMED:
        content = transport.by_name["site_0"].answer(pack(Message(kind, run.run, {**bodies[kind], **named})))
        said = unpack(content, len(content)).body
        ((name, value),) = named.items()
        assert (said["code"], said["sentence"]) == ("letter", f"its `{name}` is '{value}'")
        assert {file for file in tmp_path.rglob("*") if file.name != "audit.jsonl"} == before


def test_numbers_of_clients_that_a_site_would_choke_on(copy, sites_of, deployed, tmp_path):
    transport = sites_of(copy)
    run = deployed("method=fedavg", run_dir=tmp_path, transport=transport, folder=copy).engine.exchange
    own = run.registry.at("site_0")
    versions = {"fedfacet": "0.1.0"}
    kept = own["client_00"]
    for number, numbers in (
        (10**12, kept), (0, kept), ("24", kept), (24.0, kept), (24, -1), (24, 24), (24, 1.0), (24, "x"),
    ):  # fmt: skip
        body = {**run.greeting, "clients": own | {"client_00": numbers}, "num_clients": number, "versions": versions}
        content = transport.by_name["site_0"].answer(pack(Message("hello", "c" * 32, body)))
        said = unpack(content, len(content)).body
        assert (said["code"], said["sentence"]) == (
            "letter", "clients have numbers below `num_clients`, and that is 10,000,000 at most",
        )  # fmt: skip


def test_a_site_refuses_what_it_does_not_know_and_writes_down_what_came(copy, sites_of, deployed, tmp_path):
    transport = sites_of(copy)
    site = transport.by_name["site_0"]
    site.settings = replace(site.settings, policy=replace(site.settings.policy, queries=["NumSamples"], max_steps=0))
    federation = deployed("method=fedavg", run_dir=tmp_path, transport=transport, folder=copy)
    run = federation.engine.exchange.run

    def told(kind, of=run, **body):
        content = site.answer(pack(Message(kind, of, body)))
        return unpack(content, len(content)).body["sentence"]

    order = {"client": 0, "round": 1, "seed": 0, "model": None, "memory_round": None, "step_fraction": 1.0, "lr_factor": 1.0}
    assert told("train", of="b" * 32, **order) == "the run has not said hello since this site has started"
    assert told("train", **{**order, "client": 1}) == "client 1 is not one of this site"
    assert told("train", **{**order, "model": "c" * 64}) == "the model has not come to this site since it has started"
    assert "more than the 0 of the operator's `policy.max_steps`" in told("train", **order)
    missing = told("train", **{**order, "memory_round": 7})
    assert "what client 0 kept after round 7 cannot be read" in missing
    assert str(tmp_path) not in missing, "where a site's files lie is the operator's own"
    asks = {"name": "TrueHeterogeneity", "arguments": {}}
    assert (
        told("query", **order, query=asks)
        == "site_0 does not answer `TrueHeterogeneity`: it is not among the operator's `policy.queries`"
    )
    assert told("shutdown") == "a message of the kind 'shutdown' is not known here"
    damaged = site.answer(b"damaged")
    assert (
        unpack(damaged, len(damaged)).body["sentence"]
        == "a message is not read: it is damaged or cut short, as its sha256 shows"
    )
    lines = [json.loads(line) for line in (copy / "site_0" / "state" / "audit.jsonl").read_text().splitlines()]
    assert [line["answer"] for line in lines] == ["hello", *["refusal"] * 8]
    assert lines[-3]["query"] == asks


def test_check_and_verify_and_their_sentences(pilot, copy, sites_of, capsys, deployed, tmp_path):
    federation = deployed("method=scaffold", run_dir=tmp_path, transport=sites_of(copy), folder=copy)
    for _ in range(3):
        federation.run_round()
    file = tmp_path / "journal.jsonl"
    clients = [k for k in federation.state.memory if k % 2 == 0]
    line = next(line for line in read_journal(file).values() if line["round"] > 1 and set(line["cohort"]) & set(clients))
    name = f"client_{next(k for k in line['cohort'] if k in clients):02d}"
    arguments = [f"config={copy / 'site_0' / 'client.yaml'}", f"journal={file}", f"round={line['round']}", f"client={name}"]
    assert client.main(["verify", *arguments]) == 0
    assert (
        f"The update of {name} in round {line['round']} is the one that the server has written down" in capsys.readouterr().out
    )
    forged = file.read_text().replace(line["update_digests"][str(int(name[-2:]))], "0" * 64)
    file.write_text(forged)
    assert client.main(["verify", *arguments]) == 2
    assert f"Expected the update {'0' * 64} of the journal, but it comes to" in capsys.readouterr().err
    assert client.main(["check", f"config={pilot / 'site_0' / 'client.yaml'}"]) == 0
    assert "client_00: 20 samples (18 digit<5, 2 digit>=5)" in capsys.readouterr().out


def test_messages_do_not_fill_the_disk(copy, sites_of, capsys, deployed, monkeypatch, tmp_path):
    disk = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: disk._replace(free=2**30))
    deployed("method=fedavg", run_dir=tmp_path, transport=sites_of(copy), folder=copy).run_round()
    assert not list((copy / "site_0" / "state").glob("messages/*/*"))
    assert (copy / "site_0" / "state" / "audit.jsonl").read_text().count('"answer": "ok"') > 0, "all the same it has answered"
    arguments = [
        f"config={copy / 'site_0' / 'client.yaml'}",
        f"journal={tmp_path / 'journal.jsonl'}",
        "round=1",
        "client=client_00",
    ]
    assert client.main(["verify", *arguments]) == 2
    assert (
        "but there are none: give keep_letters: true before a run, and leave 1 GB of the disk free." in capsys.readouterr().err
    )


def test_mistakes_of_the_commands_are_one_sentence(capsys, tmp_path):
    for command, argv, sentence in (
        (serve, [], "error: Expected `card` to be a text, but got None"),
        (serve, ["chek"], "error: Expected check, replay, start or key=value, but got 'chek'"),
        (serve, ["card=a", "roster=b"], "error: Expected a yaml file at a, but it cannot be read"),
        (client, ["chek"], "error: Expected one of check, verify, start, pilot, but got 'chek'"),
        (client, ["check"], "error: Expected config=..., but got nothing"),
        (client, ["check", f"config={tmp_path / 'none.yaml'}"], "error: Expected a yaml file at"),
    ):
        assert command.main(argv) == 2
        assert sentence in capsys.readouterr().err


def test_a_card_says_what_is_wrong_with_it(tmp_path):
    card = {"name": "a", "class_names": ["x"], "input_shape": [1, 2, 2]}
    (tmp_path / "card.yaml").write_text(yaml.safe_dump(card))
    with pytest.raises(ConfigError, match=r"images \(uint8\) have a `mean` and a `std`"):
        Card.read(tmp_path / "card.yaml")
    (tmp_path / "card.yaml").write_text(yaml.safe_dump({**card, "input_dtype": "float32", "colour": "red"}))
    with pytest.raises(ConfigError, match="but it has `colour`"):
        Card.read(tmp_path / "card.yaml")
