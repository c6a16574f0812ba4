"""What a finished run prints."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedfacet.metrics.direction import main_metric
from fedfacet.metrics.group_counts import group_key
from fedfacet.metrics.group_names import group_names
from fedfacet.terminal import console_of, padding_of, print_table

if TYPE_CHECKING:
    from fedfacet.data.federated import FederatedData

# Of what a run folder has, what is named first; a folder stands for what is in it, but for these two.
FIRST = (
    "metrics.csv", "timing.csv", "summary.json", "partition.json", "partition.png", "curves.png", "selection.png",
    "checkpoints/last.ckpt", "model/model.safetensors", "model/best.safetensors", "config.yaml", "train.log",
)  # fmt: skip

MAX_GROUPS = 12  # more than these are not shown one by one
_PERSONAL = {
    "personal, mean": "personal_test/acc_mean",
    "personal, worst client": "personal_test/acc_min",
    "held out, average": "holdout/acc",
    "held out, worst group": "holdout/acc_worst_group",
    "held out, mean": "personal_holdout/acc_mean",
    "held out, worst client": "personal_holdout/acc_min",
    "personal, new clients": "personal_test/held_out_clients/acc_mean",
    "held out, new clients": "personal_holdout/held_out_clients/acc_mean",
}


def print_results(summary: Mapping[str, Any], data: "FederatedData", run_dir: Path) -> None:
    """Print test accuracies of the last and the best-by-validation round, and the files of the run folder.

    Where ``personal_evaluate`` measured the clients' models, these have rows beneath the global model's.
    """
    from rich.table import Table

    dataset = data.dataset
    rounds = [("last round", summary["final"])] + ([("best validation", summary["best"])] if summary["best"] else [])
    of_clients = ", mean of the clients' models (worst to best)" if "test/acc_min" in summary["final"] else ""
    own = _measured_by_module(summary["final"])
    names = group_names(dataset.class_names, dataset.attribute_names)
    group_word = "class" if dataset.num_attributes == 1 else "group"
    console = console_of()
    title = f"Test accuracy (%){of_clients}" if not own else "Test set, measured by the module"
    table = Table(title=title, title_justify="left", caption_justify="left", padding=padding_of(console))
    table.add_column(group_word)
    table.add_column("samples", justify="right")
    for label, measured in rounds:
        table.add_column(f"{label} ({measured['round']})", justify="right")

    def add(name: str, samples: int | None, key: str, style: str | None = None) -> None:
        show = _percent if not own else _number
        cells = [show(measured.get(key)) + _spread(measured, key) for _, measured in rounds]
        table.add_row(name, "" if samples is None else str(samples), *cells, style=style)

    sizes_G = np.bincount(dataset.y[dataset.test] * dataset.num_attributes + dataset.a[dataset.test], minlength=len(names))
    for metric in own or ["acc"]:
        before = f"{metric}, " if own else ""
        for group, name in enumerate(names if len(names) <= MAX_GROUPS else ()):
            add(before + name, int(sizes_G[group]), f"test/{metric}_group/{group_key(group, dataset.num_attributes)}")
        table.add_section()
        add(f"{before}average", len(dataset.test), f"test/{metric}")
        if not own:
            add("adjusted average", None, "test/acc_adjusted")
        add(f"{before}worst {group_word}", None, f"test/{metric}_worst_group", style="bold")
        table.add_section()
    if len(names) > MAX_GROUPS:
        file = "metrics.csv" if (run_dir / "metrics.csv").exists() else "summary.json"
        table.caption = f"Each of the {len(names)} {'classes' if group_word == 'class' else 'groups'}: {file}"
    held_out = sum(map(len, data.local_holdout))
    sizes = {"personal, mean": len(dataset.test), "held out, average": held_out, "held out, mean": held_out}
    if data.held_out_clients is not None:
        sizes["held out, new clients"] = sum(map(len, data.held_out_clients.local_holdout))
    for name, key in _PERSONAL.items():
        if any(key in measured for _, measured in rounds):
            add(name, sizes.get(name), key)
    print_table(console, table)
    if summary.get("best_model_digest"):
        best, metric = summary["best"], main_metric(summary["best"])
        key = f"{'val' if f'val/{metric}' in best else 'holdout'}/{metric}_worst_group"
        value = _number(best[key]) if own else f"{_percent(best[key])} %"
        told = f"best model  model/best.safetensors, of round {best['round']} ({key} {value})"
        console.print(told, soft_wrap=True)
    console.print(f"run folder  {run_dir}", soft_wrap=True)
    for output in _outputs(run_dir):
        console.print(f"  {output}", soft_wrap=True)


def _measured_by_module(measured: Mapping[str, Any]) -> list[str]:
    """Return the metrics of the test set that a module logs for every group, where it predicts no classes."""
    names = [key.removeprefix("test/") for key in measured if key.startswith("test/") and f"{key}_worst_group" in measured]
    return [] if "acc" in names else names


def _outputs(run_dir: Path) -> list[str]:
    """Return what a run folder has, the usual files first; hidden ones are left out."""
    first = [output for output in FIRST if (run_dir / output).exists()]
    known = {output.partition("/")[0] for output in first}
    others = sorted(path for path in run_dir.iterdir() if not path.name.startswith(".") and path.name not in known)
    return [*first, *(f"{path.name}/" if path.is_dir() else path.name for path in others)]


def results_line(summary: Mapping[str, Any]) -> str:
    """Return test accuracies of the last and the best-by-validation round, for a run that is one of many.

    Example:
        >>> results_line({"final": {"round": 9, "test/acc": 0.5, "test/acc_worst_group": 0.25}, "best": None})
        'last round (9): average 50.00 %, worst 25.00 %'
    """
    rounds = [("last round", summary["final"])] + ([("best validation", summary["best"])] if summary["best"] else [])
    accuracies = {
        **{"average": "test/acc", "worst": "test/acc_worst_group", "personal, mean": "personal_test/acc_mean"},
        **{"held out, average": "holdout/acc", "held out, worst": "holdout/acc_worst_group"},
    }
    parts = []
    for label, measured in rounds:
        numbers = [f"{name} {_percent(measured[key])} %" for name, key in accuracies.items() if measured.get(key) is not None]
        parts.append(f"{label} ({measured['round']}): {', '.join(numbers) or 'not tested'}")
    return "; ".join(parts)


def _spread(measured: Mapping[str, Any], key: str) -> str:
    """Return the worst and the best client's value, where clients were measured one by one."""
    worst, best = (measured.get(f"{key}_{extreme}") for extreme in ("min", "max"))
    return f" ({_percent(worst)} to {_percent(best)})" if f"{key}_min" in measured else ""


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f}"
