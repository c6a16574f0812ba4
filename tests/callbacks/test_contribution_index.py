import csv
from dataclasses import replace
from math import nan

import numpy as np
import pytest
import torch

from fedfacet import rng, state
from fedfacet.build import build
from fedfacet.callbacks.base import Callback
from fedfacet.callbacks.contribution_index import ContributionIndex
from fedfacet.errors import ConfigError
from fedfacet.mechanisms.server_data import ServerEvaluation
from fedfacet.methods.shapley import shapley_values
from fedfacet.participation import Dropouts
from fedfacet.storage import checkpoint

MATRICES = ([[6, 2], [2, 6]], [[1, 1], [1, 1]], [[3, 0], [0, 3]], [[9, 5], [5, 9]], [[2, 2], [2, 2]])


@pytest.fixture
def watched(tiny_federation, tmp_path):
    """Return a function that makes a federation with the callback, and other callbacks besides."""

    def make(*, where=tmp_path, cohort_size=3, rounds=4, callbacks=None, of_callback=None, **settings):
        index = ContributionIndex(run_dir=where, **(of_callback or {}))
        callbacks = {**(callbacks or {}), "contribution_index": index}
        return tiny_federation(matrices=MATRICES, cohort_size=cohort_size, rounds=rounds, callbacks=callbacks, **settings)

    return make


def rows(folder):
    with open(folder / "contributions.csv") as file:
        return [
            {"round": int(row["round"]), "client": int(row["client"]), **{key: float(row[key]) for key in ("shapley", "index")}}
            for row in csv.DictReader(file)
        ]


class Kept(Callback):
    needs_updates = True

    def on_updates(self, federation, updates):
        self.model, self.updates = federation.state.model, list(updates)


def test_values_are_those_of_a_game_of_weighted_means(watched, tmp_path):
    kept = Kept()
    run = watched(callbacks={"kept": kept}, rounds=2)
    samples, found, index = run.find(ServerEvaluation).server_data.samples, [], np.zeros(5)
    for round in (1, 2):
        result = run.run_round()

        def accuracy(coalition):
            sizes = [kept.updates[i].num_samples for i in coalition]
            mean = {
                name: sum(size * kept.updates[i].delta[name] for size, i in zip(sizes, coalition, strict=True)) / sum(sizes)
                for name in (kept.updates[0].delta if coalition else ())
            }
            return run.engine.evaluate(state.add(kept.model, mean), [samples])[0].average_accuracy

        values = shapley_values(accuracy, 3, rng.stream(0, "unused"))
        index[list(result.cohort)] += values / (np.abs(values).sum() or 1)
        found += [(round, k, value, index[k]) for k, value in zip(result.cohort, values, strict=True)]
    told = [tuple(row.values()) for row in rows(tmp_path)]
    assert [row[:2] for row in told] == [row[:2] for row in found]
    assert np.array(told) == pytest.approx(np.array(found))
    assert run.callbacks["contribution_index"].summarize(run)["contributions"] == pytest.approx(
        {str(k): index[k] for k in run.state.participation_counts.nonzero().flatten().tolist()}
    )


# The thesis' three axioms


def values_of(run, updates, samples):
    judging = run.find(ServerEvaluation)
    run.put(replace(judging, server_data=judging.server_data._replace(samples=samples)))
    index = run.callbacks["contribution_index"]
    index.on_updates(run, updates)
    return np.array(list(index._values.values()))


@pytest.fixture
def arrived(watched):
    """A federation before its second round, and four updates of it."""
    kept = Kept()
    run = watched(callbacks={"kept": kept}, cohort_size=4)
    run.run_round()
    kept_state = run.state
    run.run_round()
    run.state = kept_state
    return run, kept.updates


def test_a_client_without_effect_contributes_nothing(arrived):
    """It moves nothing, and has next to no samples, so that no coalition's mean differs with it."""
    run, updates = arrived
    nothing = {"delta": state.scaled(updates[1].delta, 0.0), "buffers": state.scaled(updates[1].buffers, 0.0)}
    still = replace(updates[1], num_samples=1e-12, **nothing)
    values = values_of(run, [updates[0], still, *updates[2:]], run.find(ServerEvaluation).server_data.samples)
    assert values[1] == pytest.approx(0, abs=1e-12)
    assert np.abs(values).sum() > 0


def test_clients_with_equal_data_contribute_equally(arrived):
    run, updates = arrived
    twin = replace(updates[0], client_id=updates[1].client_id)
    values = values_of(run, [updates[0], twin, *updates[2:]], run.find(ServerEvaluation).server_data.samples)
    assert values[0] == pytest.approx(values[1])


def test_contributions_to_disjoint_samples_add_up(arrived):
    run, updates = arrived
    samples = run.find(ServerEvaluation).server_data.samples
    halves = [values_of(run, updates, half) for half in (samples[::2], samples[1::2])]
    assert len(samples[::2]) == len(samples[1::2])
    assert values_of(run, updates, samples) == pytest.approx(np.mean(halves, axis=0))
    assert np.abs(halves).sum() > 0


# In a run


def test_it_changes_nothing(watched, tiny_federation, tmp_path):
    plain, run = tiny_federation(matrices=MATRICES, cohort_size=3, rounds=4), watched()
    assert state.digest(run.fit().model) == state.digest(plain.fit().model)
    assert len(rows(tmp_path)) == 12


def test_later_rounds_count_less(watched, tmp_path):
    run = watched(of_callback={"decay": 0.5})
    run.fit()
    seen = {}
    for round in range(1, 5):
        of_round = [row for row in rows(tmp_path) if row["round"] == round]
        total = sum(abs(row["shapley"]) for row in of_round)
        for row in of_round:
            expected = seen.get(row["client"], 0.0) + (0.5**round * row["shapley"] / total if total else 0.0)
            assert row["index"] == pytest.approx(expected)
            seen[row["client"]] = row["index"]


@pytest.mark.parametrize("cut", [1, 3])
def test_a_resumed_run_writes_the_same(watched, tmp_path, cut):
    def make(where):
        where.mkdir(exist_ok=True)
        settings = {"exact_up_to": 1, "permutations": 3}
        return watched(where=where, rounds=5, participation=Dropouts(dropout_probability=0.3), of_callback=settings)

    whole = make(tmp_path / "whole")
    whole.fit()
    first = make(tmp_path / "parts")
    for _ in range(cut):
        first.run_round()
    checkpoint.save(tmp_path / "checkpoints" / "last.ckpt", first.state, {"seed": 0})
    first.run_round()  # killed before it was saved
    second = make(tmp_path / "parts")
    second.restore(checkpoint.load(tmp_path / "checkpoints" / "last.ckpt")[0])
    second.fit()
    assert rows(tmp_path / "parts") == rows(tmp_path / "whole")
    assert torch.equal(
        second.state.callbacks["contribution_index"]["index"], whole.state.callbacks["contribution_index"]["index"]
    )


def test_it_needs_samples_of_the_servers(job_of, tmp_path, caplog):
    job = ("experiment=digits_gsc", "selector=uniform", "aggregator=fedavg", "callbacks=[contribution_index]", "logger=[]")
    with pytest.raises(
        ConfigError, match=r"for callbacks.contribution_index, but the server has no samples: .* no such callback"
    ):
        build(job_of(*job), tmp_path)
    build(job_of(*job, "server_data=validation"), tmp_path)
    assert "lie idle" not in caplog.text


@pytest.mark.parametrize(("option", "value"), [("decay", 0.0), ("decay", nan), ("exact_up_to", -1), ("permutations", 0)])
def test_impossible_arguments_are_refused(option, value, tmp_path):
    with pytest.raises(ValueError, match=f"Expected `{option}` .*, but got {value}"):
        ContributionIndex(run_dir=tmp_path, **{option: value})
