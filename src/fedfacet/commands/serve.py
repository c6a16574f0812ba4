"""The server of a federation of real sites; see ``USAGE``."""

import contextlib
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedfacet import __version__
from fedfacet.commands import called, is_answered
from fedfacet.entry import print_error, sentence_of
from fedfacet.errors import CheckpointError, ConfigError, FedFacetError, Interrupted
from fedfacet.shell_words import typed
from fedfacet.waiting import waiting

if TYPE_CHECKING:  # --help need not wait for what these load
    from omegaconf import DictConfig

    from fedfacet.deploy.server import DeployedFederation

USAGE = """usage: {command} card=FILE roster=FILE deploy=loopback 'deploy.clients=[FILE,FILE]' [GROUP=OPTION] [KEY=VALUE] ...
       {command} check card=FILE roster=FILE ...
       {command} resume=RUN
       {command} replay run=RUN [paths.data_dir=DIR]
       {command} start kit=DIR

Train a federation whose clients' data lie at sites (docs/deployment.md). The options are those of train, but for the dataset
and the partition, whose places the data card and the roster take.

  card=FILE                 what the data of all sites look like
  roster=FILE               the clients, and the site of each
  deploy=loopback           sites are child processes of this one; deploy.clients names the client.yaml of each
  deploy=flare              sites are behind NVIDIA FLARE; deploy.kit names the kit of somebody who may submit jobs
  sites.deadline_seconds=600, sites.query_deadline_seconds=300, sites.min_arrivals=1, sites.max_letter_mb=4096
  check                     say hello to the sites, tell what they are and what does not fit, and train nothing
  resume=RUN                go on with the run of a folder, after any end that was not its last round
  replay run=RUN            run the rounds of a run folder again where all data lie, by its journal, and compare the models
  start kit=DIR             start FLARE's server with its startup kit, in the foreground; jobs may name our relay alone

Exit status: 0, 2 for a mistake that is said in one sentence, 75 where too few updates came or FLARE did not answer, and a
resume may go on later.

example: {command} check card=pilot/card.yaml roster=pilot/roster.yaml 'deploy.clients=[pilot/site_0/client.yaml]' method=fedavg
"""

_TEMPORARY_FAILURE = 75  # EX_TEMPFAIL of sysexits.h, by which supervisors try again


def main(argv: Sequence[str] | None = None) -> int:
    """Serve, check or replay; return the exit status."""
    argv = sys.argv[1:] if argv is None else list(argv)
    if is_answered(argv, "serve", USAGE):
        return 0
    word = argv[0] if argv and "=" not in argv[0] else ""
    commands = {"": _serve, "check": _check, "replay": _replay, "start": _start}
    run_dir: list[Path] = []
    from fedfacet.deploy.engine import Shortfall

    try:
        if word not in commands:
            raise ConfigError(f"Expected check, replay, start or key=value, but got {word!r}: see `--help`.")
        return commands[word](argv[bool(word) :], run_dir)
    except Shortfall as error:
        print(f"{error}; {_how_to_go_on(run_dir, argv)}", file=sys.stderr)
        return _TEMPORARY_FAILURE
    except Interrupted as stop:
        print(f"Stopped; {_how_to_go_on(run_dir, argv)}", file=sys.stderr)
        return 128 + stop.signal
    except (FedFacetError, ValueError, TypeError) as error:
        from fedfacet.config import ended_before

        if message := ended_before(error, argv):
            print(message)
            return 0
        print_error(sentence_of(error))
        return 2


def _how_to_go_on(run_dir: Sequence[Path], given: Sequence[str]) -> str:
    from fedfacet.config import needed_to_resume, override_of

    if not run_dir or not any((run_dir[0] / "checkpoints").glob("*.ckpt")):
        return "nothing was saved, so start again."
    overrides = [override_of("resume", run_dir[0]), *needed_to_resume(given)]
    return f"to go on:\n  {called('serve')} {typed(overrides)}"


def _check(argv: Sequence[str], run_dir: list[Path]) -> int:
    """Make the server's half once, and tell of the sites."""
    with _made(argv, run_dir) as (federation, config, _):
        for site, said in federation.engine.exchange.present.items():
            samples = sum(number for number, *_ in said["clients"].values())
            versions = ", ".join(f"{name} {version}" for name, version in said["versions"].items())
            print(f"{site}: {len(said['clients'])} clients, {samples} samples; {versions}; {said['device']}")
        print(f"All fits: {config.choices.selector} and {config.choices.aggregator}, {federation.num_clients} clients.")
    return 0


def _serve(argv: Sequence[str], run_dir: list[Path]) -> int:
    """Train, or go on with a run."""
    from fedfacet.deploy.server import save_names
    from fedfacet.runs.console import results_line
    from fedfacet.runs.job import Job
    from fedfacet.runs.open_run import open_run
    from fedfacet.storage.lock import sole
    from fedfacet.storage.run_files import json_of

    with _made(argv, run_dir) as (federation, config, overrides):
        folder = run_dir[0]
        folder.mkdir(parents=True, exist_ok=True)
        with sole(folder / "train.log") as alone, _logged(folder / "train.log"):
            if not alone:
                raise ConfigError(f"Expected a run that nobody works at, but another process is at {folder}: wait for it.")
            write = partial(_write, save_names, federation)
            with open_run(Job(config, folder, overrides), lambda *_: federation, write) as opened_federation:
                opened_federation.fit()
    summary = json_of(folder / "summary.json") if (folder / "summary.json").exists() else {}
    print(f"{federation.state.round} rounds are done; model digest {summary.get('model_digest', 'not written')}")
    if "holdout/acc" in (summary.get("final") or {}):
        print(results_line(summary))
    print(f"run folder  {folder}")
    return 0


def _write(save: Any, federation: "DeployedFederation", run_dir: Path, config: "DictConfig", same: Any) -> None:
    save(run_dir, federation)


def _replay(argv: Sequence[str], run_dir: list[Path]) -> int:
    """Run a journal's rounds again where all data lie."""
    given = dict(argument.partition("=")[::2] for argument in argv)
    if "run" not in given or set(given) - {"run", "paths.data_dir"}:
        raise ConfigError(
            f"Expected run=RUN and perhaps paths.data_dir=DIR, but got {' '.join(argv) or 'nothing'}: see `--help`."
        )
    from fedfacet.build import rebuild
    from fedfacet.config import check_trusted
    from fedfacet.deploy.journal import NAME, read_journal, replay
    from fedfacet.deploy.server import read_saved
    from fedfacet.storage import checkpoint

    folder = Path(given["run"])
    _, settings = checkpoint.load(folder / "checkpoints" / checkpoint.LAST)
    check_trusted(settings, (), folder / "checkpoints" / checkpoint.LAST)
    if (rounds := max(read_journal(folder / NAME), default=0)) == 0:
        raise CheckpointError(f"Expected a journal of a round at least in {folder}, but it is empty: wait for a round.")
    if "paths.data_dir" in given and "root" in settings["dataset"]:
        settings["dataset"]["root"] = str(Path(given["paths.data_dir"]) / Path(settings["dataset"]["root"]).name)
    settings["partition"]["local_holdout"] = read_saved(folder)["holdout"]
    settings = {**settings, "callbacks": {}, "logger": {}}
    with waiting("loads libraries and data"):
        federation = rebuild(settings, folder)
    replay(federation, folder / NAME)
    federation.rounds = rounds
    federation.fit()
    from fedfacet import state

    print(
        f"All {rounds} rounds come to the models of the journal; the last has the digest {state.digest(federation.state.model)}"
    )
    return 0


def _start(argv: Sequence[str], run_dir: list[Path]) -> int:
    """Become FLARE's server."""
    from fedfacet.deploy.flare import RELAY
    from fedfacet.deploy.startup_kit import start

    if len(argv) != 1 or not argv[0].startswith("kit=") or argv[0] == "kit=":
        raise ConfigError(f"Expected kit=DIR, but got {' '.join(argv) or 'nothing'}: see `--help`.")
    start(Path(argv[0].removeprefix("kit=")), RELAY, {})


@contextlib.contextmanager
def _made(argv: Sequence[str], run_dir: list[Path]) -> "Iterator[tuple[DeployedFederation, DictConfig, list[str]]]":
    """Compose, check and settle a job, reach the sites, and lend the federation."""
    from fedfacet import config as configuration
    from fedfacet.build import settle
    from fedfacet.deploy.server import build_server
    from fedfacet.storage import checkpoint

    with waiting(f"fedfacet {__version__} checks the settings"):
        given, jobs = configuration.preflight("serve", ["serve", *argv])
        if len(jobs) != 1:
            raise ConfigError("Expected the settings of one run, but got several or none: give one value for each.")
        config, folder = jobs[0]
        run_dir.append(folder)
        overrides = [one for one in given[1:] if not one.startswith("hydra.")]
        if config.resume is not None:
            saved_at = checkpoint.asked_for(folder, config.resume)
            settled: Mapping[str, Any] = configuration.carried_over(checkpoint.load(saved_at)[1], saved_at)[0]
            for name, value in settled.items():
                config[name] = value
        settle(config)
    with contextlib.closing(configuration.make(config.deploy)) as transport, waiting("says hello to the sites"):
        yield build_server(config, folder, transport=transport, overrides=overrides), config, overrides


@contextlib.contextmanager
def _logged(file: Path) -> Iterator[None]:
    """Write what is logged to a file, and warnings to the terminal too."""
    root, level = logging.getLogger(), logging.getLogger().level
    handlers: list[logging.Handler] = [logging.FileHandler(file, encoding="utf-8"), logging.StreamHandler()]
    handlers[1].setLevel(logging.WARNING)
    for handler in handlers:
        handler.setFormatter(logging.Formatter("[%(asctime)s][%(levelname)s] %(message)s"))
        root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        yield
    finally:
        root.setLevel(level)
        for handler in handlers:
            root.removeHandler(handler)
            handler.close()
