"""Defences against attacks, and both bounds on epsilon beside each other."""

import csv
import math
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedfacet.audit.defence import proof_of
from fedfacet.audit.victims import client_victims, round_to_attack
from fedfacet.commands.attack import main
from fedfacet.data.audit_set import Members
from fedfacet.metrics.audited_epsilon import audited_epsilon, audited_of
from fedfacet.metrics.proven_epsilon import proven_epsilon

ATTACK = "attack=[gap,loss_threshold]"
ON_UPDATES = ("transforms=clip_and_noise", "transforms.clip_and_noise.clip_norm=0.5")
IN_STEPS = ("privacy=dp_sgd", "optimizer=sgd", "optimizer.lr=0.05", "local.batch_size=500")  # no client has as many samples


def row_of(told, attack, client="pooled"):
    return next(row for row in told["attacks"] if (row["attack"], row["client"]) == (attack, client))


def null_std(told):
    """Of the pooled AUC of three equal clients, if attacks know nothing."""
    n = row_of(told, "gap", 0)["members"]
    return math.sqrt((2 * n + 1) / (12 * n * n) / 3)


def multiplier(defence, value):
    name = "transforms.clip_and_noise.noise_multiplier" if defence is ON_UPDATES else "privacy.noise_multiplier"
    return (*defence, f"{name}={value}")


def test_without_a_defence_the_attack_refutes_privacy_and_nothing_is_proven(run, attack):
    told = attack(run(), ATTACK)
    row = row_of(told, "loss_threshold")
    assert row["auc"] > 0.5 + 8 * null_std(told)
    assert row["epsilon_audited"] > 0.2
    assert row["epsilon_proven"] is None  # JSON has no NaN
    assert row_of(told, "loss_threshold", "mean")["epsilon_audited"] is None


@pytest.mark.parametrize("defence", [ON_UPDATES, IN_STEPS], ids=["updates", "steps"])
def test_with_huge_noise_attacks_know_nothing(run, attack, defence):
    """AUC within four standard errors of one half; what is audited is below what is proven, for every client and victim."""
    folder = run(*multiplier(defence, 1000))
    told = attack(folder, ATTACK)
    for name in ("gap", "loss_threshold"):
        assert abs(row_of(told, name)["auc"] - 0.5) < 4 * null_std(told)
    server = attack(folder, ATTACK, "victim=server")
    for row in (*told["attacks"], *server["attacks"]):
        if row["client"] != "mean":
            assert row["epsilon_audited"] <= row["epsilon_proven"] < 0.1


@pytest.mark.parametrize("defence", [ON_UPDATES, IN_STEPS], ids=["updates", "steps"])
def test_without_noise_only_clipping_is_left_and_nothing_is_proven(run, attack, defence):
    told = attack(run(*multiplier(defence, 0)), ATTACK)
    assert {row["epsilon_proven"] for row in told["attacks"]} == {None}


def test_what_is_proven_counts_rounds_steps_and_the_moment(run, attack):
    """Two rounds of an update each, at half the multiplier; and of eight steps each on all samples."""
    updates = run(*multiplier(ON_UPDATES, 4), "callbacks.save_checkpoint.keep=all")
    steps = run(*multiplier(IN_STEPS, 4), "callbacks.save_checkpoint.keep=all")
    for folder, per_round, noise in ((updates, 1, 2.0), (steps, 8, 4.0)):
        for round in (1, 2):
            with round_to_attack(folder, round) as again:
                for received in (False, True):
                    victims = client_victims(again, Members(), "received" if received else "after_training")
                    found = proof_of(again, victims, 1e-4, received=received).epsilons
                    expected = proven_epsilon(noise, 1.0, (round - received) * per_round, 1e-4)
                    assert found == (pytest.approx(expected),) * 3
        told = attack(folder, ATTACK, "round=2", "moment=received", "delta=1e-4")
        expected = proven_epsilon(noise, 1.0, per_round, 1e-4)
        for client in (0, 1, 2, "pooled"):
            assert row_of(told, "gap", client)["epsilon_proven"] == pytest.approx(expected)
    told = attack(steps, ATTACK, "round=1", "moment=received")
    assert row_of(told, "gap")["epsilon_proven"] == 0  # the initial model knows nobody
    assert row_of(told, "loss_threshold")["epsilon_audited"] == 0
    both = attack(run(*multiplier(ON_UPDATES, 4), *multiplier(IN_STEPS, 4)), ATTACK)
    assert row_of(both, "gap")["epsilon_proven"] == pytest.approx(proven_epsilon(2.0, 1.0, 2, 1e-5))


def test_noise_on_updates_does_not_count_for_layers_that_stay(run, attack):
    """Such a client's model is as private as its steps; the server's model has no such layers."""
    folder = run(*multiplier(ON_UPDATES, 1000), *multiplier(IN_STEPS, 4), "personal=head")
    steps = proven_epsilon(4.0, 1.0, 16, 1e-5)
    assert row_of(attack(folder, ATTACK), "gap", 0)["epsilon_proven"] == pytest.approx(steps)
    (row, _) = attack(folder, ATTACK, "victim=server")["attacks"]
    assert row["epsilon_proven"] == pytest.approx(proven_epsilon(500.0, 1.0, 2, 1e-5))


def test_a_kept_optimizer_is_no_layer(run, attack):
    told = attack(run(*multiplier(ON_UPDATES, 4), "local.keep_optimizer=true"), ATTACK)
    assert row_of(told, "gap", 0)["epsilon_proven"] == pytest.approx(proven_epsilon(2.0, 1.0, 2, 1e-5))


def test_what_is_proven_of_sampled_batches(run, attack):
    told = attack(run("privacy=dp_sgd", "local.batch_size=20", "local.amount=2"), ATTACK)
    for client in range(3):
        n = row_of(told, "gap", client)["num_samples"]
        expected = proven_epsilon(1.0, 20 / n, 2 * 2 * math.ceil(n / 20), 1e-5)
        row = row_of(told, "loss_threshold", client)
        assert row["epsilon_audited"] <= row["epsilon_proven"] == pytest.approx(expected)


def test_without_opacus_the_attack_goes_on_and_says_what_to_install(run, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "opacus", None)
    # With a delta the run itself needs it.
    folder = run("privacy=dp_sgd", "privacy.delta=null", "local.batch_size=20", "local.amount=1")
    assert main([f"run={folder}", "attack=gap"]) == 0
    assert "epsilon_proven is empty: Expected the package opacus" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("selector=pow_d", "federation.cohort_size=2"), "clients have answered queries"),
        (("scheduler=plateau", "scheduler.metric=train/loss"), "the scheduler follows train/loss"),
        (("personal=head",), "what clients keep to themselves is not noised"),
    ],
)
def test_where_something_else_tells_of_samples_nothing_is_proven(run, capsys, options, sentence):
    folder = run(*multiplier(ON_UPDATES, 1000), *options)
    assert main([f"run={folder}", "attack=gap", "output=text"]) == 0
    assert f"epsilon_proven is empty: {sentence}" in " ".join(capsys.readouterr().out.split())


def test_columns_are_those_of_the_scores(run, attack):
    told = attack(run(), ATTACK)
    arrays = np.load(f"{told['folder']}/scores.npz")
    gaps = []
    for client in range(3):
        pairs = arrays[f"client_{client}/pairs"]
        scores = arrays[f"client_{client}/loss_threshold"][pairs]
        gaps.append(scores[:, 0] - scores[:, 1])
        assert row_of(told, "loss_threshold", client)["epsilon_audited"] == audited_of(gaps[-1], 1e-5)
    joined = np.concatenate(gaps)
    right = int((joined > 0).sum())
    bounds = [audited_epsilon(right, len(joined), len(joined), 1e-5, confidence=0.975, distance=2), audited_of(joined, 1e-5)]
    assert bounds[0] <= bounds[1] == row_of(told, "loss_threshold")["epsilon_audited"]
    with open(f"{told['folder']}/attacks.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["epsilon_audited"] for row in rows if row["client"] == "mean"] == ["", ""] or {
        row["epsilon_audited"] for row in rows if row["client"] == "mean"
    } == {"nan"}
    assert told["threat_model"]["delta"] == 1e-5


def test_both_bounds_are_printed(run, attack, capsys):
    folder = run(*multiplier(ON_UPDATES, 4))
    told = attack(folder, ATTACK)
    assert main([f"run={folder}", ATTACK]) == 0
    row = row_of(told, "loss_threshold")
    printed = " ".join(capsys.readouterr().out.split())
    assert f"loss_threshold refutes any smaller than {row['epsilon_audited']:.2f}; noise proves" in printed
    assert f"noise proves {row['epsilon_proven']:.2f}." in printed
    assert main([f"run={run()}", ATTACK, "members.others=test"]) == 0
    assert "refutes" not in capsys.readouterr().out


def test_without_coins_nothing_is_audited(run, attack):
    """The test set differs in other ways too; of pooled samples it is not known who held them out."""
    told = attack(run(), ATTACK, "members.others=test")
    assert {row["epsilon_audited"] for row in told["attacks"]} == {None}
    pooled = run("setting=centralized", "selector=all", "federation.cohort_size=1")
    assert attack(pooled, ATTACK)["attacks"][0]["epsilon_audited"] is None


@pytest.mark.parametrize("value", ["0", "1", "-1", "2"])
def test_delta_is_a_chance(run, capsys, value):
    assert main([f"run={run()}", f"delta={value}"]) == 2
    assert "`delta` in (0, 1)" in capsys.readouterr().err


def test_shadow_models_are_trained_as_privately_as_the_run(run, logs, attack):
    """Or an attacker would compare with models that know their samples by heart."""
    private, shadows = (
        (*IN_STEPS, "model.hidden=[64]"),
        ("attack=lira", "shadow.models=4", "shadow.epochs=2", "members.min_known=10"),
    )

    def pools():
        return set((logs / "attack" / "shadows").glob("*/pool.json"))

    attack(run(*multiplier(private, 1000)), *shadows)
    before = pools()
    attack(run(*multiplier(private, 0)), *shadows)
    (new,) = pools() - before
    kept = [pool for pool in before if '"epochs": 2' in pool.read_text() and '"noise_multiplier": 1000' in pool.read_text()]
    noised, clipped = (load_file(pool.parent / "shadow_0000.safetensors")["logits"] for pool in (*kept, new))
    assert np.abs(noised).max() > 50 * np.abs(clipped).max()
