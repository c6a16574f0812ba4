"""Holding what a user asks for to what the chosen parts take: an option that nothing uses is refused, or said."""

import functools
import inspect
import logging
import math
from collections.abc import Sequence

from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf

from fedfacet.config.compose import conf_dir
from fedfacet.config.composition import initialized
from fedfacet.config.mistakes import usual
from fedfacet.errors import ConfigError

log = logging.getLogger(__name__)

TAKEN_BY_THE_OBJECTIVE = ("model", "loss", "correction", "optimizer")
"""Groups that come to use as arguments of the objective's constructor; ``build.py`` hands them out."""


def check_used(name: str, config: DictConfig, overrides: Sequence[str]) -> None:
    """Refuse what the objective does not take although the command line or a method asks for it.

    What a recipe brings along, or what a comparison of selectors gives to all of them, is only said, in one line each.

    Args:
        name: of the primary config.
        config: one job's, composed and finalised.
        overrides: of that job.

    Raises:
        ConfigError: naming the group and the objective.
    """
    given = {override.lstrip("+~").split("=")[0].split(".")[0]: override.replace("'", "") for override in overrides}
    with initialized(str(conf_dir())):
        default_options = usual(name)[1]
    asks, taken = "heterogeneity" in _arguments(config.selector), _arguments(config.objective)
    for group in (group for group in TAKEN_BY_THE_OBJECTIVE if group not in taken):
        objective = f"objective={config.choices.objective} ({config.objective['_target_']})"
        chosen = f"{group}={config.choices[group]}"
        if group == "optimizer" and asks and config.choices.heterogeneity != "true":
            if group in given:  # the models of an estimate are trained with it
                _say(
                    f"{given[group]} is used by heterogeneity={config.choices.heterogeneity} only, not by local training: "
                    f"{objective} has no argument `{group}`."
                )
        elif group in given:
            raise _not_taken(group, given[group], objective, f"leave {given[group]} out")
        elif config.choices[group] != default_options[group]:
            if group == "correction":  # no recipe has one
                raise _not_taken(group, chosen, objective, f"choose another method than {config.choices.get('method')}")
            _say(f"The recipe's {chosen} changes nothing: {objective} has no argument `{group}`.")
    _check_patience(config)
    _check_held_out_clients(config)
    if "heterogeneity" in given and not asks:
        _say(f"{given['heterogeneity']} changes nothing: selector={config.choices.selector} does not ask for heterogeneity.")


def _check_patience(config: DictConfig) -> None:
    """Say where a run measures too seldom for a scheduler that waits for ``patience`` measurements after the first."""
    scheduler, evaluate = OmegaConf.select(config, "scheduler"), OmegaConf.select(config, "callbacks.evaluate")
    if scheduler is None or "patience" not in scheduler or evaluate is None or not str(scheduler.metric).startswith("val/"):
        return
    measured = math.ceil(config.federation.rounds / evaluate.every_n_rounds)
    if measured < scheduler.patience + 3:  # the first, so many without getting better, one more, and a round then
        _say(
            f"scheduler={config.choices.scheduler} changes nothing: {scheduler.metric} is measured {measured} times, too "
            f"seldom for scheduler.patience={scheduler.patience}; lower that, or callbacks.evaluate.every_n_rounds."
        )


def _check_held_out_clients(config: DictConfig) -> None:
    """Say where there are clients that never take part and nobody measures them."""
    parts = [get_object(node["_target_"]) for node in (config.get("callbacks") or {}).values()]
    if config.partition.get("held_out_clients") and not any(
        getattr(part, "measures_held_out_clients", False) for part in parts
    ):
        _say(
            "The clients of partition.held_out_clients are measured by no callback of this run: add "
            "callbacks=[default,client_fairness] partition.local_holdout=0.2, or personal_evaluate beside it."
        )


def _arguments(node: DictConfig) -> Sequence[str]:
    return list(inspect.signature(get_object(node["_target_"])).parameters)


def _not_taken(group: str, asked: str, objective: str, remedy: str) -> ConfigError:
    return ConfigError(
        f"Expected an objective that takes `{group}` where {asked} is asked for, but {objective} has no such argument: "
        f"{remedy}, or give its constructor an argument `{group}`."
    )


@functools.cache
def _say(sentence: str) -> None:
    """Warn once, however many jobs it is true of."""
    log.warning(sentence)
