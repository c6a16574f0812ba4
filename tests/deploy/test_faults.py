"""What goes wrong on the way and at a site: each has its sentence, and a model that a replay of the journal comes to again."""

import csv
import os
import signal
import time
import uuid
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from fedfacet import state
from fedfacet.build import load_data
from fedfacet.deploy import exchange as exchange_module
from fedfacet.deploy import journal, protocol
from fedfacet.deploy.engine import KEPT, Shortfall
from fedfacet.deploy.journal import replay
from fedfacet.deploy.loopback import Loopback
from fedfacet.deploy.pilot import write_pilot
from fedfacet.deploy.protocol import pack, unpack

SCAFFOLD = ("method=scaffold", "federation.rounds=4")  # its clients keep something, and send more than a change of weights


@pytest.fixture(scope="module")
def direct(sites_of, pilot):
    """A transport to the pilot's sites, in this process."""
    return sites_of(pilot)


@pytest.fixture(scope="module")
def federation(deployed, direct, tmp_path_factory):
    """A federation over the sites that is built once, for all tests of this file."""
    return deployed(*SCAFFOLD, run_dir=tmp_path_factory.mktemp("run"), transport=direct)


@pytest.fixture(scope="module")
def undisturbed(simulated, rounds_of, tmp_path_factory):
    """The simulated federation, after its rounds."""
    here = simulated(*SCAFFOLD, run_dir=tmp_path_factory.mktemp("here"))
    rounds_of(here)
    return here


@pytest.fixture
def run(federation, direct, meddler, simulated, tmp_path, caplog):
    """Return a function: how a transport meddles -> what has come of three rounds, whose replay has come to the same model."""
    first, exchange = federation.state, federation.engine.exchange
    exchange.run = uuid.uuid4().hex  # or clients would train twice in the rounds of one run
    exchange._greeted.clear()

    def with_meddling(meddle=None, *, rounds=3, **how):
        federation.engine.exchange.transport = meddler(direct, meddle, **how)
        federation.callbacks["journal"].file = tmp_path / "journal.jsonl"
        while federation.state.round < rounds:
            federation.run_round()
        lines = journal.read_journal(tmp_path / "journal.jsonl")
        again = simulated(*SCAFFOLD, f"federation.rounds={rounds}", run_dir=tmp_path)
        replay(again, tmp_path / "journal.jsonl")
        while again.state.round < rounds:
            again.run_round()  # which compares every model with the journal's
        assert state.digest(again.state.model) == state.digest(federation.state.model)
        return SimpleNamespace(lines=lines, digest=state.digest(again.state.model), log=caplog.text, state=federation.state)

    yield with_meddling
    federation.engine.begin(0)
    federation.state, federation.engine.exchange.transport = first, direct


def of_round_two(change, kind="train"):
    """Return a meddling with the answer of the second client of a site in round 2."""
    seen = []

    def meddle(request, ticket, content):
        if ticket.site == "site_0" and request.kind == kind and request.body["round"] == 2 and len(seen) < 2:
            seen.append(request.body["client"])
            if len(seen) == 2:
                return change(request, ticket, content)
        return [(ticket, content)]

    meddle.seen = seen
    return meddle


def repacked(content, **changed):
    message = unpack(content, len(content))
    return pack(replace(message, **changed))


def with_delta(content, change):
    message = unpack(content, len(content))
    name, tensor = next(iter(message.bundles["delta"].items()))
    return repacked(content, bundles={**message.bundles, "delta": {**message.bundles["delta"], name: change(tensor.clone())}})


def with_body(content, **changed):
    return repacked(content, body={**unpack(content, len(content)).body, **changed})


def other_protocol(content):
    message = unpack(content, len(content))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(protocol, "PROTOCOL", 1)
        return pack(message)


TAMPERED = {
    "a flipped byte": (lambda c: c[:-9] + bytes([c[-9] ^ 1]) + c[-8:], "is damaged or cut short, as its sha256 shows"),
    "cut short": (lambda c: c[:-100], "is damaged or cut short, as its sha256 shows"),
    "no message": (lambda c: b"what is this?", "is damaged or cut short, as its sha256 shows"),
    "too large": (lambda c: c + bytes(2**21), "more than the 2,097,152 of max_letter_mb"),
    "another protocol": (other_protocol, "it is of protocol 1, and protocol 2 is spoken here"),
    "another run": (lambda c: repacked(c, run="f" * 32), "is of another run"),
    "another client": (lambda c: with_body(c, client=23), "answers for client 23 in the place of"),
    "another round": (lambda c: with_body(c, round=1), "is of round 1"),
    "another message's": (lambda c: with_body(c, answers="0" * 64), "is to another message than the one that was sent"),
    "NaN": (lambda c: with_delta(c, lambda t: t.fill_(torch.nan)), "it holds NaN or infinite numbers; the update is dropped"),
    "other shapes": (lambda c: with_delta(c, lambda t: t[:1]), "has shape"),
    "nonsense": (lambda c: with_body(c, num_samples="many", metrics=None), "its num_samples is 'many'"),
}


@pytest.fixture(scope="module")
def without_one():
    """The models of rounds from which the same client's update is missing, to which all tampering must come."""
    return set()


@pytest.mark.parametrize("how", TAMPERED)
def test_a_tampered_update_is_left_out_with_its_own_sentence(how, run, federation, without_one, undisturbed, monkeypatch):
    change, sentence = TAMPERED[how]
    monkeypatch.setattr(federation.engine.exchange, "most_bytes", 2**21)
    meddle = of_round_two(lambda request, ticket, content: [(ticket, change(content))])
    came = run(meddle)
    assert sentence in came.log
    line, client = came.lines[2], meddle.seen[1]
    assert list(line["lost"]) == [str(client)]
    assert set(line["arrived"]) == set(line["cohort"]) - {client}
    assert came.lines[3]["lost"] == {}
    without_one.add((client, came.digest))
    assert len(without_one) == 1
    assert came.digest != state.digest(undisturbed.state.model)


def test_messages_that_come_twice_late_or_in_another_order_change_nothing(run, federation, undisturbed):
    """An answer is known by the message that it answers."""
    held = []

    def meddle(request, ticket, content):
        if request.kind != "train":
            return [(ticket, content)]
        held.append((ticket, content))
        if len(held) < 3:
            return []
        came, held[:] = [*reversed(held), held[0]], []
        return came

    came = run(meddle)
    assert "A message of site_" in came.log
    assert "came that nobody waits for: it was late or sent twice, and is left out" in came.log
    assert [line["lost"] for line in came.lines.values()] == [{}, {}, {}]
    assert came.digest == state.digest(undisturbed.state.model)


def test_an_answer_from_another_site_is_left_out(run):
    """Two sites' answers of round 2 change places."""
    held = {}

    def meddle(request, ticket, content):
        if request.kind != "train" or request.body["round"] != 2 or ticket.site in held:
            return [(ticket, content)]
        held[ticket.site] = ticket, content
        if len(held) == 1:
            return []
        (one, of_one), (other, of_other) = held.values()
        return [(one, of_other), (other, of_one)]

    came = run(meddle)
    assert came.log.count("in the place of client_") >= 2
    assert len(came.lines[2]["lost"]) == 2


def test_a_site_whose_process_is_killed_does_its_work_again(deployed, meddler, job_of, undisturbed, lines_of, tmp_path, caplog):
    data, pilot = load_data(job_of("experiment=digits_gsc", "partition.scale=0.1")), tmp_path / "pilot"
    write_pilot(data, "digits", pilot, 1, queries=["NumSamples"])
    sites, killed = Loopback(clients=[str(pilot / "site_0" / "client.yaml")]), []

    def kill(request, site):
        if request.kind == "train" and request.body["round"] == 2 and not killed:
            killed.append(site)
            os.kill(sites.pids()[site], signal.SIGKILL)

    try:
        there = deployed(*SCAFFOLD, run_dir=tmp_path, transport=meddler(sites, before=kill), folder=pilot)
        for _ in range(3):
            there.run_round()
    finally:
        sites.close()
    assert "the process of site_0 died" in caplog.text
    assert "is sent again" in caplog.text
    assert state.digest(there.state.model) == state.digest(undisturbed.state.model)
    assert [line["lost"] for line in lines_of(there)] == [{}, {}, {}]


def test_a_site_that_is_away_and_back(run, federation, undisturbed):
    def there(connected):
        return {**connected, "site_1": federation.state.round not in (1, 2)}

    came = run(there=there, rounds=4)
    odd = set(range(1, 24, 2))
    assert [bool(odd & set(line["available"])) for line in came.lines.values()] == [True, False, False, True]
    assert came.digest != state.digest(undisturbed.state.model)


def test_nobody_there(run, federation):
    before = federation.state
    with pytest.raises(Shortfall, match="Expected a site that is connected in round 1, but none is"):
        run(there=lambda connected: dict.fromkeys(connected, False))
    assert federation.state is before


@pytest.fixture
def clock(monkeypatch):
    """The engine's clock, which a test may put forward."""
    ahead = SimpleNamespace(seconds=0.0)
    monkeypatch.setattr(exchange_module, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + ahead.seconds))
    return ahead


def test_a_late_update_is_left_out_and_what_its_client_kept_does_not_count(run, clock):
    late = []

    def change(request, ticket, content):
        late.append((ticket, content))
        clock.seconds += 10_000
        return []

    meddle = of_round_two(change)

    def and_later(request, ticket, content):
        extra = []
        if late and request.body.get("round") == 3:
            extra, late[:] = list(late), []
        return [*meddle(request, ticket, content), *extra]

    came = run(and_later)
    client = meddle.seen[1]
    assert came.lines[2]["lost"][str(client)] == "no answer has come within 600 seconds"
    assert "it was late or sent twice" in came.log
    assert int(came.state.memory.get(client, {KEPT: torch.tensor(0)})[KEPT]) != 2
    assert came.lines[3]["lost"] == {}


def test_too_few_updates_leave_the_state_as_it_was_and_the_round_may_be_run_again(run, federation, undisturbed, monkeypatch):
    monkeypatch.setattr(federation.engine, "min_arrivals", 3)
    with pytest.raises(Shortfall, match="Expected updates of 3 clients at least in round 2, but 2 came: go on by resume"):
        run(of_round_two(lambda request, ticket, content: [(ticket, content[:-1])]))
    assert federation.state.round == 1
    federation.engine.begin(0)
    assert run().digest == state.digest(undisturbed.state.model)


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (None, "is away, asked for local_loss: no answer has come within 300 seconds."),
        ("many", "is away: its local_loss is 'many', which is not made of numbers."),
    ],
)
def test_a_client_that_does_not_answer_a_question_is_away_in_the_round(
    value, sentence, deployed, simulated, direct, meddler, clock, lines_of, tmp_path, caplog
):
    def change(request, ticket, content):
        if value is not None:
            return [(ticket, with_body(content, value=value))]
        clock.seconds += 10_000
        return []

    meddle = of_round_two(change, kind="query")
    (tmp_path / "again").mkdir()
    there = deployed("method=pow_d", run_dir=tmp_path, transport=meddler(direct, meddle))
    for _ in range(3):
        there.run_round()
    lines = lines_of(there)
    missing = [sorted(set(range(24)) - set(line["available"])) for line in lines]
    assert missing[0] == missing[2] == []
    assert meddle.seen[1] in missing[1]
    assert f"Round 2: client {meddle.seen[1]} (client_{meddle.seen[1]:02d}) {sentence}" in caplog.text
    again = simulated("method=pow_d", run_dir=tmp_path / "again")
    replay(again, there.callbacks["journal"].file)
    for _ in range(3):
        again.run_round()
    files = [one.callbacks["csv_log"].metrics.file for one in (there, again)]
    rows = [list(csv.DictReader(file.read_text().splitlines())) for file in files]
    came, asked = ([int(row.pop("comm/query_floats_up")) for row in half] for half in rows)
    assert [a - b for a, b in zip(came, asked, strict=True)] == [0, 0 if value is None else 1, 0]  # a bad answer has come too
    for half in rows[0] + rows[1]:
        half.pop("comm/query_floats_down"), half.pop("comm/query_samples")
    assert rows[0] == rows[1]


def test_a_replay_on_other_data_is_refused(deployed, simulated, direct, tmp_path):
    (tmp_path / "again").mkdir()
    there = deployed("method=fedavg", run_dir=tmp_path, transport=direct)
    there.run_round()
    again = simulated("method=fedavg", "partition.scale=0.2", run_dir=tmp_path / "again")
    replay(again, there.callbacks["journal"].file)
    with pytest.raises(Exception, match=r"Expected round 1 to come to the model_digest \w+ of .*, but it comes to"):
        again.run_round()
