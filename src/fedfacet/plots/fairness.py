"""Group fairness of the global model, measured and drawn."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from fedfacet.callbacks.evaluate import Evaluate, Outcome
from fedfacet.errors import FedFacetError
from fedfacet.federation import Federation
from fedfacet.metrics.group_fairness import fairness_of, newcombe_interval, rates_of
from fedfacet.plots.style import BLUE, ORANGE, saved_figure
from fedfacet.storage.run_files import rows_of

GAPS = ("equal_opportunity", "equalized_odds", "demographic_parity", "accuracy_parity")
"""What the picture shows."""


@dataclass(eq=False, kw_only=True)
class Fairness(Evaluate):
    """Measure how differently the global model treats groups, on the validation and the test set.

    Metrics ``val/fair/...`` and ``test/fair/...``: those of ``fairness_of``, which explains the settings too; ``groups``, how
    many attribute values have samples enough; of every group ``count_a0`` and ``rate/acc_a0`` and so on, and where there is one
    positive class ``rate/tpr_a0``, ``rate/fpr_a0`` and ``rate/sel_a0``. Where there are two groups and one positive class,
    ``signed/equal_opportunity`` and ``signed/demographic_parity`` are group 1's rate minus group 0's, with Newcombe's 95 %
    intervals ``..._low`` and ``..._high``. ``fairness.png`` shows accuracy against gaps over rounds.
    The worst group's accuracy is ``Evaluate``'s ``acc_worst_group``.

    Args:
        run_dir: where the picture goes.
        positive_class: as in ``fairness_of``, or the class's name; the others are as in ``fairness_of``.
        method: between_groups | to_reference | to_overall.
        classes: max | mean.
        odds: worst_case | mean.
        min_count: of samples that a rate needs.

    Raises:
        FedFacetError: if the data set has one attribute value only.
        ValueError: if a value is out of range.
    """

    name = "fairness"

    run_dir: Path
    positive_class: int | str | None = 1
    method: str = "between_groups"
    classes: str = "max"
    odds: str = "worst_case"
    min_count: int = 1

    def __post_init__(self) -> None:
        dataset = self.data.dataset
        if dataset.num_attributes < 2:
            raise FedFacetError(
                "Expected a data set with two attribute values or more for callbacks.fairness, but this one has one: leave the "
                "callback out, or choose a data set with a sensitive attribute."
            )
        positive = self.positive_class
        if isinstance(positive, str):
            if positive not in dataset.class_names:
                raise FedFacetError(
                    "Expected `callbacks.fairness.positive_class` to be one of the classes "
                    f"{', '.join(dataset.class_names)}, or its number, from 0, but got {positive!r}: fix the value."
                )
            positive = dataset.class_names.index(positive)
        self._positive = positive
        super().__post_init__()  # which refuses bad values

    def on_fit_end(self, federation: Federation, status: str) -> None:
        """Draw accuracy against gaps."""
        metrics = self.run_dir / "metrics.csv"
        if status != "failed" and federation.state.round and metrics.exists() and len(self.splits.get("test", ())):
            plot_fairness(metrics, "test", GAPS, self.run_dir / "fairness.png")

    def numbers(self, outcome: Outcome) -> dict[str, float]:
        """Return the gaps, the groups' rates and their sizes."""
        dataset = self.data.dataset
        shape = (dataset.num_classes, dataset.num_attributes, dataset.num_classes)
        counts = outcome.counts.confusion.reshape(shape)
        settings: Any = {name: getattr(self, name) for name in ("method", "classes", "odds", "min_count")}
        gaps = fairness_of(counts, positive_class=self._positive, **settings)
        sizes = counts.sum(axis=(0, 2))
        rates = rates_of(counts, self._positive or 0, min_count=self.min_count)
        shown = tuple(rates) if self._positive is not None else ("acc",)
        found = {
            **gaps,
            **(self._signed(counts, self._positive) if len(sizes) == 2 and self._positive is not None else {}),
            "groups": float((sizes >= self.min_count).sum()),
            **{f"rate/{name}_a{a}": float(rate) for name in shown for a, rate in enumerate(rates[name])},
            **{f"count_a{a}": float(size) for a, size in enumerate(sizes)},
        }
        return {f"fair/{name}": value for name, value in found.items()}

    def _signed(self, counts: NDArray[Any], positive: int) -> dict[str, float]:
        """Return group 1's rate minus group 0's, with intervals."""
        of = {
            "equal_opportunity": (counts[positive, :, positive], counts[positive].sum(axis=-1)),
            "demographic_parity": (counts[:, :, positive].sum(axis=0), counts.sum(axis=(0, 2))),
        }
        signed: dict[str, float] = {}
        for name, (chosen, sizes) in of.items():
            enough = sizes.min() >= self.min_count
            ends = newcombe_interval(tuple(chosen), tuple(sizes)) if enough else (float("nan"),) * 2
            difference = float(chosen[1] / sizes[1] - chosen[0] / sizes[0]) if enough else float("nan")
            signed |= {f"signed/{name}": difference, f"signed/{name}_low": ends[0], f"signed/{name}_high": ends[1]}
        return signed


def plot_fairness(metrics_csv: Path, split: str, gaps: Sequence[str], path: Path) -> None:
    """Draw the model's accuracy over each gap into a PNG, a point per measured round, joined in order.

    The last round is filled. Up and to the left is better.
    """
    rows = [row for row in rows_of(metrics_csv) if row.get(f"{split}/fair/{gaps[0]}", "") not in ("", "nan")]
    with saved_figure(path, 0.6 + 1.7 * len(gaps), 2.3) as figure:
        grid = figure.subplots(1, len(gaps), sharey=True)
        for axes, gap in zip(grid, gaps, strict=True):
            points = [(float(row[f"{split}/fair/{gap}"]), 100 * float(row[f"{split}/acc"])) for row in rows]
            x, y = [point[0] for point in points], [point[1] for point in points]
            axes.plot(x, y, color=BLUE, linewidth=0.6, alpha=0.5)
            axes.plot(x, y, "o", color=BLUE, markersize=3, markerfacecolor="white", markeredgewidth=0.6)
            axes.plot(x[-1:], y[-1:], "o", color=ORANGE, markersize=5)
            axes.set(xlabel=gap.replace("_", " "), xlim=(0, None))
            axes.locator_params(axis="x", nbins=3)
        grid[0].set_ylabel(f"accuracy on {split}, %")
