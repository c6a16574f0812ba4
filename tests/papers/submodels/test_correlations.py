"""The thesis' tables 7 and 8."""

import math
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from fedfacet.analysis.audits import ReadAudit
from fedfacet.analysis.runs import Run
from fedfacet.analysis.writers import to_markdown
from fedfacet.commands.report import main
from fedfacet.errors import ConfigError
from fedfacet.papers.layouts import load_layout
from fedfacet.papers.submodels.correlations import PRINTED, correlations, correlations_table, points_of_sizes
from fedfacet.papers.submodels.sizes import plot_sizes

ATTACKS = {"trajectory": "tMIA AUC", "lira": "LiRA AUC", "loss_threshold": "Yeom AUC"}


def run(settings, metrics, seed=0, rows=(), dataset="cifar10"):
    audit = ReadAudit(Path("audit"), {"victim": "clients", "round": 150}, rows, metrics)
    values = {"choices.dataset": dataset, "seed": seed} | {
        key if "." in key else f"choices.{key}": value for key, value in settings.items()
    }
    return Run(Path(f"{settings}{seed}"), seed, values, {"status": "finished", "rounds": 150, "final": {"round": 150}}, [audit])


def of_table_24():
    """Runs with the printed means, one seed a little above and one below."""
    layout = load_layout("submodels_table24")
    columns = list(layout.columns)
    return [
        run(head.where, {
            f"attack/{attack}/auc": layout.paper[row][columns.index(column)].mean / 100 + shift
            for attack, column in ATTACKS.items()
        }, seed)
        for row, head in layout.rows.items()
        for seed, shift in enumerate((-0.001, 0.001))
    ]  # fmt: skip


def test_table_7_comes_out_of_table_24():
    """So it is over 29 settings, not over samples, clients or runs."""
    found = {one.what: one for one in correlations(of_table_24())}
    for attacks, printed in PRINTED["attacks"].items():
        one = found[f"{attacks}, auc"]
        assert (one.table, one.num_points, round(one.r, 2), one.printed) == (7, 29, printed["auc"], printed["auc"])
        assert one.low < one.r < one.high
    assert len(found) == 3, "there are no other measures"


def whole(width, sizes, advantages, seed=0, **settings):
    rows = [
        {"attack": attack, "client": client, "num_samples": size, "advantage": advantage}
        for attack in ("gap", "loss_threshold")
        for client, (size, advantage) in enumerate(zip(sizes, advantages, strict=True))
    ]
    rows += [{"attack": "loss_threshold", "client": "mean", "num_samples": 5000, "advantage": 0.5}]
    own = {"capacity": "whole", "submodel": "whole", "model.width": width} | settings
    return run(own, {"attack/loss_threshold/advantage": 0.1}, seed, rows)


def test_table_8_is_over_the_clients_of_all_runs_that_are_large_enough():
    sizes, advantages = [[9000, 3000, 1000, 399], [5000, 2000, 400, 100]], [[0.01, 0.03, 0.04, 0.9], [0.02, 0.02, 0.09, 0.8]]
    runs = [whole(8, *of, seed) for seed, of in enumerate(zip(sizes, advantages, strict=True))]
    runs.append(whole(16, [9000, 3000], [0.1, 0.2]))
    (one,) = correlations(runs)
    x = np.log10([size for of in sizes for size in of if size >= 400])
    y = [value for of, near in zip(advantages, sizes, strict=True) for value, size in zip(of, near, strict=True) if size >= 400]
    assert one.r == pytest.approx(np.corrcoef(x, y)[0, 1])
    assert (one.table, one.num_points, one.printed) == (8, 6, -0.62)
    assert one.what.endswith("width 8")
    reach = 1.959964 / math.sqrt(6 - 3)
    assert (one.low, one.high) == pytest.approx((math.tanh(math.atanh(one.r) - reach), math.tanh(math.atanh(one.r) + reach)))


def test_figure_7a_has_a_point_for_every_client_of_table_8_and_a_line_per_width(tmp_path, monkeypatch):
    """Widths have markers of their own, so that they are told apart without colours."""
    figures, save = [], Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda figure, *a, **b: (figures.append(figure), save(figure, *a, **b)))
    sizes, advantages = [9000, 3000, 1000, 399], [0.01, 0.03, 0.04, 0.9]
    points = points_of_sizes([whole(width, sizes, advantages, seed) for width in (16, 8) for seed in range(2)])
    assert points == {"cifar10": dict.fromkeys(("8", "16"), [(9000, 0.01), (3000, 0.03), (1000, 0.04)] * 2)}
    plot_sizes(points, tmp_path / "sizes.png", 3.25)
    (axes,) = figures[0].axes
    dots = [line for line in axes.lines if line.get_linestyle() == "None"]
    assert [sorted(dot.get_ydata()) for dot in dots] == [pytest.approx([1, 1, 3, 3, 4, 4])] * 2
    assert len({dot.get_marker() for dot in dots}) == 2
    r = np.corrcoef(np.log10(sizes[:3]), advantages[:3])[0, 1]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [f"width {width}, r = {r:.2f}" for width in (8, 16)]
    assert imread(tmp_path / "sizes.png").shape[1] == 650


def test_what_is_printed_stands_beside():
    text = to_markdown(correlations_table(correlations(of_table_24()), "report.py x"))
    (line,) = (line for line in text.splitlines() if "trajectory and lira, auc" in line)
    cells = [cell.strip() for cell in line.split("|")[1:-1]]
    assert (cells[0], cells[3], cells[5], cells[6]) == ("7", "0.83", "29", "0.83")


def test_parts_are_no_points_of_table_8_and_constants_none_of_any():
    runs = [whole(8, [9000, 3000, 1000], [0.1, 0.2, 0.3], capacity="largest")]
    with pytest.raises(
        ConfigError, match="Expected three settings that two of loss_threshold, lira and trajectory were made on"
    ):
        correlations(runs)
    with pytest.raises(ConfigError, match="Expected three settings"):
        correlations([whole(8, [9000, 3000, 1000], [0.1, 0.1, 0.1])])


def test_a_seed_twice_is_refused():
    with pytest.raises(ConfigError, match="has seed 0 twice"):
        correlations([whole(8, [9000], [0.1], **{"federation.rounds": rounds}) for rounds in (2, 3)])


def test_it_has_a_table_of_its_own(capsys):
    with pytest.raises(SystemExit):
        main(["logs", "--layout", "submodels_correlations", "--metric", "test/acc"])
    assert "submodels_correlations has a table of its own" in capsys.readouterr().err
