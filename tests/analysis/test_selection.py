"""Who was selected, against the definitions written out client by client and round by round."""

import csv
import io
import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from fedfacet.analysis.acting import acting
from fedfacet.analysis.runs import Run
from fedfacet.analysis.selection import alikeness, evenness, selection_of
from fedfacet.analysis.writers import to_csv, to_latex, to_markdown
from fedfacet.commands import report
from fedfacet.errors import ConfigError, FedFacetError

CHOICES = arrays(bool, array_shapes(min_dims=2, max_dims=2, max_side=6))


@given(CHOICES)
def test_evenness_is_what_it_says(chosen_RK):
    rounds, clients = chosen_RK.shape
    found, counts = evenness(chosen_RK), chosen_RK.sum(axis=0).tolist()
    assert found.places == pytest.approx(sum(counts) / rounds)
    assert found.never == counts.count(0)
    full = [r for r in range(1, rounds + 1) if chosen_RK[:r].any(axis=0).all()]
    assert found.coverage == (full[0] if full else None)
    gaps = [[len(list(run)) for taken, run in itertools.groupby(column) if not taken] for column in chosen_RK.T.tolist()]
    assert found.gap == max((max(gap, default=0) for gap in gaps), default=0)
    if sum(counts):
        apart = sum(abs(one - other) for one in counts for other in counts)
        assert found.gini == pytest.approx(apart / (2 * clients * sum(counts)))
        assert found.jain == pytest.approx(sum(counts) ** 2 / (clients * sum(count**2 for count in counts)))
    else:
        assert math.isnan(found.gini)
        assert math.isnan(found.jain)


@given(st.data())
def test_alikeness_is_jaccards(data):
    one = data.draw(CHOICES)
    other = data.draw(arrays(bool, one.shape))
    sets = [[set(np.flatnonzero(row)) for row in choice] for choice in (one, other)]
    each = [len(a & b) / len(a | b) if a | b else 1.0 for a, b in zip(*sets, strict=True)]
    assert alikeness(one, other) == pytest.approx(sum(each) / len(each))
    assert alikeness(one, one) == 1
    assert alikeness(other, one) == alikeness(one, other)


@given(st.data())
def test_what_differs_is_counted_place_by_place(data):
    one = data.draw(CHOICES)
    other = data.draw(arrays(bool, one.shape))
    places = [(max(a.sum(), b.sum()), sum(x and y for x, y in zip(a, b, strict=True))) for a, b in zip(one, other, strict=True)]
    most, both = (sum(column) for column in zip(*places, strict=True))
    assert acting(one, other).share == pytest.approx(1 - both / most if most else 0)
    assert acting(other, one) == acting(one, other)
    assert acting(one, one).share == 0


def test_by_chance_is_what_uniform_draws_give():
    draws = np.random.default_rng(0).permuted(np.tile(np.arange(24) < 9, (20_000, 1)), axis=1)
    found = acting(draws[:10_000], draws[10_000:])
    assert found.chance == pytest.approx(1 - 9 / 24)
    assert found.share == pytest.approx(found.chance, abs=0.005)  # three standard errors


def run(folder, selector, seed, cohorts, clients=4):
    """A run of some clients that chose these."""
    folder.mkdir()
    rows = [f"{round},{' '.join(map(str, cohort))},0.5" for round, cohort in enumerate(cohorts, 1)]
    (folder / "metrics.csv").write_text("\n".join(["round,cohort,val/acc", *rows]) + "\n")
    counts = [sum(client in cohort for cohort in cohorts) for client in range(clients)]
    (folder / "partition.json").write_text(json.dumps({"counts": [[[9, 1], [1, 9]], [[9, 9], [1, 1]]] * (clients // 2)}))
    settings = {"seed": seed, "selector": selector, "federation": {"rounds": len(cohorts)}}
    (folder / "config.yaml").write_text(
        json.dumps({**settings, "choices": {"selector": selector, "experiment": "gsc"}, "callbacks": {}})
    )
    summary = {"status": "finished", "rounds": len(cohorts), "final": {"round": 1}, "participation_counts": counts}
    (folder / "summary.json").write_text(json.dumps(summary))
    return Run(folder, seed, {"seed": seed, "choices.selector": selector, "choices.experiment": "gsc"}, summary)


@pytest.fixture
def runs(tmp_path):
    return [
        run(tmp_path / "a", "turns", 0, [(0, 1), (2, 3), (0, 1)]),
        run(tmp_path / "b", "turns", 1, [(2, 3), (0, 1), ()]),
        run(tmp_path / "c", "same", 0, [(0, 1), (1, 0), (0, 1)]),
    ]


def test_a_line_per_setting_and_a_matrix_of_overlaps(runs):
    found = selection_of(runs)
    lines = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in to_markdown(found.table()).splitlines() if "|" in line
    ]
    assert lines[0] == ["selector", "seeds", "clients a round", "never", "everybody by", "Gini", "Jain", "longest gap"]
    assert lines[2] == ["same", "1", "2", "2", "0 of 1 runs", "0.500", "0.500", "3"]
    assert lines[3] == ["turns", "2", "1.67", "0", "2", "0.083", "0.950", "1.5"]
    assert lines[4:] == [
        ["overlap", "same", "turns"],
        ["-------", "---:", "----:"],
        ["same", "", "0.67"],
        ["turns", "0.67", ""],
    ]
    assert "longest gap" in to_latex(found.table())
    rows = list(csv.DictReader(io.StringIO(to_csv(found.table()))))
    told = {(row["row"], row["seed"], row["everybody_by_round"]) for row in rows}
    assert told == {("same", "0", ""), ("turns", "0", "2"), ("turns", "1", "2")}


def test_what_differs_from_a_row_stands_in_a_column(runs, tmp_path):
    found = selection_of([*runs, run(tmp_path / "d", "uniform", 0, [(0, 1), (1, 2), (0, 1)])])
    lines = to_markdown(found.table()).splitlines()
    cells = {line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[-3:-1]] for line in [lines[0], *lines[2:5]]}
    sixth = ["0.17", "0.50"]
    assert cells == {**cells, "selector": ["acts", "by chance"], "same": sixth, "turns": sixth, "uniform": ["", ""]}
    rows = list(csv.DictReader(io.StringIO(to_csv(found.table()))))
    told = {(row["row"], row["seed"]): row["acts"][:5] for row in rows}
    # `uniform` has no run of seed 1.
    assert told == {("same", "0"): "0.166", ("turns", "0"): "0.166", ("turns", "1"): "", ("uniform", "0"): ""}
    assert not any("ranked" in note for note in found.notes)


def test_a_row_below_five_percent_is_not_ranked(runs, tmp_path):
    runs.append(run(tmp_path / "d", "off", 0, [(1, 0), (0, 1), (0, 1)]))
    (note,) = [note for note in selection_of(runs, "off").notes if "ranked" in note]
    assert note.startswith("`same` differs from `off` in 0 % of its places on `gsc`, fewer than 5 %")
    with pytest.raises(ConfigError, match="There is no row 'on' to compare with: name one of 'off', 'same', 'turns'"):
        selection_of(runs, "on")


def test_federations_of_other_sizes_have_no_overlap(runs, tmp_path):
    found = selection_of([*runs, run(tmp_path / "d", "larger", 0, [(0, 5)], clients=6)])
    assert set(found.overlap) == {("same", "turns", "gsc")}
    assert found.evenness["larger", "gsc"][0].never == 4
    assert "`larger` and `same` have 6 and 4 clients on `gsc`: how alike they choose is not shown." in found.notes


def test_the_command_prints_draws_and_writes(runs, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert report.main([*(str(run.path) for run in runs), "--selection"]) == 0
    assert "| turns" in capsys.readouterr().out
    assert (tmp_path / "logs" / "report" / "selection.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "logs" / "report" / "selection.csv").read_text().count("\n") == 4
    assert report.main([*(str(run.path) for run in runs), "--selection", "--compare", "same"]) == 0
    assert "acts" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        report.main([str(runs[0].path), "--selection", "--curves"])
    assert "--selection has a table of its own" in capsys.readouterr().err


@pytest.mark.parametrize("cohort", ["0 4", "0 x", "-1"])
def test_a_table_of_other_clients_is_named(runs, cohort):
    file = runs[0].path / "metrics.csv"
    file.write_text(file.read_text().replace("1,0 1,", f"1,{cohort},", 1))
    with pytest.raises(FedFacetError, match="leave that folder out"):
        selection_of(runs)
