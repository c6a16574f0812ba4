"""Weights & Biases."""

import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning.pytorch import loggers

from fedfacet.arguments import check_choice
from fedfacet.callbacks.lightning_log import LoggerAdapter, checked_id
from fedfacet.data.own_data import OWN_DATA
from fedfacet.entry import reader_may_leave
from fedfacet.errors import ConfigError, FedFacetError
from fedfacet.federation import Federation
from fedfacet.records import RoundResult
from fedfacet.storage.dealt import MANY
from fedfacet.storage.run_files import json_of

# What a method may be beside selector and aggregator, and what goes without saying.
_USUAL = {"correction": "none", "personal": "none", "objective": "classification", "loss": "cross_entropy"}
_USUAL |= {"heterogeneity": "estimated", "adapter": "none"}


@dataclass(eq=False, kw_only=True)
class WandbLog(LoggerAdapter):
    """The same numbers as the csv files, as one W&B run that a resumed job goes on with.

    Runs that differ by their seed share a group: method, experiment and partition.

    Args:
        run_dir: the run folder, where W&B keeps its files too.
        run_config: the resolved configuration; its ``choices`` name the method.
        facts: what is known of the run before it starts; its partition digest tells partitions apart.
        project: W&B project.
        entity: W&B user or team; ``None`` for the default one.
        mode: ``"online"``, ``"offline"`` or ``"disabled"``; ``None`` for what WANDB_MODE says, or else ``"online"``. That
            raises a ``ConfigError`` where W&B knows no API key.
        tags: of the run.
        artifact: whether the final model becomes an artifact of the run, which W&B then uploads.
    """

    run_dir: Path
    run_config: Mapping[str, Any]
    facts: Mapping[str, Any]
    project: str = "fedfacet"
    entity: str | None = None
    mode: str | None = None
    tags: Sequence[str] = ()
    artifact: bool = False

    def __post_init__(self) -> None:
        if self.mode is None:
            self.mode = os.environ.get("WANDB_MODE") or "online"
        check_choice("wandb.mode", self.mode, ("online", "offline", "disabled"))
        os.environ.setdefault("WANDB_SILENT", "true")  # its messages would tear the progress bar
        if self.mode == "online":
            _check_login()
        super().__init__()
        self._id = secrets.token_hex(4)  # here, so that a run that is stopped in its first round has it too

    @property
    def group(self) -> str:
        """What runs of different seeds have in common."""
        choices = self.run_config["choices"]
        unusual = (part for part, usual in _USUAL.items() if choices.get(part, usual) not in (usual, None))
        parts = [str(choices[part]) for part in ("selector", "aggregator", *unusual)]
        method = "-".join("true_heterogeneity" if part == "true" else part for part in parts)
        experiment = None if choices["dataset"] in OWN_DATA else choices.get("experiment")
        return f"{method}-{experiment or choices['dataset']}-{self.facts['partition_digest'][:8]}"

    def on_fit_start(self, federation: Federation) -> None:
        """Open the run, or the run that a checkpoint knows."""
        import wandb

        os.environ["WANDB_DATA_DIR"] = str(self.run_dir / "wandb")  # where tables and artifacts wait to be uploaded
        try:
            run = wandb.init(
                project=self.project,
                entity=self.entity,
                mode=self.mode,  # type: ignore[arg-type]
                tags=tuple(self.tags),
                dir=self.run_dir,
                id=self._id,
                resume="allow",
                group=self.group,
                name=f"{self.group}-s{self.facts['seed']}",
                job_type="train",
                config=dict(self.run_config) | {"facts": dict(self.facts)},
            )
        except wandb.errors.Error as error:
            reason = str(error).splitlines()[0].rstrip(".")
            raise FedFacetError(
                f"Expected W&B to open a run, but it says `{reason}`: go on without it by `python src/train.py "
                f"resume={self.run_dir} logger=wandb wandb.mode=offline`."
            ) from None
        run.define_metric("round")
        run.define_metric("*", step_metric="round")
        self._logger = loggers.WandbLogger(experiment=run)

    def on_round_end(self, federation: Federation, result: RoundResult) -> None:
        """Log the round's numbers, NaN too, with the round itself as the axis."""
        assert self._logger is not None
        self._logger.log_metrics({"round": result.round, **self.numbers(result)})

    def close(self, logger: Any, federation: Federation, status: str) -> None:
        """Add the pictures and what the run came to, and close the run."""
        import wandb

        run = logger.experiment
        for name in ("partition", "curves", "selection"):
            if (path := self.run_dir / f"{name}.png").exists():
                run.summary[name] = wandb.Image(str(path))
        for part in federation.callbacks.values():
            run.summary.update(dict(part.summarize(federation)))
        run.summary["status"] = status
        if federation.num_clients <= MANY:
            counts = enumerate(federation.state.participation_counts.tolist())
            run.summary["clients"] = wandb.Table(["client", "rounds"], [list(row) for row in counts])
        if (file := self.run_dir / "summary.json").exists() and status != "failed":
            run.summary.update(_of_the_end(json_of(file)))
        if self.artifact and (model := self.run_dir / "model").is_dir():
            kept = wandb.Artifact(f"model-{self._id}", type="model")
            kept.add_dir(str(model))
            run.log_artifact(kept)
        run.finish(exit_code=0 if status == "finished" else 1)
        if self.mode == "offline":
            with reader_may_leave(sys.stdout):
                print(f"W&B has the run on disk; to upload it:\n  wandb sync {self.run_dir}/wandb/offline-run-*{self._id}")

    def state_dict(self) -> dict[str, Any]:
        """Return the run's id."""
        return {"id": self._id}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up the run's id."""
        self._id = checked_id(state_dict.get("id")) or self._id


def _of_the_end(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return what W&B shows of a run's summary: the best round, what crossed, and what the run is known by."""
    best = {f"best/{name}": value for name, value in (summary.get("best") or {}).items()}
    shown = ("bytes_up", "bytes_down", "query_bytes_up", "query_bytes_down", "spent", "model_digest", "data_digest")
    return best | {name: summary[name] for name in (*shown, "partition_digest") if name in summary}


def _check_login() -> None:
    import wandb

    try:
        known = wandb.login(prompt=False, verify=False)
    except TypeError:  # a W&B without `prompt`: its `init` will ask or complain
        return
    if not known:
        raise ConfigError(
            "Expected an API key for `logger=wandb`, but W&B knows none: run `wandb login`, set WANDB_API_KEY, or keep the run "
            "on disk by wandb.mode=offline."
        )
