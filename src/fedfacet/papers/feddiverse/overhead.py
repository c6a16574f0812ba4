"""What selecting clients costs: FedDiverse's table 2 beside the ledgers of runs."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

import yaml

from fedfacet.analysis.notes import beside_the_seed, some
from fedfacet.analysis.runs import Run, differing_keys
from fedfacet.analysis.writers import Table
from fedfacet.storage.run_files import is_there, measured, rows_of

COMPRESSION = 1e-5  # the paper's r, the part of an update's numbers that is left after HCSFed's compression
_SERIES = ("answers_up", "questions_down", "samples", "more_clients", "more_up", "more_down")
_LEDGER = ("floats_down", "floats_up", "query_floats_down", "query_floats_up", "query_samples")


PAPER: Mapping[str, Mapping[str, Any]] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
"""The rows of the paper's table 2, by the name of a selector, or of the aggregator in FedNova's case."""


@dataclass(frozen=True, slots=True)
class Overhead:
    """What one method cost beyond the training of a cohort of size κ.

    The method is the selector, ``fednova`` where that is the aggregator, or the ``setting`` if it is not federated, with the
    settings that tell it from other runs of it. K, κ and ``|θ|`` are ``num_clients``, ``cohort_size`` (what
    ``federation.cohort_size`` asks for) and ``model_floats`` (what a client is sent for training in the first round).
    ``differing`` are config keys, seed apart, in which the ``runs`` differ. ``milliseconds`` is what the selector took in each
    round, the wait for answers left out; it is empty where that is not known. ``num_rounds`` is that of the longest run.

    The series have one value for each of the ``rounds`` with an overhead, the mean over the runs: floats in answers to
    questions (``answers_up``), floats sent to clients outside the cohort so that they could answer (``questions_down``),
    samples passed through a model to answer, how many clients trained beyond κ, and the floats that these sent and were sent
    (``more_up``, ``more_down``).
    """

    method: str
    num_clients: int
    cohort_size: int
    model_floats: int
    runs: int
    differing: tuple[str, ...]
    milliseconds: tuple[float, ...]
    num_rounds: int
    rounds: tuple[int, ...]
    answers_up: tuple[float, ...]
    questions_down: tuple[float, ...]
    samples: tuple[float, ...]
    more_clients: tuple[float, ...]
    more_up: tuple[float, ...]
    more_down: tuple[float, ...]

    @property
    def paper(self) -> Mapping[str, Any] | None:
        """The method's row of table 2, if it has one."""
        return PAPER.get(self.method.split(",")[0])


def measure_overheads(runs: Iterable[Run]) -> tuple[list[Overhead], list[Run]]:
    """Return what each method cost in each size of federation, in the order of table 2, and the runs that could not be read.

    Runs of one method with the same settings of its selector, and one K, κ and ``|θ|``, are averaged. A run without
    ``metrics.csv`` and ``summary.json`` is left out; ``FedFacetError`` is raised if ``metrics.csv`` lacks what a run writes.
    """
    groups: dict[tuple[str, int, int, int], list[tuple[Run, list[dict[str, float]]]]] = {}
    runs, unread = list(runs), []
    for run, label in zip(runs, _labels(runs), strict=True):
        rows = _rounds_of(run)
        summary = run.summary or {}
        number = summary.get("num_clients") or len(summary.get("participation_counts") or ())
        if not rows or not number:
            unread.append(run)
            continue
        model_floats = round(rows[0]["floats_down"] / rows[0]["selected"])
        key = label, number, int(run.settings["federation.cohort_size"]), model_floats
        groups.setdefault(key, []).append((run, rows))
    order = {name: place for place, name in enumerate(PAPER)}
    ranked = sorted(groups, key=lambda key: (order.get(key[0].split(",")[0], 99), key))
    return [_overhead(key, groups[key]) for key in ranked], unread


def overhead_table(overheads: Sequence[Overhead], unread: Sequence[Run] = (), command: str | None = None) -> Table:
    """Return a line of the paper above each measured one, where it has one; in CSV a line per round with an overhead."""
    rows = []
    for overhead in overheads:
        if row := overhead.paper:
            number = operations_of(row, overhead.num_clients, overhead.model_floats)
            cells = [row[name] for name in ("often", "up", "down", "client")]
            rows.append([f"{row['name']}, table 2", *cells, f"{row['server']} ≈ {_short(number)}"])
        rows.append(_measured(overhead))
    caption = (
        "Lines of table 2 give the cost per client, as FedDiverse's paper prints it (thesis, table 14); the paper does not "
        f"separate up from down. Its server operations are computed for the run's K and |θ| and r = {COMPRESSION:g}. Measured "
        "lines give what all clients together cost in a round with an overhead, from the ledger: answers to questions, models "
        "sent out for them, samples passed through a model to answer, and all that the clients beyond κ sent and received when "
        "they trained, in pre-training too. The server's milliseconds are those of selecting and observing, without the wait "
        "for answers, in the median round and in the longest."
    )
    notes = [
        f"{_name(each)} averages runs that differ in {some(each.differing)}, not in the seed alone."
        for each in overheads
        if each.differing
    ]
    if unread:
        paths = ", ".join(f"`{run.path}`" for run in unread)
        notes.append(f"Left out because metrics.csv or summary.json is missing: {paths}.")
    columns = ["method", "how often", "extra floats up", "extra floats down", "extra work on clients", "server, every round"]
    head = ("method", "num_clients", "cohort_size", "model_floats", "runs")
    numbers: list[Sequence[Any]] = [[*head, "round", *_SERIES]]
    for overhead in overheads:
        series = zip(overhead.rounds, *(getattr(overhead, name) for name in _SERIES), strict=True)
        numbers += [[*(getattr(overhead, name) for name in head), *values] for values in series]
    caption += f" Made with `{command}`." if command else ""
    return Table(caption, columns, rows, words=True, notes=notes, numbers=numbers)


def operations_of(row: Mapping[str, Any], K: int, theta: int) -> float:
    """Return the server's operations in a row of the paper, for K clients and |θ| parameters and without constants."""
    sizes = {"K": K, "log K": math.log(K), "θ": theta, "r": COMPRESSION}
    return float(math.prod(sizes[name] ** power for name, power in row["operations"].items()))


def _method(run: Run) -> str:
    """Return the row of table 2 that a run belongs to, or a setting in which nobody selects."""
    if (setting := run.setting("setting")) not in (None, "null", "federated"):
        return str(setting)
    return "fednova" if run.setting("aggregator") == "fednova" else str(run.setting("selector"))


def _labels(runs: Sequence[Run]) -> list[str]:
    """Return each run's method, with those of the selector's settings in which runs of the method differ."""
    methods = list(map(_method, runs))
    differing = {name: differing_keys([run for run in runs if _method(run) == name]) for name in set(methods)}
    labels = []
    for run, method in zip(runs, methods, strict=True):
        keys = [key for key in differing[method] if key == "heterogeneity" or key.startswith("selector.")]
        labels.append(", ".join([method, *(f"{key.removeprefix('selector.')}={run.setting(key)}" for key in keys)]))
    return labels


def _rounds_of(run: Run) -> list[dict[str, float]]:
    """Return what a run's ledger and clock say of each round in which a client was selected."""
    clock = {row["round"]: row for row in _table(run.path / "timing.csv", "round")}
    rows = [
        {
            "round": float(row["round"]),
            "selected": float(len(row["cohort"])),
            "arrived": row["num_arrived"],
            # Without a column for the wait for answers, the selector's own time is not known.
            "milliseconds": 1000 * timing["seconds/select"]
            if not math.isnan(timing.get("seconds/ask", math.nan))
            else math.nan,
            **{name: row[f"comm/{name}"] for name in _LEDGER},
        }
        for row in _table(run.path / "metrics.csv", "round", "cohort", "num_arrived", *(f"comm/{name}" for name in _LEDGER))
        for timing in [clock.get(row["round"], {})]
    ]
    return [row for row in rows if row["selected"]]


def _table(file: Path, *needed: str) -> list[dict[str, Any]]:
    cell = lambda column, text: text if column == "engine" else measured(column, text)  # noqa: E731
    return rows_of(file, needed, cell) if is_there(file) else []


def _overhead(key: tuple[str, int, int, int], members: Sequence[tuple[Run, list[dict[str, float]]]]) -> Overhead:
    by_round: dict[int, list[tuple[float, ...]]] = {}
    for row in (row for _, rows in members for row in rows):
        more, arrived = max(0.0, row["selected"] - key[2]), row["arrived"]
        more_up = row["floats_up"] * max(0.0, arrived - key[2]) / arrived if arrived else 0.0
        answers = row["query_floats_up"], row["query_floats_down"], row["query_samples"]
        values = (*answers, more, more_up, row["floats_down"] * more / row["selected"], row["milliseconds"])
        by_round.setdefault(int(row["round"]), []).append(values)
    means = {round: tuple(map(fmean, zip(*rows, strict=True))) for round, rows in by_round.items()}
    with_overhead = {round: values[:-1] for round, values in sorted(means.items()) if any(values[:-1])}
    series = list(zip(*with_overhead.values(), strict=True)) or [()] * len(_SERIES)
    milliseconds = tuple(values[-1] for values in means.values())
    known = () if any(map(math.isnan, milliseconds)) else milliseconds
    differing = tuple(beside_the_seed([run for run, _ in members]))
    return Overhead(*key, len(members), differing, known, max(by_round), tuple(with_overhead), *series)


def _measured(overhead: Overhead) -> list[str]:
    K, theta, rounds = overhead.num_clients, overhead.model_floats, overhead.rounds
    up = [sum(both) for both in zip(overhead.answers_up, overhead.more_up, strict=True)]
    down = [sum(both) for both in zip(overhead.questions_down, overhead.more_down, strict=True)]
    work = []
    if any(overhead.samples):
        work.append(f"{_series(overhead.samples, rounds)} samples to answer")
    if any(overhead.more_clients):
        work.append(f"training of {_series(overhead.more_clients, rounds)} more clients")
    of_up = of_down = ""
    if any(up) and len(set(up)) == 1:
        answers, updates = overhead.answers_up[0] / K, overhead.more_up[0] / theta
        of_up = " = " + " + ".join(f"{_short(n)} {unit}" for n, unit in ((answers, "K"), (updates, "|θ|")) if n)
    if any(down) and len(set(down)) == 1:
        of_down = f" = {_short(down[0] / theta)} |θ|"
    server = "not known"
    if overhead.milliseconds:
        server = f"{median(overhead.milliseconds):.2g} ms, at most {max(overhead.milliseconds):.2g} ms"
    floats = [_series(up, rounds) + of_up, _series(down, rounds) + of_down]
    return [_name(overhead), _often(overhead), *floats, " and ".join(work) or "0", server]


def _name(overhead: Overhead) -> str:
    runs = f"{overhead.runs} run{'s' if overhead.runs > 1 else ''}"
    size = f"K = {overhead.num_clients}, κ = {overhead.cohort_size}, |θ| = {overhead.model_floats:,}"
    return f"`{overhead.method}`, measured ({runs}: {size})"


def _often(overhead: Overhead) -> str:
    rounds = overhead.rounds
    if len(rounds) < 2:
        return f"t = {rounds[0]}" if rounds else "never"
    if len(rounds) == overhead.num_rounds:
        return "every round"
    together = rounds[-1] - rounds[0] == len(rounds) - 1
    return f"t = {rounds[0]} to {rounds[-1]}" if together else f"{len(rounds)} of {overhead.num_rounds} rounds"


def _series(values: Sequence[float], rounds: Sequence[int]) -> str:
    """Return a number for all rounds, or the first round's and the mean of the others."""
    if len(set(values)) < 2:
        return _long(values[0]) if values else "0"
    average = "" if len(set(values[1:])) == 1 else "on average "
    return f"{_long(values[0])} at t = {rounds[0]}, then {average}{_long(fmean(values[1:]))}"


def _long(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == round(value) else f"{value:,.3g}"


def _short(value: float) -> str:
    return f"{value:.3g}" if value < 1e4 else f"{value:.1e}"
