"""Checkpoints while a run goes on."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedfacet import checkpoint
from fedfacet.arguments import check_choice, check_whole
from fedfacet.callbacks.base import Callback

if TYPE_CHECKING:
    from fedfacet.federation import Federation


class SaveCheckpoint(Callback):
    """Keep ``checkpoints/last.ckpt`` up to date, from before the first round on, so that every run can be gone on with.

    With ``keep="all"`` each of these states also stays as ``checkpoints/round_<number>.ckpt``, so that any round can be run
    again by itself, as ``describe.py decomposition=`` does.

    Args:
        run_dir: the run folder.
        run_config: the resolved configuration, saved along so that a resumed run can be held to it.
        keep: ``"last"`` or ``"all"``.
        every_n_rounds: 1 or larger. The file is written beside the next round, so that a killed process loses the rounds since
            the last checkpoint and those that writing it took; an interrupted or finished one loses none.

    Raises:
        ValueError: if ``every_n_rounds`` is no whole number from 1 on, or for another ``keep``.
    """

    def __init__(self, *, run_dir: Path, run_config: Mapping[str, Any], keep: str = "last", every_n_rounds: int = 1) -> None:
        check_choice("callbacks.save_checkpoint.keep", keep, ("last", "all"))
        check_whole("callbacks.save_checkpoint.every_n_rounds", every_n_rounds)
        self.path = run_dir / "checkpoints" / "last.ckpt"
        self.run_config = run_config
        self.keep = keep
        self.every_n_rounds = every_n_rounds
        self._saved_round = 0
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._written: Future[None] | None = None

    def on_fit_start(self, federation: "Federation") -> None:
        """Save the state before the first round, or note what is saved already."""
        self._saved_round = federation.state.round
        if federation.state.round == 0:
            self._save(federation)
            self._wait()

    def on_state_complete(self, federation: "Federation") -> None:
        """Save where a checkpoint is due."""
        if federation.state.round % self.every_n_rounds == 0:
            self._save(federation)

    def on_fit_end(self, federation: "Federation", status: str) -> None:
        """Save what is not saved yet; a failed round may have left the state half changed, so then nothing is."""
        if status != "failed" and federation.state.round > self._saved_round:
            self._save(federation)
        self._wait()

    def _save(self, federation: "Federation") -> None:
        content = checkpoint.dumps(federation.state, self.run_config)
        self._wait()
        paths = [self.path]
        if self.keep == "all":  # before the other, which a resumed run goes by
            paths.insert(0, self.path.with_name(f"round_{federation.state.round:06d}.ckpt"))
        self._written = self._writer.submit(_write, paths, content)
        self._saved_round = federation.state.round

    def _wait(self) -> None:
        """Wait for the last checkpoint, and raise what writing it raised."""
        written, self._written = self._written, None
        if written is not None:
            written.result()


def _write(paths: Sequence[Path], content: memoryview) -> None:
    for path in paths:
        checkpoint.write(path, content)
