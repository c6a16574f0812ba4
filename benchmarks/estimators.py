"""How far FedDiverse's estimate and the clustered one are from the truth, over data sets, federations and seeds.

    python benchmarks/estimators.py OUT.jsonl [CELL ...]

A cell is ``dataset:partition:seed``; without any, all of them. Every client is asked once, on the initial model, which is what
FedDiverse asks on with one pre-training round. Cells that OUT.jsonl has already are skipped; its rows are printed as a table.
"""

import json
import sys
import tempfile
from itertools import product
from pathlib import Path

from fedfacet.commands.describe_estimation import estimate_triplets
from fedfacet.config import compose_job
from fedfacet.metrics.estimation import MEASURES, measure_estimation

DATASETS = {
    "cmnist": ["experiment=cmnist_gsc"],
    "digits": ["experiment=digits_gsc"],
    # At 64 pixels on the small network, with the learning rate that was chosen for it on Coloured MNIST.
    "synthetic_spawrious": [
        *("experiment=spawrious_gsc_synthetic", "dataset.image_size=64", "model=small_cnn", "optimizer.lr=0.03", "threads=1"),
    ],
    # At 64 pixels on the recipe's own network: a quarter of an hour a cell on a busy core.
    "synthetic_spawrious_mobilenet": ["experiment=spawrious_gsc_synthetic", "dataset.image_size=64", "threads=1"],
}
PARTITIONS = ("gsc", "gci", "gai")
ESTIMATORS = ("estimated", "clustered")


def main(out: Path, cells: list[str]) -> None:
    """Measure the cells that are not there yet, and print all."""
    done = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    names = list(DATASETS)[:3]
    for cell in cells or [f"{d}:{p}:{s}" for d, p, s in product(names, PARTITIONS, range(3))]:
        dataset, partition, seed = cell.split(":")
        for estimator in ESTIMATORS:
            key = {"dataset": dataset, "partition": partition, "seed": int(seed), "estimator": estimator}
            if any(key.items() <= row.items() for row in done):
                continue
            done.append(key | measure(dataset, partition, int(seed), estimator))
            with open(out, "a") as target:
                target.write(json.dumps(done[-1]) + "\n")
    print_table(done)


def measure(dataset: str, partition: str, seed: int, estimator: str) -> dict[str, object]:
    """Ask all clients of one cell."""
    overrides = [f"partition={partition}", f"seed={seed}", f"heterogeneity={estimator}", "engine.device=cpu"]
    if dataset == "digits":
        overrides.append("partition.scale=0.2")
        if partition == "gai":
            overrides.append("partition.tolerance=0.06")  # [80 80; 20 2] becomes [16 16; 4 0]
    with tempfile.TemporaryDirectory() as folder:
        config, _ = compose_job("train", [*DATASETS[dataset], *overrides, f"paths.output_dir={folder}"])
        return measure_estimation(estimate_triplets(config, Path(folder)))


def print_table(rows: list[dict[str, object]]) -> None:
    """Print a row per cell, estimators side by side."""
    print("| data set | federation | seed | estimator | mean | max | CI | AI | SC | corr. AI | corr. SC |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for row in sorted(
        rows, key=lambda row: (row["dataset"], PARTITIONS.index(row["partition"]), row["seed"], row["estimator"])
    ):
        errors = [f"{row['mean_absolute_error'][measure]:.3f}" for measure in MEASURES]
        correlations = [f"{row['correlation'][measure]:.2f}" for measure in MEASURES[1:]]
        numbers = [f"{row['distance_mean']:.3f}", f"{row['distance_max']:.3f}", *errors, *correlations]
        print("|", " | ".join([*(str(row[key]) for key in ("dataset", "partition", "seed", "estimator")), *numbers]), "|")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
