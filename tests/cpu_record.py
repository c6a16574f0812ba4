"""What each test costs: a plugin that records CPU seconds, own and of child processes, and a check against what is recorded.

``pytest --cpu-record=FILE`` writes a csv with a row per test, the dearest first, and says the sum and the ten dearest. Seconds
of several machines, and of a busy one, differ; a reference task is therefore measured among the tests, and a test's cost is
also told in thousandths of it (``cost``). What tests share, fixtures of a session, a package or a module, has a row of its own,
or the first test that wants one would pay for it. ``python tests/cpu_record.py FILE`` fails where the sum of a whole suite is
more than 5 % above ``tests/cpu_recorded.json``, or where a test that is not slow takes more than 5 s of CPU on the machine that
recorded it. ``--record`` writes that file anew, to be committed with the change that makes tests dearer.
"""

import argparse
import contextlib
import csv
import json
import os
import resource
import statistics
import sys
import time
from collections import defaultdict
from pathlib import Path

import pytest

RECORDED = Path(__file__).with_name("cpu_recorded.json")
MOST_GROWTH, MOST_SECONDS = 1.05, 5.0
OVERHEAD, SHARED = "(start and collection)", "(fixtures that tests share)"
_EVERY = 20.0  # CPU seconds between two measurements of the reference task


def cpu_seconds():
    """Return the CPU seconds of this process, of its children that are gone, and of its descendants that are not."""
    gone = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + gone.ru_utime + gone.ru_stime + sum(map(_of_process, _children(os.getpid())))


def _children(pid):
    children = []
    for thread in Path(f"/proc/{pid}/task").glob("*"):  # none where the process is gone, or this is no Linux
        with contextlib.suppress(OSError):  # this thread is gone
            children += (thread / "children").read_text().split()
    return children


def _of_process(pid):
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK") + sum(map(_of_process, _children(pid)))


def reference_seconds():
    """Return the CPU seconds of a task that is the same for ever: text, tables and small tensors, as tests have them."""
    import torch

    began = time.process_time()
    table = {f"key {number}": [number, str(number), {"value": number / 7}] for number in range(200)}
    image, kernel = torch.ones(4, 3, 16, 16), torch.ones(8, 3, 3, 3, requires_grad=True)
    for _ in range(40):
        table = json.loads(json.dumps(table, sort_keys=True))
        sorted(table, key=lambda key: table[key][1])
        torch.nn.functional.conv2d(image, kernel).square().mean().backward()
    return time.process_time() - began


class CpuRecord:
    """The plugin. With xdist every worker measures; the process that starts them adds up."""

    def __init__(self, config):
        self.config, self.file = config, config.getoption("cpu_record")
        self.last, self.references, self.next_reference = 0.0, [], 0.0
        self.seconds, self.overhead = defaultdict(float), 0.0
        self.shared = 0.0  # what shared fixtures took since the last report

    def pytest_runtestloop(self):
        """Count what came before the first test, but not among its cost."""
        self.last = cpu_seconds()
        self.overhead += self.last

    def pytest_runtest_logstart(self):
        """Measure the reference task from time to time."""
        if self.last >= self.next_reference:
            self.references.append(reference_seconds())
            self.last = cpu_seconds()
            self.next_reference = self.last + _EVERY

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef):
        """Book what making a shared fixture takes apart from the test that wants it first."""
        if fixturedef.scope in ("function", "class"):
            return (yield)
        began, before = cpu_seconds(), self.shared  # a fixture may want another one
        try:
            return (yield)
        finally:
            self.shared = before + cpu_seconds() - began

    def pytest_runtest_makereport(self, item, call):
        """Book what passed since the last report to this phase of this test."""
        now = cpu_seconds()
        item.user_properties = [("cpu", now - self.last - self.shared), ("shared", self.shared)]
        self.last, self.shared = now, 0.0

    def pytest_runtest_logreport(self, report):
        """Add up the phases of each test."""
        booked = dict(report.user_properties)
        self.seconds[report.nodeid] += booked.get("cpu", 0.0)
        self.seconds[SHARED] += booked.get("shared", 0.0)

    def pytest_sessionfinish(self):
        """Hand a worker's measurements to the process that has started it."""
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput["cpu"] = [self.overhead, self.references]

    def pytest_testnodedown(self, node):
        """Take a worker's measurements."""
        overhead, references = getattr(node, "workeroutput", {}).get("cpu", [0.0, []])
        self.overhead += overhead
        self.references += references

    def pytest_terminal_summary(self, terminalreporter):
        """Write the record, and say what was dear."""
        if hasattr(self.config, "workeroutput") or not (self.seconds and self.references):
            return
        unit = statistics.median(self.references) / 1000
        rows = sorted([*self.seconds.items(), (OVERHEAD, self.overhead)], key=lambda row: -row[1])
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["test", "seconds", "cost"])
            writer.writerows([name, f"{seconds:.3f}", f"{seconds / unit:.0f}"] for name, seconds in rows)
        terminalreporter.section("CPU")
        total = sum(self.seconds.values()) + self.overhead
        terminalreporter.line(f"{total:.0f} s of CPU, {self.overhead:.0f} s of it to start and collect; all in {self.file}")
        for name, seconds in [row for row in rows if row[0] not in (OVERHEAD, SHARED)][:10]:
            terminalreporter.line(f"{seconds:6.1f} s  {name}")


def main():
    """Compare a record with what is recorded, or record it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path, help="what --cpu-record has written of a whole suite")
    parser.add_argument("--record", action="store_true", help=f"write {RECORDED.name}")
    arguments = parser.parse_args()
    with arguments.file.open(encoding="utf-8", newline="") as file:
        rows = {row["test"]: (float(row["seconds"]), float(row["cost"])) for row in csv.DictReader(file)}
    seconds, cost = (sum(column) for column in zip(*rows.values(), strict=True))
    tests = len(rows.keys() - {OVERHEAD, SHARED})
    if arguments.record:
        recorded = {"tests": tests, "cost": round(cost), "cost_of_a_second": round(cost / seconds, 2)}
        RECORDED.write_text(json.dumps(recorded, indent=2) + "\n", encoding="utf-8")
        return 0
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    grown, limit = cost / recorded["cost"], MOST_SECONDS * recorded["cost_of_a_second"]
    dear = [name for name, (_, one) in rows.items() if one > limit and name not in (OVERHEAD, SHARED)]
    print(f"The suite costs {grown:.2f} of what is recorded: {tests} tests, {recorded['tests']} then; {seconds:.0f} s.")
    if grown > MOST_GROWTH:
        print(f"Make tests cheaper, or commit `python tests/cpu_record.py {arguments.file} --record` and say why.")
    for name in dear:
        print(f"{name} takes {rows[name][0]:.1f} s of CPU: make it cheaper, or mark it `slow`.")
    return int(grown > MOST_GROWTH or bool(dear))


if __name__ == "__main__":
    sys.exit(main())
