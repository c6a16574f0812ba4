"""How many calls a round makes, which no noise can change, unlike the time that it takes. Who adds some has to say why here."""

import sys
from collections import Counter

import pytest

from fedfacet.build import build
from fedfacet.config import compose_job
from fedfacet.mechanism import hooks


class Calls:
    """Counts calls of Python functions and of C functions in a block, by this thread."""

    def __enter__(self):
        self.of = Counter()
        sys.setprofile(self._look)
        return self

    def __exit__(self, *error):
        sys.setprofile(None)

    def _look(self, frame, event, argument):
        if event == "call":
            self.of[frame.f_code.co_qualname] += 1
        elif event == "c_call":
            self.of[argument.__qualname__] += 1


@pytest.mark.parametrize(("workload", "most"), [("w3", 300), ("w1", 402)])
def test_a_round_makes_no_more_calls_for_a_step(workload, most, checkout, monkeypatch, tmp_path):
    """With everything that a round takes: each of W3's 200 clients takes one step, and each of W1's nine takes eight."""
    monkeypatch.syspath_prepend(checkout / "benchmarks")
    folder = f"hydra.searchpath=['file://{checkout / 'benchmarks' / 'conf'}']"
    job, _ = compose_job("train", [folder, f"experiment={workload}", "engine=sequential", "engine.device=cpu", "threads=1"])
    federation = build(job, tmp_path)
    for start in hooks(federation.mechanisms, "start"):
        start(federation)
    for _ in range(2):  # what is made once in a run is made by then
        federation.run_round()
    with Calls() as calls:
        result = federation.run_round()
    for end in hooks(federation.mechanisms, "end"):
        end(federation, "finished")
    per_step = {name: number / result.metrics["train/num_steps"] for name, number in calls.of.most_common()}
    told = "\n".join(f"{number:8.2f} {name}" for name, number in per_step.items() if number >= 0.5)
    assert 0.8 * most < sum(per_step.values()) <= most, f"{sum(per_step.values())} calls for a step:\n{told}"
