"""What attacks on a run have found, read back as metrics of the run: ``attack/lira/auc``."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from fedfacet.storage.run_files import read

POOLED, MEAN = "pooled", "mean"
"""What stands in the column of clients for a number over all victims."""

KINDS = {"clients": "attack", "server": "attack_server"}
"""Whose model is attacked -> how the names of metrics begin."""

AVERAGED = ("loss_threshold", "lira", "trajectory")
"""Attacks that ``attack/mean/...`` is a mean over, as in the thesis; the gap is a baseline."""

ATTACK_AGAIN = "remove it and attack again"
"""What the user can do about a file of an attack that is damaged."""

TOLD = (
    *("auc", "null_auc", "advantage", "advantage_best", "null_advantage_best"),
    *("tpr_at_0.001", "tpr_at_0.01", "tpr_at_0.1"),
    *("acc_members", "acc_others"),
)
"""Columns of an audit that are metrics of the run, as means over victims."""


@dataclass(frozen=True, slots=True, eq=False)
class ReadAudit:
    """One audit of a run.

    Attributes:
        folder: where it lies.
        threat_model: who was attacked and what the attacker knew, by dotted key.
        rows: per attack and victim what came out, with those over all victims.
        metrics: name -> number, of what is told over all victims.
    """

    folder: Path
    threat_model: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    metrics: Mapping[str, float]

    @property
    def round(self) -> Any:
        """The round whose models were attacked."""
        return self.threat_model.get("round")


def load_audits(folder: Path) -> tuple[ReadAudit, ...]:
    """Return the audits of the run in a folder, by the names of their folders.

    Raises:
        FedFacetError: if an ``audit.json`` cannot be read or is not what ``attack.py`` writes.
    """
    return tuple(_load(file) for file in sorted(folder.glob("attacks/*/audit.json")))


def metrics_of(audits: Sequence[ReadAudit], round: float) -> dict[str, float]:
    """Return what the audits of a round have found, without numbers in which several of them differ.

    ``attack/mean/...`` is the mean over those of ``AVERAGED`` that there are.
    """
    different = _values(audits, round)
    found = {name: values[0] for name, values in different.items() if len(values) == 1}
    for prefix in KINDS.values():
        for column in TOLD:
            there = [name for attack in AVERAGED if (name := f"{prefix}/{attack}/{column}") in different]
            if there and all(name in found for name in there):
                found[f"{prefix}/{MEAN}/{column}"] = fmean(found[name] for name in there)
    return found


def averaged(names: Mapping[str, float], metric: str) -> list[str]:
    """Return the attacks that a mean over attacks is made of, given all metrics of the run."""
    prefix, _, column = metric.split("/", 2)
    return [attack for attack in AVERAGED if f"{prefix}/{attack}/{column}" in names]


def is_mean(metric: str) -> bool:
    """Tell whether a metric is a mean over attacks."""
    return metric.startswith(tuple(f"{prefix}/{MEAN}/" for prefix in KINDS.values()))


def is_of_attack(metric: str) -> bool:
    """Tell whether a metric comes from an audit."""
    return metric.startswith(tuple(f"{prefix}/" for prefix in KINDS.values()))


def clash(audits: Sequence[ReadAudit], round: float, metric: str) -> tuple[list[ReadAudit], list[str]]:
    """Return two audits that tell different values of a metric, and the keys in which their threat models differ.

    Both are empty where no audits do. A mean over attacks clashes where one of its attacks does.
    """
    values = _values(audits, round)
    names = [metric]
    if is_mean(metric):
        prefix, _, column = metric.split("/", 2)
        names = [f"{prefix}/{attack}/{column}" for attack in AVERAGED]
    for name in names:
        if len(values.get(name, ())) < 2:
            continue
        first, *others = (audit for audit in audits if audit.round == round and not _is_nan(audit.metrics.get(name)))
        second = next(audit for audit in others if audit.metrics[name] != first.metrics[name])
        attack = name.split("/")[1]
        keys = sorted({*first.threat_model, *second.threat_model})
        absent = object()
        differing = [
            key
            for key in keys
            if first.threat_model.get(key, absent) != second.threat_model.get(key, absent)
            and (not key.startswith("attacks.") or key.startswith(f"attacks.{attack}."))
        ]
        return [first, second], differing
    return [], []


def _values(audits: Sequence[ReadAudit], round: float) -> dict[str, list[float]]:
    """Return metric -> the different values that audits of a round tell; NaN only where none tells a number."""
    found: dict[str, list[float]] = {}
    for audit in audits:
        for name, value in audit.metrics.items() if audit.round == round else ():
            known = found.setdefault(name, [value])
            if _is_nan(known[0]):
                known[0] = value
            elif not _is_nan(value) and value not in known:
                known.append(value)
    return found


def _is_nan(value: float | None) -> bool:
    return value is None or math.isnan(value)


def _load(file: Path) -> ReadAudit:
    return read(file, lambda content: _audit_of(json.loads(content), file.parent), remedy=ATTACK_AGAIN)


def _audit_of(content: Any, folder: Path) -> ReadAudit:
    threat_model, rows = content["threat_model"], content["attacks"]
    prefix = KINDS[threat_model["victim"]]
    by_attack: dict[str, dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        by_attack.setdefault(str(row["attack"]), {})[str(row["client"])] = row
    metrics: dict[str, float] = {}
    for attack, of in by_attack.items():
        mean = of.get(MEAN) or next(iter(of.values()))
        metrics |= {f"{prefix}/{attack}/{column}": _number(mean[column]) for column in TOLD if column in mean}
        metrics[f"{prefix}/{attack}/auc_{POOLED}"] = _number(of.get(POOLED, mean)["auc"])
    return ReadAudit(folder, flat(threat_model), rows, metrics)


def _number(value: Any) -> float:
    """Return a number of an audit, whose null is NaN."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise TypeError(value)
    return math.nan if value is None else float(value)


def flat(values: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    """Return values by their dotted keys."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found
