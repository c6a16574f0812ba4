import math

import numpy as np
import pytest
from scipy import stats

from fedfacet.errors import FedFacetError
from fedfacet.metrics.estimation import FILE, MEASURES, Triplets, measure_estimation, read_triplets, write_triplets

TRUE = [(0.5, 0.0, 0.1), (0.0, 0.5, 0.2), (0.1, 0.2, 0.7), (0.3, 0.3, 0.3)]


def test_distances_errors_and_correlations():
    disclosed = {0: [0.5, 0.3, 0.5], 2: [0.1, 0.2, 0.7], 3: [0.3, 0.3, 0.0]}
    triplets = Triplets.of(TRUE, disclosed)
    error = measure_estimation(triplets)
    assert triplets.clients == (0, 2, 3)
    assert error["clients"] == 3
    assert error["distance_mean"] == pytest.approx((0.5 + 0 + 0.3) / 3)
    assert error["distance_max"] == pytest.approx(0.5)
    assert list(error["mean_absolute_error"].values()) == pytest.approx([0, 0.1, 0.7 / 3])
    for column, measure in enumerate(MEASURES):
        oracle = stats.pearsonr([TRUE[client][column] for client in disclosed], [row[column] for row in disclosed.values()])
        assert error["correlation"][measure] == pytest.approx(oracle.statistic)


def test_a_measure_that_does_not_vary_has_no_correlation():
    error = measure_estimation(Triplets.of(TRUE, {0: [0.5, 0.3, 0.0], 1: [0.2, 0.3, 1.0]}))
    assert math.isnan(error["correlation"]["attribute_imbalance"])
    assert error["correlation"]["class_imbalance"] == pytest.approx(1)
    alone = measure_estimation(Triplets.of(TRUE, {1: [0.0, 0.5, 0.2]}))
    assert alone["distance_max"] == 0
    assert all(map(math.isnan, alone["correlation"].values()))


def test_a_file_brings_back_what_was_written(tmp_path):
    triplets = Triplets.of(TRUE, {3: [1 / 3, 0.1, 1e-17], 1: [0.2, 0.3, 1.0]})
    with pytest.raises(FileNotFoundError):  # a run folder that was removed stays so
        write_triplets(triplets, tmp_path / "new" / FILE)
    (tmp_path / "new").mkdir()
    write_triplets(triplets, tmp_path / "new" / FILE)
    again = read_triplets(tmp_path / "new")
    assert again.clients == (1, 3)
    assert np.array_equal(again.true, triplets.true)
    assert np.array_equal(again.disclosed, triplets.disclosed)
    assert [file.name for file in (tmp_path / "new").iterdir()] == [FILE]


@pytest.mark.parametrize("text", ["", "client,distance\n0,1\n", "\x00", "client\n"], ids=["empty", "columns", "bytes", "rows"])
def test_a_damaged_file_is_refused(tmp_path, text):
    (tmp_path / FILE).write_text(text)
    with pytest.raises(FedFacetError, match=FILE):
        read_triplets(tmp_path)


def test_a_run_without_the_file_is_refused(tmp_path):
    with pytest.raises(FedFacetError, match="selector=feddiverse"):
        read_triplets(tmp_path)
