"""Membership inference attacks: direction, closed forms, and oracles written apart from them."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm

from fedfacet.attacks import RMIA, Gap, LiRA, LossThreshold, Signals, Trajectory, log_odds_of, losses_of
from fedfacet.metrics.roc import roc_of

ALL = {
    "gap": Gap(),
    **{rule: LossThreshold(rule=rule) for rule in ("mean_member", "best", "per_class")},
    **{
        f"{mode} {of}": LiRA(mode=mode, statistic=of)
        for mode in ("offline", "online")
        for of in ("true_class", "max_probability")
    },
    "lira global": LiRA(variance="global"),
    "rmia": RMIA(),
    "rmia 2": RMIA(gamma=2, offline_a=0.9),
}


def with_odds(odds, y, num_classes=3):
    """Return logits whose log-odds of the true class are given; the other classes share the rest."""
    odds = np.asarray(odds, np.float64)
    logits = np.zeros((*odds.shape, num_classes))
    np.put_along_axis(logits, np.broadcast_to(y, odds.shape)[..., None], odds[..., None] + math.log(num_classes - 1), axis=-1)
    return logits


def signals_of(odds, y, *, members, shadow_odds, shadow_members, known=20):
    """Return signals and whether each sample is a member; the attacker knows the first members and others."""
    is_member = np.zeros(len(odds), bool)
    is_member[members] = True
    return is_member, Signals(
        logits=with_odds(odds, y),
        y=y,
        known_members=np.flatnonzero(is_member)[:known],
        known_others=np.flatnonzero(~is_member)[:known],
        shadow_logits=with_odds(shadow_odds, y),
        shadow_members=shadow_members,
    )


def world(gain, *, n=4000, shadows=16, tau=2.0, seed=0):
    """Samples of different difficulty; a model is surer by ``gain`` of what it was trained on, up to noise of 1."""
    generator = np.random.default_rng(seed)
    y, hard = generator.integers(3, size=n), generator.normal(scale=tau, size=n)
    shadow_members = generator.permuted(np.tile([True, False], (n, shadows // 2)), axis=1).T
    shadow_odds = hard + gain * shadow_members + generator.normal(size=(shadows, n))
    odds = hard + generator.normal(size=n)
    odds[: n // 2] += gain
    return signals_of(odds, y, members=slice(0, n // 2), shadow_odds=shadow_odds, shadow_members=shadow_members)


def area(attack, is_member, signals):
    scores = attack.scores(signals)
    assert scores.shape == is_member.shape
    assert scores.dtype == np.float64
    assert np.isfinite(scores).all()
    return roc_of(scores[is_member], scores[~is_member])


@pytest.mark.parametrize("name", ALL)
def test_a_higher_score_means_member(name):
    """On a model that is surer of what it was trained on; one that never saw the members gives nothing away."""
    assert area(ALL[name], *world(3.0)).auc > 0.55
    blind = area(ALL[name], *world(0.0, seed=1))
    assert abs(blind.auc - 0.5) < 4 * blind.null_std


# The largest probability of a sample that is misclassified is that of another class.
@pytest.mark.parametrize("name", [name for name in ALL if name != "gap" and "max_probability" not in name])
def test_a_model_that_knows_its_samples_by_heart(name):
    n = 200
    y = np.arange(n) % 3
    generator = np.random.default_rng(0)
    odds = np.where(np.arange(n) < 100, 40.0, 0.0) + generator.normal(scale=0.1, size=n)
    shadow_members = generator.permuted(np.tile([True, False], (n, 4)), axis=1).T
    shadow_odds = 40.0 * shadow_members + generator.normal(scale=0.1, size=(8, n))
    is_member, signals = signals_of(odds, y, members=slice(0, 100), shadow_odds=shadow_odds, shadow_members=shadow_members)
    # RMIA's score ends at 1, which the surest of those it never saw reach too.
    assert area(ALL[name], is_member, signals).auc >= (0.95 if "rmia" in name else 1)


def test_gap_has_the_advantage_of_the_accuracies():
    is_member, signals = world(1.0)
    right = signals.logits.argmax(axis=1) == signals.y
    roc = area(Gap(), is_member, signals)
    assert roc.advantage == pytest.approx(right[is_member].mean() - right[~is_member].mean())


def test_log_odds_and_losses_are_one_thing():
    """phi = -log(expm1(loss)), also where a float32 loss is 0."""
    generator = np.random.default_rng(0)
    logits, y = generator.normal(scale=4, size=(500, 5)), generator.integers(5, size=500)
    np.testing.assert_allclose(log_odds_of(logits, y), -np.log(np.expm1(losses_of(logits, y))), rtol=1e-9, atol=1e-9)
    sure = np.array([[60.0, 0.0, 0.0]], np.float32)
    assert np.isfinite(log_odds_of(sure, np.array([0]))).all()
    is_member, signals = world(1.0)
    by_loss, odds = area(LossThreshold(), is_member, signals), log_odds_of(signals.logits, signals.y)
    assert by_loss.auc == pytest.approx(roc_of(odds[is_member], odds[~is_member]).auc, abs=1e-9)


@pytest.mark.parametrize("gain", [0.5, 1.0])
def test_lira_beats_a_threshold_by_as_much_as_theory_says(gain):
    """Difficulty of spread tau, noise 1, n shadows: Phi(d / sqrt(2 (1 + 1/n))) with known noise; a threshold has less."""
    is_member, signals = world(gain, n=15_000, shadows=32)
    lira = area(LiRA(variance="global"), is_member, signals).auc
    assert lira == pytest.approx(norm.cdf(gain / math.sqrt(2 * (1 + 1 / 16))), abs=0.01)
    plain = area(LossThreshold(), is_member, signals).auc
    assert plain == pytest.approx(norm.cdf(gain / math.sqrt(2 * (1 + 4))), abs=0.01)


def test_lira_against_a_direct_likelihood_ratio():
    """Each sample by itself, with scipy's normal distributions of its own shadow models."""
    _, signals = world(1.0, n=60, shadows=8)
    online, offline = LiRA(mode="online", min_std=0.0).scores(signals), LiRA(min_std=0.0).scores(signals)
    for i in range(60):
        phi = [
            math.log(p / (1 - p)) for p in np.exp(-losses_of(signals.shadow_logits[:, i : i + 1], signals.y[i : i + 1]))[:, 0]
        ]
        target = math.log(math.exp(-signals.losses[i]) / -math.expm1(-signals.losses[i]))
        inside = [value for value, trained in zip(phi, signals.shadow_members[:, i], strict=True) if trained]
        outside = [value for value, trained in zip(phi, signals.shadow_members[:, i], strict=True) if not trained]
        normal_in, normal_out = (norm(np.mean(values), np.std(values, ddof=1)) for values in (inside, outside))
        assert online[i] == pytest.approx(normal_in.logpdf(target) - normal_out.logpdf(target), rel=1e-6, abs=1e-6)
        assert norm.cdf(offline[i]) == pytest.approx(normal_out.cdf(target), rel=1e-6, abs=1e-9)


def test_rmia_against_the_formula():
    """A dozen lines that compare every sample with every known other."""
    _, signals = world(1.0, n=120, shadows=6)
    gamma = 1.5

    def p(loss):
        return math.exp(-loss)

    ratios = []
    for i in range(120):
        shadow = [p(loss) for loss in losses_of(signals.shadow_logits[:, i : i + 1], signals.y[i : i + 1])[:, 0]]
        inside = [v for v, t in zip(shadow, signals.shadow_members[:, i].tolist(), strict=True) if t]
        outside = [v for v, t in zip(shadow, signals.shadow_members[:, i].tolist(), strict=True) if not t]
        ratios.append(p(signals.losses[i]) / ((np.mean(inside) + np.mean(outside)) / 2))
    expected = [np.mean([ratios[i] / ratios[z] >= gamma for z in signals.known_others]) for i in range(120)]
    np.testing.assert_allclose(RMIA(gamma=gamma).scores(signals), expected, atol=1e-12)


def test_rmia_compares_with_all_others_at_hand():
    """With 3 known others scores have 4 values, and no true positive at 1 % false ones; with 100 more it finds most of LiRA."""
    is_member, signals = world(1.0, n=2200)
    further = np.flatnonzero(~is_member)[-100:]
    kept = np.setdiff1d(np.arange(len(is_member)), further)

    def part(places, known):
        return Signals(
            signals.logits[places], signals.y[places], np.arange(0), known,
            signals.shadow_logits[:, places], signals.shadow_members[:, places],
        )  # fmt: skip

    own = part(kept, np.flatnonzero(~is_member[kept])[:3])
    all_known = part(np.arange(len(is_member)), np.concatenate([np.flatnonzero(~is_member)[:3], further]))
    given = replace(own, references=part(further, np.arange(0)))
    few, many = RMIA(references="known").scores(given), RMIA().scores(given)
    assert len(np.unique(few)) <= 4 < 50 < len(np.unique(many))
    np.testing.assert_array_equal(many, RMIA().scores(all_known)[kept])
    np.testing.assert_array_equal(few, RMIA().scores(own))
    found = [roc_of(scores[is_member[kept]], scores[~is_member[kept]]) for scores in (few, many)]
    assert found[1].auc > found[0].auc + 0.01
    assert found[1].true_positives_at(0.01) > found[0].true_positives_at(0.01) == 0


def test_rmia_without_shadows_that_saw_a_sample():
    """Offline: p(x) = ((1 + a) p_out + 1 - a) / 2."""
    _, signals = world(1.0, n=80, shadows=6)
    blind = Signals(
        signals.logits, signals.y, signals.known_members, signals.known_others, signals.shadow_logits,
        np.zeros_like(signals.shadow_members),
    )  # fmt: skip
    out = np.exp(-losses_of(signals.shadow_logits, signals.y)).mean(axis=0)
    ratios = np.exp(-signals.losses) / ((1.3 * out + 0.7) / 2)
    expected = [(ratios[i] >= ratios[signals.known_others]).mean() for i in range(80)]
    np.testing.assert_allclose(RMIA(offline_a=0.3).scores(blind), expected, atol=1e-12)


def test_thresholds_of_the_loss():
    losses = np.array([0.1, 0.2, 0.3, 1.0, 2.0, 3.0])
    y = np.array([0, 0, 1, 0, 1, 1])
    logits = with_odds(-np.log(np.expm1(losses)), y, num_classes=2)
    empty = np.zeros((0, 6), bool)
    signals = Signals(logits, y, np.array([0, 1, 2]), np.array([3, 4, 5]), np.zeros((0, 6, 2)), empty)
    np.testing.assert_allclose(LossThreshold().scores(signals), 0.2 - losses, atol=1e-9)
    np.testing.assert_allclose(LossThreshold(rule="best").scores(signals), 0.65 - losses, atol=1e-9)
    np.testing.assert_allclose(LossThreshold(rule="per_class").scores(signals), np.where(y == 0, 0.15, 0.3) - losses, atol=1e-9)


def test_an_attack_that_only_ranks_finds_its_threshold_on_the_known_samples():
    _, signals = world(1.0, n=6, shadows=2)
    known = replace(signals, known_members=np.array([0, 1]), known_others=np.array([4, 5]))
    scores = np.array([3.0, 2.0, 9.0, -9.0, 1.0, 0.0])
    assert [attack.bound(scores, known) for attack in (LiRA(), RMIA(), Trajectory())] == [1.5] * 3
    assert (Gap().bound(scores, known), LossThreshold().bound(scores, known)) == (1, 0), "these have one"
    assert math.isnan(LiRA().bound(scores, replace(known, known_others=np.array([], int))))


@pytest.mark.parametrize(
    ("make", "part"),
    [
        (lambda: LossThreshold(rule="median"), "attack.rule"),
        (lambda: LiRA(mode="both"), "attack.mode"),
        (lambda: LiRA(statistic="loss"), "attack.statistic"),
        (lambda: LiRA(variance="none"), "attack.variance"),
        (lambda: LiRA(min_std=-1), "attack.min_std"),
        (lambda: RMIA(gamma=0.5), "attack.gamma"),
        (lambda: RMIA(offline_a=2), "attack.offline_a"),
    ],
)
def test_refuses(make, part):
    with pytest.raises(ValueError, match=part):
        make()


def test_too_few_shadows_are_refused():
    _, signals = world(1.0, n=50, shadows=2)
    for attack in (LiRA(), LiRA(mode="online")):
        with pytest.raises(ValueError, match="2 shadow models or more that were not trained on it"):
            attack.scores(signals)
    nothing = Signals(
        signals.logits, signals.y, signals.known_members, signals.known_others, signals.shadow_logits[:0],
        signals.shadow_members[:0],
    )  # fmt: skip
    for attack in (LiRA(), RMIA()):
        with pytest.raises(ValueError, match="train more"):
            attack.scores(nothing)
