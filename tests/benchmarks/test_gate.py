"""What the gate says of what it has measured; it measures by ``engines.py``, which has tests of its own."""

import json
import sys

import pytest


@pytest.fixture
def gate(checkout, monkeypatch):
    monkeypatch.syspath_prepend(checkout / "benchmarks")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for name in ("gate", "engines"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import gate

    return gate


def measuring(gate, monkeypatch, *measured):
    """Have the gate measure these ratios of the sequential engine, one after another."""
    left = iter(measured)
    monkeypatch.setattr(gate, "ratios", lambda workload, repeats: {"sequential": next(left), "vectorized": 0.2})


def test_what_is_slower_twice_is_named_with_status_1(gate, monkeypatch, tmp_path, capsys):
    record = tmp_path / "gate.json"
    compared = ["--workloads", "W3", "--results", str(record)]
    measuring(gate, monkeypatch, 0.9)
    gate.main(["--record", *compared])
    assert {"commit", "hardware", "versions"} <= json.loads(record.read_text()).keys()
    for measured, status, said in (
        ([0.95], 0, "0.950 of the bare loop, 0.900 recorded\n"),
        ([1.1, 0.91], 0, "0.910 of the bare loop, 0.900 recorded\n"),
        ([1.1, 1.05], 1, "1.050 of the bare loop, 0.900 recorded  SLOWER\n"),
    ):
        measuring(gate, monkeypatch, *measured)
        with pytest.raises(SystemExit) as left:
            gate.main(compared)
        assert left.value.code == status
        assert f"W3 sequential {said}" in capsys.readouterr().out


def test_without_a_record_nothing_is_measured(gate, tmp_path, capsys):
    with pytest.raises(SystemExit) as left:
        gate.main(["--results", str(tmp_path / "none.json")])
    assert left.value.code == 2
    assert "none.json has no ratios of W1, W3: record some by --record" in capsys.readouterr().err
