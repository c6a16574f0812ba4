"""Flower's partitioners deal through ours what they deal by themselves."""

import sys

import numpy as np
import pytest

from fedfacet.config import compose_job, make
from fedfacet.errors import ConfigError, FedFacetError
from fedfacet.partitioners.base import checked_partition
from fedfacet.partitioners.flwr import FlwrPartitioner

Y, A = np.arange(300) * 7 % 10, np.arange(300) % 2


def test_without_the_package_a_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr_datasets.partitioner", None)
    with pytest.raises(ConfigError, match=r"`pip install \"fedfacet\[flwr\]\"`"):
        FlwrPartitioner()


@pytest.fixture
def flwr():
    pytest.importorskip("datasets", reason="the extra `hf` is not installed")
    return pytest.importorskip("flwr_datasets.partitioner", reason="the extra `flwr` is not installed")


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")  # the original's own
@pytest.mark.parametrize(
    ("name", "overrides", "settings"),
    [
        ("DirichletPartitioner", ["alpha=0.3"], {"partition_by": "y", "alpha": 0.3, "seed": 3}),
        ("IidPartitioner", [], {}),
        ("LinearPartitioner", [], {}),
        ("PathologicalPartitioner", ["num_classes_per_partition=2"],
         {"partition_by": "y", "num_classes_per_partition": 2, "seed": 3}),
        ("ShardPartitioner", ["num_shards_per_partition=2"], {"partition_by": "y", "num_shards_per_partition": 2, "seed": 3}),
        ("InnerDirichletPartitioner", ["partition_sizes=[60,60,60,60,60]", "alpha=0.5"],
         {"partition_by": "y", "partition_sizes": [60] * 5, "alpha": 0.5, "seed": 3}),
        ("NaturalIdPartitioner", [], {"partition_by": "y"}),
    ],
)  # fmt: skip
def test_every_client_has_the_samples_that_the_original_gives_it(flwr, name, overrides, settings):
    import datasets

    told = [f"partition.name={name}", "partition.num_clients=5", "partition.seed=3"]
    config, _ = compose_job("train", ["partition=flwr", *told, *(f"partition.settings.{override}" for override in overrides)])
    dealt = checked_partition(make(config.partition).partition(Y, A), len(Y), name)
    counted = name in ("NaturalIdPartitioner", "InnerDirichletPartitioner")
    original = getattr(flwr, name)(**settings, **({} if counted else {"num_partitions": 5}))
    original.dataset = datasets.Dataset.from_dict({"y": Y, "place": np.arange(300)})
    assert dealt.num_clients == original.num_partitions == (10 if name == "NaturalIdPartitioner" else 5)
    for number, client in enumerate(dealt.indices):
        assert client.tolist() == sorted(original.load_partition(number)["place"])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"name": "os.system"}, "`partition.name` to be one of .*IidPartitioner.*'os.system'"),
        ({"settings": {"beta": 1}}, "`partition.settings` that DirichletPartitioner takes .*alpha.*'beta'"),
        ({"name": "PathologicalPartitioner"}, "num_classes_per_partition"),
        ({"name": "VerticalEvenPartitioner"}, "`partition.name` to be one of"),
        ({"num_clients": 200}, "DirichletPartitioner to deal 300 samples, but it says"),
    ],
)
def test_what_it_refuses_is_one_sentence(flwr, settings, said):
    with pytest.raises(FedFacetError, match=said):
        FlwrPartitioner(**settings).partition(Y, A)
