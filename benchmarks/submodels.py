"""What parts of models and shadow models cost: ``python benchmarks/submodels.py >> benchmarks/results/submodels.md``.

Cutting and averaging are timed on a round of W5, as shares of that round. Shadow models are trained by ``train_pool`` with each
engine, and by a plain loop, one after another; ratios are to the loop in the same repeat.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from provenance import headline, provenance
from torch import nn
from workloads import WORKLOADS

from fedfacet.audit.shadows import ShadowData, Shadows, train_pool
from fedfacet.build import build
from fedfacet.config import compose_job
from fedfacet.engines.base import Engine
from fedfacet.engines.workers import WorkersEngine
from fedfacet.federation import Federation
from fedfacet.mechanisms.submodels import Submodels
from fedfacet.types import ClientTask

CONF = Path(__file__).parent / "conf"


def main() -> None:
    """Measure, and print Markdown."""
    parser = argparse.ArgumentParser(description="Print what parts of models and shadow models cost.")
    parser.add_argument("--models", type=int, default=16, help="shadow models, an even number (default 16)")
    parser.add_argument("--samples", type=int, default=2000, help="of which each shadow model has half (default 2000)")
    parser.add_argument("--epochs", type=int, default=5, help="of a shadow model (default 5; the thesis takes 100)")
    parser.add_argument("--repeats", type=int, default=3, help="of everything (default 3)")
    options = parser.parse_args()
    facts = provenance("submodels", ["python", "benchmarks/submodels.py", *sys.argv[1:]], load=round(os.getloadavg()[0], 2))
    print(f"# Parts of models and shadow models\n\n{headline(facts, 'float32, medians')}\n")
    print("| a round of W5, sequential | seconds | share |\n| --- | ---: | ---: |")
    for name, seconds, share in parts_of_a_round(federation_of(), options.repeats):
        print(f"| {name} | {seconds:.4f} | {100 * share:.2f} % |")
    pool_of = PoolSize(options.models, options.samples, options.epochs)
    print(f"\n| {options.models} shadow models, {options.epochs} epochs of {options.samples // 2} samples | seconds | x loop |")
    print("| --- | ---: | ---: |")
    for name, seconds, ratio in shadow_models(federation_of(), pool_of, options.repeats):
        print(f"| {name} | {seconds:.2f} | {ratio:.3f} |")


def federation_of() -> Federation:
    """Return W5 as a federation."""
    config, _ = compose_job(
        "train", [f"hydra.searchpath=['file://{CONF}']", "experiment=w5", "logger=[]", "callbacks=[]", "engine.device=cpu"]
    )
    return build(config, None)


def parts_of_a_round(federation: Federation, repeats: int) -> list[tuple[str, float, float]]:
    """Return, for a round without evaluation, what cutting, training and averaging take, and as shares of all three."""
    taken: dict[str, list[float]] = {"cutting": [], "training": [], "averaging by count": []}
    parts = federation.find(Submodels).parts
    assert parts is not None
    for round in range(1, repeats + 2):
        state = federation.state
        # A new object, as every round's model is, or the parts of the last round would be found.
        model = {name: tensor.clone() for name, tensor in state.model.items()}
        laps = [time.perf_counter()]
        for client in range(federation.num_clients):
            parts.cut(model, client, round)
        laps.append(time.perf_counter())
        tasks = [ClientTask(client, round, 0, federation.sent(state, client)) for client in range(federation.num_clients)]
        updates = list(federation.engine.run(tasks))
        laps.append(time.perf_counter())
        parts.aggregate(federation.aggregator.aggregate, round, state.aggregator, model, updates)
        laps.append(time.perf_counter())
        for name, begin, end in zip(taken, laps[:-1], laps[1:], strict=True):
            taken[name].append(end - begin)
    medians = {name: statistics.median(seconds[1:]) for name, seconds in taken.items()}  # the first is the start-up
    return [(name, seconds, seconds / sum(medians.values())) for name, seconds in medians.items()]


class PoolSize(NamedTuple):
    """How many shadow models, how many samples, of which each has half, and how often a model sees one."""

    models: int
    samples: int
    epochs: int


def shadow_models(federation: Federation, size: PoolSize, repeats: int) -> list[tuple[str, float, float]]:
    """Return what the loop and the engines take, and the ratios."""
    contenders: dict[str, Callable[[], float]] = {
        "a plain loop": partial(loop, size),
        "sequential": lambda: pool(federation, Engine(device="cpu"), size),
        f"workers, {os.cpu_count()}": lambda: pool(federation, WorkersEngine(device="cpu"), size, threads=1),
    }
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(repeats):
        for name, train in contenders.items():
            taken[name].append(train())
    yardstick = taken["a plain loop"]
    return [
        (name, statistics.median(of), statistics.median(a / b for a, b in zip(of, yardstick, strict=True)))
        for name, of in taken.items()
    ]


def loop(size: PoolSize) -> float:
    """Return the seconds that a plain loop takes, which has every model say what it thinks of all samples."""
    workload = WORKLOADS["W5"]
    data = workload.load()
    x, y = data.x[: size.samples], data.y[: size.samples]
    loss_of = nn.CrossEntropyLoss()
    began = time.perf_counter()
    for _ in range(size.models):
        model = workload.make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=workload.lr)
        model.train()
        half = torch.randperm(size.samples)[: size.samples // 2]
        for _ in range(size.epochs):
            for batch in half[torch.randperm(len(half))].split(workload.batch_size):
                optimizer.zero_grad()
                loss_of(model(x[batch]), y[batch]).backward()
                optimizer.step()
        model.eval()
        with torch.no_grad():
            for part in x.split(workload.evaluation_batch_size):
                model(part)
    return time.perf_counter() - began


def pool(federation: Federation, engine: Engine, size: PoolSize, *, threads: int | None = None) -> float:
    """Return the seconds that ``train_pool`` takes for the same, the start of its processes included."""
    kept = torch.get_num_threads()
    torch.set_num_threads(threads or kept)
    began = time.perf_counter()
    try:
        with tempfile.TemporaryDirectory() as folder:
            shadows, samples = Shadows(models=size.models, epochs=size.epochs), np.arange(size.samples)
            train_pool(
                shadows,
                federation.engine.clients,
                lambda number: WORKLOADS["W5"].make_model(),
                ShadowData(samples, tuple(samples[half] for half in shadows.halves(size.samples))),
                engine=engine,
                folder=Path(folder),
                facts={},
            )
        return time.perf_counter() - began
    finally:
        torch.set_num_threads(kept)


if __name__ == "__main__":
    main()
