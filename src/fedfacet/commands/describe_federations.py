"""How heterogeneous federations are, and whom selectors would choose of one."""

import re
from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from fedfacet.analysis.description import describe_feasibility, describe_federation, simulate_selection, tables_of
from fedfacet.clients.queries.true_heterogeneity import TrueHeterogeneity
from fedfacet.commands.output import Output
from fedfacet.config import compose_job, make
from fedfacet.errors import ConfigError
from fedfacet.heterogeneity import InteractionMatrix
from fedfacet.plots.run import plot_partition, plot_selection
from fedfacet.plots.triplets import plot_federations, plot_triplets

if TYPE_CHECKING:
    from fedfacet.data.federated import FederatedData

_DEALT = ("dataset", "partition", "smoke", "server_data")
_NOT_DEALT = re.compile(r"[+~]*(output|simulate|selector)\b")


def run(argv: Sequence[str]) -> Output:
    """Describe the federations that the overrides name, and draw them."""
    configs = [composed(overrides) for overrides in one_by_one(selector_overrides(argv))]
    output = configs[0].output
    if output not in ("text", "json"):
        raise ConfigError(f"Expected `output` to be text or json, but got {output!r}: choose one of them.")
    description, figures = describe(configs)
    return Output(output, description, tables_of(description), figures)


def selector_overrides(overrides: Iterable[str]) -> list[str]:
    """Return the overrides with ``simulate.selector`` turned into the group it names, which then is checked as in training."""
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


def composed(overrides: Sequence[str]) -> DictConfig:
    """Return the config that the overrides make; with ``experiment=NAME``, train's recipe says what is dealt and how."""
    if not any(override.startswith("experiment=") for override in overrides):
        return compose_job("describe", overrides)[0]
    searchpath = [override for override in overrides if override.startswith("hydra.searchpath=")]
    own = [override for override in overrides if _NOT_DEALT.match(override)]
    paths = [override for override in overrides if override.startswith("paths.")]
    config, _ = compose_job("describe", [*searchpath, *own, *paths])
    recipe, _ = compose_job("train", ["task=describe", *(override for override in overrides if override not in own)])
    config.update({key: recipe[key] for key in _DEALT})
    config.choices.update({group: recipe.choices[group] for group in ("dataset", "partition")})
    return config


def describe(configs: Sequence[DictConfig]) -> tuple[dict[str, Any], list[Path]]:
    """Return the description of some configs' federations as JSON-able data, and the paths of the pictures drawn.

    Several configs differ by their selectors or by their partitions, but not by both. Nothing is written unless everything can
    be told.
    """
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


def describe_one(configs: Sequence[DictConfig], folder: Path) -> tuple[dict[str, Any], list[Path]]:
    """Describe one federation, and whom each config's selector would choose, if it has one; as ``describe``."""
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


def clients_of(config: DictConfig) -> "tuple[Sequence[InteractionMatrix], FederatedData | None]":
    """Return the clients' matrices, and the data where a data set is named."""
    if "partition" not in config:
        raise ConfigError("Expected a partition, but got none: name one, for example partition=gsc.")
    if "dataset" in config:
        from fedfacet.build import load_data  # loads torch and lightning, which a partition of matrices need not wait for

        data = load_data(config)
        return data.matrices, data
    matrices = getattr(make(config.partition), "matrices", [])
    if not matrices:
        raise ConfigError(
            f"Expected a data set, because partition={config.choices.partition} deals whatever samples there are, but got "
            "none: name one, for example dataset=digits."
        )
    return matrices, None
