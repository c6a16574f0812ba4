"""Runs on noise with random labels, which a model can only learn by heart."""

import json

import numpy as np
import pytest
from omegaconf import OmegaConf

from fedfacet.audit import audit
from fedfacet.build import build, settle
from fedfacet.commands.attack import main
from fedfacet.config import compose_job, plain

RUN = (
    "dataset=pneumonia_mnist", "partition=iid", "partition.num_clients=3", "partition.local_holdout=0.4", "model=mlp",
    "selector=all", "aggregator=fedavg", "optimizer=adam", "optimizer.lr=0.003", "local.amount=8", "federation.rounds=2",
    "federation.cohort_size=3", "model.hidden=[32]",
    "logger=[]", "callbacks=[save_checkpoint,summary]", "threads=1", "seed=0",
)  # fmt: skip


@pytest.fixture(scope="session")
def noise(tmp_path_factory):
    """A folder with images of noise in MedMNIST's layout."""
    folder = tmp_path_factory.mktemp("noise")
    draw = np.random.default_rng(0)
    arrays = {}
    for split, size in (("train", 600), ("val", 20), ("test", 150)):
        arrays[f"{split}_images"] = draw.integers(0, 256, size=(size, 28, 28), dtype=np.uint8)
        arrays[f"{split}_labels"] = draw.integers(0, 2, size=(size, 1), dtype=np.uint8)
    np.savez(folder / "pneumoniamnist.npz", **arrays)
    return folder


@pytest.fixture(scope="session")
def run(noise, tmp_path_factory):
    """Return a function: options -> the folder of a finished run."""
    made = {}

    def make(*overrides):
        if overrides not in made:
            folder = tmp_path_factory.mktemp("run")
            given = {override.partition("=")[0] for override in overrides}
            given |= {"model.hidden"} if "model" in given else set()  # of the model that is given up
            usual = [option for option in RUN if option.partition("=")[0] not in given]
            config, _ = compose_job("train", [*usual, f"dataset.root={noise}", *overrides, f"paths.output_dir={folder}"])
            settle(config)
            build(config, folder).fit()
            (folder / "config.yaml").write_text(OmegaConf.to_yaml(plain(config)))
            made[overrides] = folder
        return made[overrides]

    return make


@pytest.fixture(scope="session")
def logs(tmp_path_factory):
    """Where shadow models are kept, for all tests."""
    return tmp_path_factory.mktemp("logs")


@pytest.fixture
def pictures():
    """Have the attacks of a test draw what they draw."""


@pytest.fixture(autouse=True)
def undrawn(request, monkeypatch):
    """Leave out the two pictures of every attack, half of what it costs, where a test does not ask for ``pictures``."""
    if "pictures" not in request.fixturenames:
        for name in ("plot_roc", "plot_exposure"):
            monkeypatch.setattr(audit, name, lambda *_: None)


@pytest.fixture
def attack(capsys, logs):
    """Return a function: a run folder and options -> what is printed as JSON."""

    def call(folder, *options):
        where = () if any(option.startswith("paths.log_dir=") for option in options) else (f"paths.log_dir={logs}",)
        assert main([f"run={folder}", "output=json", *where, *options]) == 0, capsys.readouterr().err
        return json.loads(capsys.readouterr().out)

    return call
