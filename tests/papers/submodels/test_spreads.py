"""The thesis' table 9, out of its tables 24 and 25."""

from pathlib import Path

import pytest

from fedfacet.analysis.audits import ReadAudit
from fedfacet.analysis.runs import Run
from fedfacet.analysis.writers import to_markdown
from fedfacet.commands.report import main
from fedfacet.errors import ConfigError
from fedfacet.papers.layouts import load_layout
from fedfacet.papers.submodels.spreads import spreads, spreads_table

METRICS = {"server acc": "test/acc", "client acc, received": "received_test/acc_mean"}


def runs_of(name):
    """One run per row of a table, with the printed means."""
    layout = load_layout(name)
    (head,) = layout.federations.values()
    for row, of_row in layout.rows.items():
        printed = {column: number.mean / 100 for column, number in zip(layout.columns, layout.paper[row], strict=True)}
        where = (layout.where & head & of_row).where
        values = {key if "." in key else f"choices.{key}": value for key, value in where.items()} | {"seed": 0}
        final = {"round": 150} | {metric: printed[column] for column, metric in METRICS.items()}
        attacks = {f"attack/{one}/auc": printed["mean AUC"] for one in ("trajectory", "lira", "loss_threshold")}
        audit = ReadAudit(Path("audit"), {"victim": "clients", "round": 150}, (), attacks)
        yield Run(Path(f"{name}{row}"), 0, values, {"status": "finished", "rounds": 150, "final": final}, [audit])


@pytest.mark.parametrize("name", ["submodels_table24", "submodels_table25"])
def test_table_9_comes_out_of_tables_24_and_25(name):
    """Three of the thesis' least means on CIFAR-100 are neither table 25's nor those of the differences beside them."""
    found = {(one.measure, one.large): one for one in spreads(list(runs_of(name)))}
    assert len(found) == 3 * 3
    for one in found.values():
        difference, low, high = one.printed
        assert one.highest - one.lowest == pytest.approx(difference, abs=0.0151)
        assert one.highest == pytest.approx(high, abs=0.0101)
        assert (one.lowest == pytest.approx(low, abs=0.0101)) == (low not in (24.27, 37.03, 52.61))
        assert (one.num_methods, one.fewest_seeds) == (9, 1)
    one = found["client acc, received", 2]
    text = to_markdown(spreads_table([one], "report.py x"))
    if name == "submodels_table24":
        assert (one.federation, one.low_method, one.high_method) == ("CIFAR-10", "OSR", "OFR")
        assert text.count(" 37.65 (32.30-69.95) |") == 2, "ours, and the thesis'"


def test_without_two_methods_there_is_no_spread():
    alone = [run for run in runs_of("submodels_table24") if run.setting("submodel") in ("gfm", "whole")]
    with pytest.raises(
        ConfigError, match="None of 5 runs has a second method beside it with as many whole clients: run sweep="
    ):
        spreads(alone)


def test_it_has_a_table_of_its_own(capsys):
    with pytest.raises(SystemExit):
        main(["logs", "--layout", "submodels_spreads", "--metric", "test/acc"])
    assert "submodels_spreads has a table of its own" in capsys.readouterr().err
