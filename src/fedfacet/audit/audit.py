"""A finished run attacked: victims x attacks, and what that leaves in the run's folder."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfacet.analysis.audits import MEAN, POOLED
from fedfacet.analysis.writers import csv_of
from fedfacet.attacks import REFERENCES, RMIA, SHADOWS, Attack, Signals, Trajectories
from fedfacet.audit.shadows import Pool
from fedfacet.audit.success import Success, attacked, per_slice, pooled, row_of
from fedfacet.audit.victims import KeepUpdates, Victim
from fedfacet.clients.prediction import Predictions
from fedfacet.data.audit_set import AuditSet
from fedfacet.data.dataset import Dataset
from fedfacet.metrics.audited_epsilon import audited_of
from fedfacet.metrics.group_counts import NAN
from fedfacet.metrics.group_names import group_names
from fedfacet.plots.roc import plot_exposure, plot_roc
from fedfacet.runs.rerun import RoundAgain
from fedfacet.storage.atomic_write import atomic_write, json_text
from fedfacet.storage.run_files import LIST, write_list

MOST_EXPOSED = 20
"""Members per attack and victim in ``exposed.csv``; who wants them all reads ``scores.npz``."""


@dataclass(frozen=True, slots=True, eq=False)
class Audit:
    """What attacks on one round of one run came to.

    Attributes:
        threat_model: who is attacked and what the attacker knows, JSON-able.
        victims: the models.
        successes: attack -> per victim how well it did.
        rows: per attack and victim, and over all victims, as they are written to ``attacks.csv``.
        slices: per attack and class, and per attack and group, as they are written to ``slices.csv``.
        exposed: per attack and victim the members with the highest scores, as they are written to ``exposed.csv``.
    """

    threat_model: Mapping[str, Any]
    victims: Sequence[Victim]
    successes: Mapping[str, Sequence[Success]]
    rows: Sequence[Mapping[str, Any]]
    slices: Sequence[Mapping[str, Any]]
    exposed: Sequence[Mapping[str, Any]]


def audit(
    again: RoundAgain[KeepUpdates],
    victims: Sequence[Victim],
    attacks: Mapping[str, Attack],
    *,
    pools: Sequence[Pool] | None,
    trajectories: Sequence[Trajectories] | None = None,
    threat_model: Mapping[str, Any],
    proven: Sequence[float],
) -> Audit:
    """Attack some models.

    Args:
        again: the round that they are of.
        victims: as ``client_victims`` or ``server_victims`` return them.
        attacks: name -> attack.
        pools: per victim of shadow models; ``None`` where no attack needs any.
        trajectories: per victim; ``None`` where no attack needs them.
        threat_model: written along; its ``delta`` is that of the audited epsilon.
        proven: per victim an epsilon that its training is proven to have; NaN where nothing is.

    Raises:
        ValueError: if an attack lacks signals.
    """
    dataset = again.data.dataset
    predictions: list[Predictions] = []  # of whole audit sets: members and others share batches, where batches matter
    successes: dict[str, list[Success]] = {name: [] for name in attacks}
    for number, victim in enumerate(victims):
        predictions += again.federation.engine.predict(victim.model, [victim.audit_set.samples], victim.memory)
        recorded = trajectories[number] if trajectories is not None else None
        pool = pools[number] if pools is not None else None
        references = None
        if len(further := victim.audit_set.references) and any(REFERENCES in attack.needs for attack in attacks.values()):
            (references,) = again.federation.engine.predict(victim.model, [further], victim.memory)
        # Of one victim at a time: they take S x n x Y floats.
        signals = signals_of(dataset, victim, predictions[-1], pool, recorded, references)
        for name, attack in attacks.items():
            successes[name].append(attacked(attack, signals, victim.audit_set))
    rows = [
        row for name in attacks for row in _rows(name, victims, predictions, successes[name], dataset, threat_model, proven)
    ]
    slices = [row for name in attacks for row in _slices(name, victims, successes[name], dataset)]
    exposed = [row for name in attacks for row in _exposed(name, victims, successes[name], dataset)]
    return Audit(threat_model, victims, successes, rows, slices, exposed)


def needs_shadows(attacks: Mapping[str, Attack]) -> bool:
    """Tell whether an attack compares with shadow models."""
    return any(SHADOWS in attack.needs for attack in attacks.values())


def references_of(victims: Sequence[Victim], attacks: Mapping[str, Attack]) -> dict[str, int]:
    """Return for a threat model with how many known others RMIA compares at least; empty where nothing compares."""
    sets = [victim.audit_set for victim in victims]
    for attack in attacks.values():
        if isinstance(attack, RMIA):
            further = attack.references == "at_hand"
            return {
                "references": min(int((own.is_known & ~own.is_member).sum()) + further * len(own.references) for own in sets)
            }
    return {}


def signals_of(
    dataset: Dataset,
    victim: Victim,
    predictions: Predictions,
    pool: Pool | None,
    trajectories: Trajectories | None = None,
    references: Predictions | None = None,
) -> Signals:
    """Return what an attacker sees of a victim's audit set, and of its references where these were predicted too."""
    own = victim.audit_set
    logits, members = pool.of(own.samples) if pool is not None else (None, None)
    further = None
    if references is not None and pool is not None:
        unscored = AuditSet(own.references, *np.zeros((2, len(own.references)), np.bool_))
        further = unscored.signals(references.logits, dataset.y[own.references], *pool.of(own.references))
    return own.signals(predictions.logits, dataset.y[own.samples], logits, members, trajectories, further)


def write_audit(audit: Audit, folder: Path) -> Path:
    """Write an audit into a folder of its own below ``folder``, named by its threat model and its attacks; return that.

    ``attacks.csv``, ``slices.csv``, ``exposed.csv``, ``scores.npz``, ``roc.png`` and ``exposure.png``. ``audit.json`` comes
    after them, so that a folder that has it is whole, and the list of digests last.
    """
    digest = hashlib.sha256(json.dumps(audit.threat_model, sort_keys=True).encode()).hexdigest()[:12]
    own = folder / digest
    own.mkdir(parents=True, exist_ok=True)
    for name in ("audit.json", LIST):
        (own / name).unlink(missing_ok=True)
    tables = {"attacks.csv": audit.rows, "slices.csv": audit.slices, "exposed.csv": audit.exposed}
    for name, rows in tables.items():
        with atomic_write(own / name) as unfinished:
            unfinished.write_text(csv_of([list(rows[0]), *(list(row.values()) for row in rows)]), newline="")
    with atomic_write(own / "scores.npz") as unfinished, open(unfinished, "wb") as binary:
        np.savez_compressed(binary, **_arrays(audit))  # type: ignore[arg-type]  # its stub takes no mapping
    rocs = {name: [one.roc for one in of] for name, of in audit.successes.items()}
    plot_roc(rocs, own / "roc.png")
    sizes, rates = zip(*((victim.num_samples, victim.rate) for victim in audit.victims), strict=True)
    plot_exposure(rocs, sizes, rates, own / "exposure.png")
    with atomic_write(own / "audit.json") as unfinished:
        unfinished.write_text(json_text({"threat_model": audit.threat_model, "attacks": audit.rows}) + "\n")
    write_list(own)
    return own


def _rows(
    name: str,
    victims: Sequence[Victim],
    predictions: Sequence[Predictions],
    successes: Sequence[Success],
    dataset: Dataset,
    threat_model: Mapping[str, Any],
    proven: Sequence[float],
) -> list[dict[str, Any]]:
    """Return a row per victim; and, of several, one of all comparisons within victims and one of means over victims."""
    rows: list[dict[str, Any]] = []
    delta, shared_others = threat_model["delta"], threat_model["others"] == "test"
    for victim, predicted, success, epsilon in zip(victims, predictions, successes, proven, strict=True):
        right, is_member = predicted.labels == dataset.y[victim.audit_set.samples], victim.audit_set.is_member
        rows.append({
            "attack": name,
            "client": _name(victim),
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
    kinds: list[tuple[str, NDArray[Any], Sequence[str]]] = [("class", dataset.y, dataset.class_names)]
    if dataset.num_attributes > 1:
        groups = dataset.y * dataset.num_attributes + dataset.a
        kinds.append(("group", groups, group_names(dataset.class_names, dataset.attribute_names)))
    return [
        {"attack": name, "kind": kind} | row
        for kind, values, names in kinds
        for row in per_slice(successes, sets, [values[own.samples] for own in sets], dict(enumerate(names)))
    ]


def _exposed(name: str, victims: Sequence[Victim], successes: Sequence[Success], dataset: Dataset) -> Iterator[dict[str, Any]]:
    """Return the scored members with the highest scores of each victim; equal scores share a rank."""
    groups = group_names(dataset.class_names, dataset.attribute_names)
    for victim, success in zip(victims, successes, strict=True):
        own = victim.audit_set
        others = np.sort(success.scores[success.scored & ~own.is_member])
        members = np.flatnonzero(success.scored & own.is_member)
        scores = success.scores[members]
        descending = np.sort(-scores)
        for place in np.lexsort((own.samples[members], -scores))[:MOST_EXPOSED]:
            sample, score = int(own.samples[members[place]]), float(scores[place])
            y, a = int(dataset.y[sample]), int(dataset.a[sample])
            yield {
                "attack": name,
                "client": _name(victim),
                "rank": int(np.searchsorted(descending, -score)) + 1,
                "sample": sample,
                "class": dataset.class_names[y],
                "group": groups[y * dataset.num_attributes + a],
                "score": score,
                "others_as_high": float(1 - np.searchsorted(others, score) / len(others)),
            }


def _name(victim: Victim) -> str | int:
    return "server" if victim.client_id is None else victim.client_id


def _arrays(audit: Audit) -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any]] = {}
    for number, victim in enumerate(audit.victims):
        who = "server" if victim.client_id is None else f"client_{victim.client_id}"
        arrays |= {f"{who}/{key}": value for key, value in asdict(victim.audit_set).items()}
        arrays |= {f"{who}/{name}": of[number].scores for name, of in audit.successes.items()}
    return arrays
