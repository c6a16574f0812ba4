"""``status.json`` and ``metrics.prom`` of a run, which a stranger's programs read."""

import json
import math
import re
import time
from types import SimpleNamespace

import pytest

from fedfacet.deploy import exchange
from fedfacet.deploy.status import prometheus_text

NAME, LABEL = r"[a-zA-Z_:][a-zA-Z0-9_:]*", r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
SAMPLE = re.compile(rf"({NAME})(?:\{{({LABEL}(?:,{LABEL})*)\}})? (NaN|[+-]Inf|-?[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)")


def parsed(text):
    """Read Prometheus' text format, version 0.0.4: HELP, TYPE, then the metric's samples, each once, a line feed at the end."""
    assert text.endswith("\n")
    found, told, kinds = {}, None, {}
    for line in text[:-1].split("\n"):
        if line.startswith("# HELP "):
            told = re.fullmatch(rf"# HELP ({NAME}) ([^\\]+)", line)[1]
            assert told not in kinds
        elif line.startswith("# TYPE "):
            name, kinds[name] = re.fullmatch(rf"# TYPE ({NAME}) (gauge|counter)", line).groups()
            assert name == told
        else:
            name, labels, value = SAMPLE.fullmatch(line).groups()
            assert name == told, "samples of a metric stand together, behind its HELP and TYPE"
            assert kinds[name] == "gauge" or (name.endswith("_total") and float(value) >= 0)
            key = name, tuple(sorted(re.findall(rf"{LABEL}", labels or "")))
            assert key not in found
            found[key] = float(value)
    return found


def test_names_of_sites_and_odd_numbers_are_written_as_the_format_has_it():
    odd = 'a "b"\\c\nd{e="f"},'
    text = prometheus_text([("site", "gauge", "A.", [({"site": odd, "x": ""}, math.nan), ({}, -math.inf), ({"x": "1"}, 1e-9)])])
    ((_, labels), value), *others = parsed(text).items()
    said = labels[0].removeprefix('site="')[:-1]
    assert re.sub(r"\\(.)", lambda m: {"n": "\n"}.get(m[1], m[1]), said) == odd
    assert math.isnan(value)
    assert [number for _, number in others] == [-math.inf, 1e-9]


@pytest.fixture
def meddle():
    """Drops a byte of client 0's update of round 2, and has client 1 be late in it."""

    def change(request, ticket, content):
        if request.kind != "train" or request.body["round"] != 2 or request.body["client"] > 1:
            return [(ticket, content)]
        return [(ticket, content[:-1])] if request.body["client"] == 0 else []

    return change


def test_a_round_is_told_in_both_files(sites_of, pilot, deployed, meddler, meddle, monkeypatch, tmp_path):
    transport = meddler(sites_of(pilot), meddle)
    waited, poll = [], transport.poll

    def poll_and_wait(seconds):
        """Have a second pass where nothing has come."""
        came = poll(seconds)
        waited.extend([] if came else [1])
        return came

    transport.poll = poll_and_wait
    monkeypatch.setattr(exchange, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + len(waited)))
    run = deployed("selector=all", "aggregator=fedavg", "sites.deadline_seconds=20", run_dir=tmp_path, transport=transport)
    for round in (1, 2):
        result = run.run_round()
        status = json.loads((tmp_path / "status.json").read_text())
        prom = parsed((tmp_path / "metrics.prom").read_text())
        assert not list(tmp_path.glob("*.part"))
        assert status["round"] == prom["fedfacet_round", ()] == round
        assert status["arrived"] == list(result.arrived)
        assert status["metrics"] == {name: None if math.isnan(value) else value for name, value in result.metrics.items()}
        told = {name: prom["fedfacet_metric", (f'name="{name}"',)] for name in result.metrics}
        assert told == pytest.approx(result.metrics, nan_ok=True)
    assert set(status["lost"]) == {"0", "1"}
    assert status["connected"] == {"site_0": True, "site_1": True}
    assert prom["fedfacet_site_connected", ('site="site_1"',)] == 1
    assert prom["fedfacet_late_total", ('site="site_1"',)] == 1
    assert prom["fedfacet_late_total", ('site="site_0"',)] == 0
    assert prom["fedfacet_refused_total", ('code="answer"', 'site="site_0"')] == 1
    assert prom["fedfacet_clients", ('what="arrived"',)] == 22
    assert 0 < prom["fedfacet_update_seconds", ('site="site_0"',)] < 20
    floats = 2 * result.metrics["comm/floats_down"] / 24
    down = prom["fedfacet_letter_bytes_total", ('direction="down"', 'site="site_0"')]
    assert down == status["bytes"]["site_0"]["down"]
    assert 4 * floats < down < 4 * floats + 40_000  # a model a round, and what messages have besides
