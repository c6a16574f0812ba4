"""What one client answers never crashes or ends a run, whatever it is: the client is away in the round, and is counted."""

import json
import math
import random
from dataclasses import replace

import pytest

from fedfacet import state
from fedfacet.deploy.engine import Shortfall
from fedfacet.deploy.journal import replay
from fedfacet.deploy.protocol import Message, pack, unpack
from fedfacet.errors import ConfigError, EngineError

ASKING = (
    "method=pow_d", "selector=size_weighted", "selector=diversity_score aggregator=fedavg", "selector=active_fl",
    "selector=oort", "selector=probe_fairness", "selector=k_fed", "method=fedrk", "method=feddiverse", "method=fairfed",
    "method=fedgft", "method=fedminmax", "method=agnostic", "method=q_fedavg aggregator.q=8",
)  # fmt: skip
ALIKE = ("selector=agnostic", "method=bounded_group_loss", "method=global_reweighing")
"""What asks the same as others."""
LEAVES = (
    None, "x", "1.5", True, {}, {"a": [{}]}, [], math.nan, math.inf, -math.inf, -1, 0, 0.5, 1, 1e-300, 10**400, 10**300, 1e30,
    3.4e38, 2**31 - 1, 2**31, 2**53,
)  # fmt: skip
"""What is put in the place of every number of an answer."""


def each(value, change):
    """Return nested lists, with other numbers."""
    return [each(one, change) for one in value] if isinstance(value, list) else change(value)


CHANGES = {
    **{f"all {str(leaf)[:9]}": lambda value, draw, leaf=leaf: each(value, lambda _: leaf) for leaf in LEAVES},
    **{
        f"some {n}": lambda value, draw: each(value, lambda one: draw.choice([one, one, draw.choice(LEAVES)])) for n in range(4)
    },
    **{f"only {str(leaf)[:9]}": lambda value, draw, leaf=leaf: leaf for leaf in (None, "many", {}, 3, -1, [1], [[]], [[[1]]])},
    "deeper": lambda value, draw: [value],
    "twice": lambda value, draw: [value, value],
    "ragged": lambda value, draw: [value, [value]],
    "shorter": lambda value, draw: value[:-1] if isinstance(value, list) else [],
    "a row short": lambda value, draw: each(value[:1], lambda one: one) if isinstance(value, list) else [value],
    "larger": lambda value, draw: each(value, lambda one: one * 1e9 if isinstance(one, float) else one),
}


def forging(change, of="query", **more):
    """Return a meddling with all answers of the client that is asked first, and the clients that were asked."""
    asked = []

    def meddle(request, ticket, content):
        message = unpack(content, len(content))
        if request.kind != of or message.kind == "refusal":
            return [(ticket, content)]
        asked.append(request.body["client"])
        if asked[-1] != asked[0]:
            return [(ticket, content)]
        forged = {**message.body, "value": change(message.body.get("value")), **more}
        return [(ticket, pack(replace(message, body=forged)))]

    return meddle, asked


@pytest.fixture
def server(deployed, sites_of, pilot, meddler, tmp_path):
    """Return a function: (overrides, meddling) -> a federation of sites in this process."""
    return lambda options, meddle=None: deployed(*options.split(), run_dir=tmp_path, transport=meddler(sites_of(pilot), meddle))


def drawn(options):
    """Nine changes, others for another method."""
    return random.Random(options).sample(sorted(CHANGES), 9)


SHARE = {options: sorted(CHANGES)[number :: len(ASKING)] for number, options in enumerate(ASKING)}
"""Each method's part of all changes."""


@pytest.mark.parametrize(
    ("options", "names", "rounds"),
    [
        *((options, ["only None", *share], 2) for options, share in SHARE.items()),
        *(pytest.param(options, drawn(options), 3, marks=pytest.mark.slow) for options in (*ASKING, *ALIKE)),
    ],
)
def test_rounds_run_whatever_one_client_answers(options, names, rounds, server):
    """Each change meets a method and each method a few changes; ``on_bad_update`` makes no difference."""
    draw, federation = random.Random(options), server(options)
    first, transport = federation.state, federation.engine.exchange.transport
    for number, name in enumerate(names):
        transport.meddle, asked = forging(lambda value, change=CHANGES[name]: change(value, draw))
        federation.on_bad_update = draw.choice(("raise", "drop"))
        federation.restore(replace(first, round=number * rounds))  # or clients would train twice in a round of the run
        federation.engine.begin(number * rounds)
        for _ in range(rounds):
            federation.run_round()
        assert state.all_finite(federation.state.model), name
        assert asked, name


@pytest.mark.parametrize(
    ("options", "value", "bad"),
    [
        ("method=pow_d", [[[1]]], "raise"),
        ("method=feddiverse", [0.0, 1.0], "drop"),
        ("method=agnostic", None, "raise"),
        ("method=fairfed", -1, "drop"),
    ],
)
def test_the_client_is_away_named_and_counted(options, value, bad, server, lines_of, caplog, tmp_path, simulated):
    meddle, asked = forging(lambda _: value)
    federation = server(f"{options} federation.on_bad_update={bad}", meddle)
    for _ in range(3):
        federation.run_round()
    away = asked[0]
    lines = lines_of(federation)
    missing = [set(range(24)) - set(line["available"]) for line in lines]
    assert set().union(*missing) == {away}
    assert all(away not in clients for line in lines for clients in line["answered"].values())
    for line, gone in zip(lines, missing, strict=True):
        sentence = f"Round {line['round']}: client {away} (client_{away:02d}) is away: its "
        said = [one.getMessage() for one in caplog.records if one.getMessage().startswith(sentence)]
        assert len(said) == len(gone)
        assert all(f" is {value}" in one for one in said)
    site = federation.engine.registry.clients[away].site
    assert json.loads((tmp_path / "status.json").read_text())["refused"][site] == {"answer": sum(map(len, missing))}
    (tmp_path / "again").mkdir()
    again = simulated(options, run_dir=tmp_path / "again")
    replay(again, federation.callbacks["journal"].file)
    for _ in range(3):
        again.run_round()  # which compares cohorts and models


def test_so_is_one_whose_costs_are_none(server, lines_of):
    federation, first = server("method=pow_d"), []
    for cost in ({"floats_up": None}, {"samples": -1}, {"floats_up": 1.5}, {"samples": 10**30}, {"samples": [1]}):
        federation.engine.exchange.transport.meddle, asked = forging(lambda value: value, **cost)
        federation.run_round()
        first.append({asked[0]})
    assert [set(range(24)) - set(line["available"]) for line in lines_of(federation)] == first


def test_where_nobody_answers_well_the_run_stops_with_a_sentence(server):
    def meddle(request, ticket, content):
        message = unpack(content, len(content))
        forged = {**message.body, "value": "x"}
        return [(ticket, pack(replace(message, body=forged)) if message.kind == "answer" else content)]

    federation = server("method=pow_d", meddle)
    with pytest.raises(Shortfall, match="an answer that counts in round 1, but 24 clients are away without one"):
        federation.run_round()
    assert federation.state.round == 0


@pytest.mark.parametrize("round", [1, 2])
def test_a_sites_policy_ends_no_run_that_has_begun(round, server, lines_of, tmp_path, caplog):
    refused = []

    def meddle(request, ticket, content):
        if request.kind != "query" or request.body["round"] != round or refused not in ([], [request.body["client"]]):
            return [(ticket, content)]
        refused[:] = [request.body["client"]]
        message = unpack(content, len(content))
        body = {"code": "policy", "sentence": "no longer", "answers": message.body["answers"]}
        return [(ticket, pack(Message("refusal", message.run, body)))]

    federation = server("method=pow_d", meddle)
    if round == 1:
        with pytest.raises(EngineError, match=r"to answer, but site_\d refuses \(policy\): no longer: choose another method"):
            federation.run_round()
        return
    for _ in range(3):
        federation.run_round()
    missing = [set(range(24)) - set(line["available"]) for line in lines_of(federation)]
    assert missing == [set(), set(refused), set()]
    assert f"Round 2: client {refused[0]} (client_{refused[0]:02d}) is away, asked for local_loss: site_" in caplog.text
    site = federation.engine.registry.clients[refused[0]].site
    assert json.loads((tmp_path / "status.json").read_text())["refused"][site] == {"policy": 1}


def test_a_refusals_words_are_shown_escaped_and_shortened(server, tmp_path, caplog):
    federation = server("method=fedavg")
    for words in ("\x1b[31mred", "\u202eback", "two\nlines", "\ud800", "x" * 5000, ["no", {"a": 1}]):
        refused = []

        def meddle(request, ticket, content, words=words, refused=refused):
            if request.kind != "train" or refused not in ([], [request.body["client"]]):
                return [(ticket, content)]
            refused[:] = [request.body["client"]]
            answers = unpack(content, len(content)).body["answers"]
            return [(ticket, pack(Message("refusal", request.run, {"code": words, "sentence": words, "answers": answers})))]

        caplog.clear()
        federation.engine.exchange.transport.meddle = meddle
        federation.run_round()
        assert list(federation.engine.record.lost) == refused != []
        assert json.loads((tmp_path / "status.json").read_text())["lost"]
        said = [record.getMessage() for record in caplog.records if "refuses" in record.getMessage()]
        assert said
        assert all(one.isprintable() and len(one) < 2000 for one in said)
    assert federation.state.round == 6


@pytest.mark.parametrize("where", ["torch", "device"])
def test_a_hello_whose_words_a_terminal_would_obey_is_none(where, server):
    exchange = server("method=fedavg").engine.exchange
    for words in ("\x1b[31mred", "\u202eback", "two\nlines", "x" * 5000):

        def meddle(request, ticket, content, words=words):
            message = unpack(content, len(content))
            told = {"device": words} if where == "device" else {"versions": {**message.body["versions"], where: words}}
            return [(ticket, pack(Message("hello", message.run, {**message.body, **told})))]

        exchange.transport.meddle = meddle
        exchange.present.clear()
        with pytest.raises(ConfigError, match="its hello says something else"):
            exchange.greet()
