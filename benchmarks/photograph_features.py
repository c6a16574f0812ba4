"""Writes what a frozen ImageNet network sees in photographs of birds, so that a federation of its head trains in seconds.

    FEDFACET_DATA=/data python benchmarks/photograph_features.py FOLDER [--partitions NAME ...] [--seeds N ...]

For each partition and seed, ``dataset=cub_scenes`` deals as many images to train as the partition demands, and
EfficientNet-Lite0 with ImageNet weights gives each its 1280 features. ``FOLDER/PARTITION-SEED.npz`` has them as ``dataset=npz``
reads them. With ``model=mlp model.hidden=[]`` clients train the frozen network's head, as in ``experiment=photographs_gsc``.
"""

import argparse
import os
from itertools import product
from pathlib import Path

import numpy as np
import torch

from fedfacet.config import compose_job, make
from fedfacet.data.cub_scenes import CubScenes
from fedfacet.models.efficientnet_lite0 import EfficientNetLite0

ROOT = os.environ.get("FEDFACET_DATA", "../shared/data")


@torch.no_grad()
def write(network: EfficientNetLite0, folder: Path, partition: str, scale: float, seed: int, judge: str) -> None:
    """Write the features of one federation's photographs."""
    overrides = [f"partition={partition}", f"partition.scale={scale}", "partition.tolerance=0.2", "paths.output_dir=nowhere"]
    config, _ = compose_job("train", ["experiment=cmnist_gsc", *overrides])
    data = CubScenes(root=ROOT, seed=seed).load(make(config.partition).demand)
    arrays = {"class_names": np.array(data.class_names), "attribute_names": np.array(data.attribute_names)}
    for ending, rows in (("", data.train), ("_test", getattr(data, judge))):
        parts = np.array_split(rows, range(64, len(rows), 64))
        arrays[f"x{ending}"] = torch.cat([network.features(data.batch(part).x) for part in parts]).numpy()
        arrays[f"y{ending}"], arrays[f"a{ending}"] = data.y[rows], data.a[rows]
    np.savez(folder / f"{partition}-{seed}.npz", **arrays)


def main() -> None:
    """Write the files that are not there yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--partitions", nargs="+", default=["gsc", "waterbirds_dist"])
    parser.add_argument("--scale", type=float, default=0.1)
    parser.add_argument("--seeds", nargs="+", type=int, default=range(10))
    parser.add_argument("--judge", choices=("test", "val"), default="test", help="which photographs x_test has")
    given = parser.parse_args()
    torch.set_num_threads(1)
    given.folder.mkdir(parents=True, exist_ok=True)
    network = EfficientNetLite0(2, weights="imagenet").eval()
    for partition, seed in product(given.partitions, given.seeds):
        if not (given.folder / f"{partition}-{seed}.npz").exists():
            write(network, given.folder, partition, given.scale, seed, given.judge)


if __name__ == "__main__":
    main()
