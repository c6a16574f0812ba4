"""Loading torch and lightning without a search for garbage."""

import subprocess
import sys

import pytest

PROGRAM = """
import gc, sys, weakref
gc.{before}()
import fedfacet.libraries
print(gc.isenabled(), {{"torch", "lightning"}} <= set(sys.modules), gc.get_freeze_count() > 100_000)
class Node: pass
node = Node()
node.itself, seen = node, weakref.ref(node)
del node
gc.collect()
print(seen())
"""


@pytest.mark.parametrize("before", ["enable", pytest.param("disable", marks=pytest.mark.slow)])
def test_what_they_leave_is_exempt_the_collector_is_as_it_was_and_searches_what_comes_later(before, checkout):
    command = [sys.executable, "-c", PROGRAM.format(before=before)]
    said = subprocess.run(command, cwd=checkout / "src", capture_output=True, text=True, check=True)
    assert said.stdout.split() == [str(before == "enable"), "True", "True", "None"]
