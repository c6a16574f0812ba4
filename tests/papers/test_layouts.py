"""Tables as the paper prints them, and the paper's own numbers."""

import csv
import io
import itertools
import math
import re
from pathlib import Path

import numpy as np
import pytest
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from fedfacet.analysis.runs import Run
from fedfacet.analysis.tables import PAPER, Column
from fedfacet.analysis.writers import to_csv, to_latex, to_markdown
from fedfacet.config import compose_job, plain
from fedfacet.errors import ConfigError
from fedfacet.papers.layouts import FOLDER, load_layout, make_layout_table

TABLES = sorted(file.stem for file in FOLDER.glob("*/*table*.yaml"))
SOURCES = {
    "": "FedDiverse (arXiv:2504.11216), {}; thesis, table ",
    "fedld_": "FedLD (MICCAI 2024), {}",
    "submodels_": "the thesis, {}; Németh et al., IEEE Access 2025",
    "thesis_": "the thesis, {}",
}
OF_SUBMODELS = [name for name in TABLES if name.startswith("submodels_")]
NINE = ("sweep=model_integration",)
BASELINES = ("sweep=model_complexity", "model.width=8,16")
FEDPROX = ("correction=proximal", "correction.mu=0.01")
FEDAVGM = ("aggregator=fedavgm", "aggregator.server_lr=0.9", "aggregator.momentum=0.3")
COMMANDS = {
    "submodels_table6": [("sweep=channel_coupling",)],
    "submodels_table10": [
        (*command, "experiment=femnist_submodels", *more)
        for command in ((*NINE, "capacity.num_whole=2"), BASELINES)
        for more in (FEDPROX, FEDAVGM)
    ],
    "submodels_table24": [NINE, BASELINES],
    "submodels_table25": [(*command, "experiment=cifar100_submodels") for command in (NINE, BASELINES)],
    "submodels_table26": [(*command, "experiment=femnist_submodels") for command in (NINE, BASELINES)],
}
"""What to run for a table, where that is not the sweep of its name."""
CONF = Path(__file__).parents[2] / "conf"
WORST = "test/acc_worst_group"
QUICK = ("fedld_table3", "submodels_table6")


def flat(settings, prefix=""):
    found = {}
    for key, value in settings.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found


def run(name="run", seed=0, *, final=None, best=None, error=None, status="finished", **settings):
    """Return a run of table 1's first cell, or one that differs in ``settings``, by dotted key with ``__`` for the dot."""
    values = {
        "choices.dataset": "spawrious", "choices.partition": "gsc", "choices.model": "mobilenet_v2_gn",
        "choices.selector": "feddiverse", "choices.heterogeneity": "estimated", "choices.aggregator": "fedavgm",
        "choices.correction": "none", "selector.pretraining_rounds": 1, "seed": seed,
    }  # fmt: skip
    for key, value in settings.items():
        values[key.replace("__", ".") if "__" in key else f"choices.{key}"] = value
    summary = {
        "status": status,
        "rounds": 200,
        "final": {"round": 200, WORST: 0.5, "test/acc": 0.75} | (final or {}),
        "best": best and {"round": 150, WORST: best},
        "heterogeneity_error": {"distance_mean": error, "correlation": {}} if error else None,
    }
    return Run(Path(name), seed, values, summary)


def three(name="run", **settings):
    return [run(f"{name}{seed}", seed, final={WORST: 0.5 + 0.1 * seed}, **settings) for seed in range(3)]


def table_of(runs, name="table1", **how):
    return make_layout_table(runs, load_layout(name), **how)


@pytest.mark.parametrize("name", TABLES)
class TestThePapersNumbers:
    def test_there_is_one_per_cell(self, name):
        layout = load_layout(name)
        width = len(layout.federations) * len(layout.columns)
        assert list(layout.paper) == list(layout.rows)
        assert [len(numbers) for numbers in layout.paper.values()] == [width] * len(layout.rows)
        paper, number = name.split("table")
        assert layout.source.startswith(SOURCES[paper].format(f"table {number}"))

    def test_they_are_plausible(self, name):
        for numbers in load_layout(name).paper.values():
            for number in numbers:
                if not math.isnan(number.mean) and name not in OF_SUBMODELS:
                    assert 0.04 <= number.mean <= 0.6 or 30 < number.mean < 100
                    assert math.isnan(number.std) or 0 <= number.std < 13


class TestWhatIsPrintedTwice:
    """The paper repeats many of its numbers from table to table; a slip of the pen in one of them would show."""

    @staticmethod
    def numbers(name):
        layout = load_layout(name)
        heads = [(federation, column) for federation in layout.federations for column in layout.columns]
        return {(row, *head): number for row, all_ in layout.paper.items() for head, number in zip(heads, all_, strict=True)}

    def test_tables_1_and_3(self):
        one, three = self.numbers("table1"), self.numbers("table3")
        for federation in load_layout("table3").federations:
            assert three["FedAvgM", federation, "random"] == one["Uniform random", federation, ""]
            assert three["FedAvgM", federation, "FedDiverse"] == one["FedDiverse", federation, ""]

    def test_tables_3_and_7(self):
        three, seven = self.numbers("table3"), self.numbers("table7")
        for row in load_layout("table7").rows:
            for selection in ("random", "FedDiverse"):
                assert three[row, "WaterBirds dist", selection] == seven[row, "WaterBirds dist", f"MobileNet, {selection}"]

    def test_tables_4_and_8(self):
        four, eight = self.numbers("table4"), self.numbers("table8")
        for rounds in ("1", "20"):
            for aggregator in ("FedAvg", "FedAvgM"):
                assert (
                    four[f"{rounds} / predicted / triplet", "WaterBirds dist", aggregator]
                    == (eight[rounds, "WaterBirds dist", f"worst group, {aggregator}"])
                )

    def test_the_gains_and_drops_that_the_text_states(self):
        four, five = self.numbers("table4"), self.numbers("table5")

        def largest_gain(known, column):
            return max(
                four[f"{rounds} / known / {known}", "WaterBirds dist", column].mean
                - four[f"{rounds} / predicted / triplet", "WaterBirds dist", column].mean
                for rounds in (1, 20)
            )

        gains = [
            largest_gain(known, column) for known, column in itertools.product(("matrix", "triplet"), ("FedAvg", "FedAvgM"))
        ]
        assert gains == pytest.approx([5.71, 3.74, 4.15, 4.78]), "section 5.7, which takes matrices for triplets"
        drops = [
            five["average", name, ""].mean - five["worst group", name, ""].mean for name in load_layout("table5").federations
        ]
        assert min(drops) == pytest.approx(3.20), "appendix A: at least 3.2 %"


class TestSubmodels:
    """The thesis' chapter 4 prints many of its numbers twice, or sums of them."""

    @staticmethod
    def columns(name):
        """Return column -> mean by row."""
        layout = load_layout(name)
        return {
            column: {row: numbers[place].mean for row, numbers in layout.paper.items()}
            for place, column in enumerate(layout.columns)
        }

    @pytest.mark.parametrize("name", OF_SUBMODELS)
    def test_they_are_plausible(self, name):
        layout = load_layout(name)
        for numbers in layout.paper.values():
            for column, number in zip(layout.columns, numbers, strict=True):
                low, high = (50, 58) if "AUC" in column else (0.5, 8) if "advantage" in column else (10, 90)
                assert math.isnan(number.mean) if "trained" in column else low < number.mean < high, column
                assert math.isnan(number.std) or 0 < number.std < 4

    @pytest.mark.parametrize("name", ["submodels_table24", "submodels_table25", "submodels_table26"])
    def test_means_are_those_of_three_attacks(self, name):
        assert len(load_layout(name).rows) == 29
        found = self.columns(name)
        for row, mean in found["mean AUC"].items():
            assert mean == pytest.approx(
                sum(found[f"{attack} AUC"][row] for attack in ("tMIA", "LiRA", "Yeom")) / 3, abs=0.0101
            )

    @pytest.mark.parametrize(
        ("name", "spreads"),
        [
            ("submodels_table24", {"server acc": (3.09, 0.56, 0.72), "client acc, received": (37.65, 20.61, 6.64),
                                   "mean AUC": (1.52, 0.87, 0.66)}),
            # Three lower bounds that table 9 prints (24.27, 37.03, 52.61) are not the least of table 25.
            ("submodels_table25", {"server acc": (3.82, 1.13, 1.69), "client acc, received": (22.17, 11.88, 3.25),
                                   "mean AUC": (1.85, 1.31, 0.99)}),
        ],
    )  # fmt: skip
    def test_spreads_are_those_of_table_9(self, name, spreads):
        found = self.columns(name)
        for column, printed in spreads.items():
            for large, spread in zip((2, 5, 8), printed, strict=True):
                nine = [mean for row, mean in found[column].items() if row.startswith(f"{large} large")]
                assert len(nine) == 9
                assert max(nine) - min(nine) == pytest.approx(spread, abs=0.0051)

    def test_table_10_is_table_26_and_the_changes_that_it_prints(self):
        changes = {
            "FedProx, server acc": [0.17, 0.30, -0.10, -0.46, -0.12, 0.17, 0.15, 0.24, 0.72, 0.01, 0.19],
            "FedProx, client acc, received": [0.28, 0.07, 0.23, 0.16, 0.50, 0.01, 0.26, 0.46, 0.91, 3.16, 2.85],
            "FedProx, Yeom AUC": [0.21, -0.28, -0.06, 0.43, -0.56, -0.29, -0.21, -0.09, -0.24, 0.01, 0.03],
            "FedAvgM, server acc": [0.33, 0.12, -0.22, 0.14, -0.07, 0.09, 0.28, 0.69, 0.46, -0.39, -0.14],
            "FedAvgM, client acc, received": [0.32, 0.01, 0.02, -0.33, 0.77, 0.02, 0.69, -0.07, -2.24, 2.75, 0.98],
            "FedAvgM, Yeom AUC": [0.10, -0.51, -0.14, -0.23, -0.15, -0.32, -0.26, 0.01, 0.38, 0.26, 0.02],
        }
        ten, without = self.columns("submodels_table10"), self.columns("submodels_table26")
        for column, printed in changes.items():
            plain = list(without[column.partition(", ")[2]].values())[: len(printed)]
            assert [now - before for now, before in zip(ten[column].values(), plain, strict=True)] == pytest.approx(
                printed, abs=0.0151
            ), column

    def test_tables_7s_correlations_are_over_the_rows_of_table_24(self):
        found = self.columns("submodels_table24")
        attacks = [list(found[f"{attack} AUC"].values()) for attack in ("tMIA", "LiRA", "Yeom")]
        (_, tmia_lira, tmia_yeom), (_, _, lira_yeom), _ = np.corrcoef(attacks)
        assert [round(float(r), 2) for r in (tmia_yeom, tmia_lira, lira_yeom)] == [0.98, 0.83, 0.85]


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in TABLES if name not in QUICK)]
)
def test_a_table_has_a_cell_for_each_of_its_sweep_and_the_sweep_a_run_for_each_of_its_cells(name):
    """Every run of ``sweep=NAME``, or of ``COMMANDS``, with one seed has a cell, no two the same, and none is left over."""
    layout = load_layout(name)
    cells = [
        layout.where & federation & column & row
        for federation in layout.federations.values()
        for column in layout.columns.values()
        for row in layout.rows.values()
    ]
    wanted = {tuple(sorted(cell.where.items())): 0 for cell in cells}
    for command in COMMANDS.get(name, [(f"sweep={name}",)]):
        for job in jobs_of(*command):
            settings = flat(plain(compose_job("train", job)[0]))
            run = Run(Path("x"), 0, settings, None)
            found = {tuple(sorted(cell.where.items())) for cell in cells if cell.holds(run)}
            assert len(found) == 1, job
            wanted[found.pop()] += 1
            assert all(run.setting(key) in (value, None) for key, value in layout.usual.items()), job
    assert set(wanted.values()) == {1}


def jobs_of(sweep, *overrides):
    """Return the overrides of every job of a sweep with one seed."""
    params = OmegaConf.to_object(OmegaConf.load(CONF / "sweep" / f"{sweep.partition('=')[2]}.yaml").hydra.sweeper.params)
    values = params | dict(override.split("=", 1) for override in overrides) | {"seed": 0}
    parsed = OverridesParser.create().parse_overrides([f"{key}={value}" for key, value in values.items()])
    ((*jobs,),) = BasicSweeper.split_arguments(parsed, max_batch_size=None)
    return [[sweep, *job] for job in jobs]


def test_ours_stand_beside_the_papers():
    small = three("small", partition="gci_100")
    table = table_of(three() + three("uniform", selector="uniform") + small)
    column, paper = Column("Spawrious GSC", "last"), Column("Spawrious GSC", PAPER)
    assert table.rows == ("FedDiverse", "Uniform random", "Round robin", "FedNova", "pow-d", "FedPNS", "HCSFed")
    assert [each.name for each in table.columns[::2]] == ["Spawrious GSC", "Spawrious GCI-100"], "those with runs"
    left_out = ", ".join(f"`{name}`" for name in list(load_layout("table1").federations)[1:-1])
    assert f"Left out are the columns that no run has a cell in: {left_out}." in table.notes
    assert table.columns[:2] == (column, paper)
    assert table.cells["FedDiverse", column].mean == pytest.approx(60)
    assert table.cells["FedDiverse", column].seeds == (0, 1, 2)
    assert table.cells["FedDiverse", paper][:2] == (88.01, 0.96)
    shown = to_markdown(table.table())
    assert re.search(r"\| Uniform random +\| +60.00 ± 8.16 \(3\) \| +86.27 ± 1.12 \| +missing \|", shown)
    assert " 88.01 ± 0.96 |" in shown, "a paper's number has no seeds, so it is not bold"
    assert " 89.12 ± 0.32 |" in shown
    assert "|                        - |" in shown, "FedPNS on GCI-100"
    assert r"89.12 $\pm$ 0.32" in to_latex(table.table())
    lines = list(csv.DictReader(io.StringIO(to_csv(table.table()))))
    assert len(lines) == 7 * 4
    assert [line["at"] for line in lines[:2]] == ["last", "paper"]
    assert (lines[1]["mean"], lines[1]["std"], lines[1]["n"]) == ("88.01", "0.96", "")
    assert "table 1; thesis, table 15" in table.caption


def test_what_is_missing_is_counted():
    runs = [*three(), run("u", 0, selector="uniform")]
    assert "Missing are 143 of 147 runs: of 49 cells 47 have none, 1 fewer than 3." in table_of(runs).notes
    assert "Missing are 2 of 6 runs: of 2 cells 0 have none, 1 fewer than 3." not in table_of(runs).notes
    whole = [one for rounds in (1, 5, 10, 15, 20, 30) for aggregator in ("fedavg", "fedavgm")
             for one in three(f"{rounds}{aggregator}", selector__pretraining_rounds=rounds, aggregator=aggregator,
                              dataset="waterbirds", partition="waterbirds_dist")]  # fmt: skip
    assert not [note for note in table_of(whole, "table8").notes if "Missing" in note]
    (note,) = (note for note in table_of(whole[:-4], "table8").notes if "Missing" in note)
    assert note == "Missing are 4 of 36 runs: of 12 cells 1 have none, 1 fewer than 3.", (
        "a run counts once for both its columns"
    )


def test_unfinished_runs_and_those_of_other_tables_are_told():
    broken = run("broken", 1, status="interrupted", federation__rounds=500)
    table = table_of([run(), broken, run("other", selector="most_spurious")])
    assert "Left out because not finished: `broken` (interrupted at round 200 of 500)." in table.notes
    assert "1 of 3 runs have no cell in this table, among them `other`." in table.notes
    assert table.cells["FedDiverse", Column("Spawrious GSC", "last")].seeds == (0,)


def test_runs_at_the_papers_settings_come_first_and_others_only_without_them():
    usual, other = three("t"), three("o", selector__pretraining_rounds=20)
    column = Column("Spawrious GSC", "last")
    assert table_of(usual).cells == table_of(usual + other).cells
    assert table_of(other).cells["FedDiverse", column].seeds == (0, 1, 2)
    small = three("s", model="small_cnn")
    assert table_of(small + usual[:1]).cells["FedDiverse", column].seeds == (0,), "never mixed"


def test_settings_that_are_not_the_papers_are_told():
    shorter = three(federation__rounds=20, optimizer__lr=0.03, local__amount=1)
    told = [note for note in table_of(shorter).notes if note.startswith("The paper's runs use")]
    assert told == [
        "The paper's runs use `federation.rounds=200`; some of these runs use 20, for example `run0`.",
        "The paper's runs use `optimizer.lr=0.001`; some of these runs use 0.03, for example `run0`.",
    ]


def test_where_chooses_runs_rows_and_columns():
    runs = three() + three("c", dataset="cmnist") + three("x", dataset="cmnist", optimizer__lr=0.03)
    with pytest.raises(ConfigError, match=r"seed 0 twice, in c0 and x0, which differ in `optimizer\.lr`: choose among"):
        table_of(runs)
    table = table_of(runs, where={"dataset": "cmnist", "optimizer.lr": "0.03"})
    assert table.columns == (Column("CMNIST GSC", "last"), Column("CMNIST GSC", PAPER))
    assert "Missing are 18 of 21 runs: of 7 cells 6 have none, 0 fewer than 3." in table.notes
    assert table_of(runs[:3], where={"selector": "feddiverse"}).rows == ("FedDiverse",)


def test_federations_that_are_not_the_papers_come_after_them():
    runs = three() + three("d", dataset="digits", partition="gsc", model="small_cnn")
    table = table_of(runs)
    assert table.columns[-1] == Column("digits gsc", "last"), "and there is no number of the paper's"
    assert table.cells["FedDiverse", table.columns[-1]].seeds == (0, 1, 2)
    waterbirds = {"dataset": "waterbirds", "partition": "waterbirds_dist"}
    names = [column.name for column in table_of(three(**waterbirds) + runs[3:], "table4").columns]
    assert names == ["FedAvgM"] * 2 + ["digits gsc, FedAvgM"]
    assert table_of(three(partition="gci_100"), "table3").columns[-1].name == "Spawrious GCI-100, FedDiverse"


def test_a_federation_that_is_nobodys_does_not_take_the_runs_of_known_ones():
    known = [run(f"k{seed}", seed, dataset="digits", partition="gsc") for seed in range(2)]
    ours = run("ours", 0, dataset="spawrious", partition="dirichlet")
    table = table_of([*known, ours])
    assert {column.name for column in table.columns} == {"digits gsc", "spawrious dirichlet"}


@pytest.mark.parametrize("setting", ["centralized", "local"])
def test_runs_without_a_federation_are_nobodys_method(setting):
    table = table_of([run("f", 0), run("c", 1, setting=setting)])
    assert table.cells["FedDiverse", Column("Spawrious GSC", "last")].seeds == (0,)
    assert "1 of 2 runs have no cell in this table, among them `c`." in table.notes


def test_smoke_runs_are_told():
    smoke = run("s", 0)
    smoke = Run(smoke.path, 0, {**smoke.settings, "smoke": True}, smoke.summary)
    (note,) = (note for note in table_of([smoke, run("f", 1)]).notes if "debug=smoke" in note)
    assert note.startswith("`FedDiverse, Spawrious GSC` has runs of debug=smoke")


def test_of_another_metric_small_values_may_be_good():
    runs = [run("a", final={"test/loss": 0.0012}), run("b", final={"test/loss": 0.5}, selector="uniform", heterogeneity="none")]
    table = table_of(runs, metric="test/loss", lower_is_better=True, where={"dataset": "spawrious"})
    lines = to_markdown(table.table()).splitlines()
    (best,) = (line for line in lines if line.startswith("| FedDiverse"))
    assert " 0.0012 (1)" in best
    assert "Lower is better." in table.caption


FEDLDS_ROWS = {
    "FedAvg": {},
    "FedProx": {"correction": "proximal"},
    "FedBN": {"personal": "norm_layers"},
    "FedPAC": {"aggregator": "fedpac", "objective": "fedpac"},
    "FedGH": {"aggregator": "fedgh"},
    "FedLD": {"aggregator": "fedld", "loss": "margin"},
}


class TestFedLD:
    """Its tables, with runs on PneumoniaMNIST, whose numbers are not the paper's."""

    @staticmethod
    def settings(alpha=1.0, clients=5):
        return {
            "dataset": "pneumonia_mnist", "partition": "dirichlet", "partition__num_clients": clients,
            "partition__alpha": alpha, "model": "resnet8", "selector": "uniform", "aggregator": "fedavg",
            "loss": "cross_entropy", "objective": "classification", "personal": "none", "federation__cohort_size": 5,
        }  # fmt: skip

    def run(self, accuracy, seed=0, alpha=1.0, clients=5, **method):
        name = f"{alpha}{clients}{seed}{''.join(method.values())}"
        return run(name, seed, final={"personal_test/acc_mean": accuracy}, **(self.settings(alpha, clients) | method))

    def test_splits_are_columns_and_methods_rows(self):
        runs = [
            self.run(0.8 + 0.01 * row + 0.001 * alpha, alpha=alpha, **method)
            for row, method in enumerate(FEDLDS_ROWS.values())
            for alpha in (100.0, 1.0, 0.5)
        ]
        table = table_of(runs, "fedld_table1")
        splits = [f"PneumoniaMNIST split {split}" for split in (1, 2, 3)]
        assert [column.name for column in table.columns] == splits, "and none of the paper's, which have no run"
        assert table.rows == tuple(FEDLDS_ROWS)
        for row, method in enumerate(table.rows):
            for split, alpha in zip(splits, (100.0, 1.0, 0.5), strict=True):
                cell = table.cells[method, Column(split, "last")]
                assert cell.mean == pytest.approx(80 + row + 0.1 * alpha)
                assert cell.seeds == (0,)
        assert not [column for column in table.columns if column.at == PAPER]
        alone = table_of(runs, "fedld_table1", where={"dataset": "pneumonia_mnist"})
        assert [column.name for column in alone.columns] == splits

    def test_a_split_is_known_however_its_alpha_is_spelled_and_another_is_not(self):
        runs = [self.run(0.5, alpha=100), self.run(0.6, seed=1, alpha=100.0), self.run(0.7, alpha=0.1)]
        table = table_of(runs, "fedld_table1")
        cells = {column.name: table.cells["FedAvg", column].seeds for column in table.columns}
        assert cells == {"PneumoniaMNIST split 1": (0, 1), "pneumonia_mnist dirichlet": (0,)}

    def test_clients_whose_model_is_not_their_own_are_told(self):
        lost = {"personal/num_diverged": 45, "personal/num_never_selected": 0, "personal_test/acc_mean": 0.9}
        runs = [self.run(0.7), run("lost", 1, final=lost, **self.settings())]
        (note,) = (note for note in table_of(runs, "fedld_table1").notes if "diverged" in note)
        assert note == (
            "`FedAvg, PneumoniaMNIST split 2` leaves out clients whose model diverged in local training, 45 of them at the "
            "last round of 1 of 2 runs."
        )
        assert not [note for note in table_of(runs, "fedld_table1").notes if "never selected" in note]

    def test_table_2_has_the_four_ways(self):
        ways = [{}, {"aggregator": "fedld"}, {"loss": "margin"}, {"loss": "margin", "aggregator": "fedld"}]
        table = table_of([self.run(0.5 + 0.1 * row, **way) for row, way in enumerate(ways)], "fedld_table2")
        column = Column("PneumoniaMNIST split 2", "last")
        assert [table.cells[row, column].mean for row in table.rows] == pytest.approx([50, 60, 70, 80])

    def test_table_3_is_of_50_clients_only(self):
        runs = [self.run(0.6, alpha=0.5, clients=50), self.run(0.9, alpha=0.5)]
        table = table_of(runs, "fedld_table3")
        assert [column.name for column in table.columns] == ["PneumoniaMNIST, 50 clients"]
        assert table.cells["FedAvg", table.columns[-1]].mean == pytest.approx(60)
        assert "1 of 2 runs have no cell in this table" in " ".join(table.notes)

    def test_what_no_run_measured_is_missing_and_a_note_says_how_to(self):
        runs = [self.run(0.7), run("plain", 0, **{**self.settings(), "aggregator": "fedld", "loss": "margin"})]
        table = table_of(runs, "fedld_table1")
        (column,) = table.columns
        assert table.cells["FedAvg", column].seeds == (0,)
        assert table.cells["FedLD", column].seeds == ()
        assert "nan" not in to_markdown(table.table())
        (note,) = (note for note in table.notes if "not measured" in note)
        assert note == (
            "`personal_test/acc_mean` was not measured in 1 of 2 runs, for example `plain`: run them with "
            "`callbacks=[default,personal_evaluate]`."
        )

    def test_tables_1_and_2_agree_where_they_print_the_same(self):
        one, two = load_layout("fedld_table1").paper, load_layout("fedld_table2").paper
        for method, way in (("FedAvg", "no / no"), ("FedLD", "yes / yes")):
            assert [number.mean for number in one[method][:3]] == [number.mean for number in two[way]]


def test_both_rounds_and_another_metric():
    runs = [run(best=0.6)]
    table = table_of(runs, at="both", where={"dataset": "spawrious", "partition": "gsc"})
    assert [column.at for column in table.columns] == ["last", "best", PAPER]
    assert table.cells["FedDiverse", Column("Spawrious GSC", "best")].mean == pytest.approx(60)
    average = table_of(runs, metric="test/acc")
    assert PAPER not in {column.at for column in average.columns}, "the paper has worst groups only"
    assert average.cells["FedDiverse", Column("Spawrious GSC", "last")].mean == pytest.approx(75)
    with pytest.raises(ConfigError, match="metric that the runs have, but got 'test/ac'"):
        table_of(runs, metric="test/ac")


def test_rows_may_be_metrics():
    central = three(setting="centralized", selector="all", aggregator="fedavg")
    table = table_of(central, "table5")
    column = Column("Spawrious GSC", "last")
    assert table.cells["average", column].mean == pytest.approx(75)
    assert table.cells["worst group", column].mean == pytest.approx(60)
    assert table.columns == (column, Column("Spawrious GSC", PAPER))
    text = to_markdown(table.table())
    assert "87.82" in text
    assert not re.findall(r"\*\*|<u>", text), "an average is no better than a worst group"
    assert "bold" not in text
    assert "Missing are 15 of 18 runs: of 6 cells 5 have none, 0 fewer than 3." in table.notes
    with pytest.raises(ConfigError, match="Expected a finished run that has a cell in FedDiverse"):
        table_of(three(), "table5")


def test_errors_are_no_percentages_and_small_ones_are_good():
    runs = [
        run(f"{rounds}", dataset="waterbirds", partition="waterbirds_dist", selector__pretraining_rounds=rounds,
            error=error)
        for rounds, error in ((1, 0.25), (5, 0.5))
    ]  # fmt: skip
    fedavg = {"aggregator": "fedavg", "selector__pretraining_rounds": 30}
    runs.append(run("fedavg", dataset="waterbirds", partition="waterbirds_dist", error=0.6, **fedavg))
    table = table_of(runs, "table8")
    column = Column("error of the triplets, FedAvgM", "last", lower_is_better=True)
    assert table.cells["1", column].mean == 0.25
    lines = to_markdown(table.table()).splitlines()
    assert " 0.25 (1)" in lines[2]
    assert " 0.50 (1)" in lines[3]
    assert " 0.47 ± 0.01" in lines[4], "the paper's smallest error with FedAvg"


def test_rows_that_differ_in_more_than_they_say_are_told():
    table = table_of(three() + three("u", selector="uniform", optimizer__lr=0.1))
    assert "The runs of Spawrious GSC differ in `optimizer.lr`, which neither rows nor columns say." in table.notes
    assert not [note for note in table_of(three() + three("u", selector="uniform")).notes if "differ" in note]
    own_draws = [run(f"own{seed}", seed, final={WORST: 0.5}, partition__seed=seed) for seed in range(3)]
    assert not [note for note in table_of(own_draws).notes if "differ" in note], "every seed draws a federation of its own"


def test_settings_of_an_option_that_rows_name_are_told_where_runs_of_that_option_differ():
    weaker = three("u", selector="uniform", aggregator__momentum=0.5)
    stronger = three(aggregator__momentum=0.95)
    fednova = three("n", selector="all", aggregator="fednova", aggregator__momentum=0.0)
    (note,) = (note for note in table_of(stronger + weaker + fednova).notes if "differ" in note)
    assert note == "The runs of Spawrious GSC differ in `aggregator.momentum`, which neither rows nor columns say."
    assert not [note for note in table_of(stronger + fednova).notes if "differ" in note], "FedNova's comes with FedNova"
    images = three(dataset__image_size=224) + three("u", selector="uniform", dataset__image_size=64)
    assert [note for note in table_of(images).notes if "`dataset.image_size`" in note]


def test_runs_that_are_not_at_the_papers_settings_are_told():
    (note,) = (note for note in table_of(three("o", selector__pretraining_rounds=20)).notes if "The paper's runs use `" in note)
    assert note == "The paper's runs use `selector.pretraining_rounds=1`; some of these runs use 20, for example `o0`."
    assert not [note for note in table_of(three() + three("u", selector="uniform")).notes if "The paper's runs use `" in note]


@pytest.mark.parametrize("name", ["table5", "table8"])
def test_another_metric_is_refused_where_rows_or_columns_are_metrics(name):
    with pytest.raises(ConfigError, match=r"Expected no metric for FedDiverse .* but got 'test/acc': leave --metric out"):
        table_of(three(), name, metric="test/acc")
