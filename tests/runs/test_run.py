"""The Python API does what the command does."""

import subprocess
import sys

import pytest

import fedfacet
from fedfacet import state
from fedfacet.errors import CheckpointError, ConfigError, FedFacetError

FAST = (
    "threads=1", "model.width=2", "model.hidden=4", "heterogeneity=true", "~callbacks.figures", "~callbacks.progress",
    "federation.rounds=2",
)  # fmt: skip


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_run_by_python_is_the_run_by_the_command(start_script, tmp_path):
    run = fedfacet.train(*FAST, "selector=uniform", "paths.output_dir=ours")
    assert start_script(tmp_path, "train.py", *FAST, "selector=uniform", "paths.output_dir=theirs").wait() == 0
    other = fedfacet.load_run("theirs")
    assert run.summary["model_digest"] == other.summary["model_digest"]
    assert run.metrics == other.metrics
    assert (run.config.choices.selector, run.metrics[-1]["round"], len(run.metrics[0]["cohort"])) == ("uniform", 2, 9)
    assert state.digest(run.model.state_dict()) == run.summary["model_digest"]
    network = run.model
    size = sum(parameter.numel() for parameter in network.parameters())
    assert run.summary["parameters"] == {"trainable": size, "total": size}
    assert state.digest(run.best_model.state_dict()) == run.summary["best_model_digest"]
    assert repr(run) == f"Run('ours', 2 rounds, finished, round {run.summary['best']['round']} is the best by validation)"
    assert other.resume("federation.rounds=3").summary["rounds"] == 3
    with pytest.raises(CheckpointError, match="all its 3 rounds are done"):
        other.resume()


@pytest.mark.parametrize("override", ["selector=unifrm", "federation.cohort_size=25", "partition.scale=0.15", "-m", "--help"])
def test_mistakes_are_raised(override, tmp_path):
    with pytest.raises(FedFacetError, match=r"^Expected "):
        fedfacet.train(override)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_without_a_run(tmp_path):
    with pytest.raises(ConfigError, match="is none: give the folder that holds"):
        fedfacet.load_run(tmp_path)


def test_importing_the_package_loads_nothing(checkout):
    loads = "import fedfacet, sys; print([name for name in ('torch', 'hydra', 'numpy') if name in sys.modules])"
    env = {"PYTHONPATH": str(checkout / "src")}
    assert subprocess.run([sys.executable, "-c", loads], check=True, capture_output=True, text=True, env=env).stdout == "[]\n"
