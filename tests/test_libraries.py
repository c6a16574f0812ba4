"""Loading torch and lightning without a search for garbage."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("before", ["enable", "disable"])
def test_what_they_leave_is_exempt_and_the_collector_as_it_was(before, checkout):
    program = (
        f"import gc, sys; gc.{before}(); import fedfacet.libraries;"
        "print(gc.isenabled(), {'torch', 'lightning'} <= set(sys.modules), gc.get_freeze_count() > 100_000)"
    )
    said = subprocess.run([sys.executable, "-c", program], cwd=checkout / "src", capture_output=True, text=True, check=True)
    assert said.stdout.split() == [str(before == "enable"), "True", "True"]


def test_searching_goes_on_over_what_comes_later(checkout):
    program = (
        "import fedfacet.libraries, gc, weakref\n"
        "class Node: pass\n"
        "node = Node(); node.itself = node; seen = weakref.ref(node); del node; gc.collect(); print(seen())"
    )
    said = subprocess.run([sys.executable, "-c", program], cwd=checkout / "src", capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "None"
