"""Tables of results/ come out of the csv files beside them again."""

import csv
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from torch import nn

from fedfacet.analysis.paired import LEVEL, holm, paired_difference
from fedfacet.clients.trainer import Clients

ROOT = Path(__file__).parents[2]

LINE = re.compile(
    r"^\| (\w+) +\| +\d+ \| +([-+][\d.]+) \| +(\[[-\d., ]+\]) \| +(\[[-\d., ]+\]) \|.*\| +(?:\*\*)?([a-z ]+?)(?:\*\*)? \|$",
    re.M,
)
"""A method, the seeds, the difference, two intervals, p-values, how many seeds would decide, and the verdict."""


@pytest.fixture(scope="module")
def block(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The names that the page's block of Python leaves, which draws the picture where it runs."""
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "results" / "coloured_mnist.md").read_text(), re.DOTALL)
    folder = tmp_path_factory.mktemp("picture")
    (folder / "results").symlink_to(ROOT / "results")
    names: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        exec(code, names)
        yield names


def test_the_differences_of_coloured_mnist_come_out_of_its_files_again(block: dict[str, Any]) -> None:
    """The page's picture draws from published runs what the page's five tables say, and a reader can draw it again."""
    page = (ROOT / "results" / "coloured_mnist.md").read_text()
    assert Path("coloured_mnist.png").stat().st_size > 10_000
    assert len(block["panels"]) == 5
    for federation, lines in block["panels"].items():
        section = page.partition(f"## The comparison on `{federation}`")[2].partition("\n## ")[0]
        drawn = [
            (name, f"{found.mean:+.2f}", _interval(found.t_interval), _interval(found.bootstrap_interval), verdict)
            for name, found, verdict in lines
        ]
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


def tails(federation: str, on_gai: dict[str, str]) -> dict[str, dict[str, float]]:
    """Return the published tails by method and seed, each method at its best learning rate; gai's file has others too."""
    file = "coloured_mnist.csv" if federation == "waterbirds_dist" else f"coloured_mnist_{federation}.csv"
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


@pytest.mark.slow
def test_the_orderings_of_coloured_mnist_come_out_of_its_files_again(block: dict[str, Any]) -> None:
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
        runs = tails(federation, block["RATES"])
        ours = minus_rivals("feddiverse", RIVALS, runs)
        estimated.append([lead + of_paper for lead, of_paper in zip(ours, beside, strict=True)])
        true.append(minus_rivals("feddiverse_known", [*RIVALS[:-1], "feddiverse"], runs)[:-1])
    lines = re.findall(r"^\| (\w+ \| (?:\*\*)?[-+]\d.*) \|$", page.partition("\n## ")[0], re.MULTILINE)
    expected = [*zip(RIVALS, *estimated, strict=True), *zip(RIVALS[:-1], *true, strict=True)]
    assert lines == [" | ".join(row) for row in expected]


def test_what_is_left_after_300_rounds_comes_out_of_its_file_again() -> None:
    """The longer runs, paired by seed, whose tails until round 100 are those that were published before."""
    page = (ROOT / "results" / "coloured_mnist.md").read_text().partition("## Does the lead")[2].partition("\n## ")[0]
    runs = list(csv.DictReader((ROOT / "results" / "coloured_mnist_300_rounds.csv").read_text().splitlines()))
    short = tails("waterbirds_dist", {})
    assert all(float(run["tail_100"]) == short[run["method"]][run["seed"]] for run in runs)
    printed = [row for row in _rows(page, 10) if row[0].isdigit()]
    of = [
        [[float(run[f"tail_{until}"]) for run in runs if run["method"] == one] for one in ("feddiverse", "uniform")]
        for until, *_ in printed
    ]
    expected = _differences(of)
    for (_, uniform, feddiverse, *line), values, difference in zip(printed, of, expected, strict=True):
        assert [f"{mean} (10)" for mean in (feddiverse, uniform)] == [_mean(one) for one in values]
        assert line == difference
    assert len(printed) == 3


def test_selectors_under_fedavg_come_out_of_the_file_again() -> None:
    """Each at the rate that its line prints: tails, differences from uniform selection, and from itself under FedAvgM."""
    page = (ROOT / "results" / "cmnist_table3.md").read_text().partition("## All selectors under FedAvg")[2]
    rows = [row for row in _rows(page.partition("\n## ")[0], 8) if row[1].startswith("0.")]
    with_momentum, runs = tails("waterbirds_dist", {}), {}
    for run in csv.DictReader((ROOT / "results" / "coloured_mnist_tables.csv").read_text().splitlines()):
        if (run["aggregator"], run["correction"]) == ("fedavg", "none") and run["pretraining_rounds"] in ("", "1"):
            runs.setdefault((run["method"], run["lr"]), []).append(run)
    own = {name: [float(run["tail"]) for run in runs[name, rate]] for name, rate, *_ in rows}
    before = {name: [with_momentum[name][run["seed"]] for run in runs[name, rate]] for name, rate, *_ in rows}
    of_momentum = [paired_difference(own[name], before[name]) for name in own]
    bold = ["**" if p < LEVEL else "" for p in holm([difference.p_permutation for difference in of_momentum])]
    printed = {row[0]: row[4:7] for row in rows if row[0] != "uniform"}
    expected = _differences([(own[name], own["uniform"]) for name in printed])
    assert printed == {
        name: [f"{mean} {interval}", p, corrected]
        for name, (mean, interval, _, p, corrected, *_) in zip(printed, expected, strict=True)
    }
    assert all(line[-1] == "not significant" for line in expected)
    for (name, rate, tail, last, *_, momentum), difference, b in zip(rows, of_momentum, bold, strict=True):
        lasts = [float(run["last"]) for run in runs[name, rate]]
        assert [f"{mean} (10)" for mean in (tail, last)] == [_mean(own[name]), _mean(lasts)]
        assert momentum == f"{b}{difference.mean:+.2f}{b} {_interval(difference.t_interval)}"


def _differences(pairs: list[tuple[list[float], list[float]]]) -> list[list[str]]:
    """Return what a table says of each pair of settings, from the mean difference to the verdict."""
    found = [paired_difference(*pair) for pair in pairs]
    corrected = holm([difference.p_permutation for difference in found])
    return [
        [
            *(f"{d.mean:+.2f}", _interval(d.t_interval), _interval(d.bootstrap_interval), f"{d.p_permutation:.2g}", f"{p:.2g}"),
            f"{d.seeds_needed:.0f}" if d.seeds_needed <= 10_000 else "> 10,000",
            "not significant" if p >= LEVEL else "**better**" if d.mean > 0 else "**worse**",
        ]
        for d, p in zip(found, corrected, strict=True)
    ]


def _interval(ends: tuple[float, float]) -> str:
    return f"[{ends[0]:.2f}, {ends[1]:.2f}]"


FEDLD = {
    "Personal accuracy": "personal_mean",
    "The global model after the last round": "global_last",
    "The global model by validation": "global_best",
    "AUC of the last global model": "global_auc",
}
"""Headings of FedLD's page, and the column of its file that each compares."""


def fedld_runs(clients: int) -> dict[tuple[str, str], list[dict[str, str]]]:
    """Return the published runs of FedLD's page by method and split."""
    runs: dict[tuple[str, str], list[dict[str, str]]] = {}
    for run in csv.DictReader((ROOT / "results" / "fedld_pneumonia.csv").read_text().splitlines()):
        if run["clients"] == str(clients):
            runs.setdefault((run["method"], run["split"]), []).append(run)
    return runs


def test_the_tables_of_fedld_come_out_of_its_file_again() -> None:
    """Means over ten seeds, and differences from FedAvg with the same split and seed."""
    page = (ROOT / "results" / "fedld_pneumonia.md").read_text().partition("\n## Fifty clients")[0]
    runs = fedld_runs(clients=5)
    for keys in (("personal_mean", "personal_min"), ("global_last", "global_best", "global_auc")):
        columns = [(key, split) for key in keys for split in "123"]
        methods = {method: None for method, split in runs if runs[method, split][0][keys[0]]}
        means = {
            method: [_mean([float(run[key]) for run in runs[method, split]]) for key, split in columns] for method in methods
        }
        assert {line[0]: line[1:] for line in _rows(page, len(columns) + 1) if " ± " in line[1]}.items() >= means.items()
    for heading, key in FEDLD.items():
        printed = [row for row in _rows(page.partition(f"### {heading}\n")[2].partition("\n#")[0], 10) if row[0] in "123"]
        values = {place: [float(run[key]) for run in of] for place, of in runs.items() if of[0][key]}
        pairs = [(values[method, split], values["fedavg", split]) for split, method, *_ in printed]
        assert [row[3:] for row in printed] == _differences(pairs)
        assert len(printed) == 3 * (len({method for method, _ in values} - {"local"}) - 1)


def test_the_tables_of_fedlds_fifty_clients_come_out_of_its_file_again() -> None:
    page = (ROOT / "results" / "fedld_pneumonia.md").read_text().partition("\n## Fifty clients")[2].partition("\n## ")[0]
    runs = {method: of for (method, _), of in fedld_runs(clients=50).items()}
    assert all([run["seed"] for run in of] == [str(seed) for seed in range(10)] for of in runs.values())
    keys = ("personal_mean", "personal_min", "global_last", "global_best", "global_auc")
    values = {(name, key): [float(run[key]) for run in of if run[key]] for name, of in runs.items() for key in keys}
    means = {name: [_mean(values[name, key]) if values[name, key] else "–" for key in keys] for name in runs}
    assert {line[0]: line[1:-1] for line in _rows(page, 7) if line[0] in runs} == means
    for heading, key in FEDLD.items():
        printed = [row[1:] for row in _rows(page, 10) if row[0] == heading]
        pairs = [(values[method, key], values["fedavg", key]) for method, *_ in printed]
        assert [row[2:] for row in printed] == _differences(pairs)
        assert [row[0] for row in printed] == [name for name in runs if name != "fedavg" and values[name, key]]


def test_the_table_of_renewed_statistics_comes_out_of_its_file_again() -> None:
    """And what the page says of them, and of how long ago a client took part: a slope within a run's measured rounds."""
    section = (ROOT / "results" / "fedld_pneumonia.md").read_text().partition("\n### Why FedBN")[2].partition("\n## ")[0]
    clients = list(csv.DictReader((ROOT / "results" / "fedld_pneumonia_renewed.csv").read_text().splitlines()))
    of_fifty = {method: of for (method, _), of in fedld_runs(clients=50).items()}
    means, slopes = {}, {}
    for method in ("fedavg", "fedbn"):
        runs = [[one for one in clients if (one["method"], one["seed"]) == (method, str(seed))] for seed in range(6)]
        for key in ("personal", "renewed"):
            means[method, key] = [fmean(float(one[key]) for one in run if one["round"] == "200") for run in runs]
        assert means[method, "personal"] == pytest.approx([float(run["personal_mean"]) for run in of_fifty[method][:6]])
        slopes[method] = [_slope(run) for run in runs]
    printed = {row[0]: row[1:] for row in _rows(section, 5)}
    assert [printed[str(seed)] for seed in range(6)] == [[f"{of[seed]:.2f}" for of in means.values()] for seed in range(6)]
    assert printed["mean"] == [f"{fmean(of):.2f}" for of in means.values()]
    told = [
        ("fedbn", "renewed", means["fedbn", "personal"]),
        ("fedbn", "renewed", means["fedavg", "personal"]),
        ("fedavg", "renewed", means["fedavg", "personal"]),
    ]
    differences = [paired_difference(means[method, key], other) for method, key, other in told]
    differences += [paired_difference(slopes[method], [0.0] * 6) for method in ("fedbn", "fedavg")]
    said = " ".join(section.split()).replace(" points [", " [")
    for difference in differences:
        assert "{:+.1f} [{:.1f}, {:.1f}]".format(difference.mean, *difference.t_interval) in said
    assert differences[0].p_permutation == 1 / 32  # 0.031


def _slope(clients: list[dict[str, str]]) -> float:
    """By how much accuracy changes for each doubling of the rounds since a client took part, in percentage points."""
    pairs = []
    for round in ("100", "200"):
        seen = [(math.log2(int(one["rounds_ago"])), float(one["personal"])) for one in clients if one["round"] == round]
        mean_x, mean_y = (fmean(column) for column in zip(*seen, strict=True))
        pairs += [(x - mean_x, y - mean_y) for x, y in seen]
    return sum(x * y for x, y in pairs) / sum(x * x for x, _ in pairs)


def test_renewed_statistics_are_those_of_a_clients_images(tiny_clients: Callable[..., Clients]) -> None:
    """By the page's block of Python no weight changes, and a first layer that normalises has the images' mean and variance."""
    page = (ROOT / "results" / "fedld_pneumonia.md").read_text()
    (code,) = re.findall(r"```python\n# renewed.py\n(.*?)```", page, re.DOTALL)
    block: dict[str, Any] = {}
    exec(compile(code, "renewed.py", "exec"), block)
    layers = (nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(16, 2))
    clients = tiny_clients(model=lambda num_classes, input_shape: nn.Sequential(*layers))
    (program,) = clients.programs
    model = {name: tensor.clone() for name, tensor in program.module.state_dict().items()}
    found = block["renewed"](clients, 2, model)
    (batch,) = clients.data(2).batches()
    assert found["0.running_mean"].item() == pytest.approx(batch.x.mean().item(), rel=1e-5)
    assert found["0.running_var"].item() == pytest.approx(batch.x.var().item(), rel=1e-5)
    assert all(torch.equal(found[name], model[name]) for name in model if "running_" not in name)
    assert program.module[0].momentum == 0.1


def test_the_grid_of_shakespeare_comes_out_of_its_file_again() -> None:
    """Accuracies and losses of five partitions, and what more steps in fewer rounds change, with the partitions as pairs."""
    page = (ROOT / "results" / "shakespeare.md").read_text().partition("(figure 8)\n")[2].partition("\n## ")[0]
    runs = list(csv.DictReader((ROOT / "results" / "shakespeare.csv").read_text().splitlines()))
    assert all(int(run["steps"]) * int(run["rounds"]) == 2000 for run in runs)
    roles = list(dict.fromkeys(run["roles"] for run in runs))
    assert [(run["roles"], run["steps"]) for run in runs] == [(one, steps) for one in roles for steps in ("4", "8", "16")]
    for one, printed in zip(roles, [row for row in _rows(page, 7) if row[0] in roles], strict=True):
        of = [run for run in runs if run["roles"] == one]
        accuracies, losses = ([f"{float(run['last']):.2f}" for run in of], [f"{float(run['loss']):.3f}" for run in of])
        assert printed == [one, *accuracies, *losses]
    lines, differences = [], []
    for key, what, digits in (("last", "accuracy", 2), ("loss", "loss", 3)):
        of_steps = {steps: [float(run[key]) for run in runs if run["steps"] == steps] for steps in ("4", "8", "16")}
        for more, less in (("8", "4"), ("16", "8"), ("16", "4")):
            difference = paired_difference(of_steps[more], of_steps[less])
            low, high = difference.t_interval
            lines.append([what, f"{more} - {less}", f"{difference.mean:+.{digits}f}", f"[{low:.{digits}f}, {high:.{digits}f}]"])
            differences.append(difference)
    corrected = ["< 0.001" if p < 0.001 else f"{p:.3f}" for p in holm([difference.p_t for difference in differences])]
    assert [row for row in _rows(page, 5) if row[0] in ("accuracy", "loss")] == [
        [*line, p] for line, p in zip(lines, corrected, strict=True)
    ]


@pytest.mark.slow
def test_the_tables_of_counts_come_out_again(real_folder: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's block of Python counts in the real text what its table says."""
    monkeypatch.setenv("FEDFACET_DATA", str(Path(real_folder("shakespeare")).parent))
    page = (ROOT / "results" / "shakespeare.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    printed = [
        (int(row[0].split()[0]), *row[1:]) for row in _rows(page.partition("## What a table")[2], 3) if row[0][0].isdigit()
    ]
    assert printed == names["found"]


def _rows(text: str, number: int) -> list[list[str]]:
    """Return the cells of all lines of a text's tables that have so many."""
    lines = [line.strip("| ").split(" | ") for line in text.replace("`", "").splitlines() if line.startswith("| ")]
    return [line for line in lines if len(line) == number]


def _mean(values: list[float]) -> str:
    return f"{fmean(values):.2f} ± {pstdev(values):.2f} ({len(values)})"
