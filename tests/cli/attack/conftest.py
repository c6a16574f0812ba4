"""Attacks, drawn by a seed: ``make attack SEED=7``. Each ends in what it should or is a failure, and all are counted."""

import contextlib
import os
import random
import re
import signal
import textwrap
import traceback
from collections import Counter

import pytest

from fedfacet.errors import FedFacetError

SEED = os.environ.get("ATTACK_SEED", "0")
SECONDS = 120
"""An attack that takes longer hangs."""

_counts = {}


def pytest_runtest_logreport(report):
    """Add up what the tests of all processes have counted."""
    if report.when == "teardown":
        for name, counts in (value for key, value in report.user_properties if key == "attack"):
            _counts.setdefault(name, Counter()).update(counts)


def pytest_terminal_summary(terminalreporter):
    if not _counts:
        return
    terminalreporter.section(f"attacks with seed {SEED}")
    for name, counts in sorted(_counts.items()):
        told = ", ".join(f"{number} {outcome}" for outcome, number in sorted(counts.items()))
        terminalreporter.write_line(f"{name}: {sum(counts.values())} ({told})")


@pytest.fixture
def draw(request):
    """The random numbers of a test."""
    return random.Random(f"{SEED} {request.node.name}")


@pytest.fixture
def attack(request, record_property):
    """Return a context for one attack after another: a refusal in one sentence is counted, whatever else is raised is a fault.

    The block calls the function that it is given with what came out where nothing was refused. The test fails in the end, with
    all faults.
    """
    counts, faults, name = Counter(), [], request.node.originalname.removeprefix("test_")

    def hanging(*_):
        raise TimeoutError(f"it hangs for {SECONDS} s")

    @contextlib.contextmanager
    def attack(told, refusals=(FedFacetError,)):
        before = signal.signal(signal.SIGALRM, hanging)
        signal.alarm(SECONDS)
        came = []
        try:
            yield came.append
        except refusals as refusal:
            came.append("refused")
            if not re.fullmatch("Expected [^\n]+", str(refusal)):
                faults.append(f"{told}: {refusal}")
        except (Exception, SystemExit):
            faults.append(f"{told}:\n{textwrap.indent(traceback.format_exc(limit=-4), '    ')}")
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)
        counts[came[-1] if came else "fault"] += 1

    yield attack
    record_property("attack", [name, dict(counts)])
    if faults:
        pytest.fail(f"{len(faults)} faults:\n" + "\n".join(faults), pytrace=False)
