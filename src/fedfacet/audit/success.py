"""How well attacks tell members from others: per victim, over all victims, and per class and group."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from fedfacet.attacks import Attack, Scores, Signals
from fedfacet.data.audit_set import AuditSet
from fedfacet.metrics.group_counts import NAN
from fedfacet.metrics.roc import Roc, pair_weights, pooled_auc, roc_of

RATES = (0.001, 0.01, 0.1)
"""False positive rates at which the true positive rate is told."""


@dataclass(frozen=True, slots=True, eq=False)
class Success:
    """One attack on one victim.

    Attributes:
        scores: of all samples of the audit set, shape (2m,).
        scored: which of them the attacker did not know, shape (2m,).
        roc: of the scored ones.
        advantage: true minus false positive rate at the attacker's own threshold; NaN where there is none.
        null_auc: the mean AUC of the same attack on shadow models, among samples that these were not trained on: what it finds
            without any membership, such as a difference between members' and others' distribution. NaN without shadow models.
        null_std: standard deviation of that over the shadow models.
        gaps: per pair of the audit set the member's score minus the other's, shape (p,).
    """

    scores: Scores
    scored: NDArray[np.bool_]
    roc: Roc
    advantage: float
    null_auc: float
    null_std: float
    gaps: NDArray[np.float64]


def attacked(attack: Attack, signals: Signals, audit_set: AuditSet) -> Success:
    """Return how well an attack does on one model.

    Raises:
        ValueError: if the attack lacks signals, or a score is not finite.
    """
    scores = attack.scores(signals)
    scored, is_member = ~audit_set.is_known, audit_set.is_member
    members, others = scores[scored & is_member], scores[scored & ~is_member]
    bound = attack.bound(scores, signals)
    advantage = NAN if math.isnan(bound) else float((members >= bound).mean() - (others >= bound).mean())
    nulls = null_aucs(attack, signals, audit_set)
    return Success(
        scores=scores,
        scored=scored,
        roc=audit_set.roc(scores),
        advantage=advantage,
        null_auc=fmean(nulls) if nulls else NAN,
        null_std=stdev(nulls) if len(nulls) > 1 else NAN,
        gaps=scores[audit_set.pairs[:, 0]] - scores[audit_set.pairs[:, 1]],
    )


def null_aucs(attack: Attack, signals: Signals, audit_set: AuditSet) -> list[float]:
    """Return the attack's AUC on every shadow model in turn, among the samples that this one was not trained on.

    A shadow model is left out where the others are too few for the attack, or the samples for a curve.
    """
    found = []
    for number, logits in enumerate(signals.shadow_logits):
        seen, rest = signals.shadow_members[number], np.arange(len(signals.shadow_logits)) != number
        known = audit_set.is_known & (seen if seen.any() else audit_set.is_member)
        target = Signals(
            logits=logits,
            y=signals.y,
            known_members=np.flatnonzero(known if known.any() else seen),
            known_others=np.flatnonzero(audit_set.is_known & ~audit_set.is_member & ~seen),
            shadow_logits=signals.shadow_logits[rest],
            shadow_members=signals.shadow_members[rest],
            references=_unseen(signals.references, number) if signals.references is not None else None,
        )
        scored = ~audit_set.is_known & ~seen
        is_member, is_other = scored & audit_set.is_member, scored & ~audit_set.is_member
        if attack.has_enough(target) and len(target.known_others) and min(is_member.sum(), is_other.sum()) >= 2:
            scores = attack.scores(target)
            found.append(roc_of(scores[is_member], scores[is_other]).auc)
    return found


def _unseen(references: Signals, number: int) -> Signals:
    """Return the references that a shadow model was not trained on, and some other was not either, with it for a target."""
    rest = np.arange(len(references.shadow_logits)) != number
    members = references.shadow_members[rest]
    keep = ~references.shadow_members[number] & ~members.all(axis=0)
    return Signals(
        logits=references.shadow_logits[number][keep],
        y=references.y[keep],
        known_members=references.known_members,
        known_others=references.known_others,
        shadow_logits=references.shadow_logits[rest][:, keep],
        shadow_members=members[:, keep],
    )


def pooled(successes: Sequence[Success], *, shared_others: bool = False) -> dict[str, float]:
    """Return the AUC over several victims as ``pooled_auc`` does, its p-value, and what the same attacks find of nothing."""
    auc, low, high = pooled_auc(rocs := [one.roc for one in successes], shared_others=shared_others)
    weights = pair_weights(rocs)
    null_stds = np.array([roc.null_std for roc in rocs])
    null_spread = float(np.linalg.norm(weights * null_stds, 1 if shared_others else 2))
    nulls = np.array([one.null_auc for one in successes])
    there = ~np.isnan(nulls)
    return {
        "auc": auc,
        "auc_low": low,
        "auc_high": high,
        "p_null": float(2 * norm.sf(abs(auc - 0.5) / null_spread)),
        "null_auc": float(np.average(nulls[there], weights=weights[there])) if there.any() else NAN,
    }


def per_slice(
    successes: Sequence[Success], audit_sets: Sequence[AuditSet], slices: Sequence[NDArray[np.int64]], names: Mapping[int, str]
) -> list[dict[str, float | str]]:
    """Return the AUC among the samples of a class or a group, over several victims as in ``pooled``.

    Args:
        successes: of one attack.
        audit_sets: of the same victims.
        slices: per victim the slice of each sample, shape (2m,).
        names: slice -> what it is called.

    Returns:
        Per slice its name, the AUC, and how many members and others it is of; NaN where no victim has two of both.
    """
    rows: list[dict[str, float | str]] = []
    for value, name in names.items():
        aucs, weights, num_members, num_others = [], [], 0, 0
        for one, audit_set, of in zip(successes, audit_sets, slices, strict=True):
            inside = one.scored & (of == value)
            members, others = one.scores[inside & audit_set.is_member], one.scores[inside & ~audit_set.is_member]
            num_members, num_others = num_members + len(members), num_others + len(others)
            if min(len(members), len(others)) >= 2:
                aucs.append(roc_of(members, others).auc)
                weights.append(len(members) * len(others))
        auc = float(np.average(aucs, weights=weights)) if aucs else NAN
        rows.append({"slice": name, "auc": auc, "members": num_members, "others": num_others})
    return rows


def row_of(success: Success) -> dict[str, float]:
    """Return one attack on one victim as a row of a table."""
    roc = success.roc
    return {
        "members": roc.num_members,
        "others": roc.num_others,
        "auc": roc.auc,
        "auc_low": roc.auc_low,
        "auc_high": roc.auc_high,
        "p_null": roc.p_null,
        "null_auc": success.null_auc,
        "null_std": success.null_std,
        "advantage": success.advantage,
        "advantage_best": roc.advantage,
        "null_advantage_best": roc.null_advantage,
        **{f"tpr_at_{rate:g}": roc.true_positives_at(rate) for rate in RATES},
    }
