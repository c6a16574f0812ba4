"""The journal: a line for each round of what a network did to it, by which the round can be run again and audited."""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedfacet import state
from fedfacet.callbacks.base import Callback
from fedfacet.callbacks.mechanism import Callbacks
from fedfacet.deploy.engine import DeployedEngine, nothing_of
from fedfacet.deploy.status import write_status
from fedfacet.errors import CheckpointError
from fedfacet.federation import Federation
from fedfacet.mechanisms.participation import ClientParticipation
from fedfacet.participation import Participation
from fedfacet.records import RoundResult
from fedfacet.storage.atomic_write import write_synced
from fedfacet.storage.run_files import Keys, is_whole, json_lines_of
from fedfacet.types import ClientTask, ClientUpdate

NAME = "journal.jsonl"


def _are_clients(value: Any) -> bool:
    return isinstance(value, list) and all(map(is_whole, value)) and len(set(value)) == len(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_by_client(value: Any) -> bool:
    return isinstance(value, dict) and all(k.isascii() and k.isdigit() and _is_text(one) for k, one in value.items())


_KEYS: Keys = {
    "round": is_whole,
    "run": _is_text,
    "available": _are_clients,
    "cohort": _are_clients,
    "arrived": _are_clients,
    "lost": _is_by_client,
    "update_digests": _is_by_client,
    "model_digest": _is_text,
}
"""What every line holds."""


def read_journal(file: Path) -> dict[int, dict[str, Any]]:
    """Return the lines of a journal by round.

    Raises:
        CheckpointError: if it is missing or damaged, with the line and the key.
    """
    return {line["round"]: line for line in json_lines_of(file, _KEYS)}


class Journal(Callback):
    """Writes ``journal.jsonl``; a line is on the disk before the round's checkpoint is. Renews the files of ``status``.

    Args:
        run_dir: the run folder.
        engine: of the run.
    """

    def __init__(self, run_dir: Path, engine: DeployedEngine) -> None:
        self.file = run_dir / NAME
        self.engine = engine

    def on_fit_start(self, federation: Federation) -> None:
        """Cut back what a killed run wrote after its last checkpoint."""
        lines = json_lines_of(self.file, {"round": is_whole}) if self.file.exists() else []
        before = {line["round"]: line for line in lines}
        kept = [json.dumps(line) + "\n" for round, line in before.items() if round <= federation.state.round]
        write_synced(self.file, ["".join(kept).encode()])

    def on_round_end(self, federation: Federation, result: RoundResult) -> None:
        """Add a line."""
        record = self.engine.record
        came = {client: digest for client, digest in record.digests.items() if client in result.arrived}
        refused = set(record.digests) - set(came) - set(record.silent)
        lost = {**record.lost, **dict.fromkeys(refused, "the update does not fit the model, or is not finite")}
        line = {
            "round": result.round,
            "run": self.engine.exchange.run,
            "available": list(record.available),
            "answered": record.answered,
            "cohort": list(result.cohort),
            "arrived": list(result.arrived),
            "lost": {str(client): why for client, why in sorted(lost.items())},
            "update_digests": {str(client): digest for client, digest in came.items()},
            "model_digest": state.digest(federation.state.model),
        }
        with open(self.file, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())
        for client in refused:
            self.engine.refused[self.engine.registry.clients[client].site, "update"] += 1
        write_status(self.file.parent, federation, self.engine, line, result)

    def summarize(self, federation: Federation) -> Mapping[str, Any]:
        """Return what the sites said of themselves, and the journal's digest."""
        present = self.engine.exchange.present
        sites = {site: {name: said[name] for name in ("versions", "threads", "device")} for site, said in present.items()}
        return {"sites": sites, "journal_sha256": hashlib.sha256(self.file.read_bytes()).hexdigest()}


def replay(federation: Federation, file: Path) -> None:
    """Have a federation whose data all lie here go through the rounds of a journal: the same clients are away and late.

    Raises:
        CheckpointError: if the journal cannot be read, or, while it runs, where a round comes to another model than there.
    """
    lines = read_journal(file)
    federation.engine.run = _without_lost(federation.engine.run, lines)  # type: ignore[method-assign, assignment]
    federation.put(ClientParticipation(_ReplayParticipation(federation, lines)))
    federation.put(Callbacks({**federation.callbacks, "replay": _Comparison(lines, file)}))


def _line(lines: Mapping[int, dict[str, Any]], round: int) -> dict[str, Any]:
    if round not in lines:
        raise CheckpointError(
            f"Expected a journal of round {round}, but it ends with round {max(lines, default=0)}: lower federation.rounds."
        )
    return lines[round]


class OwnParticipation(Participation):
    """A federation's own participation in all but who is available."""

    def __init__(self, federation: Federation) -> None:
        drawn = federation.find(ClientParticipation)
        self._inner = inner = drawn.participation if drawn is not None else Participation()
        self.gives_weights, self.requires = inner.gives_weights, inner.requires
        self.log_weights, self.outcome = inner.log_weights, inner.outcome  # type: ignore[method-assign]


class _ReplayParticipation(OwnParticipation):
    """Who was available is read from the journal."""

    def __init__(self, federation: Federation, lines: Mapping[int, dict[str, Any]]) -> None:
        super().__init__(federation)
        self._federation, self._lines = federation, lines

    def available(self, num_clients: int, rng: np.random.Generator) -> tuple[int, ...]:
        return tuple(_line(self._lines, self._federation.state.round + 1)["available"])


def _without_lost(
    run: Callable[[Iterable[ClientTask]], Iterator[ClientUpdate]], lines: Mapping[int, dict[str, Any]]
) -> Callable[[Iterable[ClientTask]], Iterator[ClientUpdate]]:
    """Return what runs those clients whose updates came in time; of the others nothing comes."""

    def again(tasks: Iterable[ClientTask]) -> Iterator[ClientUpdate]:
        tasks = list(tasks)
        lost = {int(client) for client in _line(lines, tasks[0].round)["lost"]} if tasks else set()
        updates = run([task for task in tasks if task.client_id not in lost])
        for task in tasks:
            yield nothing_of(task.client_id) if task.client_id in lost else next(updates)

    return again


class _Comparison(Callback):
    """Holds every round's model to the journal's."""

    def __init__(self, lines: Mapping[int, dict[str, Any]], file: Path) -> None:
        self._lines, self._file = lines, file

    def on_round_end(self, federation: Federation, result: RoundResult) -> None:
        line = _line(self._lines, result.round)
        for name, ours in (("cohort", list(result.cohort)), ("model_digest", state.digest(federation.state.model))):
            if line[name] != ours:
                raise CheckpointError(
                    f"Expected round {result.round} to come to the {name} {line[name]} of {self._file}, but it comes to {ours}:"
                    " the data, the settings, the code or the journal are others than the run's."
                )
