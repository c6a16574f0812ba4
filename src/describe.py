"""Describe a federation before any training: ``python src/describe.py partition=NAME [key=value] ...``; see ``--help``."""

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from difflib import get_close_matches
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedfacet.analysis.terminal import TextTable, print_tables
from fedfacet.errors import ConfigError, FedFacetError
from fedfacet.runs.json_text import json_text

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from fedfacet.build import FederatedData
    from fedfacet.heterogeneity import InteractionMatrix

USAGE = """usage: python src/describe.py partition=NAME [dataset=NAME] [output=text|json] [simulate.selector=NAME] ...
       python src/describe.py selectors [output=text|json]
       python src/describe.py estimation run=DIR|[OPTION OF train.py] ... [output=text|json]
       python src/describe.py decomposition=DIR [round=N] [output=text|json] [paths.output_dir=DIR]

Tell how heterogeneous a federation is, without training: its measures, every client's matrix, and pictures of them.

  partition=NAME            {partitions}
  partition=NAME,NAME,...   the measures of several, side by side
  partition.KEY=VALUE       e.g. partition.scale=0.2 or partition.num_clients=100
  dataset=NAME              deal this data set's samples for real: {datasets}
  output=text|json          json prints one document and nothing else
  simulate.selector=NAME    whom would it choose? {selectors}
                            several, as in uniform,feddiverse, are drawn one above the other
  simulate.selector.KEY=VALUE, simulate.rounds=2000, simulate.cohort_size=9, simulate.seed=0
  paths.output_dir=DIR      where the pictures go
  selectors                 instead of a federation, all selectors in the thesis' taxonomy of client selection
  estimation                what clients say of their heterogeneity, against the truth: in a run, or of
                            train.py's federation with these options, asked before any training
  decomposition=DIR         a round of a run, or of each run in a folder, done again: its loss by what it
                            comes from; any round where callbacks.save_checkpoint.keep=all

example: python src/describe.py partition=gsc simulate.selector=feddiverse
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Print the description; return the exit status."""
    argv = sys.argv[1:] if argv is None else argv
    if {"-h", "--help"} & set(argv):
        print(usage(), end="")
        return 0
    try:
        check_command(argv)
        if list(argv[:1]) == ["selectors"]:
            told = tell_selectors(argv[1:])
        elif list(argv[:1]) == ["estimation"]:
            told = tell_estimation(argv[1:])
        elif any(argument.startswith("decomposition=") for argument in argv):
            told = tell_decomposition(argv)
        else:
            told = tell_federations(argv)
    except (FedFacetError, ValueError, TypeError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if told.output == "json":
        print(json_text(told.data))
        for figure in told.figures:
            print(f"wrote {figure}", file=sys.stderr)
    else:
        print_tables(told.tables, told.remarks, told.figures)
    return 0


def check_command(argv: Sequence[str]) -> None:
    """Refuse a first word that is close to a command, but none."""
    word, equals, _ = argv[0].partition("=") if argv else ("", "", "")
    known = ["decomposition"] if equals else ["selectors", "estimation"]
    if word.isalpha() and word not in (*known, "partition") and (close := get_close_matches(word, known, n=1)):
        raise ConfigError(f"Expected a command or key=value, but got {argv[0]!r}: did you mean {close[0]}{equals}?")


def usage() -> str:
    """Return the help text, with the options that there are."""
    conf = Path(__file__).parents[1] / "conf"

    def names(group: str) -> str:
        return ", ".join(sorted(file.stem for file in (conf / group).glob("*.yaml")))

    return USAGE.format(partitions=names("partition"), datasets=names("dataset"), selectors=names("selector"))


class Told(NamedTuple):
    """What a command has to say: ``data`` where ``output`` is json, tables and remarks where it is text; and its pictures."""

    output: str
    data: Any
    tables: Iterable[TextTable]
    figures: Sequence[Path] = ()
    remarks: Sequence[str] = ()


def tell_federations(argv: Sequence[str]) -> Told:
    """Tell and draw how heterogeneous federations are, and whom selectors would choose of one."""
    from fedfacet.analysis.description import tables_of
    from fedfacet.config import compose_job

    configs = [compose_job("describe", overrides)[0] for overrides in one_by_one(selector_overrides(argv))]
    output = configs[0].output
    if output not in ("text", "json"):
        raise ConfigError(f"Expected `output` to be text or json, but got {output!r}: choose one of them.")
    description, figures = describe(configs)
    return Told(output, description, tables_of(description), figures)


def selector_overrides(overrides: Iterable[str]) -> list[str]:
    """Return the overrides with ``simulate.selector`` turned into the group it names, which then is checked as in train.py."""
    return [
        re.sub(r"^([+~]*)simulate\.(selector[.=])", r"\1\2", override)
        for override in overrides
        if override != "simulate.selector=null"
    ]


def one_by_one(overrides: Sequence[str]) -> list[list[str]]:
    """Return the overrides once per partition and selector that they list, as in ``partition=gsc,gci``."""
    lists = []
    for override in overrides:
        group, equals, options = override.partition("=")
        several = equals and group in ("partition", "selector")
        lists.append([f"{group}={option.strip()}" for option in options.split(",")] if several else [override])
    return [list(chosen) for chosen in product(*lists)]


def describe(configs: Sequence["DictConfig"]) -> tuple[dict[str, Any], list[Path]]:
    """Describe the federations of some configs and draw them; nothing is written unless everything can be told.

    Args:
        configs: one; or several that differ by their selectors, or by their partitions, but not by both.

    Returns:
        The description as JSON-able data, and the pictures' paths.
    """
    from fedfacet.analysis.description import describe_federation
    from fedfacet.analysis.triplet_plots import plot_federations

    folder = Path(configs[0].paths.output_dir)
    if (folder / "config.yaml").exists():
        raise ConfigError(f"Expected a folder for pictures, but {folder} holds a run: choose another `paths.output_dir`.")
    partitions = {config.choices.get("partition"): config for config in configs}
    if len(partitions) == 1:
        return describe_one(configs, folder)
    if "selector" in configs[0]:
        raise ConfigError(
            f"Expected one partition where a selection is simulated, but got {len(partitions)}: simulate them one by one."
        )
    federations = {name: clients_of(config)[0] for name, config in partitions.items()}
    plot_federations(federations, folder / "federations.png")
    described = {name: describe_federation(matrices) for name, matrices in federations.items()}
    return {"federations": described}, [folder / "federations.png"]


def describe_one(configs: Sequence["DictConfig"], folder: Path) -> tuple[dict[str, Any], list[Path]]:
    """Describe one federation, and whom each config's selector would choose, if it has one; as ``describe``."""
    from fedfacet.analysis.description import describe_feasibility, describe_federation, simulate_selection
    from fedfacet.analysis.plots import plot_partition, plot_selection
    from fedfacet.analysis.triplet_plots import plot_triplets
    from fedfacet.clients.queries.true_heterogeneity import TrueHeterogeneity
    from fedfacet.config import make

    config = configs[0]
    matrices, data = clients_of(config)
    description = describe_federation(matrices)
    selections = {
        chosen.choices.selector: simulate_selection(
            make(chosen.selector, heterogeneity=TrueHeterogeneity()), matrices, **chosen.simulate
        )
        for chosen in configs
        if "selector" in chosen
    }
    if len(selections) == 1:
        (description["selection"],) = selections.values()
    elif selections:
        description["selections"] = selections
    names: dict[str, Sequence[str]] = {}
    if data is not None:
        description["feasibility"] = describe_feasibility(data.dataset, matrices, data.val)
        names = {"class_names": data.dataset.class_names, "attribute_names": data.dataset.attribute_names}

    figures = [folder / "partition.png", folder / "triplets.png"]
    plot_partition(matrices, figures[0], **names)
    plot_triplets(matrices, figures[1])
    if selections:
        figures.append(folder / "selection.png")
        rounds = config.simulate.rounds
        counts = {name: [rounds * part for part in selected["per_client"]] for name, selected in selections.items()}
        types = [client["type"] for client in description["clients"]]
        plot_selection(counts if len(counts) > 1 else next(iter(counts.values())), types, figures[-1], rounds)
    return description, figures


def clients_of(config: "DictConfig") -> "tuple[list[InteractionMatrix], FederatedData | None]":
    """Return the clients' matrices, and the data where a data set is named."""
    from fedfacet.config import make

    if "partition" not in config:
        raise ConfigError("Expected a partition, but got none: name one, for example partition=gsc.")
    if "dataset" in config:
        from fedfacet.build import load_data

        data = load_data(config)
        return data.matrices, data
    matrices = getattr(make(config.partition), "matrices", [])
    if not matrices:
        raise ConfigError(
            f"Expected a data set, because partition={config.choices.partition} deals whatever samples there are, but got "
            "none: name one, for example dataset=digits."
        )
    return matrices, None


def tell_selectors(options: Sequence[str]) -> Told:
    """Tell the taxonomy of every option of conf/selector."""
    from hydra.utils import get_class
    from omegaconf import OmegaConf

    from fedfacet.analysis.taxonomy import remarks, tables_of
    from fedfacet.config import conf_dir

    if list(options) not in ([], ["output=text"], ["output=json"]):
        raise ConfigError(f"Expected output=text or output=json after `selectors`, but got {' '.join(options)}: leave it out.")
    files = sorted((conf_dir() / "selector").glob("*.yaml"))
    classes: dict[str, Any] = {file.stem: get_class(str(OmegaConf.select(OmegaConf.load(file), "_target_"))) for file in files}
    taxonomies = {name: asdict(selector.taxonomy) for name, selector in classes.items()}
    return Told("json" if "output=json" in options else "text", taxonomies, tables_of(taxonomies), remarks=remarks())


def tell_estimation(options: Sequence[str]) -> Told:
    """Tell and draw how far the triplets that clients disclosed are from the truth: in a run, or asked for now."""
    from fedfacet.analysis.estimation import FILE, measure_estimation, read_triplets, tables_of, write_triplets
    from fedfacet.analysis.estimation_plots import plot_estimation
    from fedfacet.build import estimate_triplets
    from fedfacet.config import compose_job

    output = "json" if "output=json" in options else "text"
    options = [option for option in options if option not in ("output=json", "output=text")]
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
        write_triplets(triplets, folder / FILE)
    error = measure_estimation(triplets)
    # JSON knows no NaN, which a correlation with a constant is.
    error["correlation"] = {name: None if value != value else value for name, value in error["correlation"].items()}
    plot_estimation(triplets, folder / "heterogeneity.png")
    return Told(output, error, tables_of(error), [folder / "heterogeneity.png"])


def tell_decomposition(options: Sequence[str]) -> Told:
    """Tell and draw the loss of the runs that a folder holds, after one round, by what it comes from."""
    from fedfacet.analysis.decomposition import describe_decompositions, plot_decompositions, remarks_on, tables_of
    from fedfacet.analysis.runs import find_runs
    from fedfacet.runs.rerun import decompose_round

    given = dict(option.partition("=")[::2] for option in options)
    round, output = given.get("round"), given.get("output", "text")
    fits = given.keys() <= {"decomposition", "round", "output", "paths.output_dir"} and len(given) == len(options)
    if not fits or output not in ("text", "json") or not (round is None or round.isdecimal()):
        raise ConfigError(
            f"Expected decomposition=DIR, and at most round=NUMBER, output=text|json and paths.output_dir=DIR, but got "
            f"{' '.join(options)}: a run has its own settings."
        )
    runs = find_runs([given["decomposition"]])
    described = describe_decompositions(runs, [decompose_round(run.path, int(round) if round else None) for run in runs])
    figure = Path(given.get("paths.output_dir", given["decomposition"])) / "decomposition.png"
    plot_decompositions(described, figure)
    return Told(output, described, tables_of(described), [figure], remarks_on(described))


if __name__ == "__main__":
    sys.exit(main())
