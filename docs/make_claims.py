"""The page of claims: what documents say, and whether the published runs agree, by ``results/claims.yaml``.

``PYTHONPATH=src python docs/make_claims.py > results/claims.md`` renews the page.
"""

import csv
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from scipy import stats

from fedfacet.analysis.paired import LEVEL, holm, sign_flip_p, smallest_p

RESULTS = Path(__file__).parents[1] / "results"
WORDS = {
    "holds": f"significant (p_Holm < {LEVEL}), in the document's direction",
    "reversed": "significant in the other direction, or against a claim of equality",
    "undecided": "not significant; a claim of equality cannot do better",
    "not tried": "no run of ours tests it; the next column says what would",
}
HEAD = """<!-- Made by `python docs/make_claims.py > results/claims.md` from claims.yaml and claims/; do not edit it. -->

This page decides what other pages say about a claim. A row is an ordering that a document prints or states. If several rows
measure one claim, each has its own verdict. A row that is not tried may name several orderings, of which each counts.

"Theirs" is the document's own difference, as printed; "higher" and "lower" mean that it prints none. "Ours" is the mean
difference of the same two sides, with a 95 % interval by Student's t. Pairs share a seed, or what "measured here" names
instead. Units are percentage points, except for losses and rounds. Holm's correction is over all tested claims of a
document. Its p-values are exact sign-flip probabilities where n pairs can be significant after the correction, otherwise of
the paired t test: (t).

| verdict | meaning |
| --- | --- |"""


class Row(NamedTuple):
    """A claim with its rival: the document's differences or signs, and the values of both sides in ``pairs``."""

    claim: Mapping[str, Any]
    sentence: str
    theirs: Sequence[Any]
    pairs: Sequence[tuple[float, float]]


class Found(NamedTuple):
    """Ours minus the rival's: mean, 95 % interval by Student's t, p-value before and after Holm's correction."""

    mean: float
    interval: tuple[float, float]
    p: float
    exact: bool
    p_holm: float


@cache
def table(file: str) -> tuple[Mapping[str, str], ...]:
    """Return the rows of a csv file."""
    return tuple(csv.DictReader((RESULTS / file).read_text().splitlines()))


def side(claim: Mapping[str, Any], where: Mapping[str, str], rival: str) -> dict[tuple[str, ...], float]:
    """Return the values of one side by what pairs them, without empty ones.

    Raises:
        ValueError: if the columns do not pick exactly one row per pair.
    """
    found: dict[tuple[str, ...], float] = {}
    wanted = {column: value.format(rival=rival) for column, value in where.items()}
    for row in table(claim["file"]):
        if all(row[column] == value for column, value in wanted.items()) and row[claim["value"]]:
            key = tuple(row[column] for column in claim.get("pair", ["seed"]))
            if key in found:
                raise ValueError(f"{claim['file']} has two rows for {wanted} and {key}: name more columns.")
            found[key] = claim.get("scale", 1) * float(row[claim["value"]])
    if not found:
        raise ValueError(f"{claim['file']} has no row for {wanted}: correct the columns or values.")
    return found


def pairs_of(claim: Mapping[str, Any], rival: str) -> list[tuple[float, float]]:
    """Return the values of both sides that have a partner; ``beyond`` moves its own difference to the second."""
    ours = side(claim, claim["ours"], rival)
    if not isinstance(claim["than"], Mapping):
        return [(value, claim["than"]) for value in ours.values()]
    than = side(claim, claim["than"], rival)
    if elsewhere := claim.get("beyond"):
        first, second = (side(claim, claim[name] | elsewhere, rival) for name in ("ours", "than"))
        than = {key: value + first[key] - second[key] for key, value in than.items()}
    return [(value, than[key]) for key, value in ours.items() if key in than]


def rows_of(claim: Mapping[str, Any], names: Mapping[str, str]) -> Iterator[Row]:
    """Yield a row per rival of a claim that was tried, and one for all rivals of another."""
    rivals = claim.get("rivals") or {"": claim.get("theirs", "")}
    if "file" not in claim:
        printed = [f"{names.get(name, name)} {_number(one)}".strip() for name, one in rivals.items()]
        yield Row(claim, claim["claim"], printed, [])
        return
    for rival, theirs in rivals.items():
        sentence = claim["claim"].format(rival=names.get(rival, rival))
        yield Row(claim, sentence, theirs if isinstance(theirs, list) else [theirs], pairs_of(claim, rival))


def tested(all_pairs: Sequence[Sequence[tuple[float, float]]]) -> list[Found]:
    """Test the differences of one document, with Holm's correction over all of them.

    The sign-flip test counts where so many pairs could be significant after the correction, else the paired t test.
    """
    found = []
    for pairs in all_pairs:
        ours, than = zip(*pairs, strict=True)
        test = stats.ttest_rel(ours, than)
        exact = len(all_pairs) * smallest_p(len(pairs)) < LEVEL
        low, high = test.confidence_interval(1 - LEVEL)
        mean = sum(ours) / len(ours) - sum(than) / len(than)
        found.append((mean, (low, high), sign_flip_p(ours, than) if exact else float(test.pvalue), exact))
    return [Found(*one, p) for one, p in zip(found, holm([one[2] for one in found]), strict=True)]


def verdict(theirs: Sequence[Any], equal: bool, mean: float, p_holm: float) -> str:
    """Return the word for a claim; no difference at all is never shown, so that a claim of equality cannot hold.

    Raises:
        ValueError: if the document's own differences have several signs.
    """
    if p_holm >= LEVEL:
        return "undecided"
    if equal:
        return "reversed"
    up = {one == "+" if isinstance(one, str) else one > 0 for one in theirs}
    if len(up) > 1:
        raise ValueError(f"{theirs} have several signs: claim one of them.")
    return "holds" if up == {mean > 0} else "reversed"


def _number(value: Any) -> str:
    words = {"+": "higher", "-": "lower", "0": "equal"}
    return words.get(value, value) if isinstance(value, str) else f"{value:+.2f}"


def _p(p: float) -> str:
    return "< 0.001" if p < 0.001 else "1" if p == 1 else f"{p:.2g}" if p > 0.1 else f"{p:.3f}"


def _line(row: Row, found: Found | None) -> tuple[str, str]:
    """Return a line of the table, and its last word."""
    claim, theirs = row.claim, ", ".join(_number(one) for one in row.theirs)
    if found is None:
        return f"| {row.sentence} | {claim['where']} | {theirs} | {claim['settle']} | | | | not tried |", "not tried"
    word = verdict(row.theirs, claim.get("equal", False), found.mean, found.p_holm)
    digits = 4 if claim.get("unit") == "loss" else 2
    low, high = (f"{end:.{digits}f}" for end in found.interval)
    cells = [
        row.sentence,
        claim["where"],
        theirs,
        f"[{claim['here']}]({claim['page']})",
        f"{found.mean:+.{digits}f} [{low}, {high}]",
        _p(found.p_holm) + ("" if found.exact else " (t)"),
        str(len(row.pairs)),
        word if word == "undecided" else f"**{word}**",
    ]
    return f"| {' | '.join(cells)} |", word


def count_of(row: Row) -> int:
    """Return how many orderings a row of the table stands for."""
    return 1 if row.pairs else len(row.theirs)


def section(document: Mapping[str, Any], names: Mapping[str, str]) -> tuple[str, Counter[str], list[int]]:
    """Return a document's part of the page, how many orderings have each verdict, and the number of pairs of each test."""
    rows = list(chain.from_iterable(rows_of(claim, names) for claim in document["claims"]))
    tests = iter(tested([row.pairs for row in rows if row.pairs]))
    lines, words = [], Counter[str]()
    for row in rows:
        line, word = _line(row, next(tests) if row.pairs else None)
        lines.append(line)
        words[word] += count_of(row)
    sizes = [len(row.pairs) for row in rows if row.pairs]
    source = document["source"]
    head = "| claim | where | theirs | measured here | ours [95 % CI] | p_Holm | n | verdict |\n" + "| --- " * 8 + "|\n"
    text = f"## {document['title']}\n\n{source} We tested {len(sizes)} differences.\n\n{head}" + "\n".join(lines)
    return f"{text}\n\n{document.get('notes', '')}".rstrip() + "\n", words, sizes


def read_claims() -> dict[str, Any]:
    """Return ``claims.yaml`` with the documents that it lists."""
    read: dict[str, Any] = yaml.safe_load((RESULTS / "claims.yaml").read_text())
    files = [RESULTS / "claims" / f"{name}.yaml" for name in read["documents"]]
    return read | {"documents": [yaml.safe_load(file.read_text()) for file in files]}


def claims_page() -> str:
    """Return the page as Markdown."""
    read = read_claims()
    sections = [section(document, read["names"]) for document in read["documents"]]
    total = sum((words for _, words, _ in sections), Counter[str]())
    sizes = [size for *_, sizes in sections for size in sizes]
    counts = {word.replace(" ", "_"): total[word] for word in WORDS}
    answer = read["answer"].format(**counts, tested=len(sizes), least=min(sizes), most=max(sizes))
    meanings = [f"| {word} | {meaning} |" for word, meaning in WORDS.items()]
    summary = [
        f"| {document['title']} | {' | '.join(str(words[word]) for word in WORDS)} |"
        for document, (_, words, _) in zip(read["documents"], sections, strict=True)
    ]
    columns = ["", f"| document | {' | '.join(WORDS)} |", "| --- | ---: | ---: | ---: | ---: |"]
    texts = [text for text, *_ in sections]
    return "\n".join([f"# {read['title']}", "", answer, HEAD, *meanings, *columns, *summary, "", *texts])


if __name__ == "__main__":
    sys.stdout.write(claims_page())
