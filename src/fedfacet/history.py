"""What the rounds of a run have measured, from its folder or from memory, as rows and as a table of pandas."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from fedfacet.errors import ConfigError
from fedfacet.federation import Federation
from fedfacet.mechanism import Mechanism
from fedfacet.metrics.direction import main_metric
from fedfacet.optional import frame_of
from fedfacet.records import FederationState, RoundResult
from fedfacet.round import run_round
from fedfacet.storage.run_files import metrics_of

if TYPE_CHECKING:
    from pandas import DataFrame


class History(Mechanism):
    """Keeps what every round measured, as ``metrics.csv`` would have it, where a federation has no folder."""

    rank: ClassVar[int] = 95  # a round that fails has no row

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def restore(self, saved: FederationState, *, failing: bool) -> None:
        """Forget later rounds."""
        self.rows[:] = [row for row in self.rows if row["round"] <= saved.round]

    def complete(self, federation: Any, result: RoundResult) -> None:
        """Add a row."""
        row = {"round": result.round, "cohort": result.cohort, "num_arrived": len(result.arrived)}
        self.rows.append({**row, **result.metrics})


@dataclass(frozen=True, slots=True, repr=False)
class FitResult(FederationState):
    """What ``fit`` of a federation of objects returns: the final state, and what its rounds measured.

    Attributes:
        metrics: a dict a round, in the columns of ``metrics.csv``.
        seed: of the run.
        folder: of the run; ``None`` where it has none.
    """

    metrics: Sequence[Mapping[str, Any]] = field(kw_only=True)
    seed: int = field(kw_only=True)
    folder: Path | None = field(kw_only=True)

    @property
    def history(self) -> "DataFrame":
        """``metrics`` as a ``pandas.DataFrame``, one row a round."""
        return frame_of(self.metrics)

    def __repr__(self) -> str:
        """Return a line."""
        last = self.metrics[-1] if self.metrics else {}
        names = [f"test/{main_metric(last)}{end}" for end in ("", "_worst_group")]
        known = [f"{name} {last[name]:.4f}" for name in names if last.get(name) is not None]
        where = [] if self.folder is None else [f"folder {self.folder}"]
        return f"FitResult({', '.join([f'{self.round} rounds', f'seed {self.seed}', *known, *where])})"


class Folder(Protocol):
    """What keeps a run; see ``run_folder.RunFolder``."""

    folder: Path

    def opened(self, federation: Federation) -> AbstractContextManager[bool]:
        """Have a federation work in the folder while entered; yield whether rounds are left."""


class TrackedFederation(Federation):
    """A federation of objects: it has a history, in its run folder or in memory.

    Attributes:
        run_folder: what ``fit`` writes and resumes; ``None`` for nothing.
    """

    run_folder: Folder | None = None
    _fits = False

    def track(self, run_folder: Folder | None) -> None:
        """Keep the history in a run folder, or in memory where there is none; call it before the first round."""
        self.run_folder = run_folder
        if run_folder is None:
            self.put(History())

    def run_round(self) -> RoundResult:
        """Run a round; see ``round.run_round``.

        Raises:
            ConfigError: outside of ``fit`` where there is a folder, whose files would lack all else.
        """
        if self.run_folder is not None and not self._fits:
            raise ConfigError(
                "Expected `fit` of a federation with a folder, but got `run_round`, which by itself keeps no run: call `fit`, "
                "or leave `folder` out."
            )
        return run_round(self)

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """A dict a round, in the columns of ``metrics.csv``."""
        if self.run_folder is not None:
            return metrics_of(self.run_folder.folder)
        history = self.find(History)
        return [] if history is None else list(history.rows)

    @property
    def history(self) -> "DataFrame":
        """``metrics`` as a ``pandas.DataFrame``, one row a round."""
        return frame_of(self.metrics)

    def fit(self) -> FitResult:
        """Run the rounds that are left, and return the final state with the history; with a folder, resume its run.

        Raises:
            Interrupted: after ``stop``; with a folder, after Ctrl-C too.
            FedFacetError: if the folder holds something else, or a run of other data, parts or settings.
        """
        if self.run_folder is None:
            Federation.fit(self)
        else:
            with self.run_folder.opened(self) as is_left:
                self._fits = is_left
                try:
                    if is_left:
                        Federation.fit(self)
                finally:
                    self._fits = False
        kept = {part.name: getattr(self.state, part.name) for part in fields(FederationState)}
        folder = self.run_folder.folder if self.run_folder is not None else None
        return FitResult(**kept, metrics=self.metrics, seed=self.seed, folder=folder)
