"""The network that judges loss trajectories."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from fedfacet.attacks import Signals, Trajectories, Trajectory


def world(difference, n=600, epochs=5, seed=0):
    """Losses that members have lower by ``difference``, of a shadow model's samples and of a target's."""
    draw = np.random.default_rng(seed)

    def losses():
        is_member = np.arange(n) % 2 == 0
        return draw.normal(3, 1, size=(n, epochs + 1)) - difference * is_member[:, None], is_member

    (shadow, shadow_members), (target, members) = losses(), losses()
    none = np.empty(0, np.int64)
    logits = np.zeros((n, 2))
    recorded = Trajectories(target, shadow, shadow_members)
    signals = Signals(logits, np.zeros(n, np.int64), none, none, np.empty((0, n, 2)), np.empty((0, n), np.bool_), recorded)
    return members, signals


def test_members_whose_losses_are_lower_are_found():
    members, signals = world(1.0)
    scores = Trajectory().scores(signals)
    # The best there is: six differences of one standard deviation, a shift of sqrt(6).
    assert 0.92 < roc_auc_score(members, scores) < 0.98
    assert ((scores > 0.5) == members).mean() > 0.8
    first, again, other = (Trajectory(attack_epochs=2, seed=seed).scores(signals) for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_nothing_is_found_where_there_is_nothing():
    members, signals = world(0.0)
    assert abs(roc_auc_score(members, Trajectory().scores(signals)) - 0.5) < 4 * np.sqrt(601 / (12 * 300**2))


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("distill_epochs", 0),
        ("distill_lr", 0),
        ("distill_lr", float("nan")),
        ("attack_epochs", 1.5),
        ("attack_lr", -1),
        ("seed", -1),
    ],
)
def test_what_is_out_of_range_is_refused(argument, value):
    with pytest.raises(ValueError, match=f"Expected `attack.{argument}`"):
        Trajectory(**{argument: value})


def test_trajectories_are_needed():
    _, signals = world(1.0)
    bare = Signals(*(getattr(signals, name) for name in Signals.__slots__[:6]))
    with pytest.raises(ValueError, match="but got none"):
        Trajectory().scores(bare)
    assert not Trajectory().has_enough(bare)
