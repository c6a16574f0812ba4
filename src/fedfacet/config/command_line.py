"""Checking a whole command line, every job of it, before Hydra makes a folder."""

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from omegaconf import DictConfig, OmegaConf

from fedfacet.config.compose import compose_job, drives, quoted_options
from fedfacet.config.mistakes import check_used
from fedfacet.config.nodes import plain, value_of
from fedfacet.config.resuming import check_new, check_resume, goes_on_by_itself, resumed_overrides
from fedfacet.config.sweeping import sweep
from fedfacet.config.trust import check_resumed, composed_without
from fedfacet.errors import ConfigError


def preflight(name: str, argv: Sequence[str]) -> tuple[list[str], Sequence[tuple[DictConfig, Path]]]:
    """Compose and check every job of a command line before Hydra makes a folder.

    Args:
        name: of the primary config.
        argv: the command line, the script first.

    Returns:
        The command line to give to Hydra (a resumed run's own overrides put in front), and per job its configuration and run
        folder, as a ``Sweep`` where there are several; no job where Hydra is only asked for help or to print a config.

    Raises:
        FedFacetError: the first mistake, in one sentence.
    """
    argv = quoted_options(argv)
    arguments, strangers = options_of(argv[1:])
    _check_options(arguments, strangers)
    overrides = list(arguments.overrides)
    # Options first: Hydra takes all overrides in one piece only.
    options = [argument for argument in argv[1:] if argument not in overrides]
    if any(getattr(arguments, flag) for flag in ("help", "hydra_help", "cfg", "info", "shell_completion")):
        return [argv[0], *options, *overrides], []
    if arguments.multirun or str(value_of("hydra.mode", overrides)).upper() == "MULTIRUN":
        left, jobs = sweep(name, overrides)
        return [argv[0], *options, *left], jobs
    overrides, begun = goes_on_by_itself(overrides)
    given = overrides
    if (resume := value_of("resume", overrides)) is not None:
        overrides, saved = resumed_overrides(resume, overrides)
    config, hydra_node = compose_job(name, overrides)
    check_used(name, config, overrides)
    run_dir = Path(hydra_node.run.dir)
    if resume is not None:
        usual = composed_without(name, saved, [*given, *overrides[-3:]])
        check_resumed(plain(config), usual, given, run_dir / ".hydra" / "overrides.yaml")
        check_resume(config, run_dir)
    elif (of := config.choices.get("sweep")) is not None:
        raise ConfigError(f"Expected sweep={of} with a run per combination, but got it for a single run: add `-m`.")
    elif drives(config):
        check_new(run_dir, begun=begun)
    return [argv[0], *options, *overrides], [(config, run_dir)]


def _check_options(arguments: Namespace, strangers: Sequence[str]) -> None:
    """Refuse options that are not Hydra's, that belong to another program, or that do not go together."""
    if strangers:
        raise ConfigError(f"Expected settings as key=value, without dashes, but got `{strangers[0]}`: see `--help`.")
    for flag in ("config_path", "config_name", "config_dir", "experimental_rerun"):
        if getattr(arguments, flag):
            raise ConfigError(
                f"Expected the configs that belong to this script, but got --{flag.replace('_', '-')}: to add a folder of your "
                "own, give \"hydra.searchpath=['file:///FOLDER']\"."
            )
    for flag in ("resolve", "package"):
        if getattr(arguments, flag) and not arguments.cfg:
            raise ConfigError(f"Expected --{flag} beside --cfg job, but got it alone: add --cfg job, or leave it out.")
    if len(asked := [flag for flag in ("run", "multirun", "cfg", "info", "shell_completion") if getattr(arguments, flag)]) > 1:
        raise ConfigError(f"Expected one thing to do, but got --{' and --'.join(asked).replace('_', '-')}: choose one.")


def shown(name: str, argv: Sequence[str]) -> str | None:
    """Return the yaml that ``--cfg job`` asks for: one job's configuration as its run would use it.

    Hydra's own answer is the configuration before ``where_present`` and the step budget.

    Returns:
        ``None`` where nothing is asked for, or something that is Hydra's to say.

    Raises:
        ConfigError: the first mistake, in one sentence.
    """
    arguments, _ = options_of(quoted_options(argv)[1:])
    if arguments.cfg != "job" or arguments.package or arguments.multirun or arguments.help or arguments.hydra_help:
        return None
    config, _ = compose_job(name, arguments.overrides)
    return OmegaConf.to_yaml(config, resolve=arguments.resolve)


def options_of(arguments: Sequence[str]) -> tuple[Namespace, list[str]]:
    """Return Hydra's own options of a command line, and what is neither such an option nor an override.

    Raises:
        ConfigError: if an option lacks its value, or has one that there is not.
    """
    parser = _Parser(add_help=False)
    parser.add_argument("overrides", nargs="*")
    for short, name in (("-h", "help"), ("-r", "run"), ("-m", "multirun"), ("-sc", "shell-completion")):
        parser.add_argument(f"--{name}", short, action="store_true")
    for name in ("hydra-help", "resolve"):
        parser.add_argument(f"--{name}", action="store_true")
    for short, name in (("-p", "package"), ("-cp", "config-path"), ("-cn", "config-name"), ("-cd", "config-dir")):
        parser.add_argument(f"--{name}", short)
    parser.add_argument("--experimental-rerun")
    parser.add_argument("--cfg", "-c", choices=["job", "hydra", "all"])
    about = ["all", "config", "defaults", "defaults-tree", "plugins", "searchpath"]
    parser.add_argument("--info", "-i", const="all", nargs="?", choices=about)
    return parser.parse_known_intermixed_args(list(arguments))


class _Parser(ArgumentParser):
    """Whose own way to refuse prints a screen."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"Expected options that there are, but got this: {message}; see `--help`.")
