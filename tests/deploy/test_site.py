"""What a site holds a server to: one order for a round, within limits; and what it tells, which nobody can guess."""

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml

import fedfacet
from fedfacet.deploy import agreement
from fedfacet.deploy.protocol import Message, pack, unpack
from fedfacet.deploy.samples import digest_of_samples
from fedfacet.deploy.settings import SiteSettings
from fedfacet.deploy.site import Site
from fedfacet.errors import CheckpointError, ConfigError


@pytest.fixture
def copy(pilot, tmp_path):
    """The folder of a copy of the pilot, whose files a test may change."""
    return shutil.copytree(pilot, tmp_path / "pilot", ignore=shutil.ignore_patterns("state"))


@pytest.fixture
def asked(copy, sites_of, deployed, tmp_path):
    """A site that has heard hello, a function (kind, changed body) -> its answer, and one that says the same hello again."""
    sent = []
    transport = sites_of(copy)
    site = transport.by_name["site_0"]
    answer = site.answer
    site.answer = lambda content: sent.append(content) or answer(content)
    run = deployed("method=fedavg", run_dir=tmp_path, transport=transport, folder=copy).engine.exchange.run
    model = {name: torch.zeros_like(tensor) for name, tensor in site._serving.clients.program.module.state_dict().items()}

    def ask(kind="train", **changed):
        body = {
            "client": 0,
            "round": 1,
            "seed": 0,
            "model": "c" * 64,
            "memory_round": None,
            "step_fraction": 1.0,
            "lr_factor": 1.0,
        }
        if kind == "weights":
            content = pack(Message(kind, run, {"round": changed.get("round", 1), "model": "c" * 64}, {"model": model}))
        else:
            content = pack(Message(kind, run, {**body, **changed}))
        return answer(content)

    ask("weights")
    return site, ask, lambda: answer(sent[0])


def told(answer):
    message = unpack(answer, len(answer))
    return message.kind, message.body.get("sentence", "")


def test_a_client_trains_once_in_a_round(asked):
    """The same order again has the same answer, as where the first has been lost."""
    _, ask, _ = asked
    first = ask()
    assert told(first)[0] == "update"
    assert ask() == first
    for other in ({"seed": 1}, {"step_fraction": 0.5}, {"lr_factor": 2.0}, {"more": 1}):
        assert told(ask(**other)) == ("refusal", "client 0 has had another order in round 1, and trains once")
    assert told(ask(client=2))[0] == "update", "another client's"
    assert ask() == first
    ask("weights", round=2)
    assert told(ask(round=2))[0] == "update"


def test_a_server_that_goes_on_does_a_round_again_and_not_for_ever(asked):
    _, ask, hello = asked
    answers = [told(ask(seed=0))[0]]
    for seed in range(1, 5):
        hello()
        answers += [told(ask(seed=seed))[0], told(ask(seed=100 + seed))[0]]
    assert answers == ["update", "update", "refusal", "update", "refusal", "refusal", "refusal", "refusal", "refusal"]


BEYOND = (
    ({"lr_factor": 1e9}, "its `lr_factor` is 1e+09, more than the 10 of the operator's `policy.max_lr_factor`"),
    ({"step_fraction": 100}, "its `step_fraction` is 100, more than the 1 of the operator's `policy.max_step_fraction`"),
    ({"lr_factor": -1.0}, "its `lr_factor` is '-1.0'"),
    ({"lr_factor": float("nan")}, "its `lr_factor` is 'nan'"),
    ({"step_fraction": "all"}, "its `step_fraction` is 'all'"),
    ({"step_fraction": True}, "its `step_fraction` is 'True'"),
)


@pytest.mark.parametrize("kind", ["train", "query"])
def test_an_order_stays_within_the_operator_s_limits(kind, asked):
    """An order that is refused counts for nothing: the one after it is taken."""
    _, ask, _ = asked
    query = {"query": {"name": "NumSamples", "arguments": {}}} if kind == "query" else {}
    for factors, sentence in BEYOND:
        assert told(ask(kind, **query, **factors)) == ("refusal", sentence)
    assert told(ask(kind, **query))[0] != "refusal"


def test_an_operator_may_set_these_limits(asked):
    site, ask, _ = asked
    site.settings = replace(site.settings, policy=replace(site.settings.policy, max_lr_factor=0.5, max_step_fraction=0.5))
    assert told(ask())[1].endswith("more than the 0.5 of the operator's `policy.max_step_fraction`")
    assert told(ask(step_fraction=0.5))[1].endswith("more than the 0.5 of the operator's `policy.max_lr_factor`")
    assert told(ask(step_fraction=0.5, lr_factor=0.5))[0] == "update"


@pytest.mark.parametrize("limit", ["ten", None, -1, float("nan"), True])
def test_a_limit_that_is_none_is_refused(limit, copy):
    file = copy / "site_0" / "client.yaml"
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), "policy": {"max_lr_factor": limit}}))
    with pytest.raises(ConfigError, match=r"`policy.max_lr_factor` to be a number of 0 or more, but got"):
        SiteSettings.read(file)


def test_digests_of_samples_tell_nobody_who_guesses_them(copy, sites_of, deployed, tmp_path):
    """They are the same in every run, and after a restart of the site."""
    said = []
    for _ in range(2):
        transport = sites_of(copy)
        exchange = deployed("method=fedavg", run_dir=tmp_path, transport=transport, folder=copy).engine.exchange
        said.append({name: digest for site in exchange.present.values() for name, (_, digest, _) in site["clients"].items()})
        for site in transport.by_name.values():
            for name, samples in site.samples.items():
                assert said[-1][name] != digest_of_samples(samples)
    assert said[0] == said[1]
    key = copy / "site_0" / "state" / "key.json"
    assert key.stat().st_mode & 0o077 == 0
    key.write_text("{}")
    with pytest.raises(
        CheckpointError, match=r"Expected the key of the site in .*key\.json, but it is damaged: bring it back\."
    ):
        Site(SiteSettings.read(copy / "site_0" / "client.yaml"))


@pytest.mark.parametrize("trace", ["memory", "letters", "audit"])
def test_a_run_that_began_before_a_site_had_a_key_goes_on(trace, copy, sites_of, deployed, tmp_path):
    """It is told the digests that it knows; another run is not."""
    run = "ab" * 16
    (tmp_path / "deploy.json").write_text(
        json.dumps({"run": run, "roster": [[one["name"], one["site"]] for one in roster_in(copy)], "holdout": [0.0] * 24})
    )
    for site in ("site_0", "site_1"):
        state = copy / site / "state"
        state.mkdir()
        if trace == "audit":
            (state / "audit.jsonl").write_text(json.dumps({"run": run, "kind": "hello"}) + "\n")
        else:
            (state / trace / run).mkdir(parents=True)
    (tmp_path / "other").mkdir()
    for folder, plain in ((tmp_path, True), (tmp_path / "other", False), (tmp_path, True)):
        transport = sites_of(copy)
        exchange = deployed("method=fedavg", run_dir=folder, transport=transport, folder=copy).engine.exchange
        for site in transport.by_name.values():
            for name, samples in site.samples.items():
                digest = exchange.present[site.settings.site]["clients"][name][1]
                assert (digest == digest_of_samples(samples)) is plain


def roster_in(folder):
    return yaml.safe_load((folder / "roster.yaml").read_text())["clients"]


def test_both_sides_say_that_one_has_other_code(copy, sites_of, deployed, caplog, monkeypatch, tmp_path):
    def hello():
        caplog.clear()
        deployed("method=fedavg", run_dir=tmp_path, transport=sites_of(copy), folder=copy)
        notes = [json.loads(line).get("note") for line in (copy / "site_0" / "state" / "audit.jsonl").read_text().splitlines()]
        return [record.getMessage() for record in caplog.records], notes[-1]

    assert hello() == ([], None)
    # What the server says of itself, and what it then compares the sites' answers with.
    theirs = {**agreement.versions(), "package": "0" * 16, "torch": "1.0"}
    monkeypatch.setattr("fedfacet.deploy.exchange.versions", lambda: theirs)
    monkeypatch.setattr("fedfacet.deploy.site.versions", lambda: theirs)
    said, note = hello()
    other = f"FedFacet {fedfacet.__version__} with other code than here (is one of both a development checkout?) and torch 1.0"
    assert f"site_0 has {other} ({torch.__version__} here): its numbers may differ." in said
    assert note == f"the server has {other} ({torch.__version__} here): updates may not be those of a simulation"
    assert f"site_0: {note}." in said


def test_the_digest_of_the_package_is_that_of_its_code(tmp_path):
    """A wheel has the yamls within, and Windows may end lines in another way."""
    source, installed = Path(fedfacet.__file__).parent, tmp_path / "fedfacet"
    shutil.copytree(source, installed, ignore=shutil.ignore_patterns("__pycache__"))
    (installed / "conf").mkdir()
    (installed / "conf" / "__init__.py").write_text("")
    for file in installed.glob("*.py"):
        file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    assert agreement.package_digest(installed) == agreement.package_digest()
    (installed / "deploy" / "site.py").write_text("")
    assert agreement.package_digest.__wrapped__(installed) != agreement.package_digest()


def test_the_old_digest_is_the_one_that_runs_know(asked):
    site, _, _ = asked
    sha = hashlib.sha256()
    samples = next(iter(site.samples.values()))
    for array in samples:
        sha.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
    assert digest_of_samples(samples) == sha.hexdigest()
