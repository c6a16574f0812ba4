"""Sentences that warn the reader of a table."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedfacet.analysis.audits import AVERAGED, KINDS, MEAN, averaged, is_mean, is_of_attack
from fedfacet.analysis.runs import Run, differing_keys, spelled

_NEW_CLIENTS = "partition.local_holdout=0.2 partition.held_out_clients=0.2"
_HOW = {
    "personal_test/held_out_clients/": "callbacks=[default,personal_evaluate]` and `partition.held_out_clients=0.2",
    "personal_holdout/held_out_clients/": f"callbacks=[default,personal_evaluate]` and `{_NEW_CLIENTS}",
    "client_fairness/held_out_clients/": f"callbacks=[default,client_fairness]` and `{_NEW_CLIENTS}",
    "personal_test/": "callbacks=[default,personal_evaluate]",
    "personal_holdout/": "callbacks=[default,personal_evaluate]` and `partition.local_holdout=0.2",
    "received_test/": "callbacks=[default,submodel_evaluate]",
    "trained_test/": "callbacks=[default,submodel_evaluate]",
    "decomposition/": "callbacks=[default,decomposition]",
    "client_fairness/": "callbacks=[default,client_fairness]` and `partition.local_holdout=0.2",
    "holdout/": "callbacks=[default,federated_evaluate]` and `partition.local_holdout=0.2",
    "val/auc": "callbacks=[default,auc]",
    "test/auc": "callbacks=[default,auc]",
    "val/ece": "callbacks=[default,calibration]",
    "test/ece": "callbacks=[default,calibration]",
}
"""Metrics, by the beginning of their names, that a run measures only with these options of train.py."""


_FEDERATION = ("experiment", "setting", "dataset", "partition", "server_data", "model", "local", "optimizer", "federation")


def notes_on(
    groups: Mapping[tuple[str, str], Sequence[Run]],
    metric: str,
    moments: Sequence[str],
    keys: Sequence[str] = (),
    *,
    by_round: bool = False,
) -> list[str]:
    """Return the warnings about a table's cells, which are given by row and column; ``keys`` are what these tell apart.

    If ``by_round``, the table is of all rounds that have a value, and does not become nan where the last one has none.
    """
    notes = []
    everybody = [run for members in groups.values() for run in members]
    if without := [run for run in everybody if not all(measured(run, metric, moment) for moment in moments)]:
        how = f": {how}" if (how := how_to_measure(metric)) else ""
        notes.append(
            f"`{metric}` was not measured in {len(without)} of {len(everybody)} runs, for example `{without[0].path}`{how}."
        )
    notes += _notes_on_means(everybody, metric, moments) if is_mean(metric) else ()
    for place, members in sorted(groups.items()):
        name = f"`{', '.join(place)}`"
        for moment in moments:
            lost = [f"`{run.path}`" for run in members if math.isnan(run.at(moment).get(metric, math.nan))]
            if lost and any(measured(run, metric, moment) for run in members):
                what = "ends early," if by_round else "is nan"
                notes.append(f"{name} {what} because `{metric}` has no value {_when(moment)} of {', '.join(lost)}.")
        notes += _notes_on_personal(name, members, moments) if metric.startswith("personal") else ()
        if smoke := [run for run in members if run.setting("smoke") == "true"]:
            notes.append(f"{name} has runs of debug=smoke (mostly one round on generated data), for example `{smoke[0].path}`.")
    if "tail" in moments and (short := [run for run in everybody if len(run.tail_of(metric)) == 1]):
        others = "" if len(short) == len(everybody) else f" in {len(short)} of {len(everybody)} runs"
        notes.append(f"The tail is one measured round{others}: run more rounds, or measure `{metric}` more often.")
    return notes + notes_on_settings(groups, keys)


def notes_on_settings(groups: Mapping[tuple[str, str], Sequence[Run]], keys: Sequence[str] = ()) -> list[str]:
    """Return the warnings about which runs a table puts together; the arguments are those of ``notes_on``."""
    notes, all_seeds = [], {run.seed for members in groups.values() for run in members}
    for place, members in sorted(groups.items()):
        name = f"`{', '.join(place)}`"
        if differing := beside_the_seed(members):
            notes.append(f"{name} averages runs that differ in {some(differing)}, not in the seed alone.")
        if "seed" not in keys and (lacking := all_seeds - {run.seed for run in members}):
            notes.append(f"{name} lacks seeds that other cells have: {listed(lacking)}.")
    return notes + _notes_on_rows(groups, keys)


def _notes_on_rows(groups: Mapping[tuple[str, str], Sequence[Run]], keys: Sequence[str]) -> list[str]:
    """Say in what federation or training the rows of a column differ, though neither rows nor columns tell it.

    Runs of one seed are held to each other. What belongs to a method (its selector, aggregator, objective, ...) differs by
    intention.
    """
    notes = []
    for column in sorted({column for _, column in groups}):
        of_seed: dict[tuple[Any, ...], list[Run]] = {}  # and of one recipe and setting, which choose much, where rows tell them
        for run in (run for (_, one), members in groups.items() if one == column for run in members):
            of_seed.setdefault((run.seed, *map(run.setting, {"experiment", "setting"}.intersection(keys))), []).append(run)
        differing = list(dict.fromkeys(key for runs in of_seed.values() for key in differing_keys(runs)))
        if differing_in_data := [
            key for key in differing if _root(key) in _FEDERATION and key not in keys and _root(key) not in keys
        ]:
            notes.append(f"Rows of `{column}` differ in {some(differing_in_data)} too.")
        known = {_root(key) for key in (*differing, *keys)}
        for what, parts in (("data", {"dataset"}), ("partition", {"dataset", "partition", "setting", "server_data"})):
            digests = {seed: {str((run.summary or {}).get(f"{what}_digest")) for run in runs} for seed, runs in of_seed.items()}
            if not known & parts and (unlike := [seed for (seed, *_), found in digests.items() if len(found - {"None"}) > 1]):
                notes.append(f"Rows of `{column}` are not paired: with the seeds {listed(unlike)} they differ in their {what}.")
    return notes


def _root(key: str) -> str:
    return key.split(".")[0]


def notes_on_unfinished(runs: Iterable[Run]) -> list[str]:
    """Name the runs that have not finished, and how far they have come."""
    unfinished = [f"`{run.path}` ({run.progress})" for run in runs if not run.finished]
    return [f"Left out because not finished: {', '.join(unfinished)}."] if unfinished else []


def _notes_on_means(runs: Sequence[Run], metric: str, moments: Sequence[str]) -> list[str]:
    """Say which attacks a mean is over, where these are not those of the thesis in all runs."""
    counts: dict[tuple[str, ...], int] = {}
    for run in runs:
        for moment in moments:
            if attacks := averaged(run.at(moment), metric):
                counts[tuple(attacks)] = counts.get(tuple(attacks), 0) + 1
    if set(counts) <= {AVERAGED}:
        return []
    phrases = [f"{some(attacks)}{f' in {number}' if len(counts) > 1 else ''}" for attacks, number in sorted(counts.items())]
    return [f"`{metric}` is the mean over {'; over '.join(phrases)}. The thesis averages over {some(AVERAGED)}."]


def _notes_on_personal(name: str, members: Sequence[Run], moments: Sequence[str]) -> list[str]:
    """Name the clients that a personal accuracy leaves out, or counts with a model that is not their own."""
    notes = []
    for moment in moments:
        for key, what in (
            ("personal/num_diverged", "leaves out clients whose model diverged in local training"),
            ("personal/num_never_selected", "uses the global model for clients that were never selected"),
        ):
            if number := [int(found) for run in members if (found := run.at(moment).get(key, 0)) > 0]:
                clients = str(min(number)) if min(number) == max(number) else f"{min(number)} to {max(number)}"
                notes.append(f"{name} {what}, {clients} of them {_when(moment)} of {len(number)} of {len(members)} runs.")
    return notes


def beside_the_seed(members: Sequence[Run]) -> list[str]:
    """Return the keys in which runs differ, but for those that are the run's seed itself and what is drawn from them."""
    differing = differing_keys(members)
    seeds = {key for key in differing if key.endswith(".seed") and all(run.setting(key) == str(run.seed) for run in members)}
    return [key for key in differing if key not in seeds and not (seeds and key == "partition_digest")]


def _when(moment: str) -> str:
    return "in the last tenth of the rounds" if moment == "tail" else f"at the {moment} round"


def how_to_measure(metric: str) -> str | None:
    """Return what makes a run have a metric; ``None`` where every run has it."""
    if is_of_attack(metric):
        kind, _, attack = metric.rpartition("/")[0].partition("/")
        named = "loss_threshold,lira" if attack == MEAN else attack
        server = " victim=server" if kind == KINDS["server"] else ""
        return f"attack them with `python src/attack.py run=DIR attack=[{spelled(named)}]{server}`"
    return next((f"run them with `{options}`" for start, options in _HOW.items() if metric.startswith(start)), None)


def measured(run: Run, metric: str, moment: str) -> bool:
    """Tell whether a run measured a metric. NaN is a measured value, and a run without such a round counts as measured."""
    return not run.at(moment) or metric in run.at(moment)


def some(names: Sequence[str]) -> str:
    """Return the first six names, in backticks, and how many more there are."""
    more = f" (and {len(names) - 6} more)" if len(names) > 6 else ""
    return ", ".join(f"`{spelled(name)}`" for name in names[:6]) + more


def listed(numbers: Iterable[int]) -> str:
    """Return numbers in ascending order, each once."""
    return ", ".join(str(number) for number in sorted(set(numbers)))
