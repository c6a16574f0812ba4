"""Describe a federation before any training: ``python src/describe.py partition=NAME [key=value] ...``; see ``--help``."""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omegaconf import DictConfig

USAGE = """usage: python src/describe.py partition=NAME [dataset=NAME] [output=text|json] [simulate.selector=NAME] ...

Tell how heterogeneous a federation is, without training: its measures, every client's matrix, and pictures of them.

  partition=NAME            {partitions}
  partition.KEY=VALUE       e.g. partition.scale=0.2 or partition.num_clients=100
  dataset=NAME              deal this data set's samples for real: {datasets}
  output=text|json          json prints one document and nothing else
  simulate.selector=NAME    whom would it choose? {selectors}
  simulate.selector.KEY=VALUE, simulate.rounds=2000, simulate.cohort_size=9, simulate.seed=0
  paths.output_dir=DIR      where the pictures go

example: python src/describe.py partition=gsc simulate.selector=feddiverse
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Print the description; return the exit status."""
    argv = sys.argv[1:] if argv is None else argv
    if {"-h", "--help"} & set(argv):
        print(usage(), end="")
        return 0
    # Late, so that --help answers at once.
    from fedfacet.config import compose_job
    from fedfacet.errors import ConfigError, FedFacetError

    try:
        config, _ = compose_job("describe", selector_overrides(argv))
        if config.output not in ("text", "json"):
            raise ConfigError(f"Expected `output` to be text or json, but got {config.output!r}: choose one of them.")
        description, figures = describe(config)
    except (FedFacetError, ValueError, TypeError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if config.output == "json":
        print(json.dumps(description, indent=2, allow_nan=False))
        for figure in figures:
            print(f"wrote {figure}", file=sys.stderr)
    else:
        print_description(description, figures)
    return 0


def usage() -> str:
    """Return the help text, with the options that there are."""
    conf = Path(__file__).parents[1] / "conf"

    def names(group: str) -> str:
        return ", ".join(sorted(file.stem for file in (conf / group).glob("*.yaml")))

    return USAGE.format(partitions=names("partition"), datasets=names("dataset"), selectors=names("selector"))


def selector_overrides(overrides: Iterable[str]) -> list[str]:
    """Return the overrides with ``simulate.selector`` turned into the group it names, which then is checked as in train.py."""
    return [
        re.sub(r"^([+~]*)simulate\.(selector[.=])", r"\1\2", override)
        for override in overrides
        if override != "simulate.selector=null"
    ]


def describe(config: "DictConfig") -> tuple[dict[str, Any], list[Path]]:
    """Describe the federation of a config and draw it; nothing is written unless everything can be told.

    Returns:
        The description as JSON-able data, and the pictures' paths.
    """
    from fedfacet.analysis.description import describe_feasibility, describe_federation, simulate_selection
    from fedfacet.analysis.plots import plot_partition, plot_selection
    from fedfacet.clients.queries.true_heterogeneity import TrueHeterogeneity
    from fedfacet.config import make
    from fedfacet.errors import ConfigError

    if "partition" not in config:
        raise ConfigError("Expected a partition, but got none: name one, for example partition=gsc.")
    folder = Path(config.paths.output_dir)
    if (folder / "config.yaml").exists():
        raise ConfigError(f"Expected a folder for pictures, but {folder} holds a run: choose another `paths.output_dir`.")
    names: dict[str, Sequence[str]] = {}
    if "dataset" in config:
        from fedfacet.build import load_data

        data = load_data(config)
        matrices = data.matrices
        feasibility = describe_feasibility(data.dataset, matrices, data.val)
        names = {"class_names": data.dataset.class_names, "attribute_names": data.dataset.attribute_names}
    else:
        matrices = getattr(make(config.partition), "matrices", [])
        if not matrices:
            raise ConfigError(
                f"Expected a data set, because partition={config.choices.partition} deals whatever samples there are, but got "
                "none: name one, for example dataset=digits."
            )
        feasibility = None
    description = describe_federation(matrices)
    if "selector" in config:
        selector = make(config.selector, heterogeneity=TrueHeterogeneity())
        description["selection"] = simulate_selection(selector, matrices, **config.simulate)
    if feasibility is not None:
        description["feasibility"] = feasibility

    figures = [folder / "partition.png"]
    plot_partition(matrices, figures[0], **names)
    if "selection" in description:
        figures.append(folder / "selection.png")
        rounds = config.simulate.rounds
        counts = [rounds * part for part in description["selection"]["per_client"]]
        plot_selection(counts, [client["type"] for client in description["clients"]], figures[1], rounds)
    return description, figures


def print_description(description: Mapping[str, Any], figures: Sequence[Path]) -> None:
    """Print tables that fit into 80 columns, and where the pictures are."""
    from rich.console import Console
    from rich.table import Table

    clients = description["clients"]
    console = Console(highlight=False, markup=False)

    def show(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        table = Table()
        for position, column in enumerate(columns):
            table.add_column(column, justify="left" if position == 0 or column in ("matrix", "type") else "right")
        for row in rows:
            table.add_row(*row)
        console.print(f"\n{title}", table, sep="\n")

    pooled, mean = _measures(description["global"]), _measures(description["client_mean"])
    names = ("class imbalance (CI)", "attribute imbalance (AI)", "spurious correlation (SC)")
    show(
        f"Heterogeneity of {len(clients)} clients with {sum(map(_size, clients))} samples, from 0 to 1",
        ["measure", "all data pooled", "mean of clients"],
        zip(names, pooled, mean, strict=True),
    )
    show(
        "Clients; rows of a matrix are classes, columns attribute values",
        ["ids", "matrix", "samples", "CI", "AI", "SC", "type"],
        (_client_row(list(equal)) for _, equal in groupby(clients, key=itemgetter("counts"))),
    )
    if "selection" in description:
        share, whole = description["selection"]["share"], description["selection"]["rounds_with_every_client_of_type"]
        sizes = Counter(client["type"] for client in clients)
        show(
            "Simulated selection (%)",
            ["type", "clients", "share of selections", "if uniform", "rounds with all of them"],
            (
                [kind, str(sizes[kind]), _percent(share[kind]), _percent(sizes[kind] / len(clients)), _percent(whole[kind])]
                for kind in share
            ),
        )
    if "feasibility" in description:
        show(
            "Samples of the data set",
            ["class, attribute", "wanted by clients", "available", "held out for validation"],
            (
                [f"{cell['class']}, {cell['attribute']}", *(str(cell[key]) for key in ("wanted", "available", "validation"))]
                for cell in description["feasibility"]
            ),
        )
    console.print()
    for figure in figures:
        console.print(f"wrote {figure}", soft_wrap=True)


def _client_row(equal: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the row of neighbouring clients with the same matrix."""
    first, last = equal[0], equal[-1]
    ids = f"{first['id']}" if first is last else f"{first['id']}-{last['id']}"
    matrix = " / ".join(" ".join(map(str, row)) for row in first["counts"])
    return [ids, matrix, str(_size(first)), *_measures(first), first["type"]]


def _measures(measured: Mapping[str, float]) -> list[str]:
    return [f"{measured[name]:.2f}" for name in ("class_imbalance", "attribute_imbalance", "spurious_correlation")]


def _size(client: Mapping[str, Any]) -> int:
    return sum(map(sum, client["counts"]))


def _percent(part: float | None) -> str:
    return "-" if part is None else f"{100 * part:.1f}"


if __name__ == "__main__":
    sys.exit(main())
