"""The timing harness as it is started from a shell; what it measures is nobody's business here."""

import json
import re
import subprocess
import sys

import pytest
import torch

from fedfacet.build import build
from fedfacet.config import compose_job, make
from fedfacet.mechanisms.submodels import Submodels
from fedfacet.types import ClientUpdate

FACTS = {"name", "date", "command", "commit", "hardware", "versions", "rounds", "repeats", "warmup", "neighbours", "workloads"}
MEASURED = {"startup", "rounds", "core_seconds", "peak_memory", "versions", "failure", "seconds", "iqr", "ratio_to_bare"}


BESIDE = """
import runpy, sys
sys.path.insert(0, {folder!r})
runpy.run_path({folder!r} + "/{script}", run_name="__main__")
"""


def harness(checkout, *arguments):
    command = [sys.executable, str(checkout / "benchmarks" / "engines.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.fixture
def workloads(checkout, monkeypatch):
    monkeypatch.syspath_prepend(checkout / "benchmarks")
    monkeypatch.delitem(sys.modules, "workloads", raising=False)
    import workloads

    return workloads.WORKLOADS


@pytest.mark.slow
def test_a_smoke_run_prints_a_table_writes_json_and_markdown_and_leaves_out_what_fails(checkout, tmp_path):
    result = harness(
        checkout, "--workloads", "smoke", "--contenders", "bare", "sequential", "fabric", "--python", "fabric=/bin/false",
        "--rounds", 1, "--repeats", 2, "--warmup", 1, "--save", "smoke", "--results", tmp_path,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    failure = "fabric failed: left with status 1"
    rows = [line.split("│")[1:-1] for line in result.stdout.splitlines() if line.startswith("│")]
    assert [row[0].strip() for row in rows] == ["bare", "sequential"]
    assert all(cell.strip() for row in rows for cell in row)
    assert failure in result.stdout

    saved = json.loads((tmp_path / "smoke.json").read_text())
    assert set(saved) == FACTS
    assert {"python", "torch", "lightning", "fedfacet"} <= set(saved["versions"])
    measured = saved["workloads"]["smoke"]
    assert measured["fabric"]["failure"] == "left with status 1"
    for name in ("bare", "sequential"):
        assert set(measured[name]) == MEASURED
        assert [len(block) for block in measured[name]["rounds"]] == [1, 1]
        assert measured[name]["peak_memory"] > 0
        assert len(measured[name]["core_seconds"]) == 2
    assert measured["bare"]["ratio_to_bare"] == 1

    written = (tmp_path / "smoke.md").read_text()
    assert written.count("\n| bare |") == written.count("\n| sequential |") == 1
    assert failure in written


@pytest.mark.slow
def test_memory_is_written_too(checkout, tmp_path):
    result = harness(
        checkout, "--workloads", "smoke", "--contenders", "bare", "--memory", 3, "--save", "kept", "--results", tmp_path
    )
    assert result.returncode == 0, result.stderr
    assert re.search(r"^\| smoke \| bare \| \d+ MB \| \d+ MB \| [+-]\d+\.\d % \|$", (tmp_path / "kept.md").read_text(), re.M)


@pytest.mark.slow  # it multiplies large matrices
def test_how_fast_a_step_could_be_is_told_with_what_was_counted(checkout, start_script, tmp_path):
    script = tmp_path / "script.py"  # which finds the modules beside that of the benchmark
    script.write_text(BESIDE.format(folder=str(checkout / "benchmarks"), script="floor.py"))
    result = start_script(tmp_path, script, "--workloads", "smoke", "--seconds", "0.01").result()
    assert result.status == 0, result.err
    flops = {cells[1].strip(): cells[2].strip() for line in result.out.splitlines() if len(cells := line.split("|")) == 8}
    assert float(flops["matrix product, 1024 x 1024"]) == pytest.approx(2 * 1024**3, rel=0.01)
    assert float(flops["convolution 3x3, 28 x 64 x 56 x 56"]) == pytest.approx(2 * 28 * 56 * 56 * 64 * 64 * 9, rel=0.01)
    assert result.out.count("\n| smoke |") == 1


def test_an_unknown_contender_is_refused_before_anything_starts(checkout, start_script, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(BESIDE.format(folder=str(checkout / "benchmarks"), script="engines.py"))
    result = start_script(tmp_path, script, "--contenders", "bare", "sequentail").result()
    assert (result.status, result.out) == (2, "")
    assert "sequentail" in result.err
    assert "sequential" in result.err


@pytest.mark.parametrize("name", ["W1", "W2", "W3", "W4", "W5", "smoke"])
def test_a_recipe_has_the_numbers_that_everybody_else_gets(checkout, workloads, name):
    workload = workloads[name]
    folder = f"hydra.searchpath=['file://{checkout / 'benchmarks' / 'conf'}']"
    config, _ = compose_job("train", [folder, f"experiment={name.lower()}"])
    source = make(config.dataset)
    assert type(source) is type(workload.source)
    assert vars(source) == vars(workload.source)
    assert config.partition.num_clients == workload.num_clients
    assert config.federation.cohort_size == workload.cohort_size
    assert (config.local.unit, config.local.amount, config.local.batch_size) == ("epochs", 1, workload.batch_size)
    assert (config.optimizer.lr, config.optimizer.momentum, config.optimizer.weight_decay) == (workload.lr, 0, 0)
    model = make(config.model, num_classes=source.num_classes, input_shape=workload.input_shape)
    ours, theirs = ({name: tensor.shape for name, tensor in one.state_dict().items()} for one in (model, workload.make_model()))
    assert ours == theirs


def test_the_bare_loop_cuts_and_averages_as_we_do(checkout, workloads, monkeypatch):
    """A round of W5 without training: the same parts go out, and the same model comes of the same updates."""
    monkeypatch.syspath_prepend(checkout / "benchmarks")
    from contenders.plain import average_by_count, first_of

    workload = workloads["W5"]
    folder = f"hydra.searchpath=['file://{checkout / 'benchmarks' / 'conf'}']"
    small = ("dataset.num_train=200", "dataset.num_val=20", "dataset.num_test=20", "logger=[]", "callbacks=[]")
    config, _ = compose_job("train", [folder, "experiment=w5", *small])
    federation = build(config, None)
    model, half = federation.state.model, workload.make_half()
    generator = torch.Generator().manual_seed(0)
    updates, uploads = [], []
    for client in range(10):
        sent = federation.sent(federation.state, client).model
        theirs = model if client < workload.num_whole else first_of(model, half)
        assert all(torch.equal(sent[name], theirs[name]) for name in theirs)
        assert {name: tensor.shape for name, tensor in sent.items()} == {n: tensor.shape for n, tensor in theirs.items()}
        delta = {name: torch.randn(tensor.shape, generator=generator) for name, tensor in theirs.items()}
        uploads.append({name: theirs[name] + delta[name] for name in theirs})
        updates.append(ClientUpdate(client, delta, {}, num_samples=20, num_steps=1, step_weight=1.0, metrics={}))
    aggregate = federation.find(Submodels).parts.aggregate
    _, ours = aggregate(federation.aggregator.aggregate, 1, federation.state.aggregator, model, updates)
    theirs = average_by_count(model, uploads)
    assert all(torch.allclose(ours[name], theirs[name], atol=1e-6) for name in theirs)


def test_all_workloads_are_named(workloads):
    assert set(workloads) == {"W1", "W2", "W3", "W4", "W5", "smoke"}


def test_the_data_have_the_shape_that_models_are_made_for_and_are_dealt_out_whole(workloads):
    workload = workloads["smoke"]
    dataset, data = workload.source.load(), workload.load()
    assert dataset.input_shape == workload.input_shape
    assert data.x.shape == (120, *workload.input_shape)
    assert [len(client) for client in data.clients] == [20] * 4
    everybody = [*(sample for client in data.clients for sample in client.tolist()), *data.held_out.tolist()]
    assert sorted(everybody) == list(range(120))
