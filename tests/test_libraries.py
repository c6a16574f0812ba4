"""Loading torch and lightning without a search for garbage."""

import subprocess
import sys

import pytest

PROGRAM = """
import gc, sys, weakref
gc.{before}()
import fedfacet.libraries
loaded = gc.isenabled(), {{"torch", "lightning"}} <= set(sys.modules), gc.get_freeze_count() > 100_000
class Node: pass
node = Node()
node.itself, seen = node, weakref.ref(node)
del node
gc.collect()
print(*loaded, seen())
"""


DRAWN = """
import {first}, sys, torch
print(sorted({{"matplotlib", "transformers", "torchvision", "scipy.signal", "sklearn"}} & set(sys.modules)))
import lightning, torchmetrics
metrics = [lightning.pytorch.core.module.Metric, torchmetrics.Metric]
mean = torchmetrics.MeanMetric()
mean.update(1.0)
from torchmetrics.classification import BinaryROC
curve = BinaryROC()
curve.update(torch.tensor([0.2, 0.8]), torch.tensor([0, 1]))
print(*(type(part).__name__ for metric in (mean, curve) for part in metric.plot()))
print([issubclass(BinaryROC, metric) and isinstance(mean, metric) for metric in metrics])
"""
OFFERED = """
from torchmetrics import *
print(sorted(torchmetrics.__all__), sorted(vars(torchmetrics)), Accuracy is torchmetrics.classification.Accuracy)
for part in ("text", "image", "audio", "functional", "utilities.imports"):
    module = __import__(f"torchmetrics.{part}", fromlist=["__all__"])
    found = {name: bool(value) for name, value in vars(module).items() if name.endswith("_AVAILABLE")}
    print(part, sorted(getattr(module, "__all__", ())), found)
"""


def said(program, checkout):
    command = [sys.executable, "-c", program]
    return subprocess.run(command, cwd=checkout / "src", capture_output=True, text=True, check=True).stdout.splitlines()


def test_what_they_leave_is_exempt_and_the_collector_is_as_it_was(checkout):
    """It searches what comes later."""
    assert said(PROGRAM.format(before="enable"), checkout) == ["True True True None"]


@pytest.mark.slow
def test_where_the_collector_was_off_it_stays_off_and_metrics_load_what_they_are_asked_for(checkout):
    """In one interpreter, which takes seconds to start."""
    of_collector, *of_metrics = said(PROGRAM.format(before="disable") + DRAWN.format(first="fedfacet.libraries"), checkout)
    assert of_collector == "False True True None"
    assert of_metrics == ["[]", "Figure Axes Figure Axes", "[True, True]"]


@pytest.mark.slow
def test_torchmetrics_offers_what_it_offers_without_us(checkout):
    """Which packages it finds, and which metrics it has for that."""
    ours, usual = (said(DRAWN.format(first=first) + OFFERED, checkout) for first in ("fedfacet.libraries", "lightning"))
    assert ours[1:] == usual[1:]
