"""How fast a step could be: ``python benchmarks/floor.py >> benchmarks/results/floor.md``.

A round of n equal clients on w workers of one thread cannot take less than ceil(n / w) / n of one thread's time where clients
are dealt whole, and 1 / w of it where they may be divided. Both are given as parts of what the bare loop takes, which runs on
all threads and leaves images as they lie; workers have their channels last. Beside that, what a training step attains of the
speed of a large matrix product and of a large convolution. Its floating-point operations are three times those of the forward
pass.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from provenance import headline, provenance
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode
from workloads import WORKLOADS, Workload

LAYOUTS = (torch.contiguous_format, torch.channels_last)
LABELS = {torch.contiguous_format: "", torch.channels_last: ", channels last"}


def main() -> None:
    """Measure, and print Markdown."""
    parser = argparse.ArgumentParser(description="Print what a training step could take, and what it takes.")
    parser.add_argument("--workloads", nargs="+", choices=list(WORKLOADS), default=["W1", "W2", "W3"], metavar="W")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each measurement (default 3)")
    options = parser.parse_args()
    cores = torch.get_num_threads()
    facts = provenance("floor", ["python", "benchmarks/floor.py", *sys.argv[1:]], load=os.getloadavg()[0])
    print(f"# What a step could take\n\n{headline(facts, 'float32, medians')}\n")
    print("| | FLOPs | 1 thread | GFLOP/s |", f"{cores} threads | GFLOP/s |\n| --- | ---: | ---: | ---: | ---: | ---: |")
    for name, work in (("matrix product, 1024 x 1024", product()), ("convolution 3x3, 28 x 64 x 56 x 56", convolution())):
        print(measured(name, work, flops_of(work), options.seconds)[0])
    floors = []
    for name in options.workloads:
        workload = WORKLOADS[name]
        took = {}
        for layout in LAYOUTS if len(workload.input_shape) == 3 else LAYOUTS[:1]:
            label = f"{name}, a training step of {workload.batch_size}{LABELS[layout]}"
            row, took[layout] = measured(label, *step_of(workload, layout), options.seconds)
            print(row)
        ratio = list(took.values())[-1][0] / took[LAYOUTS[0]][1]
        whole = -(-workload.cohort_size // cores) / workload.cohort_size
        floors.append(f"| {name} | {ratio:.2f} | {whole * ratio:.3f} | {ratio / cores:.3f} |")
    print("\n| | one thread / bare | workers, whole clients | workers, divided clients |\n| --- | ---: | ---: | ---: |")
    print("\n".join(floors))


def measured(name: str, work: Callable[[], Any], flops: float, seconds: float) -> tuple[str, list[float]]:
    """Return a row, and the seconds in it: with one thread and with all."""
    taken = [seconds_of(work, threads, seconds) for threads in (1, torch.get_num_threads())]
    cells = [cell for each in taken for cell in (f"{1e3 * each:.3f} ms", f"{flops / each / 1e9:.1f}")]
    return f"| {name} | {flops:.3g} | {' | '.join(cells)} |", taken


def flops_of(work: Callable[[], Any]) -> float:
    """Return how many floating-point operations some work has."""
    counter = FlopCounterMode(display=False)
    with counter:
        work()
    return float(counter.get_total_flops())


def seconds_of(work: Callable[[], Any], threads: int, seconds: float) -> float:
    """Return the median time of some work."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for _ in range(3):
            work()
        taken: list[float] = []
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or len(taken) < 3:
            begin = time.perf_counter()
            work()
            taken.append(time.perf_counter() - begin)
    finally:
        torch.set_num_threads(before)
    return statistics.median(taken)


def product() -> Callable[[], Any]:
    """Return a matrix product large enough for the fastest kernel, and small enough for the cache."""
    left, right = torch.randn(2, 1024, 1024)
    return lambda: left @ right


def convolution() -> Callable[[], Any]:
    """Return a convolution as networks for images have them, channels last."""
    x = torch.randn(28, 64, 56, 56).contiguous(memory_format=torch.channels_last)
    weight = torch.randn(64, 64, 3, 3).contiguous(memory_format=torch.channels_last)
    return lambda: functional.conv2d(x, weight, padding=1)


def step_of(workload: Workload, layout: torch.memory_format) -> tuple[Callable[[], Any], float]:
    """Return a step of plain SGD on one batch, and how many floating-point operations it has."""
    model = workload.make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=workload.lr)
    x = torch.randn(workload.batch_size, *workload.input_shape)
    model, x = model.to(memory_format=layout), x.contiguous(memory_format=layout)  # type: ignore[call-overload]
    y = torch.randint(2, (workload.batch_size,))

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step, 3 * flops_of(lambda: model(x))


if __name__ == "__main__":
    main()
