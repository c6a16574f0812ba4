"""Tables of results/ come out of the csv files beside them again."""

import csv
import re
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from fedfacet.analysis.paired import LEVEL, holm, paired_difference

ROOT = Path(__file__).parents[2]

LINE = re.compile(
    r"^\| (\w+) +\| +\d+ \| +([-+][\d.]+) \| +(\[[-\d., ]+\]) \| +(\[[-\d., ]+\]) \|.*\| +(?:\*\*)?([a-z ]+?)(?:\*\*)? \|$",
    re.M,
)
"""A method, the seeds, the difference, two intervals, p-values, how many seeds would decide, and the verdict."""


def test_the_differences_of_coloured_mnist_come_out_of_its_files_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's picture draws from published runs what the page's five tables say, and a reader can draw it again."""
    page = (ROOT / "results" / "coloured_mnist.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "results").symlink_to(ROOT / "results")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(block, names)
    assert Path("coloured_mnist.png").stat().st_size > 10_000
    assert len(names["panels"]) == 5
    for federation, lines in names["panels"].items():
        section = page.partition(f"## The comparison on `{federation}`")[2].partition("\n## ")[0]
        drawn = [(line.name, f"{line.mean:+.2f}", *map(_interval, line[2:4]), line.verdict) for line in lines]
        assert LINE.findall(section) == drawn
        assert len(drawn) == 8


PAPER = {
    "uniform": "Uniform random",
    "round_robin": "Round robin",
    "pow_d": "pow-d",
    "fedpns": "FedPNS",
    "hcsfed": "HCSFed",
    "fednova": "FedNova",
}
"""Rivals of FedDiverse on Coloured MNIST, and what the paper's table calls them."""
RIVALS = [*PAPER, "fedrk", "feddiverse_known"]


def tails(federation: str) -> dict[str, dict[str, float]]:
    """Return the published tails by method and seed, each method at its best learning rate."""
    file = "coloured_mnist.csv" if federation == "waterbirds_dist" else f"coloured_mnist_{federation}.csv"
    on_gai = {"fedpns": "0.1", "hcsfed": "0.1", "feddiverse": "0.3"}
    found: dict[str, dict[str, float]] = {}
    for run in csv.DictReader((ROOT / "results" / file).read_text().splitlines()):
        if federation != "gai" or run["lr"] == on_gai.get(run["method"], "0.2"):
            found.setdefault(run["method"], {})[run["seed"]] = float(run["tail"])
    return found


def minus_rivals(method: str, rivals: list[str], tails: dict[str, dict[str, float]]) -> list[str]:
    """Return what a column of the page's table says: differences, intervals, and in bold what is separated."""
    found = []
    for rival in rivals:
        seeds = [seed for seed in tails[method] if seed in tails[rival]]
        found.append(paired_difference([tails[method][seed] for seed in seeds], [tails[rival][seed] for seed in seeds]))
    corrected = holm([difference.p_permutation for difference in found])
    bold = ["**" if p < LEVEL else "" for p in corrected]
    return [f"{b}{d.mean:+.2f}{b} {_interval(d.t_interval)}" for b, d in zip(bold, found, strict=True)]


def test_the_orderings_of_coloured_mnist_come_out_of_its_files_again() -> None:
    """FedDiverse minus each rival: with estimated triplets, the paper's differences beside ours, and with true ones."""
    page = (ROOT / "results" / "coloured_mnist.md").read_text().partition("## Which of the paper's orderings hold")[2]
    paper = OmegaConf.load(ROOT / "src" / "fedfacet" / "papers" / "feddiverse" / "table1.yaml")
    columns = {"waterbirds_dist": "WaterBirds dist", "gsc": "CMNIST GSC"} | {
        name: f"Spawrious {name.upper().replace('_', '-')}" for name in ("gci", "gai", "gci_100")
    }
    estimated, true = [], []
    for federation, column in columns.items():
        place = paper.federations.index(column)
        theirs = {name: float(row[place].split()[0]) for name, row in paper.paper.items() if row[place]}
        leads = {rival: theirs["FedDiverse"] - theirs[name] for rival, name in PAPER.items() if name in theirs}
        beside = [f" ({leads[rival]:+.2f})" if rival in leads else "" for rival in RIVALS]
        ours = minus_rivals("feddiverse", RIVALS, tails(federation))
        estimated.append([lead + of_paper for lead, of_paper in zip(ours, beside, strict=True)])
        true.append(minus_rivals("feddiverse_known", RIVALS[:-1], tails(federation)))
    lines = re.findall(r"^\| (\w+ \| (?:\*\*)?[-+]\d.*) \|$", page.partition("\n## ")[0], re.MULTILINE)
    expected = [*zip(RIVALS, *estimated, strict=True), *zip(RIVALS[:-1], *true, strict=True)]
    assert lines == [" | ".join(row) for row in expected]


def _interval(ends: tuple[float, float]) -> str:
    return f"[{ends[0]:.2f}, {ends[1]:.2f}]"
