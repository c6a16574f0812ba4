"""The timing of a large population as it is started from a shell; what it measures is nobody's business here."""

import json
import statistics
import subprocess
import sys

import pytest


@pytest.mark.slow
def test_a_smoke_run_prints_each_selector_and_saves_where_the_numbers_come_from(checkout, tmp_path):
    command = [sys.executable, str(checkout / "benchmarks" / "population.py")]
    sizes = ("--clients", "30", "--cohort", "5", "--candidates", "10", "--rounds", "3")
    result = subprocess.run(
        [*command, *sizes, "--save", "smoke", "--results", tmp_path], capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stderr
    saved = json.loads((tmp_path / "smoke.json").read_text())
    assert {"date", "command", "commit", "hardware", "versions"} <= set(saved)
    assert saved["hardware"]["cpus"] >= 1
    assert {"python", "torch", "fedfacet"} <= set(saved["versions"])
    assert (saved["clients"], saved["cohort"], saved["candidates"], saved["rounds"], saved["threads"]) == (30, 5, 10, 3, 1)
    written = (tmp_path / "smoke.md").read_text()
    assert saved["commit"] in written
    assert {"PowDSelector", "FedPNSSelector"} <= set(saved["selectors"])
    for name, one in saved["selectors"].items():
        assert len(one["rounds"]) == len(one["rounds_selecting"]) == 3
        assert one["milliseconds"] == statistics.median(one["rounds"])
        assert one["longest"] == max(one["rounds"]) > 0
        assert f"{name}: {one['milliseconds']:.1f} ms a round" in result.stdout
        assert f"\n| {name} | {one['milliseconds']:.1f} |" in written
