"""Files of a partition: text that lists everybody, and arrays where clients are too many for it."""

import json

import numpy as np
import pytest

from fedfacet.errors import CheckpointError
from fedfacet.heterogeneity import InteractionMatrices
from fedfacet.storage import dealt
from fedfacet.types import Partition


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Return a function: most clients that text lists -> what the JSON holds, of three clients."""
    partition = Partition((np.array([0, 2]), np.array([1]), np.array([3, 4, 5])))
    counts = np.array([[[2, 0], [0, 0]], [[0, 1], [0, 0]], [[1, 0], [1, 1]]])

    def write(most):
        monkeypatch.setattr(dealt, "MANY", most)
        facts = {"digest": partition.digest, "num_clients": 3}
        others = {"local_holdout": [[7]]}
        dealt.write_dealt(tmp_path, facts, partition, InteractionMatrices(counts), np.array([8, 9]), 4, others)
        return json.loads((tmp_path / "partition.json").read_text())

    return write


def test_few_clients_are_listed(written, tmp_path):
    told = written(3)
    assert list(told) == ["digest", "num_clients", "counts", "indices", "validation", "num_test", "local_holdout"]
    assert told["indices"] == [[0, 2], [1], [3, 4, 5]]
    assert told["counts"][2] == [[1, 0], [1, 1]]
    assert not (tmp_path / "partition.npz").exists()


def test_many_clients_are_arrays_and_have_the_same_types(written, tmp_path):
    written(3)
    types = dealt.read_types(tmp_path)
    told = written(2)
    assert (told["arrays"], told["num_validation"], told["num_test"]) == ("partition.npz", 2, 4)
    assert not {"counts", "indices", "validation"} & told.keys()
    assert dealt.read_types(tmp_path) == types
    with np.load(tmp_path / "partition.npz", allow_pickle=False) as arrays:
        ends = np.cumsum(arrays["sizes"], dtype=np.int64)
        assert [part.tolist() for part in np.split(arrays["positions"], ends[:-1])] == [[0, 2], [1], [3, 4, 5]]
        assert arrays["validation"].tolist() == [8, 9]
        assert arrays["positions"].dtype == np.uint8, "no more bytes than are needed"


def test_arrays_of_another_shape_are_refused(written, tmp_path):
    written(2)
    np.savez(tmp_path / "partition.npz", counts=np.zeros(4))
    with pytest.raises(CheckpointError, match="its counts are none"):
        dealt.read_types(tmp_path)
