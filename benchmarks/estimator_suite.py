"""Whom FedDiverse takes by estimated triplets, on attributes that are easy to see and on ones that are not.

    python benchmarks/estimator_suite.py OUT.csv [--pairs looked_at|unseen|later] [--seeds N] [--rounds N] [...]

Every pair of ``attributes.py`` is dealt as four federations. FedDiverse runs on them with the model and the rates of
``experiment=cmnist_gsc`` and T_0 = 1, so all clients are asked after one round of FedAvg. ``neutral`` is AI = SC = 0, ``known``
is the truth, and ``uniform`` is another selector. A row has the mean distance of disclosed from true triplets, the shares of
clients of each type (CI, AI, SC) in 600 cohorts that FedDiverse would draw, how far these are from the shares by true triplets
(total variation, 0 to 1), and the worst group's test accuracy after the last round. Rows that OUT.csv has already are kept.
"""

import argparse
import csv
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache, partial
from itertools import count, product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from attributes import GROUPS, load
from numpy.typing import NDArray

from fedfacet import rng, state
from fedfacet.aggregators.fedavgm import FedAvgM
from fedfacet.assembly import federate
from fedfacet.callbacks.evaluate import Evaluate
from fedfacet.clients.queries.base import Query, QueryContext
from fedfacet.clients.queries.clustered_heterogeneity import ClusteredHeterogeneity
from fedfacet.clients.queries.estimated_heterogeneity import EstimatedHeterogeneity
from fedfacet.clients.queries.shared_heterogeneity import SharedHeterogeneity
from fedfacet.clients.queries.true_heterogeneity import TrueHeterogeneity
from fedfacet.config import compose_job, make
from fedfacet.data.dataset import Dataset
from fedfacet.data.federated import FederatedData, deal
from fedfacet.methods.feddiverse import DIMENSIONS, FedDiverseSelector, diverse_order
from fedfacet.models.small_cnn import SmallCNN
from fedfacet.selectors.uniform import UniformSelector
from fedfacet.types import Answer

FEDERATIONS = ("gsc", "gci", "gai", "waterbirds_dist")
TYPES = ("CI", "AI", "SC")
ROOT = Path(os.environ.get("FEDFACET_DATA", "../shared/data"))
SMALLER = {("X-rays", name): 0.2 for name in FEDERATIONS} | {("X-rays", "waterbirds_dist"): 0.15}
"""Scale of the federations of small data sets."""


class Neutral(TrueHeterogeneity):
    """A client's class imbalance, and nothing of attributes."""

    def answer(self, context: QueryContext) -> Answer:
        """Return [class imbalance, 0, 0]."""
        answer = super().answer(context)
        return answer._replace(value=[answer.value[0], 0.0, 0.0])


QUERIES: dict[str, Callable[[], Query]] = {
    "known": TrueHeterogeneity,
    "estimated": EstimatedHeterogeneity,
    "clustered": ClusteredHeterogeneity,
    "shared": SharedHeterogeneity,
    "neutral": Neutral,
}
HEADS = (
    "pair",
    "federation",
    "seed",
    "rounds",
    "estimator",
    "error",
    "ci",
    "ai",
    "sc",
    "variation",
    "acc_worst_group",
    "model_digest",
)


@lru_cache(maxsize=1)
def loaded(pair: str, seed: int) -> Dataset:
    """Load a pair once for all its federations."""
    return load(pair, ROOT, seed)


def dealt(pair: str, federation: str, seed: int) -> FederatedData:
    """Deal a pair as one of the paper's federations."""
    scale = SMALLER.get((pair.partition(",")[0], federation), 1.0)
    overrides = ["experiment=cmnist_gsc", f"partition={federation}", f"partition.scale={scale}", "partition.tolerance=0.2"]
    config, _ = compose_job("train", [*overrides, f"partition.seed={seed}", "paths.output_dir=nowhere"])
    return deal(loaded(pair, seed), make(config.partition), seed=seed)


def measure(cell: tuple[str, str, int, Sequence[str]], rounds: int) -> list[dict[str, Any]]:
    """Run FedDiverse by triplets of every kind, and uniform selection, on one federation."""
    torch.set_num_threads(1)
    pair, name, seed, estimators = cell
    data = dealt(pair, name, seed)
    truth = np.array([matrix.triplet for matrix in data.matrices])
    types = np.array([TYPES.index(matrix.triplet.type) for matrix in data.matrices])
    best = shares(truth, types)
    rows = []
    for estimator in estimators:
        with rng.forked(seed, "weights"):
            model = SmallCNN(data.dataset.num_classes, data.dataset.input_shape)
        uniform = estimator == "uniform"
        federation = federate(
            data,
            model,
            optimizer=partial(torch.optim.SGD, lr=0.03, momentum=0.9),
            selector=UniformSelector() if uniform else FedDiverseSelector(heterogeneity=QUERIES[estimator]()),
            aggregator=FedAvgM(momentum=0.95, server_lr=0.1),
            callbacks={"evaluate": Evaluate(data=data, every_n_rounds=rounds)},
            rounds=rounds,
            cohort_size=9,
            seed=seed,
        )
        federation.fit()
        answers = (
            np.array([federation.state.disclosures["heterogeneity"][k] for k in range(len(truth))]) if not uniform else None
        )
        drawn = np.bincount(types, minlength=3) / len(types) if answers is None else shares(answers, types)
        row = dict(zip(HEADS, (pair, name, seed, rounds, estimator), strict=False)) | dict(
            zip(HEADS[6:9], drawn.round(4), strict=True)
        )
        row["error"] = "" if answers is None else round(float(np.linalg.norm(answers - truth, axis=1).mean()), 4)
        row["variation"] = round(float(np.abs(drawn - best).sum() / 2), 4)
        row["acc_worst_group"] = round(100 * federation.metrics[-1]["test/acc_worst_group"], 2)
        row["model_digest"] = state.digest(federation.state.model)[:12]
        rows.append(row)
    return rows


def shares(triplets: NDArray[np.float64], types: NDArray[np.int64], cohorts: int = 600, size: int = 9) -> NDArray[np.float64]:
    """Return which part of the places of FedDiverse's cohorts clients of each type have, shape (3,)."""
    draw = rng.stream(0, "cohorts")
    taken = np.zeros(3)
    for turn in range(cohorts):
        leading = (DIMENSIONS[place % 3] for place in count(turn))
        taken += np.bincount(types[diverse_order(triplets, size, leading, draw)], minlength=3)
    return taken / taken.sum()


def main() -> None:
    """Measure what is not there yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--pairs", choices=GROUPS, default="later")
    parser.add_argument("--federations", nargs="+", choices=FEDERATIONS, default=FEDERATIONS)
    parser.add_argument("--estimators", nargs="+", choices=[*QUERIES, "uniform"], default=[*QUERIES, "uniform"])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--workers", type=int, default=1)
    given = parser.parse_args()
    there = list(csv.DictReader(given.out.read_text().splitlines())) if given.out.exists() else []
    done = {tuple(row[head] for head in HEADS[:5]) for row in there}
    cells = []
    for seed, pair, name in product(range(given.seeds), GROUPS[given.pairs], given.federations):
        left = [each for each in given.estimators if (pair, name, str(seed), str(given.rounds), each) not in done]
        cells += [(pair, name, seed, left)] if left else []
    work = partial(measure, rounds=given.rounds)
    with (
        ProcessPoolExecutor(given.workers, mp_context=get_context("spawn")) as pool,
        open(given.out, "a", newline="") as target,
    ):
        writer = csv.DictWriter(target, HEADS)
        if not there:
            writer.writeheader()
        for rows in pool.map(work, cells):
            writer.writerows(rows)
            target.flush()


if __name__ == "__main__":
    main()
