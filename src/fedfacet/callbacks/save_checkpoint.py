"""Checkpoints while a run goes on."""

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedfacet.arguments import check_choice, check_whole
from fedfacet.callbacks.base import Callback
from fedfacet.errors import FedFacetError
from fedfacet.federation import Federation
from fedfacet.records import FederationState
from fedfacet.storage import best_models, checkpoint, tensors
from fedfacet.storage.atomic_write import place, sync
from fedfacet.storage.client_memory import ClientMemory


class SaveCheckpoint(Callback):
    """Keep ``checkpoints/last.ckpt`` up to date, from before the first round on, so that every run can be gone on with.

    The one before stays as ``checkpoints/previous.ckpt``, from which a run goes on where the last one is damaged. What clients
    keep for themselves lies in ``clients/memory/``: a client's file is written when its memory has changed, and removed when no
    checkpoint refers to it. With ``keep="all"`` each state also stays as ``checkpoints/round_<number>.ckpt``, so that any round
    can be run again by itself, as ``describe.py decomposition=`` does. The models of earlier best rounds are removed as soon as
    neither of the two refers to them.

    Args:
        run_config: the resolved configuration, saved along so that a resumed run can be held to it.
        keep: ``"last"`` or ``"all"``.
        every_n_rounds: 1 or larger. The file is written beside the next round, so that a killed process loses the rounds since
            the last checkpoint and those that writing it took; an interrupted or finished one loses none.
    """

    def __init__(self, *, run_dir: Path, run_config: Mapping[str, Any], keep: str = "last", every_n_rounds: int = 1) -> None:
        check_choice("callbacks.save_checkpoint.keep", keep, ("last", "all"))
        check_whole("callbacks.save_checkpoint.every_n_rounds", every_n_rounds)
        self.run_dir = run_dir
        self.path = run_dir / "checkpoints" / checkpoint.LAST
        self.run_config = run_config
        self.keep = keep
        self.every_n_rounds = every_n_rounds
        self._saved_round = 0
        self._memory = ClientMemory(run_dir)
        self._packed: tensors.Packed = {}
        self._memory_of: dict[str, str] = {}
        self._best_of: dict[str, int] = {}
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._written: Future[None] | None = None

    def on_fit_start(self, federation: Federation) -> None:
        """Save the state before the first round, or note what is saved already."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._saved_round = federation.state.round
        self._best_of[checkpoint.LAST] = _best_round(federation.state)
        if federation.state.round == 0:
            self._save(federation)
            self._wait()
        elif self._memory.folder.is_dir():
            self._memory_of = {file.name: checkpoint.memory_of(file) for file in self.path.parent.glob("*.ckpt")}

    def on_state_complete(self, federation: Federation) -> None:
        """Save where a checkpoint is due."""
        if federation.state.round % self.every_n_rounds == 0:
            self._save(federation)

    def on_fit_end(self, federation: Federation, status: str) -> None:
        """Save what is not saved yet; a failed round may have left the state half changed, so then nothing is."""
        if status == "failed":
            with suppress(FedFacetError):  # the run folder is gone, say; what has failed already has the word
                self._wait()
            return
        if federation.state.round > self._saved_round:
            self._save(federation)
        self._wait()

    def _save(self, federation: Federation) -> None:
        memory, files = self._memory.pack(federation.state.memory)
        content = checkpoint.dumps(federation.state, self.run_config, memory, self._packed)
        self._wait()
        self._written = self._writer.submit(self._write, federation.state, content, memory, files)
        self._saved_round = federation.state.round

    def _wait(self) -> None:
        """Wait for the last checkpoint, and raise what writing it raised."""
        written, self._written = self._written, None
        if written is not None:
            written.result()

    def _write(self, state: FederationState, content: memoryview, memory: str, files: Mapping[str, bytes]) -> None:
        """Write a checkpoint after all that it refers to, and remove what none refers to any more."""
        for table in self.run_dir.glob("*.csv"):
            sync(table)
        self._memory.write(files)
        if state.round and self.path.exists():
            place(self.path, self.path.with_name(checkpoint.PREVIOUS))
            self._memory_of[checkpoint.PREVIOUS] = self._memory_of.get(checkpoint.LAST, "")
            self._best_of[checkpoint.PREVIOUS] = self._best_of[checkpoint.LAST]
        paths = [self.path]
        if self.keep == "all":  # before the other, which a resumed run goes by
            paths.insert(0, self.path.with_name(f"round_{state.round:06d}.ckpt"))
        for path in paths:
            checkpoint.write(path, content)
            self._memory_of[path.name] = memory
        sync(self.path.parent)
        self._memory.keep_only(self._memory_of.values())
        self._best_of[checkpoint.LAST] = _best_round(state)
        best_models.keep_only(self.run_dir, set(self._best_of.values()), state.round)


def _best_round(state: FederationState) -> int:
    """Return the best round that a state knows, 0 where there is none."""
    best = state.callbacks.get("summary", {}).get("best")
    return best["round"] if best else 0
