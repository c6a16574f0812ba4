"""What it costs to replace the batch normalisation of pre-trained weights by group normalisation.

    FEDFACET_DATA=/data python benchmarks/normalisation.py OUT.csv [--seeds N]

EfficientNet-Lite0 with ImageNet weights looks at ``dataset=cub_scenes``, 100 training photographs a group. The whole network
is trained for a number of steps (batch 28, SGD of lr 0.001 with momentum 0.9) by the normalisation that the row names. Then
ridge regression fits a linear head to the standardised features of the training photographs, and a row has its accuracy on
the test photographs. After 0 steps, this is what the weights are worth as they are. ``spread`` is the mean standard deviation
of a feature over training photographs. Each seed has its own photographs and batches.
"""

import argparse
import csv
import os
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import cross_entropy

from fedfacet import rng
from fedfacet.data.cub_scenes import CubScenes
from fedfacet.models.efficientnet_lite0 import EfficientNetLite0
from fedfacet.types import Batch

FORMS: dict[str, dict[str, Any]] = {
    "batch": {"norm": "batch"},
    "batch, frozen statistics": {"norm": "batch", "frozen_statistics": True},
    "group, 8": {"norm": "group", "groups": 8},
    "group, 32": {"norm": "group", "groups": 32},
}
STEPS = (0, 1, 10, 100)
HEADS = ("normalisation", "seed", "steps", "accuracy", "worst_group", "training_accuracy", "spread")
PENALTY = 100.0
"""Of the ridge, on standardised features."""

ROOT = os.environ.get("FEDFACET_DATA", "../shared/data")


@torch.no_grad()
def features(network: EfficientNetLite0, x: torch.Tensor) -> NDArray[np.float64]:
    """Return the features in evaluation mode, shape (N, 1280)."""
    network.eval()
    return torch.cat([network.features(part) for part in x.split(64)]).double().numpy()


def judged(network: EfficientNetLite0, train: Batch, test: Batch) -> list[float]:
    """Return the accuracy of a linear head, that of its worst group and that on its training photographs; and the spread."""
    known, new = features(network, train.x), features(network, test.x)
    middle, spread = known.mean(axis=0), known.std(axis=0)
    x, x_test = (np.column_stack([(one - middle) / (spread + 1e-12), np.ones(len(one))]) for one in (known, new))
    y, y_test = train.y.numpy() == 1, test.y.numpy() == 1
    head = np.linalg.solve(x.T @ x + PENALTY * np.eye(x.shape[1]), x.T @ (2.0 * y - 1))
    right = (x_test @ head > 0) == y_test
    groups = 2 * test.y.numpy() + test.a.numpy()
    worst = min(right[groups == group].mean() for group in np.unique(groups))
    accuracies = (100 * float(one) for one in (right.mean(), worst, ((x @ head > 0) == y).mean()))
    return [*(round(one, 2) for one in accuracies), round(float(spread.mean()), 6)]


def measure(form: str, seed: int) -> Iterator[dict[str, Any]]:
    """Train a network by one normalisation, and judge its features after each number of steps."""
    data = CubScenes(root=ROOT, seed=seed).load(None)
    train, test = data.batch(data.train), data.batch(data.test)
    with rng.forked(seed, "head"):
        network = EfficientNetLite0(2, weights="imagenet", dropout=0.0, stochastic_depth=0.0, **FORMS[form])
    optimizer = torch.optim.SGD(network.parameters(), lr=0.001, momentum=0.9)
    draw = rng.stream(seed, "batches")
    for step in range(STEPS[-1] + 1):
        if step in STEPS:
            yield dict(zip(HEADS, (form, seed, step, *judged(network, train, test)), strict=True))
        network.train()
        chosen = torch.from_numpy(draw.integers(len(train.y), size=28))
        optimizer.zero_grad()
        cross_entropy(network(train.x[chosen]), train.y[chosen]).backward()
        optimizer.step()


def main() -> None:
    """Write a row per normalisation, seed and number of steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(1)
    with open(given.out, "w", newline="") as target:
        writer = csv.DictWriter(target, HEADS)
        writer.writeheader()
        for seed, form in product(range(given.seeds), FORMS):
            for row in measure(form, seed):
                writer.writerow(row)
                target.flush()


if __name__ == "__main__":
    main()
