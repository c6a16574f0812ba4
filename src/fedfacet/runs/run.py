"""A run as an object, for Python: ``fedfacet.train("selector=uniform")`` and ``fedfacet.load_run(folder)``."""

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from fedfacet import config as configuration
from fedfacet.config.nodes import MOST_BYTES_OF_YAML, parsed_yaml
from fedfacet.errors import CheckpointError, ConfigError, FedFacetError, fault_of
from fedfacet.optional import frame_of
from fedfacet.runs.job import Job
from fedfacet.runs.jobs import check
from fedfacet.storage.lock import sole
from fedfacet.storage.run_files import is_there, json_of, metrics_of, read, warn_unverified

if TYPE_CHECKING:
    from pandas import DataFrame
    from torch import nn

_MOST_BYTES = 1 << 36


@dataclass(frozen=True, slots=True)
class Run:
    """A run folder.

    Attributes:
        folder: that holds ``config.yaml``.
        trust: modules that its files may name code of, besides fedfacet's own and torch's optimizers.
    """

    folder: Path
    trust: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Return one line: the folder, how many rounds there are, and how the run ended."""
        try:
            if not (summary := self.summary):
                return f"Run({str(self.folder)!r}, {len(self.metrics)} rounds, not ended)"
        except FedFacetError:  # a damaged file; a debugger must be able to show the run
            return f"Run({str(self.folder)!r})"
        best = f", round {summary['best']['round']} is the best by validation" if summary.get("best") else ""
        return f"Run({str(self.folder)!r}, {summary['rounds']} rounds, {summary['status']}{best})"

    def _repr_html_(self) -> str:
        """Return the line, for notebooks."""
        return f"<code>{html.escape(repr(self))}</code>"

    @property
    def config(self) -> DictConfig:
        """The resolved configuration."""
        return read(self.folder / "config.yaml", _config_of, MOST_BYTES_OF_YAML)

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The rows of ``metrics.csv``, one a round; ``cohort`` is a tuple of clients, what was not measured is ``None``."""
        return metrics_of(self.folder)

    def frame(self) -> "DataFrame":
        """Return ``metrics`` as a ``pandas.DataFrame``, one row a round.

        Raises:
            ConfigError: if pandas is not installed.
        """
        return frame_of(self.metrics)

    @property
    def summary(self) -> dict[str, Any]:
        """What ``summary.json`` holds; empty where the run has not ended."""
        file = self.folder / "summary.json"
        return dict(json_of(file, {})) if is_there(file) else {}

    @property
    def model(self) -> "nn.Module":
        """The network with the weights of the last round.

        Raises:
            CheckpointError: if the run has not ended, a file is damaged, or names code that is not trusted, or if its weights
                are not of one network, as with clients' own layers, or if a frozen base would have to be fetched.
        """
        if not is_there(self.folder / "model" / "model.safetensors"):
            raise CheckpointError(
                f"Expected a run that has ended, but {self.folder / 'model'} has no model: go on with it by resume()."
            )
        return self._model("model.safetensors", "model_digest")

    @property
    def best_model(self) -> "nn.Module":
        """The network with the weights of the best round by validation, which ``summary["best"]`` describes.

        Raises:
            CheckpointError: as ``model``, and if the run has no best round.
        """
        if "best_model_digest" not in self.summary or not is_there(self.folder / "model" / "best.safetensors"):
            raise CheckpointError(
                f"Expected the model of the best round, but {self.folder / 'model'} has none: end the run by "
                "resume(), or start one that measures validation samples."
            )
        return self._model("best.safetensors", "best_model_digest")

    def _model(self, name: str, digest_name: str) -> "nn.Module":
        """Return the network with the weights of a file, which ``summary.json`` knows by a digest."""
        from safetensors.torch import load  # torch loads here

        from fedfacet import state

        folder = self.folder / "model"
        model, base = self._network(folder / "config.json")
        frozen = {name: tensor for name, tensor in model.state_dict().items() if name not in state.travelling(model)}
        if base and state.digest(frozen) != base["digest"]:
            raise CheckpointError(
                f"Expected the frozen weights that the run was trained on, but making the model of {folder / 'config.json'} "
                f"gives others, since nothing is fetched: make it yourself, and load {name} into it."
            )
        weights = read(folder / name, load, _MOST_BYTES)
        if self.summary.get(digest_name, digest := state.digest(weights)) != digest:
            raise CheckpointError(
                f"Expected {folder / name} to hold the model that summary.json tells of, but it holds another: "
                "bring the file back, or go on by resume() where the run has gone on since and was stopped."
            )
        try:
            model.load_state_dict({**(frozen if base else {}), **weights})
        except (RuntimeError, AttributeError, TypeError):
            raise CheckpointError(
                f"Expected the weights of one {type(model).__name__}, but {folder} holds others, as where clients keep layers "
                f"to themselves: read {name} itself."
            ) from None
        return model

    def _network(self, file: Path) -> tuple["nn.Module", Mapping[str, Any]]:
        """Return the network that ``model/config.json`` describes, and what it says of a frozen base."""
        from fedfacet import rng

        settings = json_of(file, {})
        if "_target_" not in settings and "class" in settings:
            raise CheckpointError(
                f"Expected a model that an option made, but a script made that of {file.parent} ({settings['class']}): make it "
                "yourself, and load model.safetensors into it."
            )
        try:
            configuration.check_trusted(settings, self.trust, file)
            base = settings.pop("frozen_base", {})
            settings = configuration.without_downloads(settings, but_files=bool(base))  # what was trained comes next
            facts = {name: settings.pop(name) for name in ("num_classes", "input_shape")}
            facts["input_shape"] = tuple(facts["input_shape"])
            configuration.check_arguments("model", OmegaConf.create(settings))
            with rng.forked(base.get("seed", 0), "weights"):  # as when the run began: a frozen base is not saved
                model: nn.Module = configuration.make(OmegaConf.create(settings), **facts)
            if "adapter" in base:
                configuration.check_arguments("adapter", OmegaConf.create(base["adapter"]))
                with rng.forked(base["seed"], "adapter"):
                    configuration.make(OmegaConf.create(base["adapter"])).fit(model)
        except FedFacetError:
            raise
        except Exception as error:  # somebody else's settings
            raise CheckpointError(
                f"Expected {file} to describe a network, but it cannot be made ({fault_of(error)}): "
                "bring the file back, or run again."
            ) from error
        return model, base

    def resume(self, *overrides: str) -> "Run":
        """Go on with the run, for example for more rounds, ``federation.rounds=200``.

        Raises:
            FedFacetError: in one sentence, if that cannot be done.
        """
        trust = [f"trust=[{','.join(self.trust)}]"] if self.trust else []
        return train(configuration.override_of("resume", self.folder), *trust, *overrides)


def train(*overrides: str) -> Run:
    """Train a federation, as ``python src/train.py OVERRIDES`` does.

    Args:
        overrides: ``group=option`` and ``key=value``, as on the command line, for one run.

    Raises:
        FedFacetError: in one sentence, what was expected, what came and what to do.

    Example:
        >>> import os, tempfile, fedfacet
        >>> folder = os.path.join(tempfile.mkdtemp(), "run")
        >>> run = fedfacet.train(f"paths.output_dir={folder}", "debug=smoke", "heterogeneity=true", "threads=1")
        >>> [row["round"] for row in run.metrics], run.summary["status"], type(run.model).__name__
        ([1], 'finished', 'SmallCNN')
    """
    if strangers := [override for override in overrides if override.startswith("-")]:
        raise ConfigError(f"Expected overrides of one run, but got {strangers[0]}: leave it out.")
    try:
        argv, [(config, run_dir)] = configuration.preflight("train", ["fedfacet", *overrides])
        if configuration.make(config.engine).spans_processes:
            raise ConfigError(f"Expected an engine of one process, but got engine={config.choices.engine}: use the command.")
        given = [one for one in argv[1:] if not one.startswith("hydra.") or one.startswith("hydra.searchpath=")]
        check(config, run_dir)
        run_dir.mkdir(parents=True, exist_ok=True)
        with sole(run_dir / "train.log") as alone:
            if not alone:
                raise ConfigError(f"Expected a run that nobody works at, but another process is at {run_dir}: wait for it.")
            fit(Job(config, run_dir, given))
    except (ValueError, TypeError) as error:
        raise FedFacetError(str(error)) from error
    return Run(run_dir)


def load_run(folder: str | Path, *, trust: Sequence[str] = ()) -> Run:
    """Return the run of a folder.

    Args:
        folder: of the run, or of a job of a sweep.
        trust: modules that its files may name code of, besides fedfacet's own and torch's optimizers.

    Raises:
        ConfigError: if it is no run folder.
    """
    if not (Path(folder) / "config.yaml").is_file():
        raise ConfigError(f"Expected a run folder, but {folder} is none: give the folder that holds config.yaml.")
    warn_unverified([Path(folder)])
    return Run(Path(folder), tuple(trust))


def fit(job: Job) -> None:
    """Run one job in its folder, or go on with it; see ``src/train.py``."""
    from fedfacet.runs.open_run import open_run  # torch and lightning load here

    with open_run(job) as federation:
        federation.fit()


def _config_of(content: bytes) -> DictConfig:
    config = parsed_yaml(content)
    if not isinstance(config, DictConfig) or not config:
        raise ValueError("it holds something else")
    if b"${" in content:  # such a value may be one of the environment
        raise ValueError("a value is made of others when it is read")
    return config
