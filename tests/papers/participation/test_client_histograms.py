"""Who was selected how often, and how well each client's model does on its own samples, from the folders of real runs."""

import csv
import io
import json

import numpy as np
import pytest
import torch
from matplotlib.image import imread
from omegaconf import OmegaConf

from fedfacet.analysis.runs import find_runs
from fedfacet.build import build, load_data, settle
from fedfacet.commands import report
from fedfacet.config import compose_job, plain
from fedfacet.errors import ConfigError, FedFacetError
from fedfacet.models.resnet8 import ResNet8
from fedfacet.papers.participation.client_histograms import ClientsOfRun, clients_table, measure_clients, plot_clients
from fedfacet.storage import checkpoint

RUN = (
    "experiment=digits_gsc", "partition=dirichlet", "federation.rounds=3", "federation.cohort_size=4", "logger=[]", "threads=1",
    "callbacks=[csv_log,save_checkpoint,summary]", "model=resnet8", "model.width=2", "selector=uniform",
    "memory_format=contiguous_format",  # channels_last backward of so narrow convolutions corrupts the heap on some CPUs
)  # fmt: skip


def train(folder, *overrides):
    config, _ = compose_job("train", [*RUN, *overrides, f"paths.output_dir={folder}"])
    settle(config)
    folder.mkdir(parents=True)
    build(config, folder).fit()
    (folder / "config.yaml").write_text(OmegaConf.to_yaml(plain(config)))
    return folder


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    """Two seeds of two selectors, and one run with heads of the clients' own and samples held out."""
    logs = tmp_path_factory.mktemp("logs")
    for selector in ("uniform", "probe_fairness"):
        for seed in (0, 1):
            train(logs / "two" / f"{selector}{seed}", f"selector={selector}", f"seed={seed}")
    train(logs / "own", "personal=head", "partition.local_holdout=0.3")
    return logs


@pytest.mark.parametrize(("folder", "held_out"), [("own", True), ("two/uniform0", False)])
def test_accuracies_are_those_of_a_clients_model_on_its_own_samples(logs, folder, held_out):
    """Against plain torch: the checkpoint's weights in a bare network, one client after another."""
    saved, settings = checkpoint.load(logs / folder / "checkpoints" / "last.ckpt")
    data = load_data(OmegaConf.create(settings))
    expected = []
    for client, indices in enumerate(data.local_holdout if held_out else data.partition.indices):
        network = ResNet8(num_classes=2, input_shape=data.dataset.input_shape, width=2)
        own = {name.removeprefix("personal|"): tensor for name, tensor in saved.memory.get(client, {}).items()}
        network.load_state_dict(saved.model | own)
        batch = data.dataset.batch(indices)
        with torch.no_grad():
            expected.append(
                (network.eval()(batch.x).argmax(dim=1) == batch.y).double().mean().item() if len(indices) else np.nan
            )
    ((measured,),) = measure_clients(find_runs([logs / folder]), rows=["selector"], columns=["partition"]).values()
    assert measured.held_out is held_out
    np.testing.assert_allclose(measured.accuracies_K, expected, atol=1e-12)
    assert any(saved.memory.values()) is held_out, "heads of their own"


def test_selections_are_counted_from_the_cohorts(logs):
    clients = measure_clients(find_runs([logs / "two"]), rows=["selector"], columns=["partition"])
    assert list(clients) == [("probe_fairness", "dirichlet"), ("uniform", "dirichlet")]
    for (selector, _), runs in clients.items():
        assert [run.seed for run in runs] == [0, 1]
        for run in runs:
            with open(logs / "two" / f"{selector}{run.seed}" / "metrics.csv", newline="") as file:
                cohorts = [row["cohort"].split() for row in csv.DictReader(file)]
            assert run.selected_K.tolist() == [sum(str(k) in cohort for cohort in cohorts) for k in range(24)]
            assert (run.rounds, run.selected_K.sum()) == (3, 12)


def test_one_command_writes_a_picture_a_csv_and_a_table(logs, tmp_path, capsys):
    picture = tmp_path / "new" / "clients.png"
    assert report.main(["--clients", str(logs / "two"), "--columns", "partition", "--output", str(picture)]) == 0
    said = capsys.readouterr().out
    assert sorted(file.name for file in picture.parent.iterdir()) == ["clients.csv", "clients.png"]
    height, width, _ = imread(picture).shape
    assert width > 1000 < 3 * height
    lines = list(csv.DictReader(io.StringIO((picture.parent / "clients.csv").read_text())))
    assert len(lines) == 2 * 2 * 24
    assert {line["row"] for line in lines} == {"uniform", "probe_fairness"}
    assert all(0 <= float(line["accuracy"]) <= 1 and line["held_out"] == "false" for line in lines)
    never = sum(line["selected"] == "0" for line in lines if line["row"] == "uniform") / 2
    assert f"| uniform, dirichlet | 0 1 | 24 | {never:g} | " in " ".join(said.split())
    assert "on the client's own training samples" in said


def of_run(selected, accuracies, *, rounds=10, seed=0):
    numbers = np.array(selected)
    return ClientsOfRun(seed, rounds, numbers, np.ones_like(numbers), np.array(accuracies, dtype=float), held_out=True)


@pytest.mark.parametrize(
    "runs",
    [
        [of_run([0], [np.nan])],
        [of_run([0, 0], [0.0, 1.0])],
        [of_run([10, 10, 10], [1.0, 1.0, np.nan]), of_run([3, 0, 1], [0.5, 0.2, 0.1], rounds=4, seed=1)],
        [of_run(range(200), np.linspace(0, 1, 200), rounds=200)],
    ],
    ids=["no samples", "never", "other rounds", "many"],
)
def test_any_clients_can_be_drawn(runs, tmp_path, monkeypatch):
    """Every client is in one bar of each histogram, except those without an accuracy. Warnings are errors here."""
    heights = []
    monkeypatch.setattr("matplotlib.axes.Axes.bar", lambda self, x, height, **style: heights.append(height))
    plot_clients({("a", "b"): runs, ("c", "d"): runs}, tmp_path / "clients.png")
    assert [sum(height) for height in heights[:2]] == pytest.approx(
        [len(runs[0].selected_K), np.mean([np.isfinite(run.accuracies_K).sum() for run in runs])]
    )
    assert len(clients_table({("a", "b"): runs}, [], "report").numbers) == 1 + sum(len(run.selected_K) for run in runs)


def test_what_cannot_be_measured_is_said(logs, tmp_path, capsys):
    (run,) = find_runs([train(tmp_path / "run")])
    (run.path / "metrics.csv").write_text("round,test/acc\n1,0.5\n")
    with pytest.raises(FedFacetError, match="it has no column `cohort`"):
        measure_clients([run], rows=["selector"], columns=["partition"])
    with pytest.raises(ConfigError, match="'selektor' is none"):
        measure_clients([run], rows=["selektor"], columns=["partition"])
    (run.path / "summary.json").write_text(json.dumps({"status": "interrupted", "final": {"round": 1}, "rounds": 3}))
    assert report.main(["--clients", str(run.path)]) == 2
    assert "none of 1 runs has finished" in capsys.readouterr().err
    for more in (["--metric", "test/acc"], ["--layout", "table1"], ["--format", "csv"], ["--output", "clients.csv"]):
        with pytest.raises(SystemExit, match="2"):
            report.main(["--clients", str(run.path), *more])
