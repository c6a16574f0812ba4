"""The run in pictures."""

import hashlib
from pathlib import Path
from typing import Any

from fedfacet.callbacks.base import Callback
from fedfacet.data.federated import FederatedData
from fedfacet.federation import Federation
from fedfacet.plots.run import plot_curves, plot_partition, plot_selection, types_of
from fedfacet.storage.atomic_write import atomic_write

_last: dict[str, Any] = {}
"""What the partition was that this process has drawn last, and the picture: the cells of a sweep share it."""


class Figures(Callback):
    """Draw ``partition.png`` after the first round, ``curves.png`` and ``selection.png`` after the last.

    Curves are drawn from ``metrics.csv``, so those of a resumed run are whole; without that file there are none.
    ``selection.png`` counts the updates that arrived, those of pre-training rounds among them.

    Args:
        data: its clients' interaction matrices and the names of classes and attributes are drawn.
    """

    def __init__(self, *, run_dir: Path, data: FederatedData) -> None:
        self.run_dir = run_dir
        self.data = data
        self._names = {"class_names": data.dataset.class_names, "attribute_names": data.dataset.attribute_names}

    def on_state_complete(self, federation: Federation) -> None:
        """Draw the partition, once; not before the first round is saved, which would wait for it."""
        self._draw_partition()

    def _draw_partition(self) -> None:
        if (path := self.run_dir / "partition.png").exists():
            return
        matrices = self.data.matrices
        counts = hashlib.sha256(matrices.counts_KYA.tobytes()).digest()
        shown = (counts, matrices.counts_KYA.shape, *map(tuple, self._names.values()))
        if _last.get("shown") == shown:
            with atomic_write(path) as unfinished:
                unfinished.write_bytes(_last["picture"])
        else:
            plot_partition(matrices, path, **self._names)
            _last.update(shown=shown, picture=path.read_bytes())

    def on_fit_end(self, federation: Federation, status: str) -> None:
        """Draw how training went, and who took part."""
        if status == "failed":  # because the run folder is gone, it may be
            return
        self._draw_partition()
        if not federation.state.round:
            return
        if (metrics := self.run_dir / "metrics.csv").exists():
            plot_curves(metrics, self.run_dir / "curves.png", **self._names)
        types = types_of(self.data.matrices)
        counts = federation.state.participation_counts.tolist()
        plot_selection(counts, types, self.run_dir / "selection.png", federation.state.round)
