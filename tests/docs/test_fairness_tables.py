"""The tables of results/fairness_methods.md come out of its file again, and so do the strengths that validation chose."""

import csv
import re
from pathlib import Path
from statistics import fmean, pstdev

import pytest

from fedfacet.analysis.paired import LEVEL, holm, paired_difference

RESULTS = Path(__file__).parents[2] / "results"
PAGE = (RESULTS / "fairness_methods.md").read_text()
RUNS = list(csv.DictReader((RESULTS / "fairness_methods.csv").read_text().splitlines()))
METHODS = {
    "reweighing": "reweighing",
    "global reweighing": "global_reweighing",
    "FedGFT": "fedgft",
    "group penalty": "group_penalty",
    "FPFL": "fpfl",
    "FFALM": "ffalm",
    "bounded group loss": "bounded_group_loss",
    "FedMinMax": "fedminmax",
    "FairFed": "fairfed",
    "FAIR-FATE": "fair_fate",
    "F3": "fair_accuracy",
    "q-FedAvg": "q_fedavg",
    "AFL": "agnostic",
}
BASES = {"uniform": "no_shared_stats", "feddiverse": "known_dht", "all": "no_shared_stats"}
"""What a method is compared with, which has the same clients."""
VALUES = ["acc", "acc_worst_group", "fair/equal_opportunity", "fair/demographic_parity"]
GAP, ACCURACY = "val/fair/equal_opportunity", "val/acc"


def run_of(run: dict[str, str]) -> tuple[str, str, str, tuple[str, ...]]:
    """Return what was run: the data set, the method, the selector and the numbers of the strength."""
    return run["experiment"], run["method"], run["selector"], tuple(re.findall(r"=([\d.]+)", run["strength"]))


def values(experiment: str, method: str, selector: str, numbers: tuple[str, ...], value: str, seeds: range) -> list[float]:
    """Return a column in percent in the order of the seeds; ``numbers`` are those of the strength."""
    found = {
        int(run["seed"]): 100 * float(run[value]) for run in RUNS if run_of(run) == (experiment, method, selector, numbers)
    }
    return [found[seed] for seed in seeds]


def numbers_in(strength: str) -> tuple[str, ...]:
    return tuple(re.findall(r"= ([\d.]+)", strength))


def tables(label: str) -> tuple[list[list[str]], list[list[str]], list[list[str]]]:
    """Return the cells of the means, the differences and the strengths of one data set."""
    heads = [f"| {label} | strength", f"| {label}, minus FedAvg", "| method | strengths"]
    after = PAGE if label == "Adult" else PAGE.replace("| method | strengths", "", 1)
    blocks = [after[after.index(head) :].partition("\n\n")[0].splitlines()[2:] for head in heads]
    means, differences, strengths = ([line.removeprefix("| ").split(" | ") for line in block] for block in blocks)
    return means, differences, [[cell.rstrip(" |") for cell in row] for row in strengths]


def row_of(name: str) -> tuple[str, str]:
    """Return the method and the selector of a line of the page."""
    name, _, who = name.partition(", ")
    selector = {"": "uniform", "everybody": "all", "FedDiverse selects": "feddiverse"}[who]
    return (BASES[selector] if name == "FedAvg" else METHODS[name]), selector


@pytest.mark.parametrize("label", ["Adult", "COMPAS"])
def test_means_and_differences(label: str) -> None:
    experiment, seeds = f"{label.lower()}_gsc", range(10)
    means, differences, _ = tables(label)
    found, names = [], []
    for name, strength, *printed in means:
        method, selector = row_of(name)
        columns = [f"test/{value}" for value in VALUES]
        of = [values(experiment, method, selector, numbers_in(strength), column, seeds) for column in columns]
        best = values(experiment, method, selector, numbers_in(strength), f"best/test/{VALUES[2]}", seeds)
        assert [cell.rstrip(" |") for cell in printed] == [f"{fmean(one):.2f} ± {pstdev(one):.2f}" for one in [*of, best]]
        if not name.startswith("FedAvg"):
            base = [values(experiment, BASES[selector], selector, (), column, seeds) for column in columns]
            names.append(name)
            found += [paired_difference(a, b) for a, b in zip(of, base, strict=True)]
    bold = ["**" if p < LEVEL else "" for p in holm([difference.p_t for difference in found])]
    expected = [f"{b}{d.mean:+.2f}{b} [{d.t_interval[0]:.2f}, {d.t_interval[1]:.2f}]" for b, d in zip(bold, found, strict=True)]
    assert [row[0] for row in differences] == names
    assert [cell.rstrip(" |") for row in differences for cell in row[1:]] == expected
    assert len(expected) == 68


@pytest.mark.parametrize("label", ["Adult", "COMPAS"])
def test_the_strengths_that_validation_chose(label: str) -> None:
    """The smallest gap whose accuracy is at most a point below FedAvg's; a tie goes to the weaker."""
    experiment, seeds = f"{label.lower()}_gsc", range(100, 103)
    means, _, strengths = tables(label)
    taken = {name.partition(",")[0]: numbers_in(strength) for name, strength, *_ in means}
    least = fmean(values(experiment, "no_shared_stats", "uniform", (), ACCURACY, seeds)) - 1
    for name, line in strengths[1:]:
        selector = "all" if name == "AFL" else "uniform"
        tried = {}
        for one in line.split("; "):
            if "diverged" in one:
                finished = [run for run in RUNS if run_of(run) == (experiment, METHODS[name], selector, numbers_in(one))]
                assert one.endswith(f": {3 - len(finished)} of 3 diverged"), one
                continue
            of = [values(experiment, METHODS[name], selector, numbers_in(one), value, seeds) for value in (GAP, ACCURACY)]
            gap, accuracy = map(fmean, of)
            assert one.strip("*").endswith(f": {gap:.1f} ({accuracy:.1f})"), one
            tried[numbers_in(one)] = round(gap, 3) if accuracy >= least - 1e-9 else float("inf")
        (bold,) = [numbers_in(one) for one in line.split("; ") if one.startswith("**")]
        assert bold == min(tried, key=lambda one: tried[one]) == taken[name], name
    asked = {(run["method"], run["strength"]) for run in RUNS if run["experiment"] == experiment and run["strength"]}
    assert len(asked) == sum(line.count(": ") for _, line in strengths[1:])
