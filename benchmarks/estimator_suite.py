"""How far estimates of clients' heterogeneity are from the truth where the attribute is easy to see and where it is not.

    python benchmarks/estimator_suite.py OUT.jsonl [--unseen] [--seeds N] [--of-a-kind N] [--workers N]

Every pair of ``attributes.py`` is dealt as four federations; every client is asked once, on an untrained small network (the
learning rate, batch size and momentum of ``experiment=cmnist_gsc``). ``constant`` is the best answer that is the same for
all clients of a federation, with the class imbalance known; nobody could give it without the truth. ``neutral`` is AI = SC = 0.
Clients with the same interaction matrix are of a kind; with ``--of-a-kind`` so many of each are asked and stand for the others.
Rows that OUT.jsonl has already are kept.
"""

import argparse
import copy
import json
import os
import time
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache, partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from attributes import LOOKED_AT, UNSEEN, load
from numpy.typing import NDArray
from scipy.optimize import minimize

from fedfacet import rng
from fedfacet.clients.client_data import ClientData
from fedfacet.clients.queries.base import QueryContext
from fedfacet.clients.queries.clustered_heterogeneity import ClusteredHeterogeneity
from fedfacet.clients.queries.estimated_heterogeneity import EstimatedHeterogeneity
from fedfacet.config import compose_job, make
from fedfacet.data.dataset import Dataset
from fedfacet.models.small_cnn import SmallCNN

FEDERATIONS = ("gsc", "gci", "gai", "waterbirds_dist")
QUERIES = {"estimated": EstimatedHeterogeneity(), "clustered": ClusteredHeterogeneity()}
ROOT = Path(os.environ.get("FEDFACET_DATA", "../shared/data"))
SMALLER = {"X-rays": 0.2}
"""Scale of the federations of small data sets."""


@lru_cache(maxsize=1)
def loaded(pair: str, seed: int) -> Dataset:
    """Load a pair once for all its federations."""
    return load(pair, ROOT, seed)


def measure(pair: str, federation: str, seed: int, of_a_kind: int) -> list[dict[str, object]]:
    """Ask all clients of one federation in every way."""
    torch.set_num_threads(1)
    dataset, scale = loaded(pair, seed), SMALLER.get(pair.partition(",")[0], 1.0)
    overrides = ["experiment=cmnist_gsc", f"partition={federation}", f"partition.scale={scale}", "partition.tolerance=0.2"]
    config, _ = compose_job("train", [*overrides, f"partition.seed={seed}", "paths.output_dir=nowhere"])
    partition = make(config.partition).partition(dataset.y[dataset.train], dataset.a[dataset.train])
    clients = [ClientData(dataset, dataset.train[own], torch.device("cpu"), torch.channels_last) for own in partition.indices]
    counts = [kind.count for kind in config.partition.clients]
    firsts = np.cumsum([0, *counts[:-1]])
    asked = [first + number for first, count in zip(firsts, counts, strict=True) for number in range(min(count, of_a_kind))]
    weights = np.array([count / min(count, of_a_kind) for count in counts for _ in range(min(count, of_a_kind))])
    clients = [clients[number] for number in asked]
    truth = np.array([client.interaction_matrix.triplet for client in clients])
    with rng.forked(seed, "weights"):
        model = SmallCNN(2, dataset.input_shape).to(memory_format=torch.channels_last)
    told = {}
    for name, query in QUERIES.items():
        begun = time.perf_counter()
        answers = [
            query.answer(
                QueryContext(
                    data=client,
                    model=copy.deepcopy(model),
                    make_optimizer=partial(torch.optim.SGD, lr=config.optimizer.lr, momentum=config.optimizer.momentum),
                    batch_size=config.local.batch_size,
                    seed=seed,
                    round=1,
                    client_id=number,
                )
            ).value
            for number, client in zip(asked, clients, strict=True)
        ]
        told[name] = np.array(answers), time.perf_counter() - begun
    told |= {name: (constant(truth, weights, best=name == "constant"), 0.0) for name in ("constant", "neutral")}
    return [
        {
            "pair": pair,
            "federation": federation,
            "seed": seed,
            "estimator": name,
            "error": float(np.average(np.linalg.norm(answers - truth, axis=1), weights=weights)),
            "absolute": np.average(np.abs(answers - truth), axis=0, weights=weights).tolist(),
            "answers": answers.round(4).tolist(),
            "seconds": seconds,
        }
        for name, (answers, seconds) in told.items()
    ]


def constant(truth: NDArray[np.float64], weights: NDArray[np.float64], *, best: bool) -> NDArray[np.float64]:
    """Return the same AI and SC for all clients, beside their own CI: 0, or what makes the mean error least."""

    def error(same: NDArray[np.float64]) -> float:
        return float(np.average(np.linalg.norm(truth[:, 1:] - same, axis=1), weights=weights))

    same = minimize(error, np.average(truth[:, 1:], axis=0, weights=weights), method="Nelder-Mead").x if best else np.zeros(2)
    return np.column_stack([truth[:, 0], np.broadcast_to(same, (len(truth), 2))])


def print_tables(rows: list[dict[str, object]]) -> None:
    """Print the mean error of every pair, and what is to be said of all."""
    names = list(dict.fromkeys(row["estimator"] for row in rows))
    print(f"| pair | {' | '.join(names)} |\n| --- |{' ---: |' * len(names)}")
    for title, pairs in {**{pair: [pair] for pair in LOOKED_AT | UNSEEN}, "looked at": LOOKED_AT, "unseen": UNSEEN}.items():
        chosen = [row for row in rows if row["pair"] in pairs]
        if chosen:
            errors = [np.mean([row["error"] for row in chosen if row["estimator"] == name]) for name in names]
            print(f"| {title} | {' | '.join(f'{error:.3f}' for error in errors)} |")
    seconds = {name: sum(row["seconds"] for row in rows if row["estimator"] == name) for name in QUERIES}
    print("\nseconds:", {name: round(value) for name, value in seconds.items()})


def main() -> None:
    """Measure what is not there yet, and print all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--unseen", action="store_true", help="also the pairs that nobody looked at while designing")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--of-a-kind", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=1)
    given = parser.parse_args()
    rows = [json.loads(line) for line in given.out.read_text().splitlines()] if given.out.exists() else []
    done = {(row["pair"], row["federation"], row["seed"]) for row in rows}
    pairs = [*LOOKED_AT, *(UNSEEN if given.unseen else ())]
    cells = [cell for cell in product(pairs, FEDERATIONS, range(given.seeds)) if cell not in done]
    with ProcessPoolExecutor(given.workers, mp_context=get_context("spawn")) as pool:
        for measured in pool.map(partial(measure, of_a_kind=given.of_a_kind), *zip(*cells, strict=True)) if cells else ():
            rows += measured
            with open(given.out, "a", encoding="utf-8") as target:
                target.writelines(json.dumps(row) + "\n" for row in measured)
    print_tables(rows)


if __name__ == "__main__":
    main()
