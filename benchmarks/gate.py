"""Whether a change has made rounds slower, to be run before it lands: ``python benchmarks/gate.py``.

It plays W1 and W3 beside the bare loop in one run, each on one thread, and compares their CPU seconds with the ratios in
``results/gate.json``. Other programs change CPU seconds less than seconds, and the best of several blocks least. What seems
slower is measured again, and counts where it is slower both times. The status is 1 if anything is.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # inherited by all that is started

import engines
from provenance import provenance

RECORD = Path(__file__).parent / "results" / "gate.json"
CONTENDERS = ("sequential", "vectorized")
ROUNDS = {"W1": 4, "W3": 20}
"""In a block: about a second of the bare loop."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and compare or record."""
    parser = argparse.ArgumentParser(description="Compare W1 and W3 with the recorded ratios to the bare loop's CPU seconds.")
    parser.add_argument("--workloads", nargs="+", choices=list(ROUNDS), default=list(ROUNDS), metavar="W", help="W1, W3")
    parser.add_argument("--repeats", type=int, default=7, help="blocks of each contender (default 7)")
    parser.add_argument("--margin", type=float, default=0.07, help="what counts as noise (default 0.07)")
    parser.add_argument("--record", action="store_true", help=f"write {RECORD.name} instead, on a machine that is quiet")
    parser.add_argument("--results", type=Path, default=RECORD, metavar="FILE", help="the record (default results/gate.json)")
    options = parser.parse_args(arguments)
    load = round(os.getloadavg()[0], 2)
    known = json.loads(options.results.read_text())["ratios"] if options.results.is_file() else {}
    if not options.record and (unknown := [workload for workload in options.workloads if workload not in known]):
        parser.error(f"{options.results} has no ratios of {', '.join(unknown)}: record some by --record")
    measured = {workload: ratios(workload, options.repeats) for workload in options.workloads}
    if options.record:
        facts = provenance("gate", ["python", "benchmarks/gate.py", *sys.argv[1:]], load=load)
        options.results.write_text(json.dumps({**facts, "ratios": known | measured}, indent=1) + "\n")
        print(f"written: {options.results}")
        return
    slower = []
    for workload, of_workload in measured.items():
        if seems := above(of_workload, known[workload], options.margin):
            engines.say(f"{workload}: {', '.join(seems)} again")
            again = ratios(workload, options.repeats)
            of_workload |= {name: min(ratio, again[name]) for name, ratio in of_workload.items()}
        for name, ratio in of_workload.items():
            is_slower = name in above(of_workload, known[workload], options.margin)
            slower += [name] * is_slower
            verdict = "  SLOWER" if is_slower else ""
            print(f"{workload} {name:10} {ratio:.3f} of the bare loop, {known[workload][name]:.3f} recorded{verdict}")
    sys.exit(1 if slower else 0)


def ratios(workload: str, repeats: int) -> dict[str, float]:
    """Return each contender's CPU seconds divided by the bare loop's, each in its best block."""
    numbers = ["--rounds", str(ROUNDS[workload]), "--repeats", str(repeats)]
    options = engines.parse(["--workloads", workload, "--contenders", engines.YARDSTICK, *CONTENDERS, *numbers])
    recipes = list(map(engines.own_recipe(options), options.contenders))
    results = engines.alternate(options, recipes, workload)
    if failed := [f"{name} failed: {one.failure}" for name, one in results.items() if one.failure is not None]:
        sys.exit("\n".join(failed))
    seconds = {name: min(one.core_seconds) for name, one in results.items()}
    return {name: round(seconds[name] / seconds[engines.YARDSTICK], 3) for name in CONTENDERS}


def above(ratios: dict[str, float], known: dict[str, float], margin: float) -> list[str]:
    """Return what is slower than it was, beyond what is noise."""
    return [name for name, ratio in ratios.items() if not ratio <= known[name] * (1 + margin)]


if __name__ == "__main__":
    main()
