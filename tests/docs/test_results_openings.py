"""Each page of results/ opens with its question and its answer, whose numbers come out of the runs beside it again."""

import csv
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean

import pytest
from scipy.stats import ttest_rel

from fedfacet.analysis.paired import holm, paired_difference

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
CLAIMS = RESULTS / "claims.md"
PAGES = [CLAIMS, *sorted({*RESULTS.rglob("*.md")} - {RESULTS / "README.md", CLAIMS})]
Row = Mapping[str, str]
Runs = dict[str, dict[str, float]]
"""A value by line of a comparison and seed."""
Pair = tuple[list[float], list[float]]
"""The values of two lines in the order of the same seeds."""
HALVES = ("fedld", "fedld_margin", "fedld_principal")


def title(page: Path) -> str:
    return page.read_text().partition("\n")[0].removeprefix("# ")


def opening(name: str) -> str:
    """Return title, answer and the paragraph after it, which says how missing numbers were computed."""
    return " ".join("\n".join((RESULTS / name).read_text().split("\n\n")[:3]).split())


def test_the_index_asks_the_question_of_every_page() -> None:
    index = (RESULTS / "README.md").read_text()
    rows = re.findall(r"^\| \[(.+)\]\((.+\.md)\) \| .+ \| \d+ .+ \|$", index, re.MULTILINE)
    assert rows == [(title(page), page.name) for page in PAGES if page.parent == RESULTS]
    assert all(f"](archive/{page.name})" in index for page in PAGES if page.parent != RESULTS)
    assert len(index.replace("|", " ").replace("---", " ").split()) <= 400


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_opens_with_its_answer(page: Path) -> None:
    """Effect, interval and n first; then where it does not hold; then what settles it."""
    assert title(page).endswith("?")
    _, answer, *_ = page.read_text().split("\n\n")
    sentences = re.split(r"(?<=\.)\s+(?=[A-Z`\[])", answer.removeprefix("**Answer.** "))
    assert answer.startswith("**Answer.** ")
    assert len(sentences) == 3
    assert max(len(sentence.split()) for sentence in sentences) <= 25
    assert re.search(r"(95 % CI \[|no interval: ).*n = \d", " ".join(sentences[0].split()))


@pytest.mark.parametrize("name", ["cmnist_pretrained", "coloured_mnist", "fedld_pneumonia", "shakespeare"])
def test_intervals_of_an_answer_are_those_of_the_tables(name: str) -> None:
    """The tables of three of these pages come out of their files again in test_published_tables.py."""
    _, answer, rest = (RESULTS / f"{name}.md").read_text().split("\n\n", maxsplit=2)
    interval, *_ = re.findall(r"95 % CI (\[.+?\])", " ".join(answer.split()))
    assert interval in rest


def runs_of(file: str, line: Callable[[Row], str | None], value: str, scale: float = 1.0, seed: str = "seed") -> Runs:
    """Return a column of a csv file; rows whose line is None do not count, nor do runs without a value."""
    found: Runs = {}
    for row in csv.DictReader((RESULTS / file).read_text().splitlines()):
        name = line(row)
        if name is not None and row[value]:
            found.setdefault(name, {})[row[seed]] = scale * float(row[value])
    return found


def printed(page: str, columns: int, line: Callable[[list[str]], str | None], seed: int, value: int) -> Runs:
    """Return a column of a page's table that has a ``model_digest`` in each row, which it prints in place of a csv file."""
    found: Runs = {}
    for text in re.findall(r"^\| (.+) \|$", (RESULTS / page).read_text(), re.MULTILINE):
        row = text.replace("`", "").split(" | ")
        if len(row) == columns and re.fullmatch("[0-9a-f]{12}", row[-1]) and (name := line(row)) is not None:
            found.setdefault(name, {})[row[seed]] = float(row[value])
    return found


def minus(runs: Runs, base: str, mark: str = "") -> dict[str, Pair]:
    """Return each line's values beside those of ``base``, paired by the seeds that both have."""
    found = {}
    for name, values in runs.items():
        seeds = [seed for seed in values if seed in runs[base]]
        if name != base:
            found[mark + name] = ([values[seed] for seed in seeds], [runs[base][seed] for seed in seeds])
    return found


def mean(pair: Pair) -> float:
    return fmean(pair[0]) - fmean(pair[1])


def corrected(pairs: Mapping[str, Pair], test: str) -> dict[str, float]:
    """Return Holm's p-values; scipy's t test, as the other statistics of ``paired_difference`` take a hundred times as long."""
    ps = [
        paired_difference(*pair).p_permutation
        if test == "permutation"
        else 1.0
        if pair[0] == pair[1]
        else ttest_rel(*pair).pvalue
        for pair in pairs.values()
    ]
    return dict(zip(pairs, holm(ps), strict=True))


def p_holm(pairs: Mapping[str, Pair], name: str, test: str) -> str:
    p = corrected(pairs, test)[name]
    return (
        "p_Holm < 0.001" if p < 0.001 else "p_Holm = 1" if p == 1 else f"p_Holm = {p:.2g}" if p > 0.1 else f"p_Holm = {p:.3f}"
    )


def says(page: str, pair: Pair, *p: str, sign: int = 1, digits: int = 2) -> None:
    """Check the size of a difference, its interval (of the difference turned round with ``sign=-1``), n and p-values."""
    text, found = opening(page), paired_difference(*pair)
    low, high = sorted(sign * end for end in found.t_interval)
    assert re.search(rf"(?<![\d.]){abs(found.mean):,.{digits}f}(?!\d)", text)
    for part in (f"[{low:,.{digits}f}, {high:,.{digits}f}]", f"n = {found.n}", *p):
        assert part in text, part


def test_bad_clients() -> None:
    def line(row: Row) -> str | None:
        return (
            row["aggregator"]
            if (row["selector"], row["fault"], row["contribution_index"]) == ("all", "sign_flip", "False")
            else None
        )

    of = minus(runs_of("bad_clients.csv", line, "last"), "fedavg")
    assert len(of) == 8
    says("bad_clients.md", of["multi_krum"], p_holm(of, "multi_krum", "permutation"))


def test_cifar100_participation() -> None:
    of = minus(runs_of("cifar100_participation.csv", lambda row: row["selector"], "last"), "uniform")
    assert len(of) == 2
    says("cifar100_participation.md", of["diversity_score"], p_holm(of, "diversity_score", "t"))
    says("cifar100_participation.md", of["probe_fairness"], sign=-1)


def test_client_fairness() -> None:
    def line(row: Row) -> str | None:
        return row["method"] + row["aggregator.q"] if row["experiment"] == "adult_doctorate" else None

    of = minus(runs_of("fairness.csv", line, "test/fair/rate/acc_a1", 100), "fedavg")
    assert len(of) == 3
    says("client_fairness.md", of["q_fedavg5"], p_holm(of, "q_fedavg5", "t"), f"AFL: {p_holm(of, 'agnostic', 't')}")
    others = minus(runs_of("fairness.csv", line, "test/fair/rate/acc_a0", 100), "fedavg")["agnostic"]
    writers = minus(runs_of("mnist_writers.csv", lambda row: row["selector"], "test/acc_worst_group", 100), "uniform")
    assert f"costs the others {-mean(others):.2f} points" in opening("client_fairness.md")
    equal = minus(runs_of("client_fairness.csv", lambda row: row["method"] + row["q"], "acc_doctorate", 100), "fedavg")
    says("client_fairness.md", equal["q_fedavg5"])
    says("client_fairness.md", writers["feddiverse"], sign=-1)


def test_cmnist_pretrained() -> None:
    of = {}
    for value in ("last_worst_group", "best_worst_group", "last"):
        for federation in ("gsc", "waterbirds_dist"):
            runs = runs_of(
                "cmnist_pretrained.csv",
                lambda row, one=federation: row["method"] if row["partition"] == one else None,
                value,
            )
            of |= minus(runs, "uniform", f"{federation} {value} ")
    assert len(of) == 6
    birds = "waterbirds_dist last_worst_group feddiverse"
    says("cmnist_pretrained.md", of[birds], p_holm(of, birds, "t"))
    says("cmnist_pretrained.md", of["gsc last_worst_group feddiverse"])


def test_cmnist_tables_1_and_3() -> None:
    first = runs_of("cmnist_table1.csv", lambda row: row["method"] if row["lr"] == "0.003" else None, "last_worst_group")
    of = minus(first, "uniform")
    assert len(of) == 6
    assert min(corrected(of, "t").values()) > 0.05
    says("cmnist_table1.md", of["feddiverse"], p_holm(of, "feddiverse", "t"))
    third, at = {}, {"fedavg": ["0.2"], "fedavgm": ["0.2", "0.3"]}
    for algorithm in ("fedavg none", "fedavgm none", "fedavg proximal", "fedavgm proximal"):

        def line(row: Row, one: str = algorithm) -> str | None:
            mine = f"{row['aggregator']} {row['correction']}" == one and row["lr"] in at[row["aggregator"]]
            return row["method"] if mine and row["method"] in ("uniform", "feddiverse") else None

        third |= minus(runs_of("coloured_mnist_tables.csv", line, "tail"), "uniform", f"{algorithm} ")
    p = corrected(third, "permutation")
    assert [name for name, one in p.items() if one < 0.05] == ["fedavgm none feddiverse", "fedavgm proximal feddiverse"]
    says("cmnist_table3.md", third["fedavgm none feddiverse"], f"p_Holm = {p['fedavgm none feddiverse']:.3f}")
    says("cmnist_table3.md", third["fedavg none feddiverse"])


def test_estimators() -> None:
    """Over federations, each the mean of its seeds; the table has these means."""
    of = {}
    for value in ("error", "variation"):
        runs = runs_of("estimators.csv", lambda row: f"{row['pair']}|{row['federation']}|{row['estimator']}", value)
        of |= {(value, *name.split("|")): fmean(seeds.values()) for name, seeds in runs.items()}
    cells = [key[1:3] for key in of if key[0] == "variation" and key[3] == "shared"]
    shared, estimated = ([of["variation", *cell, name] for cell in cells] for name in ("shared", "estimated"))
    says("estimators.md", (shared, estimated), digits=3)
    columns = [("error", name) for name in ("estimated", "clustered", "shared", "neutral")]
    columns += [("variation", name) for name in ("estimated", "clustered", "shared", "neutral", "uniform")]
    for pair, federation in cells:
        means = " | ".join(f"{of[value, pair, federation, name]:.3f}" for value, name in columns)
        assert f"| {pair} | `{federation}` | {means} |" in (RESULTS / "estimators.md").read_text()


def test_photographs() -> None:
    of: dict[str, Pair] = {}
    for value in ("worst_40", "worst_100"):
        runs = runs_of("photographs.csv", lambda row: f"{row['partition']} {row['method']}", value)
        for federation in ("waterbirds_dist", "gsc"):
            here = {name: seeds for name, seeds in runs.items() if name.startswith(federation)}
            of |= minus(here, f"{federation} uniform", f"{value} ")
    name = "worst_40 waterbirds_dist feddiverse_known"
    says("photographs.md", of[name], p_holm(of, name, "t"))


def test_estimators_alone() -> None:
    """Over pairs of images and attribute, whose errors the page prints as estimated / clustered."""
    page = "archive/estimators_alone.md"
    text = (RESULTS / page).read_text()
    rows = [row.split(" | ") for row in re.findall(r"^\| (.+ \d\.\d\d / \d\.\d\d .+) \|$", text, re.MULTILINE)][:12]
    estimated, clustered, constant = ([float(row[place]) for row in rows] for place in (5, 6, 7))
    says(page, (clustered, estimated), sign=-1, digits=3)
    says(page, (clustered, constant), digits=3)
    of_birds = [[float(error) for error in row[4].split(" / ")] for row in rows]
    says(page, ([one[1] for one in of_birds], [one[0] for one in of_birds]), digits=3)


def test_fairness_levels() -> None:
    of = {}
    for experiment in ("adult_gsc", "compas_gsc"):
        for value in ("equal_opportunity", "acc_worst_group"):

            def line(row: Row, experiment: str = experiment) -> str | None:
                where = row["experiment"] == experiment and row["partition"] == "gsc" and row["method"] != "global_reweighing"
                noisy = row["selector.interaction_matrix.epsilon"]
                return f"{row['method']} {row['heterogeneity']}" if where and not noisy else None

            column = f"test/{'fair/' * (value == 'equal_opportunity')}{value}"
            runs = runs_of("fairness.csv", line, column, 100)
            of |= minus(runs, "no_shared_stats estimated", f"{experiment} {value} ")
    assert len(of) == 16
    ps = corrected(of, "permutation")
    known = "adult_gsc equal_opportunity known_dht true"
    says("fairness_levels.md", of[known], "p_Holm < 0.001", sign=-1)
    assert ps[known] < 0.001
    assert sorted(name for name, p in ps.items() if p < 0.05) == [
        "adult_gsc acc_worst_group known_dht true",
        "adult_gsc acc_worst_group known_matrices estimated",
        known,
        "adult_gsc equal_opportunity known_matrices estimated",
        "adult_gsc equal_opportunity predicted_dht estimated",
    ]


def test_fairness_methods() -> None:
    def line(row: Row) -> str | None:
        ours = (row["experiment"], row["selector"]) == ("adult_gsc", "uniform") and int(row["seed"]) < 10
        return row["method"] if ours else None

    of = minus(runs_of("fairness_methods.csv", line, "test/fair/equal_opportunity", 100), "no_shared_stats")
    says("fairness_methods.md", of["reweighing"], sign=-1)
    assert 68 * ttest_rel(*of["reweighing"]).pvalue < 0.001


def test_fedld_decomposition() -> None:
    of = {}
    for alpha in ("0.01", "0.1", "1", "10", "100"):
        runs = runs_of(
            "fedld_decomposition.csv", lambda row, one=alpha: row["method"] if row["alpha"] == one else None, "global"
        )
        of |= minus(runs, "fedavg", f"{alpha} ")
    assert len(of) == 15
    says("fedld_decomposition.md", of["0.01 fedld_margin"], p_holm(of, "0.01 fedld_margin", "permutation"), sign=-1, digits=4)


def test_lag() -> None:
    def line(row: Row) -> str:
        return f"{row['method']} {row['xi']}".strip()

    of = minus(runs_of("lag.csv", line, "uploads"), "gradient descent")
    says("lag.md", of["LAG-PS 1"], p_holm(of, "LAG-PS 1", "t"), sign=-1, digits=0)
    accuracy = minus(runs_of("lag.csv", line, "accuracy"), "gradient descent")
    assert f"saves {-mean(of['LAG-WK 1']):,.0f}" in opening("lag.md")
    assert mean(accuracy["LAG-PS 1"]) == 0
    assert f"{-mean(accuracy['LAG-WK 1']):.2f} points are lost" in opening("lag.md")
    assert min(corrected(accuracy, "t").values()) > 0.05


def test_membership() -> None:
    """Holm's correction multiplies a p-value by at most the number of differences."""

    def line(row: Row) -> str | None:
        return row["shadows"] if (row["experiment"], row["attack"], row["over"]) == ("federations", "lira", "mean") else None

    pair = minus(runs_of("membership.csv", line, "auc", seed="holdout_seed"), "models")["federations"]
    says("membership.md", pair, "p_Holm < 0.001")
    assert 4 * paired_difference(*pair).p_permutation < 0.001


def test_model_integration() -> None:
    def line(row: Row) -> str | None:
        compared = row["coupled"] == "true" and row["num_whole"] in ("2", "10") and row["width"] in ("8", "16")
        return f"{row['submodel']} {row['width']}" if compared else None

    of = {}
    for value in ("server", "trained", "loss_mean", "lira_mean", "rmia_mean"):
        of |= minus(runs_of("model_integration.csv", line, value), "heterofl 16", f"{value} ")
    assert len(of) == 50
    says("model_integration.md", of["server gfm 16"], p_holm(of, "server gfm 16", "t"), sign=-1)
    assert {name: f"{p:.3f}" for name, p in corrected(of, "t").items() if p < 0.05} == {
        "trained whole 16": "0.004",
        "server whole 8": "0.008",
        "trained fed_dropout 16": "0.033",
        "server gfm 16": "0.047",
    }


def test_selector_zoo() -> None:
    zoo = runs_of("selector_zoo.csv", lambda row: row["selector"] if row["partition"] == "gsc" else None, "last_worst_group")
    of = minus(zoo, "uniform")
    assert len(of) == 21
    assert max(of, key=lambda name: mean(of[name])) == "hcsfed"
    says("selector_zoo.md", of["hcsfed"], p_holm(of, "hcsfed", "t"))

    def line(row: Row) -> str | None:
        rate, compensation = row["rate"], row["compensation"]
        if row["selector"] == "uniform":
            return None if (rate, compensation) == ("0.0", "scale") else f"{rate} {compensation}"
        return row["selector"]

    lossy = minus(runs_of("packet_loss_rare.csv", line, "last_worst_group"), "0.0 none")
    assert len(lossy) == 7
    says("selector_zoo.md", lossy["bandwidth_threshold"], p_holm(lossy, "bandwidth_threshold", "permutation"), sign=-1)


def test_shakespeare() -> None:
    runs = {
        partition: runs_of(
            "shakespeare_selectors.csv",
            lambda row, one=partition: row["selector"] if row["partition"] == one else None,
            "last",
        )
        for partition in ("iid", "classes_per_client")
    }
    means = {
        selector: [fmean(runs[partition][selector][seed] for partition in runs) for seed in "01"]
        for selector in ("probe_fairness", "uniform")
    }
    says("shakespeare.md", (means["probe_fairness"], means["uniform"]))


def test_time_to_accuracy() -> None:
    of = {}
    for devices in ("lognormal", "mobile_edge"):
        for target in ("to_80", "to_90", "to_95"):
            runs = runs_of(
                "time_to_accuracy.csv", lambda row, one=devices: row["selector"] if row["devices"] == one else None, target
            )
            of |= minus(
                {name: of_seeds for name, of_seeds in runs.items() if len(of_seeds) == 3}, "uniform", f"{devices} {target} "
            )
    assert len(of) == 22
    says("time_to_accuracy.md", of["mobile_edge to_95 fedcs"], p_holm(of, "mobile_edge to_95 fedcs", "t"), sign=-1)
    kept = [name for name, p in corrected(of, "t").items() if p < 0.05]
    assert sorted(kept) == ["lognormal to_90 oort", "mobile_edge to_80 fedcs", "mobile_edge to_95 fedcs"]


def test_the_superseded_pages() -> None:
    of = minus(printed("archive/cmnist_gsc.md", 8, lambda row: row[0], 1, 2), "uniform")
    says("archive/cmnist_gsc.md", of["feddiverse"])

    page, five = "archive/cifar100_two_seeds.md", "classes_per_client, N_c = 5"
    cifar: Runs = {}
    for selector in ("uniform", "probe_fairness", "diversity_score"):
        runs = printed(page, 9, lambda row, one=selector: row[0] if row[1] == one and "epochs" not in row[0] else None, 2, 3)
        for partition, of_seeds in runs.items():
            cifar.setdefault(partition, {}).update({selector + seed: accuracy for seed, accuracy in of_seeds.items()})
    pairs = minus(cifar, five) | minus(cifar, "iid", "iid ")
    pairs = {name: pairs[name] for name in ("iid", "sampled_sharder", "iid sampled_sharder")}
    says(page, pairs["iid"], p_holm(pairs, "iid", "t"))
    iid, few = ([fmean(a for name, a in cifar[one].items() if name[-1] == seed) for seed in "01"] for one in ("iid", five))
    low, high = paired_difference(iid, few).t_interval
    assert f"[{low:.2f}, {high:.2f}]" in opening(page)

    page, of = "archive/fedld_pneumonia_one_partition.md", {}
    for split in "123":
        fedld = printed(page, 11, lambda row, one=split: row[1] if row[0] == one else None, 2, 3)
        of |= minus({name: runs for name, runs in fedld.items() if name in ("fedavg", *HALVES)}, "fedavg", f"{split} ")
    assert len(of) == 9
    assert min(corrected(of, "t").values()) > 0.05
    says(page, of["2 fedld_margin"], p_holm(of, "2 fedld_margin", "t"))
