"""Runs -> a table of mean and standard deviation over seeds."""

import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import pairwise
from typing import NamedTuple

from fedfacet.analysis.audits import clash, is_of_attack
from fedfacet.analysis.groups import named
from fedfacet.analysis.notes import beside_the_seed, how_to_measure, listed, measured, notes_on, notes_on_unfinished, some
from fedfacet.analysis.runs import Run, as_number, differing_keys, spelled, telling_keys
from fedfacet.arguments import check_choice
from fedfacet.data.own_data import OWN_DATA
from fedfacet.errors import ConfigError

MOMENTS = {
    "last": "after the last round",
    "best": "after the round with the highest worst-group accuracy on validation data",
    "tail": "mean of the last tenth of the rounds",
}
"""When a run is read -> what that means."""

MADE_WITH = "Made with"  # the beginning of the last sentence of a caption, which tells the command

PAPER = "paper"  # the `at` of a column with a paper's numbers


_MOST_KEYS = 4  # of a row, where these are found from what runs differ in


class SeedTwiceError(ConfigError):
    """A cell would hold a seed twice; with ``rows`` as the keys of rows no cell does (empty where no keys do that)."""

    def __init__(self, message: str, rows: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.rows = tuple(rows)


class Cell(NamedTuple):
    """One metric over the seeds of one setting, in the table's unit.

    ``mean`` is NaN where a seed has no value or there is no seed, ``std`` below two seeds. ``seeds`` ascend; they are empty
    where no run measured the metric.
    """

    mean: float
    std: float
    seeds: tuple[int, ...]


class Column(NamedTuple):
    """A setting, read ``at`` one of ``MOMENTS``, or as the ``"paper"`` prints it.

    ``lower_is_better`` overrides the table's, unless it is ``None``.
    """

    name: str
    at: str
    lower_is_better: bool | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """A table, ready to be written in any form. In its texts, backticks enclose names, as in Markdown.

    ``corner`` holds the keys whose values head the rows. One setting's last and best round are neighbouring columns. Where
    ``lower_is_better`` is ``None``, a column has no best value, because its rows are of different kinds. ``caption`` says what
    the numbers are and where they come from; ``notes`` says what a reader must know before trusting a cell, one sentence each.
    """

    corner: str
    rows: tuple[str, ...]
    columns: tuple[Column, ...]
    cells: Mapping[tuple[str, Column], Cell]
    percent: bool
    lower_is_better: bool | None
    caption: str
    notes: tuple[str, ...]


def make_table(
    runs: Sequence[Run],
    *,
    rows: Sequence[str] = ("selector",),
    columns: Sequence[str] = ("experiment",),
    metric: str = "test/acc_worst_group",
    at: str = "both",
    std: str = "population",
    lower_is_better: bool = False,
    command: str | None = None,
) -> Table:
    r"""Return the mean and standard deviation of a metric over the seeds of each setting.

    .. math::
        \bar{m} = \frac{1}{n} \sum_s m_s, \quad
        \sigma = \sqrt{\frac{1}{n - d} \sum_s (m_s - \bar{m})^2},

    with d = 0 (``"population"``, as in FedDiverse, arXiv:2504.11216) or d = 1 (``"sample"``). A cell is NaN as soon as one of
    its seeds is: leaving that seed out would turn a failed run into a better mean.

    Args:
        runs: finished ones are counted, the others are named in a note.
        rows: config keys as in ``Run.setting`` whose values together head a row.
        columns: as ``rows``, for the columns.
        metric: as a run's summary names it. Accuracies and what attacks find are given in percent, all else as it is.
        at: ``"last"`` round, ``"best"`` round by validation, ``"tail"`` (the mean over the last tenth of the rounds), the first
            two (``"both"``) or ``"all"``.
        std: ``"population"`` or ``"sample"``.
        lower_is_better: whether the smallest value of a column is its best.
        command: what the user typed, for the caption.

    Raises:
        ConfigError: if no run has finished, no run has such a key or metric or a best round, or a cell holds a seed twice.
        ValueError: if ``at`` or ``std`` is none of the above.
    """
    check_choice("std", std, ("population", "sample"))
    check_keys(runs, (*rows, *columns))
    finished = finished_of(runs)
    moments = moments_of(finished, at)
    check_metric(finished, metric, moments)

    groups, percent = group_runs(finished, rows, columns), in_percent(metric)
    # Rows and columns of unfinished runs stay, so that the reader sees their empty cells.
    row_heads = ordered({_head(run, rows) for run in runs})
    table_columns = tuple(Column(name, m) for name in ordered({_head(run, columns) for run in runs}) for m in moments)
    cells = {
        (row, column): cell_over_seeds(groups.get((row, column.name), []), metric, column.at, percent=percent, std=std)
        for row in row_heads
        for column in table_columns
    }
    notes = notes_on_unfinished(runs)
    if at in ("both", "all") and "best" not in moments:
        notes.append("No run has a best round by validation, so it is not shown.")
    notes += notes_on(groups, metric, moments, (*rows, *columns))
    return Table(
        corner=" / ".join(rows),
        rows=row_heads,
        columns=table_columns,
        cells=cells,
        percent=percent,
        lower_is_better=lower_is_better,
        caption=caption_of(finished, [metric], moments, std, lower_is_better, command),
        notes=tuple(notes),
    )


def keys_of(runs: Sequence[Run], rows: Sequence[str], columns: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the keys of rows and columns, those that are not given from what the runs differ in.

    Runs that differ in nothing have their selector as their row.
    """
    found = telling_keys([runs]) or [key for key in beside_the_seed(runs) if key != "partition_digest"][:_MOST_KEYS]
    columns = columns or [usual_column(runs)]
    rows = rows or [key for key in found if key not in columns] or [key for key in ("selector",) if key not in columns]
    return list(rows), list(columns)


def usual_column(runs: Sequence[Run]) -> str:
    """Return the key of columns where the user names none: experiments, or data sets where somebody has brought their own."""
    heads = ("dataset",) if any(run.setting("dataset") in OWN_DATA for run in runs) else ("experiment", "dataset")
    return next((key for key in heads if any(run.setting(key) is not None for run in runs)), "seed")


def group_runs(runs: Iterable[Run], rows: Sequence[str], columns: Sequence[str]) -> dict[tuple[str, str], list[Run]]:
    """Return (row, column) -> the runs there, in the order of their seeds; arguments and errors are ``make_table``'s."""
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.seed):
        groups.setdefault((_head(run, rows), _head(run, columns)), []).append(run)
    keys = telling_keys(groups.values())
    remedy = f"give --rows {','.join([*rows, *keys])}, choose with --where KEY=VALUE"
    for place, members in groups.items():
        check_seeds(", ".join(place), members, remedy, rows=[*rows, *keys] if keys else ())
    return groups


def in_percent(metric: str) -> bool:
    """Tell whether a metric is given in percent."""
    return is_of_attack(metric) or re.search(r"(^|[/_])acc($|[/_])", metric) is not None


def smaller_is_better(metric: str) -> bool:
    """Tell whether everybody wants little of a metric: a loss, an error, a gap, a spread, an epsilon, what an attack finds."""
    gaps = "equal_opportunity|equalized_odds|predictive_equality|demographic_parity|accuracy_parity|calibration"
    small = rf"loss|fair/({gaps})|\w*acc_std|ece(_worst_attribute|_attribute/a\d+)?|privacy/epsilon|gap|num_diverged"
    spent = r"sim/(clock|seconds|joules)|selector/spent|heterogeneity_error/"
    attacked = is_of_attack(metric) and not metric.endswith(("/acc_members", "/acc_others"))
    found_out = attacked or metric.startswith("membership/auc_")
    return found_out or re.search(rf"(^|/)({small})$|^({spent})", metric) is not None


def check_keys(runs: Sequence[Run], keys: Iterable[str]) -> None:
    """Refuse keys that name no single value of any run's config."""
    for key in keys:
        if any(run.setting(key) is not None for run in runs):
            continue
        names = sorted({name for run in runs for name in run.settings})
        groups = [name.removeprefix("choices.") for name in names if name.startswith("choices.")]
        known = groups + [name for name in names if not name.startswith("choices.")]
        inner = [name for name in known if name.startswith(f"{key}.")]
        raise ConfigError(
            f"Expected the keys of rows and columns to name single values of the config, but {key!r} "
            + (f"is a group of them: use {some(inner)}." if inner else f"is none: use {_nearest(key, known)}.")
        )


def finished_of(runs: Sequence[Run]) -> list[Run]:
    """Return the runs that have finished; refuse runs of which none has."""
    if finished := [run for run in runs if run.finished]:
        return finished
    raise ConfigError(
        f"Expected at least one finished run, but none of {len(runs)} runs has finished: name others, or resume one, for "
        f"example {runs[0].path} ({runs[0].progress})."
    )


def check_metric(runs: Sequence[Run], metric: str, moments: Sequence[str]) -> None:
    """Refuse a metric that none of the runs has, or of which attacks on one of them tell several values."""
    check_audits(runs, metric, moments)
    known = {name for run in runs for moment in moments for name in run.at(moment)} - {"round"}
    if metric not in known:
        remedy = how_to_measure(metric) or f"use {_nearest(metric, sorted(known))}"
        raise ConfigError(f"Expected a metric that the runs have, but got {metric!r}: {remedy}.")


def check_audits(runs: Sequence[Run], metric: str, moments: Sequence[str]) -> None:
    """Refuse a metric of which attacks on one run tell several values."""
    for run in runs if is_of_attack(metric) else ():
        for moment in moments:
            audits, differing = clash(run.audits, run.at(moment).get("round", math.nan), metric)
            if audits:
                example = next(iter(differing), "KEY")
                value = spelled(audits[0].threat_model.get(example, "VALUE"))
                first, second = audits[0].folder, audits[1].folder
                raise ConfigError(
                    f"Expected attacks on a run that agree on {metric!r}, but {first} and {second} do not: "
                    + (f"they differ in {some(differing)}, so " if differing else "")
                    + f"choose by --audit {example}={value}, or remove one of the folders."
                )


def check_seeds(
    place: str, members: Sequence[Run], remedy: str = "choose among them with --where KEY=VALUE", rows: Sequence[str] = ()
) -> None:
    """Refuse a cell, whose runs are in the order of their seeds, if it holds a seed twice.

    ``remedy`` is what else can be done than to leave a run out; ``rows`` are those of the ``SeedTwiceError``.
    """
    for first, second in pairwise(members):
        if first.seed == second.seed:
            differing = differing_keys([first, second])
            by_setting = sorted(differing, key=lambda key: key != "setting")  # which chooses most of the others
            if example := next((f"{key}={value}" for key in by_setting if (value := second.setting(key)) is not None), None):
                remedy = remedy.replace("KEY=VALUE", example)
            raise SeedTwiceError(
                f"Expected one run per seed in a cell, but {place} has seed {first.seed} twice, in {first.path} and "
                f"{second.path}, "
                + (
                    f"which differ in {some(differing)}: {remedy}, or leave one of them out."
                    if differing
                    else "with the same config: leave one of them out."
                ),
                rows,
            )


def moments_of(runs: Sequence[Run], at: str) -> tuple[str, ...]:
    """Return at which of ``MOMENTS`` finished runs are read; ``at`` may also be ``"both"`` or ``"all"``."""
    check_choice("at", at, (*MOMENTS, "both", "all"))
    if at == "best" and not any(run.at("best") for run in runs):
        raise ConfigError(
            "Expected runs with a best round by validation, but none of them has validation data: use the last round "
            "(--at last)."
        )
    asked = {"both": ("last", "best"), "all": tuple(MOMENTS)}.get(at, (at,))
    return tuple(moment for moment in asked if moment != "best" or any(run.at("best") for run in runs))


def _nearest(name: str, known: Sequence[str]) -> str:
    return some(get_close_matches(name, known, n=4, cutoff=0.4) or known)


def _head(run: Run, keys: Sequence[str]) -> str:
    return " / ".join("-" if (value := run.setting(key)) is None else value for key in keys)


def ordered(heads: Iterable[str]) -> tuple[str, ...]:
    """Return the heads of rows or columns in the order of a table: numbers first, by size."""

    def numbers_first(head: str) -> list[tuple[bool, float, str]]:
        return [(as_number(part) is None, as_number(part) or 0.0, part) for part in head.split(" / ")]

    return tuple(sorted(heads, key=numbers_first))


def cell_over_seeds(members: Sequence[Run], metric: str, moment: str, *, percent: bool, std: str) -> Cell:
    """Return a metric over the runs of a cell, which are in the order of their seeds; empty if none of them measured it."""
    if not any(measured(run, metric, moment) for run in members):
        return Cell(math.nan, math.nan, ())
    values = [run.at(moment).get(metric, math.nan) * (100 if percent else 1) for run in members]
    spread = math.nan
    # The statistics module cannot take the deviation of infinities or NaN.
    if len(values) > 1 and all(map(math.isfinite, values)):
        spread = statistics.pstdev(values) if std == "population" else statistics.stdev(values)
    return Cell(statistics.fmean(values) if values else math.nan, spread, tuple(run.seed for run in members))


def caption_of(
    runs: Sequence[Run],
    metrics: Sequence[str],
    moments: Sequence[str],
    std: str | None,
    lower_is_better: bool | None,
    command: str | None,
) -> str:
    """Return the caption of a table: what its numbers are, and which runs they come from."""
    return f"{meaning_of(runs, metrics, moments, std, lower_is_better)} {origin_of(runs, command)}"


def meaning_of(
    runs: Sequence[Run], metrics: Sequence[str], moments: Sequence[str], std: str | None, lower_is_better: bool | None
) -> str:
    """Return the beginning of a caption: what the numbers of a table are."""
    last = listed(int(run.at("last")["round"]) for run in runs if "round" in run.at("last"))
    rules = MOMENTS | {"last": f"{MOMENTS['last']} ({last})"}
    rule = "; ".join(f"{moment}: {rules[moment]}" for moment in moments) if len(moments) > 1 else rules[moments[0]]
    what = " and ".join(named(runs, metric, "`") + (" in percent" if in_percent(metric) else "") for metric in metrics)
    best = f"Per column, the best ({'lowest' if lower_is_better else 'highest'}) is bold, the second underlined."
    sentences = [
        f"{what}, {rule}.",
        *([] if std is None else [f"Mean ± {std} standard deviation over seeds, number of seeds in parentheses."]),
        *([] if lower_is_better is None else [best]),
    ]
    return " ".join(sentences)


def origin_of(runs: Sequence[Run], command: str | None) -> str:
    """Return the end of a caption: which runs its numbers come from, and by which command."""
    sentences = [
        f"Seeds: {listed(run.seed for run in runs)}.",
        f"Commit: {', '.join(commits_of(runs))}.",
    ]
    if hardware := hardware_of(runs):
        sentences.append(f"Hardware: {' | '.join(hardware)}.")
    if command:
        sentences.append(f"{MADE_WITH} `{command}`.")
    return " ".join(sentences)


def commits_of(runs: Iterable[Run]) -> list[str]:
    """Return the commits that runs were made with, short."""
    return sorted({_commit(run) for run in runs})


def hardware_of(runs: Iterable[Run]) -> list[str]:
    """Return what machines runs were made on."""
    return sorted({_hardware(run) for run in runs if run.summary and run.summary.get("hardware")})


def _commit(run: Run) -> str:
    name, dash, rest = str((run.summary or {}).get("git_commit") or "unknown").partition("-")
    return name[:12] + dash + rest


def _hardware(run: Run) -> str:
    hardware = (run.summary or {}).get("hardware")
    return ", ".join(f"{key} {value}" for key, value in hardware.items()) if isinstance(hardware, dict) else str(hardware)
