"""The run folder of a federation of objects, which ``federate(folder=...)`` writes and resumes."""

import contextlib
import logging
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import lightning as L
import torch

from fedfacet import __version__
from fedfacet import config as configuration
from fedfacet.callbacks.base import Callback
from fedfacet.client_setup import be_deterministic, usual_memory_format
from fedfacet.clients.trainer import Clients
from fedfacet.config.nodes import load_yaml, yaml_of
from fedfacet.config.trust import OF_SCRIPT
from fedfacet.data.federated import FederatedData
from fedfacet.entry import Interruption
from fedfacet.errors import CheckpointError, ConfigError, FedFacetError, Interrupted, RunFinished, first_line
from fedfacet.federation import Federation
from fedfacet.parallel.processes import keep_freed_memory
from fedfacet.provenance import facts_of, parameters_of, settings_of, settings_of_optimizer
from fedfacet.records import FederationState
from fedfacet.shell_words import typed
from fedfacet.storage import checkpoint
from fedfacet.storage.atomic_write import atomic_write
from fedfacet.storage.dealt import write_dealt
from fedfacet.storage.lock import sole
from fedfacet.storage.run_files import LIST, write_list

log = logging.getLogger("fedfacet.train")

_NO_PARTS = ("data", "rounds", "cohort_size", "seed", "folder", "callbacks")
"""Arguments of ``federate`` that are no parts by themselves."""


class RunFolder:
    """A folder in which ``fit`` keeps a run, with the files of a command's run.

    Args:
        clients: of the federation.
        arguments: of ``federate`` by name, in which what was left out has been filled in.

    Attributes:
        folder: new, or of an earlier start of the same script.
        settings: what ``config.yaml`` and checkpoints say of the run.
        facts: what ``summary.json`` says of the machine.
        callbacks: those of the user, and after them the usual ones, which write the folder.

    Raises:
        ConfigError: if the engine is one of several processes that were started together.
        TypeError: if the folder is none.
    """

    def __init__(self, clients: Clients, arguments: Mapping[str, Any]) -> None:
        folder, engine = arguments["folder"], arguments["engine"]
        if not isinstance(folder, str | Path):
            raise TypeError(f"Expected `folder` to name a folder, but got {folder!r}: give a text or a Path.")
        if engine.spans_processes:
            raise ConfigError(
                f"Expected an engine of one process for `folder`, but got {engine.name}: use the command `train`."
            )
        be_deterministic(clients.device)
        self.folder, self.data = Path(folder).expanduser(), arguments["data"]
        self.settings = _settings_of(clients, arguments)
        parameters = parameters_of(clients.program.module)
        self.facts = facts_of(arguments["seed"], self.settings, self.data.partition.digest, clients.device, engine.name)
        self.facts["parameters"] = parameters
        usual = self._usual_callbacks(arguments["rounds"], str(clients.device), parameters)
        given = arguments["callbacks"]
        self.callbacks: dict[str, Callback] = {**given, **{name: one for name, one in usual.items() if name not in given}}

    def _usual_callbacks(self, rounds: int, trains_on: str, parameters: Mapping[str, int]) -> dict[str, Callback]:
        """Return the callbacks that ``conf/callbacks/default.yaml`` gives a command, with the facts that they ask for."""
        dataset, folder = self.data.dataset, configuration.conf_dir() / "callbacks"
        facts = {
            "run_dir": self.folder,
            "run_config": self.settings,
            "data": self.data,
            "num_attributes": dataset.num_attributes,
            "rounds": rounds,
            "trains_on": trains_on,
            "parameters": parameters,
            "client_names": self.data.client_names,
            "inputs_read": dataset.inputs_read,
            "facts": self.facts,
            "model_config": {
                "class": self.settings["model"]["_target_"],
                "num_classes": dataset.num_classes,
                "input_shape": list(dataset.input_shape),
            },
            "export": None,
        }
        usual = [one for one in load_yaml(folder / "default.yaml").defaults if one not in ("evaluate", "_self_")]
        return {name: configuration.make(load_yaml(folder / f"{name}.yaml")[name], **facts) for name in usual}

    @contextlib.contextmanager
    def opened(self, federation: Federation) -> Iterator[bool]:
        """Have a federation work in the folder while entered, from its last checkpoint on; yield whether rounds are left."""
        try:
            self._check()
            self.folder.mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError) as error:
            fault = getattr(error, "strerror", None) or first_line(error)
            raise ConfigError(f"Expected `folder` to be one that can be made, but {self.folder} cannot ({fault}).") from None
        threads = torch.get_num_threads()
        with sole(self.folder / "train.log") as alone, _logged(self.folder / "train.log"):
            if not alone:
                raise ConfigError(f"Expected a folder for this process, but another process is at {self.folder}: wait for it.")
            try:
                log.info("fedfacet %s: %s", __version__, typed(["python", *sys.argv]))
                saved = self._resumed(federation)
                if isinstance(saved, str):
                    log.info(saved)
                    print(saved, file=sys.stderr)
                    yield False
                    return
                if federation.engine.trains_here:
                    keep_freed_memory()
                with worked_at(self.folder, federation, self._write, saved):
                    yield True
                log.info("Finished round %d.", federation.state.round)
            except Interrupted as stop:
                told = f"Stopped by {signal.Signals(stop.signal).name} after round {federation.state.round}"
                log.info("%s.", told)
                print(f"{told}; run the script again to resume.", file=sys.stderr)
                raise
            finally:
                torch.set_num_threads(threads)

    def _check(self) -> None:
        """Refuse a folder that holds something else."""
        if not (self.folder / "config.yaml").exists():
            try:
                configuration.check_new(self.folder)
            except ConfigError as error:
                raise ConfigError(str(error).replace("paths.output_dir", "`folder`")) from None
            return
        configuration.check_links(self.folder)
        settings = load_yaml(self.folder / "config.yaml")
        if getattr(settings, "task", None) != OF_SCRIPT:
            raise ConfigError(
                f"Expected a folder for a script, but {self.folder} holds a run of a command: choose another, or resume that "
                f"run by `fedfacet.load_run({str(self.folder)!r}).resume()`."
            )

    def _resumed(self, federation: Federation) -> FederationState | str | None:
        """Return the state that the federation resumes, or a sentence that says that the run is complete."""
        path = self.folder / "checkpoints" / checkpoint.LAST
        if not path.exists() and (previous := path.with_name(checkpoint.PREVIOUS)).exists():
            path = previous
        if not path.exists():
            return None
        try:
            saved, config = checkpoint.load(path)
        except CheckpointError as error:
            raise CheckpointError(f"{error} From a script: remove {path}, and the run resumes from the one before.") from None
        settled, _ = configuration.carried_over(config, path)
        self._check_same(config)
        check_sums(config["engine"], self.settings["engine"])
        rounds = federation.rounds
        if saved.round > rounds:
            raise CheckpointError(
                f"Expected `rounds` of {saved.round} or more, as the run in {self.folder} has done so many, but got {rounds}: "
                "give as many, or choose another folder."
            )
        self.settings |= settled
        self.facts |= settled
        torch.set_num_threads(settled["threads"])
        federation.restore(saved)
        is_complete = configuration.is_complete(self.folder, saved.round)
        try:
            configuration.check_resumable(config, self.settings, saved.round, complete=is_complete, stopped=saved.stopped)
        except RunFinished:
            why = f" ({saved.stopped})" if saved.stopped else ""
            return f"The run in {self.folder} is complete: it ended after round {saved.round}{why}."
        checkpoint.make_last(path)
        return saved

    def _check_same(self, config: Mapping[str, Any]) -> None:
        """Refuse to resume a run with other objects, naming the first that differs."""
        given = {**self.settings, **{name: config[name] for name in configuration.SETTLED}}
        if (difference := configuration.differing_key(config, given)) is None:
            return
        key, was, now = difference
        group = key.partition(".")[0]
        options = [settings["choices"].get(group) for settings in (config, given)]
        if options[0] != options[1] and group not in ("dataset", "partition"):  # of which these are digests
            key, (was, now) = group, options
        raise CheckpointError(
            f"Expected what the run in {self.folder} was started with, but `{key}` was {was!r} and is now {now!r}: bring it "
            "back, or choose another folder."
        )

    def _write(self) -> None:
        """Write what is known before the first round."""
        with atomic_write(self.folder / "config.yaml") as unfinished:
            unfinished.write_text(yaml_of(self.settings), encoding="utf-8")
        write_partition(self.folder, self.data)


def _settings_of(clients: Clients, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of ``federate`` as a run's settings."""
    named = {name: part for name, part in arguments.items() if name not in (*_NO_PARTS, "optimizer")} | {"local": clients.local}
    model, data, device = arguments["model"], arguments["data"], clients.device
    is_module = isinstance(model, L.LightningModule)
    try:
        made = model.configure_optimizers() if is_module else arguments["optimizer"](model.parameters())
    except Exception:  # whatever is wrong with it is said when a client trains
        made = None
    parts = {name: settings_of(part) for name, part in named.items()} | {"optimizer": settings_of_optimizer(made)}
    names = {name: _name_of(name, part) for name, part in named.items() if not isinstance(part, Mapping | Sequence | Set)}
    return {
        "task": OF_SCRIPT,
        "seed": arguments["seed"],
        "federation": {name: arguments[name] for name in ("rounds", "cohort_size")} | {"on_bad_update": "raise"},
        "choices": {
            **names,
            "dataset": clients.facts.data_digest[:8],
            "partition": data.partition.digest[:8],
            "optimizer": type(made).__name__,
            "objective": type(model).__name__ if is_module else "classification",
            "personal": ", ".join(sorted(arguments["personal"])) or "none",
            "participation": names["participation"].replace("none", "always"),
        },
        "dataset": {
            "num_samples": len(data.dataset.y),
            "class_names": list(data.dataset.class_names),
            "attribute_names": list(data.dataset.attribute_names),
        },
        "partition": {"num_clients": data.partition.num_clients},
        **parts,
        "callbacks": {name: settings_of(one) for name, one in arguments["callbacks"].items()},
        "threads": torch.get_num_threads(),
        "memory_format": usual_memory_format(device),
        "precision": "32-true",
        "compile": False,
        "paths": {"output_dir": str(arguments["folder"])},
    }


def _name_of(group: str, part: Any) -> str:
    """Return the only option of a group that stands for the class of a part, or else the class's name."""
    if part is None:
        return "none"
    target = re.compile(rf"^_target_: {re.escape(settings_of(part)['_target_'])}\b", re.MULTILINE)
    options = (configuration.conf_dir() / group).glob("*.yaml")
    found = [option.stem for option in options if target.search(option.read_text(encoding="utf-8"))]
    return found[0] if len(found) == 1 else type(part).__name__


def write_partition(run_dir: Path, data: FederatedData) -> None:
    """Write who has which sample."""
    facts = {
        "digest": data.partition.digest,
        "num_clients": data.partition.num_clients,
        "class_names": data.dataset.class_names,
        "attribute_names": data.dataset.attribute_names,
        **({"client_names": data.client_names} if data.client_names else {}),
        **({"inputs": data.dataset.inputs_read} if data.dataset.inputs_read else {}),
    }
    others: dict[str, Any] = {}
    if any(map(len, data.local_holdout)):
        others["local_holdout"] = [held_out.tolist() for held_out in data.local_holdout]
    if (never := data.held_out_clients) is not None:
        others["held_out_clients"] = {
            "numbers": never.numbers,
            **({"names": never.names} if never.names else {}),
            "counts": [matrix.counts.astype(int).tolist() for matrix in data.matrices_of(never.partition)],
            "indices": [client.tolist() for client in never.partition.indices],
            "local_holdout": [held_out.tolist() for held_out in never.local_holdout],
        }
    write_dealt(run_dir, facts, data.partition, data.matrices, data.val, len(data.dataset.test), others)


@contextlib.contextmanager
def worked_at(
    run_dir: Path, federation: Federation, write: Callable[[], None], saved: FederationState | None
) -> Iterator[None]:
    """Write what is known before the first round, have signals stop the federation at a safe point, and list all files.

    Args:
        run_dir: of the run.
        federation: that works there while this is entered.
        write: writes what is known.
        saved: what the federation resumes; ``None`` where it begins.

    Raises:
        Interrupted: if a signal has come; the state is saved.
    """
    (run_dir / LIST).unlink(missing_ok=True)  # nothing may be written while it is there
    write()
    with contextlib.ExitStack() as stack:
        stack.callback(_listed, run_dir)
        if threading.current_thread() is threading.main_thread():  # others have no signals
            before = signal.signal(signal.SIGINT, signal.default_int_handler)  # of a second Ctrl-C: callbacks see to it
            stack.callback(signal.signal, signal.SIGINT, before)
            stack.enter_context(Interruption(federation.stop))
        with _doubting(saved, federation):
            yield


def _listed(run_dir: Path) -> None:
    with contextlib.suppress(OSError):  # of a full disk; without the list the files are read unverified
        write_list(run_dir)


@contextlib.contextmanager
def _doubting(saved: FederationState | None, federation: Federation) -> Iterator[None]:
    """Where the first round after a checkpoint fails, say that the checkpoint may be the reason."""
    try:
        yield
    except (FedFacetError, OSError):
        raise
    except Exception as error:
        if saved is None or federation.state is not saved:
            raise
        log.info("Failed.", exc_info=True)
        raise CheckpointError(
            f"Expected to go on after round {saved.round}, but the next one fails with {type(error).__name__} "
            f"({first_line(error)}): restore the code, settings and checkpoint that the run had; train.log has the traceback."
        ) from error


def check_sums(*engines: Mapping[str, Any]) -> None:
    """Refuse to resume a run by an engine that sums in another order than the one that it was started with."""
    trees = [engine.get("sums", "cohort") for engine in engines]
    if "tree" in trees and trees[0] != trees[1]:
        raise ConfigError(
            f"The run was started with engine.sums={trees[0]}, and engine.sums={trees[1]} adds up in another order: give "
            f"engine=distributed engine.sums={trees[0]}."
        )
    was, now = ("vectorized" in f"{engine['_target_']} {(engine.get('choice') or {}).get('engine')}" for engine in engines)
    if was != now:
        raise ConfigError(
            f"Expected {'engine=vectorized' if was else 'an engine that is exact to the last bit'}, as the run was started "
            f"with, but got {'one that adds up in another order' if was else 'vectorized'}: leave `engine` out."
        )


class _PassedOn(logging.Handler):
    """Gives to the root logger what it would have got."""

    def emit(self, record: logging.LogRecord) -> None:
        """Pass a record on."""
        logging.getLogger().callHandlers(record)


@contextlib.contextmanager
def _logged(file: Path) -> Iterator[None]:
    """Write the log of the package to a file while entered; elsewhere it goes as far as it did before."""
    logger = logging.getLogger("fedfacet")
    before = logger.level, logger.propagate
    to_file, to_others = logging.FileHandler(file, encoding="utf-8"), _PassedOn(logger.getEffectiveLevel())
    to_file.setFormatter(logging.Formatter("[%(asctime)s][%(name)s][%(levelname)s] - %(message)s"))
    others = [to_others] if logger.propagate else []
    for handler in (to_file, *others):
        logger.addHandler(handler)
    logger.setLevel(min(logging.INFO, logger.getEffectiveLevel()))
    logger.propagate = False
    try:
        yield
    finally:
        for handler in (to_file, *others):
            logger.removeHandler(handler)
        to_file.close()
        logger.setLevel(before[0])
        logger.propagate = before[1]
