"""What a run of very many clients costs, in CPU seconds and memory: ``python benchmarks/crowd.py``.

Real runs of ``train.py``, checkpoints, pictures and all, and ``report.py`` on them; one process each, so that peaks of memory
are theirs alone.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from provenance import provenance

SRC = Path(__file__).parents[1] / "src"
METHODS: dict[str, Sequence[str]] = {
    "uniform": ["method=uniform"],
    "poisson": ["method=uniform", "selector=poisson"],
    "round_robin": ["method=round_robin"],
    "pow_d": ["method=pow_d", "selector.num_candidates=200", "participation=check_in"],
    "pow_d_of_all": ["method=pow_d", "selector.num_candidates=200"],
    "feddiverse": ["method=feddiverse", "heterogeneity='true'", "participation=check_in"],
    "dp_fedavg": ["method=dp_fedavg"],
}


def main() -> None:
    """Print a line per number of clients and method; save them if asked to."""
    parser = argparse.ArgumentParser(description="What a run of very many clients costs.")
    parser.add_argument("--clients", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--cohort", type=int, default=100)
    parser.add_argument("--save", metavar="NAME", help="write NAME.json into --results, and its table into population.md there")
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results", metavar="DIR")
    parser.add_argument("--write", help=argparse.SUPPRESS)  # a child does, or its memory would count as that of later ones
    parser.add_argument("--inside", nargs="+", help=argparse.SUPPRESS)  # the overrides of one run, measured from within
    options = parser.parse_args()
    if options.inside:
        print(json.dumps(inside(options.inside)))
        return
    if options.write:
        write_data(Path(options.write) / f"{options.clients[0]}.npz", options.clients[0])
        return
    load = round(os.getloadavg()[0], 2)
    measured: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(dir=os.environ.get("FEDFACET_CROWD")) as folder:
        for number in options.clients:
            called(["benchmarks/crowd.py", "--write", folder, "--clients", str(number)])
            for method in options.methods:
                one = measure(Path(folder), number, method, options)
                measured[f"{number} {method}"] = one
                print(f"{number} {method}: {json.dumps(one)}", flush=True)
                if options.save:  # after each, since all take an hour
                    save(measured, options, load)
    if options.save:
        from population import page  # which loads torch: this process's memory would count as that of its children

        (options.results / "population.md").write_text(page(options.results))


def save(measured: dict[str, dict[str, Any]], options: argparse.Namespace, load: float) -> None:
    """Write what has been measured."""
    facts = provenance(options.save, ["python", "benchmarks/crowd.py", *sys.argv[1:]], load=load)
    content = {**facts, "cohort": options.cohort, "rounds": options.rounds, "runs": measured}
    (options.results / f"{options.save}.json").write_text(json.dumps(content, indent=1) + "\n")


def write_data(file: Path, number: int) -> None:
    """Write 1.5 samples of four numbers for each client, in four classes and two attribute values."""
    draw = np.random.default_rng(0)
    size = number * 3 // 2 + 4000  # and some that validate
    x = draw.normal(size=(size, 4)).astype(np.float32)
    y, a = draw.integers(4, size=size), draw.integers(2, size=size)
    test = slice(0, 2000)
    np.savez(file, x=x, y=y, a=a, x_test=x[test] + 1, y_test=y[test], a_test=a[test])


def measure(folder: Path, number: int, method: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the costs of a run from within, and for the first method those of resuming it and of reports on it."""
    run = folder / f"{number}_{method}"
    data = ["dataset=npz", f"dataset.root={folder}", f"dataset.file={number}.npz", "partition=iid", "model=mlp"]
    overrides = [*data, f"partition.num_clients={number}", "model.hidden=[16]", *METHODS[method], "where_present={}"]
    overrides += [f"federation.cohort_size={options.cohort}", f"federation.rounds={options.rounds}", "threads=1"]
    overrides += [f"paths.output_dir={run}"]
    ended, whole = called(["benchmarks/crowd.py", "--inside", *overrides])
    found = {**json.loads(ended.splitlines()[-1]), "whole": whole["cpu"], "peak_mb": whole["peak_mb"]}
    files = [file for file in run.rglob("*") if file.is_file()]
    found["folder_mb"] = sum(file.stat().st_size for file in files) / 1e6
    found["checkpoint_mb"] = (run / "checkpoints" / "last.ckpt").stat().st_size / 1e6
    if method != options.methods[0]:  # what follows depends on the number of clients
        return found
    resumed = ["src/train.py", f"resume={run}", f"federation.rounds={options.rounds + 2}"]
    found["resume"] = called(resumed)[1]
    found["table"] = called(["src/report.py", str(run)])[1]
    found["page"] = called(["src/report.py", str(run), "--html", str(folder / "page.html")])[1]
    found["selection"] = called(["src/report.py", str(run), "--selection"])[1]
    return found


def called(words: Sequence[str]) -> tuple[str, dict[str, float]]:
    """Run a script of ours; return what it printed, and its CPU seconds and peak memory."""
    environment = {**os.environ, "PYTHONPATH": str(SRC)}
    with tempfile.TemporaryFile() as told:
        process = subprocess.Popen([sys.executable, *words], cwd=SRC.parent, stdout=told, stderr=told, env=environment)
        _, status, used = os.wait4(process.pid, 0)
        told.seek(0)
        text = told.read().decode()
    if status:
        raise SystemExit(f"{' '.join(words)} failed:\n{text[-3000:]}")
    return text, {"cpu": used.ru_utime + used.ru_stime, "peak_mb": used.ru_maxrss / 1024}


def inside(overrides: Sequence[str]) -> dict[str, Any]:
    """Run a job in this process, and say what its parts took of the CPU."""
    sys.path.insert(0, str(SRC))
    from fedfacet import config as configuration
    from fedfacet.callbacks.save_checkpoint import SaveCheckpoint
    from fedfacet.callbacks.summary import Summary
    from fedfacet.plots.figures import Figures
    from fedfacet.runs.job import Job
    from fedfacet.runs.jobs import check
    from fedfacet.runs.open_run import open_run

    libraries = time.process_time()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    seconds: Counter[str] = Counter()
    calls: Counter[str] = Counter()

    def timed(owner: type, name: str, part: str) -> None:
        plain: Callable[..., Any] = getattr(owner, name)

        def call(*arguments: Any, **named: Any) -> Any:
            began = time.thread_time()
            try:
                return plain(*arguments, **named)
            finally:
                seconds[part] += time.thread_time() - began
                calls[part] += 1

        setattr(owner, name, call)

    for owner, name, part in (
        (SaveCheckpoint, "_save", "checkpoint"),
        (SaveCheckpoint, "_write", "checkpoint, beside"),
        (Figures, "on_round_end", "pictures"),
        (Figures, "on_fit_end", "pictures"),
        (Summary, "on_fit_end", "summary"),
    ):
        timed(owner, name, part)
    argv, [(config, run_dir)] = configuration.preflight("train", ["train", *overrides])
    check(config, run_dir)
    run_dir.mkdir(parents=True, exist_ok=True)
    outside: list[float] = []
    with open_run(Job(config, run_dir, argv[1:])) as federation:
        began = time.process_time()
        engine = federation.engine
        engine.run, engine.ask = (watched(method, seconds) for method in (engine.run, engine.ask))  # type: ignore[method-assign]
        plain = federation.run_round

        def run_round() -> Any:
            before, away = time.thread_time(), Counter(seconds)
            result = plain()
            spent = seconds - away
            elsewhere = spent["clients"] + spent["checkpoint"] + spent["pictures"]
            outside.append(time.thread_time() - before - elsewhere)
            return result

        federation.run_round = run_round  # type: ignore[method-assign]
        federation.fit()
    return {
        "libraries": libraries,
        "libraries_mb": peak,
        "start": began - libraries,
        "first_round": outside[0],
        "round": statistics.median(outside[1:]),
        "clients": seconds["clients"],
        "checkpoint": (seconds["checkpoint"] + seconds["checkpoint, beside"]) / max(calls["checkpoint"], 1),
        "pictures": seconds["pictures"],
        "summary": seconds["summary"],
    }


def watched(method: Callable[..., Iterator[Any]], seconds: Counter[str]) -> Callable[..., Iterator[Any]]:
    """Return an engine's method that adds up what clients take."""

    def generate(*arguments: Any) -> Iterator[Any]:
        answers = method(*arguments)
        while True:
            began = time.thread_time()
            try:
                one = next(answers)
            except StopIteration:
                return
            finally:
                seconds["clients"] += time.thread_time() - began
            yield one

    return generate


if __name__ == "__main__":
    main()
