"""What is asked about runs: which of them make a cell, what is read from them, and what its caption says."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from itertools import pairwise

from fedfacet.analysis.audits import clash, is_of_attack
from fedfacet.analysis.groups import named
from fedfacet.analysis.names import metric_name
from fedfacet.analysis.notes import beside_the_seed, how_to_measure, listed, notes_on, notes_on_unfinished, some
from fedfacet.analysis.runs import Run, differing_keys, spelled, telling_keys
from fedfacet.analysis.writers import MADE_WITH, as_number
from fedfacet.arguments import check_choice
from fedfacet.data.own_data import OWN_DATA
from fedfacet.errors import ConfigError
from fedfacet.metrics.direction import lower_is_better, main_metric
from fedfacet.plots.style import axis_name

MOMENTS = {
    "last": "after the last round",
    "best": "after the round whose worst group is best on validation data",
    "tail": "mean of the last tenth of the rounds",
}
"""When a run is read -> what that means."""

_MOST_KEYS = 4  # of a row, where these are found from what runs differ in

Groups = dict[tuple[str, str], list[Run]]
"""(row, column) -> the runs there, in the order of their seeds."""


class SeedTwiceError(ConfigError):
    """A cell would hold a seed twice; with ``rows`` as the keys of rows no cell does (empty where no keys do that)."""

    def __init__(self, message: str, rows: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.rows = tuple(rows)


@dataclass(frozen=True)
class Study:
    """Runs, and how they are put into the cells of a table; all that reports share.

    Args:
        runs: finished ones are counted, the others are named in a note.
        rows: config keys as in ``Run.setting`` whose values together head a row.
        columns: as ``rows``, for the columns.
        metric: as a run's summary names it. Accuracies and what attacks find are given in percent, all else as it is. Empty
            where the report does not read one.
        at: ``"last"`` round, ``"best"`` round by validation, ``"tail"`` (the mean over the last tenth of the rounds), the first
            two (``"both"``) or ``"all"``.
        std: ``"population"`` or ``"sample"``.
        lower_is_better: whether the smallest value of a column is its best.
        command: what the user typed, for the caption.
        names: what readers call options, keys and metrics, as of ``names_for``.

    Raises:
        ConfigError: if no run has finished, no run has such a key or metric or a best round, or, once the cells are asked for,
            one of them holds a seed twice.
        ValueError: if ``at`` or ``std`` is none of the above.
    """

    runs: Sequence[Run]
    rows: Sequence[str] = ("selector",)
    columns: Sequence[str] = ("experiment",)
    metric: str = "test/acc_worst_group"
    at: str = "last"
    std: str = "population"
    lower_is_better: bool = False
    command: str | None = None
    names: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_choice("std", self.std, ("population", "sample"))
        check_keys(self.runs, self.keys)
        if self.metric:
            check_metric(self.finished, self.metric, self.moments)

    @property
    def keys(self) -> list[str]:
        """Those of rows and columns."""
        return [*self.rows, *self.columns]

    @property
    def corner(self) -> str:
        """What heads the rows' names."""
        return " / ".join(self.names.get(key, key) for key in self.rows)

    @property
    def heads(self) -> str:
        """What the columns' names are values of."""
        return " / ".join(self.names.get(key, key) for key in self.columns)

    def row(self, head: str) -> str:
        """Return what readers call a row."""
        return self._called(head, self.rows)

    def column(self, head: str) -> str:
        """Return what readers call a column."""
        return self._called(head, self.columns)

    def _called(self, head: str, keys: Sequence[str]) -> str:
        values = head.split(" / ")
        if len(values) != len(keys):  # of a value that has the sign itself
            return head
        return " / ".join(self.names.get(f"{key}.{value}", value) for key, value in zip(keys, values, strict=True))

    @property
    def metric_name(self) -> str:
        """What sentences and heads call the metric."""
        return self.names.get(self.metric) or metric_name(named(self.finished, self.metric), percent=self.percent)

    @property
    def axis(self) -> str:
        """What the axis of a picture calls the metric."""
        unit = " (%)" if self.percent else ""
        return self.names.get(self.metric) or f"{axis_name(named(self.finished, self.metric))}{unit}"

    @cached_property
    def finished(self) -> list[Run]:
        """The runs that are counted, one at least."""
        return finished_of(self.runs)

    @cached_property
    def moments(self) -> tuple[str, ...]:
        """When the runs are read, of ``MOMENTS``."""
        return moments_of(self.finished, self.at)

    @cached_property
    def groups(self) -> Groups:
        """The runs of each cell."""
        return group_runs(self.finished, self.rows, self.columns)

    @property
    def percent(self) -> bool:
        """Whether the metric is given in percent."""
        return in_percent(self.metric)

    def value(self, run: Run, moment: str) -> float:
        """Return what a run has measured, in the table's unit; NaN where it has not."""
        return run.at(moment).get(self.metric, math.nan) * (100 if self.percent else 1)

    def notes(self, by_round: bool = False) -> list[str]:
        """Return what a reader must know of the runs and the cells; ``by_round`` as for ``notes_on``."""
        return [
            *notes_on_unfinished(self.runs),
            *notes_on(self.groups, self.metric, self.moments, self.keys, by_round=by_round),
        ]


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


def usual_metric(runs: Sequence[Run]) -> str | None:
    """Return the worst group's metric where runs predict no classes, by the first finished one; ``None`` for the accuracy."""
    metric = main_metric(next((run.at("last") for run in runs if run.summary is not None), {}))
    return None if metric == "acc" else f"test/{metric}_worst_group"


def group_runs(runs: Iterable[Run], rows: Sequence[str], columns: Sequence[str]) -> Groups:
    """Return the runs of each cell; arguments and errors are those of ``Study``."""
    groups: Groups = {}
    for run in sorted(runs, key=lambda run: run.seed):
        groups.setdefault((head_of(run, rows), head_of(run, columns)), []).append(run)
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
    small = rf"fair/({gaps})|\w*acc_std|privacy/epsilon|gap|num_diverged"
    spent = r"sim/(clock|seconds|joules)|selector/spent|heterogeneity_error/"
    if is_of_attack(metric):
        return not metric.endswith(("/acc_members", "/acc_others"))
    found_out = metric.startswith("membership/auc_")
    return found_out or lower_is_better(metric) or re.search(rf"(^|/)({small})$|^({spent})", metric) is not None


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


def head_of(run: Run, keys: Sequence[str]) -> str:
    """Return what heads the row or column of a run."""
    return " / ".join("-" if (value := run.setting(key)) is None else value for key in keys)


def ordered(heads: Iterable[str]) -> tuple[str, ...]:
    """Return the heads of rows or columns in the order of a table: numbers first, by size."""

    def numbers_first(head: str) -> list[tuple[bool, float, str]]:
        return [(as_number(part) is None, as_number(part) or 0.0, part) for part in head.split(" / ")]

    return tuple(sorted(heads, key=numbers_first))


def in_columns(groups: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return (row, column) in the order of a list of them: column by column."""
    rows, columns = (ordered({place[axis] for place in groups}) for axis in (0, 1))
    return [(row, column) for column in columns for row in rows if (row, column) in groups]


def caption_of(
    runs: Sequence[Run],
    metrics: Sequence[str],
    moments: Sequence[str],
    std: str | None = None,
    lower_is_better: bool | None = None,
    command: str | None = None,
) -> str:
    """Return the caption of a table: what its numbers are, and which runs they come from."""
    return f"{meaning_of(runs, metrics, moments, std, lower_is_better)} {origin_of(runs, command)}"


def when_of(runs: Sequence[Run], moments: Sequence[str]) -> str:
    """Return when runs are read."""
    last = listed(int(run.at("last")["round"]) for run in runs if "round" in run.at("last"))
    rules = MOMENTS | {"last": f"{MOMENTS['last']} ({last})"}
    return "; ".join(f"{moment}: {rules[moment]}" for moment in moments) if len(moments) > 1 else rules[moments[0]]


def meaning_of(
    runs: Sequence[Run], metrics: Sequence[str], moments: Sequence[str], std: str | None, lower_is_better: bool | None
) -> str:
    """Return the beginning of a caption: what the numbers of a table are."""
    what = " and ".join(named(runs, metric, "`") + (" in percent" if in_percent(metric) else "") for metric in metrics)
    sentences = [
        f"{what}, {when_of(runs, moments)}.",
        *([] if std is None else [f"Mean ± {std} standard deviation over seeds, number of seeds in parentheses."]),
        *(["Lower is better."] if lower_is_better else []),
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
