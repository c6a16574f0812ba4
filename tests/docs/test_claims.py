"""The page of claims: current, true to the published runs, and its words follow from the rules that it states."""

import csv
import re
import runpy
from pathlib import Path
from statistics import fmean, stdev

import pytest
from omegaconf import OmegaConf
from scipy import stats

from fedfacet.analysis.paired import sign_flip_p

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
MADE = runpy.run_path(str(ROOT / "docs" / "make_claims.py"))
CLAIMS = {document["title"]: document["claims"] for document in MADE["read_claims"]()["documents"]}


def test_the_page_is_current():
    """Every file and column resolves to pairs on the way, or the page cannot be made."""
    renew = "`PYTHONPATH=src python docs/make_claims.py > results/claims.md` renews the page"
    assert MADE["claims_page"]() == (RESULTS / "claims.md").read_text(), renew


def test_a_row_by_hand():
    """FedDiverse against uniform selection on the federation of WaterBirds, from the csv file's own lines."""
    tails = {"feddiverse": {}, "uniform": {}}
    for run in csv.DictReader((RESULTS / "coloured_mnist.csv").read_text().splitlines()):
        if run["method"] in tails:
            tails[run["method"]][run["seed"]] = float(run["tail"])
    differences = [tails["feddiverse"][seed] - tails["uniform"][seed] for seed in map(str, range(10))]
    half = stats.t.ppf(0.975, 9) * stdev(differences) / 10**0.5
    mean = fmean(differences)
    line = next(line for line in (RESULTS / "claims.md").read_text().splitlines() if "small CNN, 100 rounds" in line)
    assert line.startswith("| FedDiverse has a better worst group than uniform selection on WaterBirds | table 1 | +11.68 |")
    assert f"| {mean:+.2f} [{mean - half:.2f}, {mean + half:.2f}] |" in line
    assert "| 10 |" in line


def test_printed_differences_are_those_of_the_papers_table():
    table = OmegaConf.load(ROOT / "src" / "fedfacet" / "papers" / "feddiverse" / "table1.yaml")
    names = {
        "uniform": "Uniform random",
        "round_robin": "Round robin",
        "fednova": "FedNova",
        "pow_d": "pow-d",
        "fedpns": "FedPNS",
        "hcsfed": "HCSFed",
    }
    columns = {"WaterBirds": "WaterBirds dist", "Coloured MNIST": "CMNIST GSC"}
    seen = set()
    for claim in CLAIMS["FedDiverse"]:
        if claim["where"] == "table 1":
            federation = re.search(r" on ([\w -]+)", claim["claim"])[1].strip()
            place = table.federations.index(columns.get(federation, federation))
            theirs = {name: float(row[place].split()[0]) for name, row in table.paper.items() if row[place]}
            for rival, printed in claim["rivals"].items():
                assert printed == pytest.approx(theirs["FedDiverse"] - theirs[names[rival]], abs=0.001), (federation, rival)
                seen.add((federation, rival))
    assert len(seen) == 41, "7 federations, 6 rivals, and FedPNS has no number on one"


@pytest.mark.parametrize(
    ("theirs", "equal", "mean", "p", "word"),
    [
        ([2.0], False, 1.0, 0.049, "holds"),
        ([2.0], False, -1.0, 0.049, "reversed"),
        ([-2.0, -1], False, -1.0, 0.01, "holds"),
        (["+"], False, 1.0, 0.01, "holds"),
        (["-"], False, 1.0, 0.01, "reversed"),
        ([2.0], False, 1.0, 0.05, "undecided"),
        (["0"], True, 0.0, 1.0, "undecided"),
        ([-0.3], True, -1.0, 0.01, "reversed"),
    ],
)
def test_verdicts(theirs, equal, mean, p, word):
    assert MADE["verdict"](theirs, equal, mean, p) == word


def test_a_claim_of_two_signs_is_an_error():
    with pytest.raises(ValueError, match="claim one of them"):
        MADE["verdict"]([1.0, -1.0], False, 1.0, 0.01)


def test_holms_correction_is_over_all_and_the_exact_test_counts_where_it_can_decide():
    """Ten pairs have p-values of 2/1024 at least: 25 tests times that are below 0.05, 26 are not."""
    sure = [(float(n), 0.0) for n in range(1, 11)]
    mixed = [(float(n), 0.0) for n in (1, -2, 3, -4, 5, -6, 7, -8, 9, 1)]
    exact = MADE["tested"]([sure, *[mixed] * 24])
    assert [one.exact for one in exact] == [True] * 25
    assert (exact[0].p, exact[0].p_holm) == (2 / 1024, 25 * 2 / 1024)
    assert exact[1].p == sign_flip_p(*zip(*mixed, strict=True))
    by_t = MADE["tested"]([sure, *[mixed] * 25])
    assert not any(one.exact for one in by_t)
    assert by_t[0].p == stats.ttest_1samp(range(1, 11), 0).pvalue
    assert (by_t[0].mean, by_t[0].p_holm, by_t[1].p_holm) == (5.5, 26 * by_t[0].p, 1.0)


def test_columns_that_do_not_pick_pairs_are_errors():
    claim = {"file": "coloured_mnist.csv", "value": "tail", "ours": {"method": "feddivers"}, "than": {"method": "uniform"}}
    with pytest.raises(ValueError, match="has no row for"):
        MADE["pairs_of"](claim, "")
    with pytest.raises(ValueError, match="two rows for"):
        MADE["pairs_of"](claim | {"ours": {}}, "")


def test_a_difference_of_differences():
    """FedLD's lead over FedGH on split 3, less that on split 1."""
    (claim,) = [claim for claim in CLAIMS["FedLD"] if "beyond" in claim]
    lead = {
        split: [
            a - b
            for a, b in MADE["pairs_of"](
                {**claim, "beyond": None, "ours": claim["ours"] | {"split": split}, "than": claim["than"] | {"split": split}},
                "fedgh",
            )
        ]
        for split in "13"
    }
    expected = [three - one for three, one in zip(lead["3"], lead["1"], strict=True)]
    assert [a - b for a, b in MADE["pairs_of"](claim, "fedgh")] == pytest.approx(expected)


def test_no_other_page_has_a_verdict_of_its_own_in_the_readme():
    """README's findings rest on this page, and the index of results begins with it."""
    assert "results/claims.md" in (ROOT / "README.md").read_text().partition("## What we found")[2].partition("\n## ")[0]
    first = re.search(r"\]\((\w+\.md)\)", (RESULTS / "README.md").read_text())
    assert first[1] == "claims.md"
