"""A number of results/, run again."""

import pytest

from fedfacet.build import build
from fedfacet.config import preflight

CELL = ("sweep=fedld_decomposition", "partition.alpha=0.01", "method=fedld", "seed=0", "federation.rounds=1")
TERMS = {
    "local_loss": 0.06973611431037782,
    "distribution_shift_loss": 1.0832276320816776,
    "aggregation_loss": -0.5391688035363853,
    "global_loss": 0.6137949428556704,
}
"""Of the run that results/fedld_decomposition.md has averaged with two other seeds, taken from its folder."""


@pytest.mark.slow
def test_figure_2_of_fedld_on_pneumonia_mnist(data_dir, tmp_path, monkeypatch):
    """One cell's first round, from the real images to the signed terms; machines round in different ways."""
    if not (data_dir / "pneumoniamnist" / "pneumoniamnist.npz").is_file():
        pytest.skip(f"no PneumoniaMNIST in {data_dir}: point FEDFACET_DATA at a folder that holds pneumoniamnist/")
    monkeypatch.chdir(tmp_path)
    ((config, _),) = preflight("train", ["train.py", *CELL, f"paths.data_dir={data_dir}", "-m"])[1]
    federation = build(config, tmp_path / "run")
    federation.fit()
    decomposition, _ = federation.callbacks["decomposition"].last
    assert decomposition.terms() == pytest.approx(TERMS, abs=1e-4, rel=0)
