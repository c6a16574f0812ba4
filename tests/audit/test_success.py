"""What a difference of distribution alone looks like, and numbers over several victims."""

import numpy as np
import pytest

from fedfacet.attacks import LiRA, LossThreshold, Signals
from fedfacet.audit.success import Success, attacked, per_slice, pooled, row_of
from fedfacet.data.audit_set import AuditSet
from fedfacet.metrics.roc import roc_of


def world(*, shift, membership, n=600, shadows=8, seed=0):
    """Two classes. Models are surer of members by ``shift``, trained on them or not, and by ``membership`` of what they saw."""
    draw = np.random.default_rng(seed)
    is_member = np.arange(2 * n) < n
    trained = np.empty((shadows, 2 * n), bool)
    for pair in range(0, shadows, 2):
        trained[pair] = draw.permutation(2 * n) < n
        trained[pair + 1] = ~trained[pair]
    y = draw.integers(0, 2, size=2 * n)

    def logits(saw):
        sure = draw.normal(size=2 * n) + shift * is_member + membership * saw
        return np.stack([np.where(y == label, sure, 0.0) for label in (0, 1)], axis=1)

    audit_set = AuditSet(np.arange(2 * n), is_member, np.tile(np.arange(n) < 20, 2))
    signals = Signals(
        logits=logits(is_member),
        y=y,
        known_members=np.arange(20),
        known_others=np.arange(n, n + 20),
        shadow_logits=np.array([logits(saw) for saw in trained]).reshape(shadows, 2 * n, 2),
        shadow_members=trained,
    )
    return signals, audit_set


def test_a_difference_of_distribution_shows_in_the_auc_among_unseen_samples():
    """A loss threshold takes it for membership, and the null says so; a likelihood ratio does not."""
    signals, audit_set = world(shift=1.0, membership=0.0)
    plain = attacked(LossThreshold(), signals, audit_set)
    expected = 0.7602  # two unit normals at distance 1: the normal distribution at 1 / sqrt(2)
    assert plain.roc.auc == pytest.approx(expected, abs=4 * plain.roc.null_std)
    assert plain.null_auc == pytest.approx(expected, abs=0.03)
    ratio = attacked(LiRA(variance="global"), signals, audit_set)
    assert ratio.roc.auc == pytest.approx(0.5, abs=4 * ratio.roc.null_std)
    assert ratio.null_auc == pytest.approx(0.5, abs=0.03)


def test_membership_does_not_show_there():
    signals, audit_set = world(shift=0.0, membership=1.5)
    for attack in (LossThreshold(), LiRA(variance="global")):
        found = attacked(attack, signals, audit_set)
        assert found.roc.auc > 0.75
        assert found.null_auc == pytest.approx(0.5, abs=0.03)
        assert found.null_std < 0.06


def test_the_advantage_is_at_the_threshold_of_the_known_samples():
    """It is below the largest over all thresholds, which is above 0 by chance where there is nothing to find."""
    signals, audit_set = world(shift=0.0, membership=0.0)
    found = attacked(LiRA(), signals, audit_set)
    is_member, calls = audit_set.is_member[found.scored], found.scores[found.scored] >= LiRA().bound(found.scores, signals)
    assert found.advantage == calls[is_member].mean() - calls[~is_member].mean()
    row = row_of(found)
    assert abs(row["advantage"]) < row["advantage_best"]
    assert row["null_advantage_best"] == pytest.approx(row["advantage_best"], abs=0.04)


def test_without_shadow_models_there_is_no_null():
    signals, audit_set = world(shift=0.0, membership=1.0, shadows=0)
    found = attacked(LossThreshold(), signals, audit_set)
    assert found.null_auc != found.null_auc
    assert found.null_std != found.null_std


def test_the_interval_over_victims_holds_what_it_promises():
    """200 draws of three victims that nothing is to be found about: one half lies inside in about 95 of 100."""
    inside = p_values = 0
    for seed in range(200):
        successes = [
            attacked(LossThreshold(), *world(shift=0.0, membership=0.0, n=size, shadows=0, seed=1000 * seed + size))
            for size in (40, 80, 150)
        ]
        over = pooled(successes)
        inside += over["auc_low"] <= 0.5 <= over["auc_high"]
        p_values += over["p_null"] < 0.05
    assert 180 <= inside <= 199
    assert 1 <= p_values <= 20


def test_victims_that_share_their_others_have_a_wider_interval():
    """60 draws of eight victims that know nothing, whose others are the same samples with nearly the same scores."""
    wrong = {True: 0, False: 0}
    for seed in range(60):
        draw = np.random.default_rng(seed)
        others = draw.normal(size=100)
        successes = []
        for _ in range(8):
            roc = roc_of(draw.normal(size=100), others + 0.1 * draw.normal(size=100))
            successes.append(Success(np.empty(0), np.empty(0, bool), roc, 0.0, float("nan"), float("nan"), np.empty(0)))
        for shared in wrong:
            wrong[shared] += pooled(successes, shared_others=shared)["p_null"] < 0.05
    assert wrong[False] > 10
    assert wrong[True] <= 6


def test_victims_without_a_null_do_not_take_it_from_the_others():
    signals, audit_set = world(shift=0.0, membership=0.0)
    one = attacked(LossThreshold(), signals, audit_set)
    none = attacked(LossThreshold(), *world(shift=0.0, membership=0.0, shadows=0))
    assert pooled([one, none])["null_auc"] == pytest.approx(one.null_auc)
    assert np.isnan(pooled([none, none])["null_auc"])


def test_slices_are_compared_within_victims():
    signals, audit_set = world(shift=0.0, membership=1.0, shadows=0)
    found = attacked(LossThreshold(), signals, audit_set)
    of = (signals.y + 10 * (np.arange(len(signals.y)) % 3 == 0)).astype(np.int64)
    rows = per_slice([found, found], [audit_set, audit_set], [of, of], {0: "a", 10: "b", 99: "nobody"})
    inside = found.scored & (of == 0)
    members, others = (found.scores[inside & kind] for kind in (audit_set.is_member, ~audit_set.is_member))
    difference = members[:, None] - others
    assert rows[0]["auc"] == pytest.approx(((difference > 0) + 0.5 * (difference == 0)).mean())
    assert (rows[0]["members"], rows[0]["others"]) == (2 * len(members), 2 * len(others))
    assert rows[2]["auc"] != rows[2]["auc"]
    assert rows[2]["members"] == 0
