"""Attacks on real runs, from the run folder to the tables."""

import csv
import json
import re
import shutil
from collections import Counter

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from fedfacet.analysis.audits import TOLD, load_audits, metrics_of
from fedfacet.audit import audit
from fedfacet.commands.attack import main

ALL = "attack=[gap,loss_threshold,lira,rmia]"
SHADOWS = ("shadow.models=6", "shadow.epochs=12", "members.min_known=10")


def row_of(told, attack, client="pooled"):
    return next(row for row in told["attacks"] if (row["attack"], row["client"]) == (attack, client))


def test_models_that_learnt_by_heart_are_found_out_and_one_that_saw_nothing_is_not(run, attack):
    """The direction of every score; and one half, within four standard errors, on the initial model."""
    folder = run("callbacks.save_checkpoint.keep=all")
    after = attack(folder, ALL, *SHADOWS)
    before = attack(folder, ALL, *SHADOWS, "round=1", "moment=received")
    for name in ("gap", "loss_threshold", "lira", "rmia"):
        assert row_of(after, name)["auc_low"] > 0.65, name
        assert row_of(after, name)["p_null"] < 1e-6
        row = row_of(before, name)
        null_std = np.sqrt(3) * np.sqrt((2 * row["members"] / 3 + 1) / (12 * (row["members"] / 3) ** 2)) / 3
        assert abs(row["auc"] - 0.5) < 4 * null_std, name
        assert abs(row_of(after, name)["null_auc"] - 0.5) < 0.1  # members and others differ in nothing else


def test_numbers_are_those_of_the_scores_that_are_written(run, attack):
    """AUCs by scikit-learn, and over clients by counting pairs; the advantage of the gap is one of accuracies."""
    told = attack(run(), ALL, *SHADOWS)
    arrays = np.load(f"{told['folder']}/scores.npz")
    for name in ("gap", "loss_threshold", "lira", "rmia"):
        right = pairs = 0.0
        for client in range(3):
            scored = ~arrays[f"client_{client}/is_known"]
            is_member, scores = arrays[f"client_{client}/is_member"][scored], arrays[f"client_{client}/{name}"][scored]
            row = row_of(told, name, client)
            assert row["auc"] == pytest.approx(roc_auc_score(is_member, scores), abs=1e-12)
            difference = scores[is_member][:, None] - scores[~is_member]
            right, pairs = right + (difference > 0).sum() + (difference == 0).sum() / 2, pairs + difference.size
            if name == "gap":
                assert row["advantage"] == pytest.approx(scores[is_member].mean() - scores[~is_member].mean())
        assert row_of(told, name)["auc"] == pytest.approx(right / pairs, abs=1e-12)
        mean = np.mean([row_of(told, name, client)["auc"] for client in range(3)])
        assert row_of(told, name, "mean")["auc"] == pytest.approx(mean)


def test_what_is_written_is_what_is_printed_and_comes_out_again(run, attack, pictures):
    folder = run()
    first = attack(folder, ALL, *SHADOWS)
    own = next((folder / "attacks").glob("*/audit.json")).parent
    before = {file.name: file.read_bytes() for file in sorted(own.iterdir()) if file.suffix not in (".npz", "")}
    assert sorted(before) == ["attacks.csv", "audit.json", "exposed.csv", "exposure.png", "roc.png", "slices.csv"]
    again = attack(folder, ALL, *SHADOWS)
    assert again == first
    assert {name: (own / name).read_bytes() for name in before} == before
    with open(f"{first['folder']}/attacks.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["attack"], row["client"]) for row in rows] == [(row["attack"], str(row["client"])) for row in first["attacks"]]
    assert float(rows[0]["auc"]) == first["attacks"][0]["auc"]
    assert json.loads((own / "audit.json").read_text())["threat_model"] == first["threat_model"]


def test_of_several_runs_one_that_cannot_be_attacked_costs_a_sentence(run, capsys, tmp_path):
    for name in ("a", "b", "c"):
        shutil.copytree(run(), tmp_path / "runs" / name)
    shutil.rmtree(tmp_path / "runs" / "b" / "checkpoints")
    assert main([f"run={tmp_path / 'runs'}", "attack=gap", "output=json"]) == 2
    printed = capsys.readouterr()
    assert [told["run"][-1] for told in json.loads(printed.out)] == ["a", "c"]
    assert [line for line in printed.err.splitlines() if line.startswith("error: ") and "runs/b" in line]


def test_a_class_that_is_named_like_a_formula_is_written_as_text(run, attack, monkeypatch):
    monkeypatch.setattr(audit, "per_slice", lambda *_: [{"slice": "=1+1", "auc": 0.5, "members": 2, "others": 2}])
    told = attack(run(), "attack=gap")
    with open(f"{told['folder']}/slices.csv", newline="") as file:
        assert [row["slice"] for row in csv.DictReader(file)] == ["'=1+1"]


def test_classes_are_told_apart(run, attack):
    told = attack(run(), "attack=loss_threshold")
    with open(f"{told['folder']}/slices.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["slice"] for row in rows] == ["normal", "pneumonia"]
    whole = row_of(told, "loss_threshold")
    assert sum(int(row["members"]) for row in rows) == whole["members"]
    arrays = np.load(f"{told['folder']}/scores.npz")
    assert len(arrays["client_0/samples"]) == len(set(arrays["client_0/samples"].tolist()))


def test_the_most_exposed_samples_are_the_members_with_the_highest_scores(run, attack):
    told = attack(run(), "attack=[gap,loss_threshold]")
    with open(f"{told['folder']}/exposed.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    arrays = np.load(f"{told['folder']}/scores.npz")
    assert Counter((row["attack"], row["client"]) for row in rows) == {
        (name, str(client)): audit.MOST_EXPOSED for name in ("gap", "loss_threshold") for client in range(3)
    }
    for client in range(3):
        own = [row for row in rows if (row["attack"], row["client"]) == ("loss_threshold", str(client))]
        scored, is_member = ~arrays[f"client_{client}/is_known"], arrays[f"client_{client}/is_member"]
        scores, samples = arrays[f"client_{client}/loss_threshold"], arrays[f"client_{client}/samples"]
        ranked = np.sort(scores[scored & is_member])[::-1]
        assert [float(row["score"]) for row in own] == ranked[: audit.MOST_EXPOSED].tolist()
        assert [int(row["rank"]) for row in own] == [1 + int((ranked > float(row["score"])).sum()) for row in own]
        others = scores[scored & ~is_member]
        for row in own:
            (place,) = np.flatnonzero(samples == int(row["sample"]))
            assert (scored & is_member)[place]
            assert scores[place] == float(row["score"])
            assert float(row["others_as_high"]) == pytest.approx((others >= scores[place]).mean())
            assert row["group"] == row["class"] in ("normal", "pneumonia")
    ties = [row for row in rows if row["attack"] == "gap"]
    assert {row["rank"] for row in ties} == {"1"}, "all of them right"


def test_attacks_are_metrics_of_the_run(run, attack):
    """What the report reads is what the command has printed."""
    folder = run("seed=2")
    told = attack(folder, "attack=[gap,loss_threshold]")
    found = metrics_of(load_audits(folder), 2)
    assert found["attack/loss_threshold/auc"] == row_of(told, "loss_threshold", "mean")["auc"]
    assert found["attack/gap/auc_pooled"] == row_of(told, "gap")["auc"]
    assert set(TOLD) <= row_of(told, "gap", "mean").keys()


def test_the_server_is_attacked_on_all_clients_samples(run, attack):
    told = attack(run(), "attack=loss_threshold", "victim=server")
    (row,) = told["attacks"]
    assert row["client"] == "server"
    assert row["num_samples"] == sum(row["num_samples"] for row in attack(run(), "attack=gap")["attacks"][:3])
    assert told["threat_model"]["moment"] == "after_aggregation"
    assert row["auc"] > 0.55


def test_members_of_the_server_are_those_who_have_taken_part(run, attack):
    folder = run("federation.cohort_size=1", "selector=uniform", "federation.rounds=1")
    told = attack(folder, "attack=loss_threshold", "victim=server", "members.others=test")
    assert told["attacks"][0]["num_samples"] == attack(folder, "attack=gap")["attacks"][0]["num_samples"]
    assert told["attacks"][0]["auc"] > 0.7


def test_another_round_than_the_last_is_told(run, capsys, tmp_path):
    folder = run("callbacks.save_checkpoint.keep=all")
    assert main([f"run={folder}", "round=1"]) == 0
    assert "the models are those of round 1; the run has done 2." in " ".join(capsys.readouterr().out.split())
    shutil.copytree(run(), tmp_path / "run")
    (tmp_path / "run" / "checkpoints" / "previous.ckpt").unlink()
    assert main([f"run={tmp_path / 'run'}"]) == 2
    assert "there is only the one after it" in capsys.readouterr().err
    assert main([f"run={tmp_path / 'run'}", "round=3"]) == 0


@pytest.mark.slow
def test_clients_with_parts_of_the_model(run, attack):
    """A model that normalises by its batch, cut: members and others are mixed in its batches."""
    folder = run(
        "model=scaler_cnn",
        "model.width=4",
        "model.norm=batch",
        "capacity=largest",
        "capacity.num_whole=1",
        "submodel=fed_dropout",
    )
    told = attack(folder, "attack=[loss_threshold,lira]", *SHADOWS)
    assert sorted(row["rate"] for row in told["attacks"][:3]) == [0.5, 0.5, 1.0]
    assert told["threat_model"]["shadow_models"].keys() == {"models", "epochs", "batch_size", "seed"}
    assert told["threat_model"]["shadow_models"]["models"] == 6


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("round=1",), "can do again, rounds 2, 3, but got 1: .*keep=all"),
        (("attack=lyra",), "did you mean `attack=lira`"),
        (("attack=[]",), "Expected `attack` to be given"),
        (("victim=client",), "`victim` to be 'clients' or 'server'"),
        (("moment=before",), "`moment` to be 'after_training' or"),
        (("members.others=train",), "`members.others` to be"),
        (("members.known_share=1",), "members.known_share"),
        (
            ("members.min_known=200",),
            r"with 210 training samples or more.*members.min_known=200, but the 3 clients .* have \d+ to",
        ),
        (("members.min_known=200", "clients=[1]"), "to attack client 1, of which 200 are known"),
        (("members.min_known=400", "victim=server"), "to attack the server"),
        (("clients=[7]",), r"whose updates arrived in round 2, \[0, 1, 2\], but got 7"),
        (("shadow.models=5",), "`shadow.models` to be even"),
        (("attack=lira", "shadow.models=2", "shadow.epochs=1"), "2 shadow models or more that were not trained on it"),
        (("attack=lira", "attack.lira.mode=on"), "attack.mode"),
        (("membres.most=3",), "`members.most`"),
        (("round=abc",), "`round` to be a whole number"),
        (("clients=3",), "`clients` to be a list"),
        (("run=[a,b]",), "`run` to be"),
        (("victim=server", "clients=[1]"), "but got none or the server"),
        (("clients=[]",), "but got none or the server"),
        (("victim=server", "moment=received"), "leave one of them out"),
        (("attack=lira", "paths.log_dir=/dev/null/logs"), "folder for shadow models"),
        (("output=csv",), "`output` to be 'text' or 'json'"),
    ],
)
def test_bad_input_costs_one_sentence_and_writes_nothing(run, logs, capsys, options, sentence):
    folder = run("seed=1")
    assert main([f"run={folder}", f"paths.log_dir={logs}", *options]) == 2
    printed = capsys.readouterr()
    assert printed.err.splitlines()[-1].startswith("error: Expected")
    assert re.search(sentence, printed.err), printed.err
    assert not (folder / "attacks").exists()


def test_a_run_is_needed(capsys, tmp_path):
    assert main([]) == 2
    assert "Expected a run to attack, but got none" in capsys.readouterr().err
    assert main([f"run={tmp_path}"]) == 2
    assert "hold some" in capsys.readouterr().err


def test_holding_out_is_needed_where_it_is_asked_for(run, attack, capsys):
    folder = run("partition.local_holdout=0")
    assert main([f"run={folder}", "members.others=holdout"]) == 2
    assert "none does: train with partition.local_holdout=0.2" in capsys.readouterr().err
    assert attack(folder, "attack=gap")["threat_model"]["others"] == "test"
