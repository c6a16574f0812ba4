"""Whatever is chosen besides, clients that are held out are never selected, asked or trained."""

import re
import tempfile
from pathlib import Path

import numpy as np
import pytest

from fedfacet import build as build_module
from fedfacet import config, state

CONF = Path(__file__).parents[2] / "conf"
ROUNDS = 3


def needed(selector):
    """What a selector cannot do without."""
    method = CONF / "method" / f"{selector}.yaml"
    text = (CONF / "selector" / f"{selector}.yaml").read_text()
    first = text.partition("\n")[0]
    full = re.findall(r"(?:aggregator|local)=\w+", first) if "Needs " in first else []
    judges = method.exists() and "server_data" in method.read_text()
    return [*full, *(["server_data=validation"] if judges else []), *(["devices=lognormal"] if "Needs devices" in text else [])]


USUAL = {
    "test_no_selector_meets_one": {"all", "feddiverse", "pow_d", "poisson", "k_fed"},
    "test_every_engine_measures_the_same_at_them": {"sequential", "vectorized", "workers"},
}
"""Selectors that take all, ask all, ask some, size their cohorts or have a setup; the others know of no more clients."""


def test_no_selector_meets_one(selector_option, tmp_path, monkeypatch):
    """In set-up rounds and after: neither a client's number nor a sample of its own comes up anywhere."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    options = [f"selector={selector_option}", *needed(selector_option), "callbacks=[]", "logger=[]", "debug=smoke"]
    options += [f"federation.rounds={ROUNDS}", "engine.device=cpu", "federation.cohort_size=2"]
    job, _ = config.compose_job("train", options)
    everybody = build_module.load_data(job).partition
    job.partition.held_out_clients = 0.34
    federation = build_module.build(job, tmp_path)
    data = build_module.load_data(job)
    never = data.held_out_clients
    assert (everybody.num_clients, federation.num_clients, len(never.numbers)) == (6, 4, 2)
    assert not np.isin(np.concatenate(never.partition.indices), np.concatenate(data.partition.indices)).any()

    fetched, asked = set(), set()
    inputs = type(federation.engine.clients.dataset.inputs)
    fetch, run, ask = inputs.fetch, federation.engine.run, federation.engine.ask
    monkeypatch.setattr(inputs, "fetch", lambda self, indices: fetched.update(indices.tolist()) or fetch(self, indices))

    def run_noted(tasks):
        asked.update(task.client_id for task in tasks)
        return run(tasks)

    def ask_noted(query, tasks):
        tasks = list(tasks)
        asked.update(task.client_id for task in tasks)
        return ask(query, tasks)

    monkeypatch.setattr(federation.engine, "run", run_noted)
    monkeypatch.setattr(federation.engine, "ask", ask_noted)
    for _ in range(ROUNDS):
        result = federation.run_round()
        assert set(result.cohort) <= set(range(4))
    assert asked <= set(range(4))
    assert len(federation.state.participation_counts) == 4
    assert all(set(answers) <= set(range(4)) for answers in federation.state.disclosures.values())
    own = np.concatenate([everybody.indices[number] for number in never.numbers])
    assert fetched, "somebody trained"
    assert not fetched & set(own.tolist()), "and nobody of theirs"


JOB = (
    "experiment=digits_gsc", "selector=uniform", "federation.rounds=2", "federation.cohort_size=3", "partition.scale=0.2",
    "partition.held_out_clients=0.2", "partition.local_holdout=0.25", "local.batch_size=8", "threads=1", "logger=[]",
    "callbacks=[client_fairness,personal_evaluate]", "engine.device=cpu",
)  # fmt: skip


@pytest.fixture(scope="module")
def measured():
    """Return a function: engine -> a run's metrics, and its model's digest."""

    def run(engine):
        job, _ = config.compose_job("train", [*JOB, f"engine={engine}"])
        build_module.settle(job)
        federation = build_module.build(job, None)
        try:
            return [dict(federation.run_round().metrics) for _ in range(2)], state.digest(federation.state.model)
        finally:
            federation.engine.close()

    return run


@pytest.fixture(scope="module")
def reference(measured):
    return measured("sequential")


def test_every_engine_measures_the_same_at_them(engine_option, measured, reference):
    metrics, digest = measured(engine_option)
    for ours, theirs in zip(metrics, reference[0], strict=True):
        assert ours == pytest.approx(theirs, rel=1e-3, abs=0.02 if engine_option == "vectorized" else 0, nan_ok=True)
        assert "personal_holdout/held_out_clients/gap" in ours
    if engine_option != "vectorized":
        assert (repr(metrics), digest) == (repr(reference[0]), reference[1])
