"""A finished run attacked: victims x attacks, and what that leaves in the run's folder."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfacet.analysis.writers import csv_of
from fedfacet.attacks.base import SHADOWS, Attack, Signals
from fedfacet.audit.shadows import Pool
from fedfacet.audit.success import Success, attacked, per_slice, pooled, row_of
from fedfacet.audit.victims import KeepUpdates, Victim
from fedfacet.clients.prediction import Predictions
from fedfacet.data.dataset import Dataset
from fedfacet.metrics.audited_epsilon import audited_of
from fedfacet.metrics.group_counts import NAN
from fedfacet.plots.figure import group_names
from fedfacet.plots.roc import plot_exposure, plot_roc
from fedfacet.runs.rerun import RoundAgain
from fedfacet.storage.json_text import json_text
from fedfacet.storage.whole_file import written_whole

POOLED, MEAN = "pooled", "mean"
"""What stands in a table's column of clients for a number over all victims."""


@dataclass(frozen=True, slots=True, eq=False)
class Audit:
    """What attacks on one round of one run came to.

    Attributes:
        threat_model: who is attacked and what the attacker knows, JSON-able.
        victims: the models.
        successes: attack -> per victim how well it did.
        rows: per attack and victim, and over all victims, as they are written to ``attacks.csv``.
        slices: per attack and class, and per attack and group, as they are written to ``slices.csv``.
    """

    threat_model: Mapping[str, Any]
    victims: Sequence[Victim]
    successes: Mapping[str, Sequence[Success]]
    rows: Sequence[Mapping[str, Any]]
    slices: Sequence[Mapping[str, Any]]


def audit(
    again: RoundAgain[KeepUpdates],
    victims: Sequence[Victim],
    attacks: Mapping[str, Attack],
    *,
    pool: Pool | None,
    threat_model: Mapping[str, Any],
    proven: Sequence[float],
) -> Audit:
    """Attack some models.

    Args:
        again: the round that they are of.
        victims: as ``client_victims`` or ``server_victims`` return them.
        attacks: name -> attack.
        pool: of shadow models; ``None`` where no attack needs any.
        threat_model: written along; its ``delta`` is that of the audited epsilon.
        proven: per victim an epsilon that its training is proven to have; NaN where nothing is.

    Raises:
        ValueError: if an attack lacks signals.
    """
    dataset = again.data.dataset
    said: list[Predictions] = []
    successes: dict[str, list[Success]] = {name: [] for name in attacks}
    for victim in victims:
        said.append(predictions_of(again, victim))
        signals = signals_of(dataset, victim, said[-1], pool)  # of one victim at a time: they take S x n x Y floats
        for name, attack in attacks.items():
            successes[name].append(attacked(attack, signals, victim.audit_set))
    rows = [row for name in attacks for row in _rows(name, victims, said, successes[name], dataset, threat_model, proven)]
    slices = [row for name in attacks for row in _slices(name, victims, successes[name], dataset)]
    return Audit(threat_model, victims, successes, rows, slices)


def needs_shadows(attacks: Mapping[str, Attack]) -> bool:
    """Tell whether an attack compares with shadow models."""
    return any(SHADOWS in attack.needs for attack in attacks.values())


def predictions_of(again: RoundAgain[KeepUpdates], victim: Victim) -> Predictions:
    """Return what a victim says of its audit set; members and others share batches, where batches matter."""
    (said,) = again.federation.engine.predict(victim.model, [victim.audit_set.samples], victim.memory)
    return said


def signals_of(dataset: Dataset, victim: Victim, said: Predictions, pool: Pool | None) -> Signals:
    """Return what an attacker sees of a victim's audit set."""
    own = victim.audit_set
    none = np.empty((0, *said.logits.shape)), np.empty((0, len(own.samples)), np.bool_)
    shadow_logits, shadow_members = pool.of(own.samples) if pool is not None else none
    return Signals(
        logits=said.logits.astype(np.float64),
        y=dataset.y[own.samples],
        known_members=np.flatnonzero(own.is_known & own.is_member),
        known_others=np.flatnonzero(own.is_known & ~own.is_member),
        shadow_logits=shadow_logits,
        shadow_members=shadow_members,
    )


def write_audit(audit: Audit, folder: Path) -> Path:
    """Write an audit into a folder of its own below ``folder``, named by its threat model and its attacks; return that.

    ``attacks.csv``, ``slices.csv``, ``scores.npz``, ``roc.png`` and ``exposure.png``; ``audit.json`` comes last, so that a
    folder that has it is whole.
    """
    digest = hashlib.sha256(json.dumps(audit.threat_model, sort_keys=True).encode()).hexdigest()[:12]
    own = folder / digest
    own.mkdir(parents=True, exist_ok=True)
    (own / "audit.json").unlink(missing_ok=True)
    for name, rows in (("attacks.csv", audit.rows), ("slices.csv", audit.slices)):
        with written_whole(own / name) as unfinished:
            unfinished.write_text(csv_of([list(rows[0]), *(list(row.values()) for row in rows)]), newline="")
    with written_whole(own / "scores.npz") as unfinished, open(unfinished, "wb") as binary:
        np.savez_compressed(binary, **_arrays(audit))  # type: ignore[arg-type]  # its stub takes no mapping
    plot_roc({name: [one.roc for one in of] for name, of in audit.successes.items()}, own / "roc.png")
    plot_exposure(
        {name: [one.roc for one in of] for name, of in audit.successes.items()},
        [victim.num_samples for victim in audit.victims],
        [victim.rate for victim in audit.victims],
        own / "exposure.png",
    )
    with written_whole(own / "audit.json") as unfinished:
        unfinished.write_text(json_text({"threat_model": audit.threat_model, "attacks": audit.rows}) + "\n")
    return own


def _rows(
    name: str,
    victims: Sequence[Victim],
    said: Sequence[Predictions],
    successes: Sequence[Success],
    dataset: Dataset,
    threat_model: Mapping[str, Any],
    proven: Sequence[float],
) -> list[dict[str, Any]]:
    """Return a row per victim; and, of several, one of all comparisons within victims and one of means over victims."""
    rows: list[dict[str, Any]] = []
    delta, shared_others = threat_model["delta"], threat_model["others"] == "test"
    for victim, told, success, epsilon in zip(victims, said, successes, proven, strict=True):
        right, is_member = told.labels == dataset.y[victim.audit_set.samples], victim.audit_set.is_member
        rows.append({
            "attack": name,
            "client": "server" if victim.client_id is None else victim.client_id,
            "rate": victim.rate,
            "num_samples": victim.num_samples,
            **row_of(success),
            "acc_members": float(right[is_member].mean()),
            "acc_others": float(right[~is_member].mean()),
            "epsilon_audited": audited_of(success.gaps, delta),
            "epsilon_proven": epsilon,
        })  # fmt: skip
    if len(victims) == 1:
        return rows
    over: dict[str, Any] = dict.fromkeys(rows[0], NAN)
    sums = {key: sum(row[key] for row in rows) for key in ("num_samples", "members", "others")}
    means = {
        key: _mean([row[key] for row in rows])
        for key in rows[0]
        if key not in ("attack", "client", "auc_low", "auc_high", "p_null", "null_std", "epsilon_audited", "epsilon_proven")
    }
    # All clients' models together are as private as the one that is least so.
    epsilons = {
        "epsilon_audited": audited_of(np.concatenate([success.gaps for success in successes]), delta),
        "epsilon_proven": max(proven) if not np.isnan(proven).any() else NAN,
    }
    return [
        *rows,
        over | {"attack": name, "client": POOLED} | sums | pooled(successes, shared_others=shared_others) | epsilons,
        over | means | {"attack": name, "client": MEAN},
    ]


def _mean(values: Sequence[float]) -> float:
    """Return the mean of those victims for which there is a value."""
    there = [value for value in values if value == value]
    return fmean(there) if there else NAN


def _slices(name: str, victims: Sequence[Victim], successes: Sequence[Success], dataset: Dataset) -> list[dict[str, Any]]:
    sets = [victim.audit_set for victim in victims]
    groups = group_names(dataset.class_names, dataset.attribute_names)
    kinds: list[tuple[str, list[NDArray[np.int64]], list[str]]] = [
        ("class", [dataset.y[own.samples] for own in sets], list(dataset.class_names))
    ]
    if dataset.num_attributes > 1:
        of = [dataset.y[own.samples] * dataset.num_attributes + dataset.a[own.samples] for own in sets]
        kinds.append(("group", of, groups))
    return [
        {"attack": name, "kind": kind} | row
        for kind, values, names in kinds
        for row in per_slice(successes, sets, values, dict(enumerate(names)))
    ]


def _arrays(audit: Audit) -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any]] = {}
    for number, victim in enumerate(audit.victims):
        who = "server" if victim.client_id is None else f"client_{victim.client_id}"
        own = asdict(victim.audit_set)
        arrays |= {f"{who}/{key}": value for key, value in own.items()}
        arrays |= {f"{who}/{name}": of[number].scores for name, of in audit.successes.items()}
    return arrays
