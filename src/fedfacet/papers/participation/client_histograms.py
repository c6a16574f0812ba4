"""Histograms of how often clients were selected, and of each client's accuracy on its own samples."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedfacet.analysis.notes import notes_on_unfinished
from fedfacet.analysis.runs import Run
from fedfacet.analysis.study import Study, ordered
from fedfacet.analysis.writers import Table
from fedfacet.plots.style import BLUE, DASHES, VERMILION, saved_figure
from fedfacet.runs.rerun import measure_own_samples

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BINS = 20


@dataclass(frozen=True, slots=True, eq=False)
class ClientsOfRun:
    """The clients of a finished run.

    ``selected_K`` is in how many of the rounds each was selected, whether its update arrived or not; ``accuracies_K`` are of
    each client's model after the last round, global layers and its own, on its ``samples_K`` samples, NaN without any. These
    are the samples that the client holds out, or those that it trains on.
    """

    seed: int
    rounds: int
    selected_K: NDArray[np.int64]
    samples_K: NDArray[np.int64]
    accuracies_K: NDArray[np.float64]
    held_out: bool


Clients = Mapping[tuple[str, str], Sequence[ClientsOfRun]]  # (row, column) -> the runs there, one per seed


def measure_clients(runs: Sequence[Run], *, trust: Sequence[str] = (), **asked: Any) -> Clients:
    """Count who was selected in each run, and measure the clients of its last checkpoint; nothing is written.

    ``runs`` and ``asked`` are as for ``Study``, ``trust`` is as in ``decompose_round``. Unfinished runs are not measured.

    Source: De Cesare et al., Federated Learning Beyond Uniform Participation, figure 12.

    Raises:
        ConfigError: if no run has finished, no run has such a key, or a setting has a seed twice.
        FedFacetError: if a run has no readable ``metrics.csv`` or checkpoint, or its data set is not there.
    """
    groups = Study(runs, metric="", **asked).groups
    order = {head: place for place, head in enumerate(ordered({head for heads in groups for head in heads}))}
    places = sorted(groups, key=lambda heads: [order[head] for head in heads])
    return {place: [_measured(run, trust) for run in groups[place]] for place in places}


def plot_clients(clients: Clients, path: Path) -> None:
    """Draw two histograms per setting into a PNG: clients by how often they were selected, and by their accuracy.

    A bar is the number of clients, the mean over the seeds; a dashed line is the mean of all clients.
    """
    from matplotlib.ticker import MaxNLocator

    everybody = [run for runs in clients.values() for run in runs]
    rounds = max(run.rounds for run in everybody)
    most = max(math.ceil(rounds * run.selected_K.max() / run.rounds) for run in everybody)
    step = math.ceil((most + 1) / _BINS)  # whole rounds, or some bars would hold more of them than others
    bins = (np.arange(0, most + 1 + step, step) - 0.5) * 100 / rounds, np.linspace(0, 100, _BINS + 1)
    with saved_figure(path, 7.2, 0.7 + 1.45 * len(clients)) as figure:
        grid = figure.subplots(len(clients), 2, sharex="col", squeeze=False)
        for (left, right), (place, runs) in zip(grid, clients.items(), strict=True):
            _draw(left, [100 * run.selected_K / run.rounds for run in runs], bins[0], BLUE)
            _draw(right, [100 * run.accuracies_K for run in runs], bins[1], VERMILION)
            worst, _, spread, mean = _spread([run.accuracies_K for run in runs])
            left.set_title(", ".join(place), loc="left", fontweight="bold")
            numbers = f"mean {100 * mean:.1f}, worst {100 * worst:.1f}, std {100 * spread:.1f}"
            right.set_title(f"never selected: {_never(runs):g}; {numbers}", loc="right")
            left.set_ylabel("clients")
        grid[-1, 0].set_xlabel("rounds in which a client was selected (%)")
        grid[-1, 1].set_xlabel(f"accuracy on the client's own {_samples(everybody)} (%)")
        grid[-1, 0].set_xticks([tick for tick in MaxNLocator(6).tick_values(0, bins[0][-1]) if tick <= min(100, bins[0][-1])])
        figure.align_ylabels(grid[:, 0])


def clients_table(clients: Clients, runs: Sequence[Run], command: str) -> Table:
    """Return a line per setting: the spread over its clients, mean over seeds of each number; unfinished ``runs`` are named.

    In CSV a line per client.
    """
    accuracy, rounds = "accuracy, mean / min / std", "rounds with a client, min / max / std"
    numbers: list[Sequence[Any]] = [
        ["row", "column", "seed", "client", "rounds", "selected", "samples", "held_out", "accuracy"],
    ]
    rows = []
    for place, of_seeds in clients.items():
        fewest, most, spread, _ = _spread([run.selected_K for run in of_seeds])
        worst, _, unequal, mean = _spread([run.accuracies_K for run in of_seeds])
        rows.append([
            *(", ".join(place), " ".join(str(run.seed) for run in of_seeds), str(len(of_seeds[0].selected_K))),
            *(f"{_never(of_seeds):g}", f"{fewest:.1f} / {most:.1f} / {spread:.1f}"),
            f"{100 * mean:.2f} / {100 * worst:.2f} / {100 * unequal:.2f}",
        ])  # fmt: skip
        for run in of_seeds:
            of_clients = zip(run.selected_K, run.samples_K, map(float, run.accuracies_K), strict=True)
            for client, (selected, samples, accuracy_of) in enumerate(of_clients):
                held_out = str(run.held_out).lower()
                numbers.append([*place, run.seed, client, run.rounds, selected, samples, held_out, repr(accuracy_of)])
    measured = _samples([run for of_seeds in clients.values() for run in of_seeds])
    caption = (
        "Accuracy in percent of the last round's model, with a client's own layers where it has some, on the client's own "
        f"{measured}. Numbers over clients are means over seeds; std is the population's. Made with `{command}`."
    )
    columns = ["setting", "seeds", "clients", "never selected", rounds, accuracy]
    return Table(caption, columns, rows, names=2, notes=notes_on_unfinished(runs), numbers=numbers)


def _measured(run: Run, trust: Sequence[str]) -> ClientsOfRun:
    cohorts = run.cohorts()
    counts, held_out = measure_own_samples(run.path, trust=trust)
    selected = Counter(client for cohort in cohorts for client in cohort)
    return ClientsOfRun(
        seed=run.seed,
        rounds=len(cohorts),
        selected_K=np.array([selected[client] for client in range(len(counts))], dtype=np.int64),
        samples_K=np.array([sum(count.total) for count in counts], dtype=np.int64),
        accuracies_K=np.array([count.average_accuracy for count in counts]),
        held_out=held_out,
    )


def _spread(values: Sequence[NDArray[Any]]) -> list[float]:
    """Return minimum, maximum, standard deviation and mean over clients, each the mean over seeds; NaN clients do not count."""
    known = [of_run[~np.isnan(of_run)] for of_run in values]
    if not all(map(len, known)):
        return [math.nan] * 4
    return np.mean([[v.min(), v.max(), v.std(), v.mean()] for v in known], axis=0).tolist()  # type: ignore[no-any-return]


def _never(runs: Sequence[ClientsOfRun]) -> float:
    return float(np.mean([(run.selected_K == 0).sum() for run in runs]))


def _samples(runs: Sequence[ClientsOfRun]) -> str:
    return " or ".join(sorted({"held-out samples" if run.held_out else "training samples" for run in runs}))


def _draw(axes: "Axes", percents: Sequence[NDArray[np.float64]], edges: NDArray[np.float64], colour: str) -> None:
    heights = np.mean([np.histogram(values[~np.isnan(values)], edges)[0] for values in percents], axis=0)
    axes.bar(edges[:-1], heights, width=0.92 * np.diff(edges), align="edge", color=colour)
    axes.axvline(_spread(percents)[3], color="black", linewidth=0.9, linestyle=DASHES)
    axes.set(xlim=(edges[0], edges[-1]), ylim=(0, 1.05 * max(heights.max(), 1)))
