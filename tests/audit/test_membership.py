"""Attacks while a run goes on: the numbers of ``attack.py``, in a run that is none the other for them."""

import csv
import json
import math

import pytest
from PIL import Image

from fedfacet.build import build
from fedfacet.config import compose_job
from fedfacet.errors import FedFacetError

WATCHED = "callbacks=[csv_log,save_checkpoint,membership,summary]"
ATTACKS = ("gap", "loss_threshold")


@pytest.mark.parametrize("others", ["holdout", "test"])
def test_the_last_rounds_numbers_are_those_of_attack(run, attack, others):
    folder = run(WATCHED, "callbacks.membership.every_n_rounds=2", f"callbacks.membership.others={others}")
    with open(folder / "metrics.csv", newline="") as file:
        first, last = list(csv.DictReader(file))
    told = attack(folder, "attack=[gap,loss_threshold]", f"members.others={others}", "members.most=1000")
    for name in ATTACKS:
        (row,) = (row for row in told["attacks"] if (row["attack"], row["client"]) == (name, "pooled"))
        for metric, key in (("", "auc"), ("_low", "auc_low"), ("_high", "auc_high")):
            assert float(last[f"membership/auc_{name}{metric}"]) == pytest.approx(row[key], abs=1e-12)
            assert not first[f"membership/auc_{name}{metric}"] or math.isnan(float(first[f"membership/auc_{name}{metric}"]))
        assert row["auc"] > 0.6
    assert (float(first["membership/num_models"]), float(last["membership/num_models"])) == (0, 3)


def test_it_watches_and_changes_nothing_and_draws(run):
    digests = {json.loads((run(*options) / "summary.json").read_text())["model_digest"] for options in ((), (WATCHED,))}
    assert len(digests) == 1
    with Image.open(run(WATCHED) / "membership.png") as picture:
        assert picture.size[0] > 300


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("callbacks.membership.most=12",), "to attack client"),
        (("callbacks.membership.others=train",), "`members.others` to be"),
        (("callbacks.membership.others=holdout", "partition.local_holdout=0"), "but none does: train with"),
    ],
)
def test_what_cannot_be_attacked_is_refused_before_the_run(noise, tmp_path, options, sentence):
    usual = ("dataset=pneumonia_mnist", f"dataset.root={noise}", "partition=iid", "partition.num_clients=3", "model=mlp")
    given = {option.partition("=")[0] for option in options}
    holdout = () if "partition.local_holdout" in given else ("partition.local_holdout=0.4",)
    config, _ = compose_job("train", [*usual, "selector=all", "logger=[]", WATCHED, *holdout, *options])
    with pytest.raises((FedFacetError, ValueError), match=sentence):
        build(config, tmp_path)
