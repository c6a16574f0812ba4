"""What clients say of their heterogeneity, in a run or asked before any training, against the truth."""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from fedfacet import rng
from fedfacet.analysis.writers import Table
from fedfacet.build import build, load_data, settle
from fedfacet.commands import output_of
from fedfacet.commands.output import Output
from fedfacet.config import compose_job, make
from fedfacet.errors import ConfigError
from fedfacet.metrics.estimation import FILE, Triplets, measure_estimation, read_triplets, write_triplets
from fedfacet.plots.triplets import plot_estimation
from fedfacet.types import Broadcast, ClientTask, Query, SelectionContext


def run(options: Sequence[str]) -> Output:
    """Measure how far the triplets that clients disclosed are from the truth, and draw it."""
    output, options = output_of(options)
    runs = [option.removeprefix("run=") for option in options if option.startswith("run=")]
    if runs and len(options) > 1:
        raise ConfigError(f"Expected run=DIR and nothing else, but got {' '.join(options)}: a run has its own settings.")
    if runs:
        folder = Path(runs[0])
        triplets = read_triplets(folder)
    else:
        config, _ = compose_job("train", ["task=describe", *options])
        folder = Path(config.paths.output_dir)
        if (folder / "config.yaml").exists():
            raise ConfigError(f"Expected a folder for a picture, but {folder} holds a run: say run={folder}.")
        triplets = estimate_triplets(config, folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_triplets(triplets, folder / FILE)
    error = measure_estimation(triplets)
    # JSON knows no NaN, which a correlation with a constant is.
    error["correlation"] = {name: None if value != value else value for name, value in error["correlation"].items()}
    plot_estimation(triplets, folder / "heterogeneity.png")
    return Output(output, error, tables_of(error), [folder / "heterogeneity.png"])


def estimate_triplets(config: DictConfig, run_dir: Path) -> Triplets:
    """Ask every client for its heterogeneity, once and on the initial model, and put the truth beside the answers.

    FedDiverse asks the same in its first round where ``pretraining_rounds`` is 0. Nobody trains; nothing is written. Errors are
    those of ``build``.
    """
    settle(config)
    federation = build(config, run_dir)
    broadcast = Broadcast(federation.state.model)
    everybody, query = range(federation.num_clients), make(config.heterogeneity)

    def ask(query: Query, client_ids: Sequence[int]) -> dict[int, Any]:
        tasks = [ClientTask(client_id, 1, config.seed, broadcast) for client_id in client_ids]
        answers = federation.engine.ask(query, tasks)
        return {client_id: answer.value for client_id, answer in zip(client_ids, answers, strict=True)}

    with contextlib.closing(federation.engine):
        if learn := getattr(query, "learn", None):  # of a question that others come before
            number, generator = len(everybody), rng.stream(config.seed, "estimation")
            query = learn(SelectionContext(1, number, number, number, everybody, {}, generator, ask))
        answers = ask(query, everybody)
    return Triplets.of([matrix.triplet for matrix in load_data(config).matrices], answers)


def tables_of(error: Mapping[str, Any]) -> list[Table]:
    """Return the table that shows what ``measure_estimation`` returned, with ``None`` instead of NaN."""
    return [
        Table(
            f"What {error['clients']} clients say of their heterogeneity: {error['distance_mean']:.3f} from the truth on "
            f"average, {error['distance_max']:.3f} at most",
            ["measure", "mean absolute error", "correlation"],
            [
                [name.replace("_", " "), f"{error['mean_absolute_error'][name]:.3f}", "-" if value is None else f"{value:.2f}"]
                for name, value in error["correlation"].items()
            ],
        )
    ]
