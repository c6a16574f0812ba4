"""Disclosure policies from the command line: what a run writes down, and what is refused."""

import csv
import itertools
import json

import pytest

from fedfacet.clients.queries.counts import NumSamples
from fedfacet.config import compose_job


def test_a_run_says_who_learnt_what_also_after_a_resume(train, tmp_path):
    where = tmp_path / "run"
    options = [f"paths.output_dir={where}", "disclosure=true_triplet"]
    first = train(*options, "heterogeneity.epsilon=2.0", "federation.rounds=2")
    assert first.status == 0, first.err
    second = train(f"resume={where}", "federation.rounds=3")
    assert second.status == 0, second.err
    with open(where / "disclosures.csv") as file:
        rows = list(csv.DictReader(file))
    told = {(row["query"], row["kind"], row["floats"], row["epsilon"]) for row in rows}
    assert told == {("heterogeneity", "triplet", "3", "2.0")}
    clients = [row["client"] for row in rows]
    assert len(set(clients)) == len(clients)
    summary = json.loads((where / "summary.json").read_text())["disclosure"]
    assert summary["clients_by_kind"] == {"triplet": len(clients)}
    assert summary["most_floats_of_a_client"] == 3
    assert summary["policy"] == {"allows": ["size", "triplet"], "attributes": "clients"}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["disclosure=estimated_triplet", "method=fedrk"], "`interaction_matrix` is of kind joint_counts"),
        (["disclosure=none"], "`heterogeneity` is of kind triplet"),
        (["disclosure=estimated_triplet", "heterogeneity=true"], "do without attributes, which nobody knows"),
        (["disclosure=none", "selector=uniform", "objective=reweighing"], "for objective=reweighing, but under this"),
        (["disclosure=none", "selector=uniform", "method=fedpac"], "objective=fedpac sends what is of kind class_means"),
        (["disclosure=none", "selector=uniform", "loss=group_penalty"], "for loss=group_penalty, but under this"),
        (["disclosure=none", "selector=uniform", "disclosure.allows=[sizes]"], "disclosure.allows"),
        (["disclosure=none", "selector=uniform", "disclosure.attributes=everybody"], "disclosure.attributes"),
    ],
)
def test_a_configuration_that_asks_for_too_much_is_refused(refused, options, sentence):
    assert sentence in refused("debug=smoke", "paths.output_dir=run", *options)


def test_levels_are_ordered():
    """What a level allows, the next one does too."""
    levels = ["none", "estimated_triplet", "true_triplet", "joint_counts"]
    policies = [compose_job("train", [f"disclosure={level}"])[0].disclosure for level in levels]
    allowed = [set(policy.allows) for policy in policies]
    assert all(less <= more for less, more in itertools.pairwise(allowed))
    assert [policy.attributes for policy in policies] == ["nobody", "nobody", "clients", "clients"]
    assert NumSamples.kind in allowed[0]
