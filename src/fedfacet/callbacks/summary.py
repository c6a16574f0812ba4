"""The run in one small file, and the final and the best model for others to use."""

import logging
import math
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from fedfacet import state
from fedfacet.callbacks.base import Callback
from fedfacet.callbacks.module_metrics import ModuleMetrics
from fedfacet.callbacks.save_checkpoint import SaveCheckpoint
from fedfacet.clients.personal_memory import all_layers
from fedfacet.errors import CheckpointError
from fedfacet.federation import Federation
from fedfacet.metrics.direction import lower_is_better
from fedfacet.records import RoundResult, validation_rank
from fedfacet.storage import best_models
from fedfacet.storage.atomic_write import atomic_write, json_text, place
from fedfacet.storage.dealt import MANY
from fedfacet.types import State

log = logging.getLogger(__name__)

BYTES_PER_FLOAT = 4

TOTALS = ("seconds", "bytes_up", "bytes_down", "query_bytes_up", "query_bytes_down")
"""Sums over all rounds; those of selectors that pay clients have ``spent``, too."""


class Summary(Callback):
    """Write ``summary.json`` and export the final model as ``model/model.safetensors`` and ``model/config.json``.

    Weights that nobody trains are in neither the file nor the digest; ``frozen_digest`` is theirs.

    Where clients have layers of their own, these are in there too, under ``client_<id>/<name>``. What a server keeps for
    each of them (FedPAC's heads) is in the checkpoint only, and not part of ``model_digest``.

    The best round is the one with the highest validation worst-group accuracy, ties by validation average, then the earliest.
    The test set never chooses. Where a module measures itself and predicts no classes, its first metric takes the accuracy's
    place. Where only clients measure (``federated_evaluate``), what they hold out takes both places.
    The model of that round is exported as ``model/best.safetensors``; it is written only in a round that is the best so far.

    Args:
        facts: what is known before the first round (seed, partition digest, versions, hardware, ...), JSON-able.
        model_config: written to ``model/config.json``, enough to build the model again, JSON-able.
        export: writes what was trained of an adapted model into ``model/adapter/``, in the format of its library.
    """

    def __init__(
        self,
        *,
        run_dir: Path,
        facts: Mapping[str, Any],
        model_config: Mapping[str, Any],
        export: Callable[[State, Path], None] | None = None,
    ) -> None:
        self.run_dir = run_dir
        self.facts = facts
        self.model_config = model_config
        self.export = export
        self.final: dict[str, Any] | None = None
        self.best: dict[str, Any] | None = None
        self._by = ("acc", 1)  # by which rounds are judged, and whether more is better
        self.totals: dict[str, float] = {}  # empty at first, so that a checkpoint may have `spent` or not

    def on_fit_start(self, federation: Federation) -> None:
        """Find out by which metric rounds are judged."""
        own = next((one for one in federation.callbacks.values() if isinstance(one, ModuleMetrics)), None)
        metric = own.main_metric(federation) if own is not None else "acc"
        self._by = metric, -1 if lower_is_better(metric) else 1

    def on_round_end(self, federation: Federation, result: RoundResult) -> None:
        """Keep the last and the best round."""
        ledger = result.ledger
        added = {
            "seconds": sum(result.seconds.values()),
            "bytes_up": BYTES_PER_FLOAT * (ledger.floats_up + ledger.query_floats_up),
            "bytes_down": BYTES_PER_FLOAT * (ledger.floats_down + ledger.query_floats_down),
            "query_bytes_up": BYTES_PER_FLOAT * ledger.query_floats_up,
            "query_bytes_down": BYTES_PER_FLOAT * ledger.query_floats_down,
        }
        if "selector/spent" in result.metrics:  # of a selector that pays clients
            added["spent"] = result.metrics["selector/spent"]
        self.totals = {name: self.totals.get(name, 0) + value for name, value in added.items()}
        measured = {name: value for name, value in result.metrics.items() if not name.startswith("comm/")}
        # Where every few rounds are tested, the last one that was; where none is, the last one.
        if not math.isnan(measured.get("test/acc", measured.get("holdout/acc", 0.0))) or self.final is None:
            self.final = {"round": result.round, **measured}
        rank, best = (validation_rank(one, *self._by) for one in (measured, self.best or {}))
        if rank is not None and (best is None or rank > best):
            self.best = {"round": result.round, **measured}
            self._keep_model(federation, result.round)  # before any checkpoint that refers to it

    def _keep_model(self, federation: Federation, number: int) -> None:
        """Write the model of the best round so far; where there are checkpoints, these see to former ones."""
        best_models.write(self.run_dir, number, all_layers(federation.state.model, federation.state.memory))
        if not any(isinstance(part, SaveCheckpoint) for part in federation.callbacks.values()):
            best_models.keep_only(self.run_dir, {number}, number)

    def on_fit_end(self, federation: Federation, status: str) -> None:
        """Write the files."""
        if status == "failed":
            return
        model, best_digest = all_layers(federation.state.model, federation.state.memory), ""
        if status == "finished":
            folder = self.run_dir / "model"
            folder.mkdir(exist_ok=True)
            _write_json(folder / "config.json", self.model_config)
            save_file({name: tensor.contiguous() for name, tensor in model.items()}, folder / "model.safetensors")
            # safetensors lets nobody but the owner read its files, whatever the umask says.
            shutil.copymode(folder / "config.json", folder / "model.safetensors")
            if self.export is not None:
                self.export(federation.state.model, folder / "adapter")
            best_digest = self._export_best(folder / "best.safetensors")
        summary = {
            "status": status,
            "rounds": federation.state.round,
            **({"stopped": federation.state.stopped} if federation.state.stopped else {}),
            "final": self.final,
            "best": self.best,
            **dict.fromkeys(TOTALS, 0),
            **self.totals,
            **{one.slot: entry for one in federation.mechanisms if (entry := one.summary(federation.state))},
            "model_digest": state.digest(model),
            **({"best_model_digest": best_digest} if best_digest else {}),
            **({"frozen_digest": federation.state.frozen_digest} if federation.state.frozen_digest else {}),
            "data_digest": federation.state.data_digest,
            **_participation(federation.state.participation_counts),
            **{name: value for part in federation.callbacks.values() for name, value in part.summarize(federation).items()},
            **self.facts,
        }
        _write_json(self.run_dir / "summary.json", summary)

    def _export_best(self, file: Path) -> str:
        """Export the best model, and return its digest; empty where there is none."""
        file.unlink(missing_ok=True)  # of a run that had ended, and was resumed
        if self.best is None:
            return ""
        kept = best_models.path_of(self.run_dir, self.best["round"])
        try:
            digest = state.digest(load_file(kept))
        except (OSError, SafetensorError):
            log.warning(
                "Expected %s, the model of the best round, but it is missing or damaged: there is no model/best.safetensors.",
                kept,
            )
            return ""
        place(kept, file)
        return digest

    def state_dict(self) -> dict[str, Any]:
        """Return the last and the best round and the totals."""
        return {"final": self.final, "best": self.best, "totals": self.totals}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take them up.

        Raises:
            CheckpointError: if they are no measured numbers.
        """
        for name in ("final", "best"):
            if state_dict[name] is not None and not _is_measured(state_dict[name]):
                raise CheckpointError(
                    f"Expected a checkpoint whose `callbacks.summary.{name}` holds measured numbers, but it holds something "
                    "else: bring the file back as it was, or start a new run."
                )
        totals = state_dict["totals"]
        if not (isinstance(totals, dict) and totals.keys() <= {*TOTALS, "spent"} and all(map(_is_number, totals.values()))):
            raise CheckpointError(
                "Expected a checkpoint whose `callbacks.summary.totals` holds sums of numbers, but it holds something else: "
                "bring the file back as it was, or start a new run."
            )
        self.final, self.best, self.totals = state_dict["final"], state_dict["best"], state_dict["totals"]


def _participation(counts_K: Tensor) -> dict[str, Any]:
    """Return how often each client's update has arrived, or of very many clients how many have each number of times."""
    if len(counts_K) <= MANY:
        return {"participation_counts": counts_K.tolist()}
    histogram = {str(times): clients for times, clients in enumerate(counts_K.bincount().tolist()) if clients}
    return {"num_clients": len(counts_K), "participation_histogram": histogram}


def _is_measured(value: Any) -> bool:
    return isinstance(value, dict) and "round" in value and all(map(_is_number, value.values()))


def _is_number(value: Any) -> bool:
    return isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**63)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON whole or not at all; NaN, which JSON does not know, becomes null."""
    with atomic_write(path) as unfinished:
        unfinished.write_text(json_text(content) + "\n", encoding="utf-8")
