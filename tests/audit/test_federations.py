"""Whole federations in the place of shadow models."""

import numpy as np
import pytest

from fedfacet.attacks import LiRA
from fedfacet.audit.federations import difference, pools_of, with_enough
from fedfacet.audit.shadows import Pool
from fedfacet.audit.victims import Victim, client_victims, round_to_attack
from fedfacet.commands.attack import main
from fedfacet.data.audit_set import AuditSet, Members
from fedfacet.errors import FedFacetError

HALVES = ("partition.local_holdout=0.5", "federation.rounds=2", "local.amount=10")


@pytest.fixture(scope="module")
def federations(run, tmp_path_factory):
    """A folder with six runs that are alike but for seed and holdout, and one that differs in more."""
    folder = tmp_path_factory.mktemp("federations")
    for seed in range(7):
        made = run(*HALVES, f"partition.holdout_seed={seed}", f"seed={seed}", *(["local.amount=1"] if seed == 6 else []))
        (folder / str(seed)).symlink_to(made)
    return folder


def row_of(told, attack, client="pooled"):
    return next(row for row in told["attacks"] if (row["attack"], row["client"]) == (attack, client))


def test_what_shadow_federations_say_tells_members_from_others(federations, run, attack):
    """On noise learnt by heart; the null, of the other federations' models on samples that they held out, stays near a half."""
    victim = run(*HALVES, "partition.holdout_seed=0", "seed=0")
    told = attack(victim, "attack=[lira,rmia]", f"shadow.runs={federations}", "members.known_share=0.2")
    assert told["threat_model"]["shadow_models"]["models"] == 5
    assert len(set(told["threat_model"]["shadow_models"]["federations"])) == 5
    for name in ("lira", "rmia"):
        row = row_of(told, name)
        assert row["auc_low"] > 0.52
        assert abs(row["null_auc"] - 0.5) < 0.05
    server = attack(victim, "attack=lira", f"shadow.runs={federations}", "victim=server")
    assert server["threat_model"]["shadow_models"]["models"] == 5


def test_holdout_seed_changes_who_is_held_out_and_nothing_else(run):
    dealt = {}
    for seed in ("null", 0, 1):
        with round_to_attack(run(*HALVES, f"partition.holdout_seed={seed}", "seed=0")) as again:
            dealt[seed] = again.data
    same, other = dealt[0], dealt[1]
    assert dealt["null"].partition.digest == same.partition.digest != other.partition.digest
    for client in range(3):
        everything = [np.union1d(data.partition.indices[client], data.local_holdout[client]) for data in (same, other)]
        assert np.array_equal(*everything)
        both = np.intersect1d(same.local_holdout[client], other.local_holdout[client]).size
        assert 0.3 < both / same.local_holdout[client].size < 0.7


def test_pools_hold_what_the_same_client_of_other_runs_says(federations):
    members = Members()
    with round_to_attack(federations / "1") as one, round_to_attack(federations / "2") as two:
        victims = client_victims(one, members, "after_training")
        heard = {}
        for victim in client_victims(two, members, "after_training"):
            own = np.union1d(two.data.partition.indices[victim.client_id], two.data.local_holdout[victim.client_id])
            (said,) = two.federation.engine.predict(victim.model, [own], victim.memory)
            is_own = np.isin(own, two.data.partition.indices[victim.client_id])
            heard[victim.client_id] = Pool(own, is_own[None], said.logits[None])
        for victim, pool in zip(victims, pools_of({federations / "2": heard}, victims), strict=True):
            logits, is_member = pool.of(victim.audit_set.samples)
            trained_on = two.data.partition.indices[victim.client_id]
            assert np.array_equal(is_member[0], np.isin(victim.audit_set.samples, trained_on))
            again = dict(zip(heard[victim.client_id].samples, heard[victim.client_id].logits[0], strict=True))
            expected = np.stack([again[sample] for sample in victim.audit_set.samples])
            assert np.array_equal(logits[0], expected.astype(np.float64))


def test_samples_that_too_few_federations_held_out_are_left_out():
    members = np.ones((4, 60), np.bool_)
    members[:3, :40] = False
    members[:2, 40:] = False
    own = AuditSet(np.arange(60), np.arange(60) < 30, np.zeros(60, np.bool_), np.array([[0, 31], [1, 45]]))
    victim = Victim(0, 1.0, 60, {}, {}, own)
    (kept,) = with_enough([victim], [Pool(own.samples, members, np.zeros((4, 60, 2), np.float32))], {"lira": LiRA()})
    assert kept.audit_set.samples.tolist() == list(range(40))  # lira needs two, the null one more
    assert kept.audit_set.pairs.tolist() == [[0, 31]]
    members[:, :25] = True
    with pytest.raises(FedFacetError, match=r"^Expected 10 members and as many others that enough of the 4 shadow federations"):
        with_enough([victim], [Pool(own.samples, members, np.zeros((4, 60, 2), np.float32))], {"lira": LiRA()})


def test_runs_differ_by_what_their_numbers_depend_on():
    one = {"seed": 0, "partition": {"seed": 0, "holdout_seed": 1}, "optimizer": {"lr": 1.0}, "paths": {"log_dir": "a"}}
    alike = {"seed": 5, "partition": {"seed": 0}, "optimizer": {"lr": 1.0}, "paths": {"log_dir": "b"}, "callbacks": {"x": 1}}
    assert difference(one, alike) is None
    assert difference(one, {**alike, "optimizer": {"lr": 2.0}}) == "optimizer.lr"
    assert difference(one, {**alike, "partition": {"seed": 3}}) == "partition.seed"


@pytest.mark.parametrize(
    ("victim", "options", "sentence"),
    [
        ((*HALVES, "local.amount=2"), (), "Expected 2 runs or more that differ from"),
        (("partition.local_holdout=0.0",), (), "Expected clients that hold out samples of their own for shadow.runs"),
        ((*HALVES, "partition.holdout_seed=0", "seed=0"), ("round=7",), "Expected a round that"),
        ((*HALVES, "partition.holdout_seed=0", "seed=0"), ("shadow.runs=/nowhere",), "Expected /nowhere to be a run folder"),
    ],
)
def test_runs_that_are_no_shadow_federations_are_refused(federations, run, capsys, victim, options, sentence):
    given = [f"run={run(*victim)}", "attack=lira", f"shadow.runs={federations}", *options]
    assert main(given) == 2
    assert sentence in " ".join(capsys.readouterr().err.split())
