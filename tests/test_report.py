import contextlib
import csv
import io
import json
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from omegaconf import OmegaConf

from fedfacet.analysis.names import option_name
from fedfacet.commands.report import main
from fedfacet.config import conf_dir

SCRIPT = Path(__file__).parents[1] / "src" / "report.py"
ACCURACY = {"feddiverse": [0.91, 0.94, 0.93], "uniform": [0.88, 0.86, 0.9]}


def report(folder, *arguments):
    """Run the report; the line is dropped that says that these runs, which no run wrote, have no list of digests."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = main(list(arguments))
        except SystemExit as stop:
            status = stop.code
    first, _, rest = err.getvalue().partition("\n")
    told = rest if first.startswith("No SHA256SUMS in ") else err.getvalue()
    return SimpleNamespace(returncode=status, stdout=out.getvalue(), stderr=told)


@pytest.fixture
def logs(tmp_path):
    """Three finished seeds of each of two selectors, as train.py leaves them."""
    for selector, values in ACCURACY.items():
        for seed, value in enumerate(values):
            folder = tmp_path / "logs" / selector / str(seed)
            folder.mkdir(parents=True)
            config = {
                "seed": seed,
                "selector": {"_target_": f"fedfacet.selectors.{selector}"},
                "aggregator": {"server_lr": 0.1},
                "paths": {"output_dir": str(folder)},
                "choices": {"selector": selector, "aggregator": "fedavgm", "experiment": "cmnist_gsc", "dataset": "cmnist"},
            }
            OmegaConf.save(OmegaConf.create(config), folder / "config.yaml")
            final = {"round": 50, "test/acc": value + 0.02, "test/acc_worst_group": value, "val/acc": value}
            summary = {
                "status": "finished",
                "rounds": 50,
                "final": final,
                "best": final | {"round": 37, "test/acc_worst_group": value - 0.01},
                "seed": seed,
                "git_commit": "f" * 40,
                "hardware": {"cpu": "test"},
            }
            (folder / "summary.json").write_text(json.dumps(summary))
            (folder / "metrics.csv").write_text(f"round,test/acc_worst_group\n50,{value}\n")
    return tmp_path


def test_the_papers_table_from_run_folders(logs):
    done = report(logs, "logs")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[:4] == [
        "| selector   | Coloured MNIST (GSC), last | Coloured MNIST (GSC), best |",
        "| ---------- | -------------------------: | -------------------------: |",
        "| FedDiverse |           92.67 ± 1.25 (3) |           91.67 ± 1.25 (3) |",
        "| Uniform    |           88.00 ± 1.63 (3) |           87.00 ± 1.63 (3) |",
    ]
    assert "Commit: ffffffffffff." in done.stdout
    assert "`python src/report.py logs`" in done.stdout


def test_data_of_ones_own_do_not_go_by_the_recipe_whose_other_settings_they_have(logs):
    for file in logs.glob("logs/*/*/config.yaml"):
        file.write_text(file.read_text().replace("dataset: cmnist", "dataset: npz"))
    assert report(logs, "logs").stdout.startswith("| selector   |        npz, last |        npz, best |\n")


@pytest.mark.parametrize(("std", "ddof"), [("population", 0), ("sample", 1)])
def test_csv_agrees_with_numpy_and_keeps_the_caption_off_the_table(logs, std, ddof):
    done = report(logs, "logs/*", "--format", "csv", "--at", "last", "--std", std)
    lines = {line["row"]: line for line in csv.DictReader(io.StringIO(done.stdout))}
    assert lines.keys() == ACCURACY.keys()
    for selector, values in ACCURACY.items():
        assert float(lines[selector]["mean"]) == pytest.approx(100 * np.mean(values))
        assert float(lines[selector]["std"]) == pytest.approx(100 * np.std(values, ddof=ddof))
        assert (lines[selector]["n"], lines[selector]["seeds"]) == ("3", "0 1 2")
    assert f"{std} standard deviation" in done.stderr


def test_options_reach_the_table(logs):
    options = ("--rows", "aggregator.server_lr, selector", "--columns", "dataset", "--metric", "test/acc", "--at", "best")
    done = report(logs, "logs", *options, "--lower-is-better", "--format", "latex", "--output", "table.tex")
    assert (done.returncode, done.stdout) == (0, "wrote table.tex\n")
    text = (logs / "table.tex").read_text(encoding="utf-8")
    assert r"aggregator.server\_lr / selector & Coloured MNIST \\" in text
    assert r"0.1 / Uniform & 90.00 $\pm$ 1.63 (3) \\" in text


def test_settings_compared_seed_by_seed(logs):
    """Three seeds, all with FedDiverse ahead: two of the eight ways to flip signs are as far from 0, so p is 0.25."""
    done = report(logs, "logs", "--compare", "uniform", "--forest", "forest.png")
    assert (done.returncode, done.stderr) == (0, "wrote forest.png\n")
    assert done.stdout.splitlines()[2].startswith("| FedDiverse |     3 |      +4.67 | [-2.50, 11.84] |    [3.00, 8.00] |")
    assert done.stdout.splitlines()[2].endswith("| 0.25 |    0.25 |               6 | not significant |")
    assert "nothing can be significant here" in done.stdout
    assert (logs / "forest.png").stat().st_size > 10_000
    for suffix, start in ((".svg", b"<?xml"), (".pdf", b"%PDF")):
        drawn = [logs / f"{name}{suffix}" for name in ("one", "other")]
        for picture in drawn:
            assert main([str(logs / "logs"), "--compare", "uniform", "--forest", str(picture)]) == 0
        assert drawn[0].read_bytes().startswith(start)
        assert drawn[0].read_bytes() == drawn[1].read_bytes()
    assert "better than Uniform</text>" in (logs / "one.svg").read_text()
    by_t = report(logs, "logs", "--compare", "feddiverse", "--test", "t", "--at", "all", "--format", "csv")
    assert [line["at"] for line in csv.DictReader(io.StringIO(by_t.stdout))] == ["last", "best", "tail"]
    assert by_t.stderr.startswith("Differences from `feddiverse`, paired by seed.")


def test_unfinished_runs_are_named_under_the_table(logs):
    (logs / "logs/uniform/2/summary.json").unlink()
    done = report(logs, "logs", "--at", "last")
    assert done.returncode == 0
    assert "87.00 ± 1.00 (2)" in done.stdout
    assert "Note: Left out because not finished: `logs/uniform/2` (no summary.json yet)." in done.stdout
    assert "logs/uniform/2" in report(logs, "logs", "--format", "csv").stderr


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("nowhere",), "nowhere"),
        (("logs/uniform/0/metrics.csv",), "metrics.csv"),
        (("logs", "--metric", "test/acc_worst"), "`test/acc_worst_group`"),
        (("logs", "--rows", "selektor"), "`selector`"),
        (("logs", "--compare", "unifrom"), "name one of 'feddiverse', 'uniform'"),
        (("logs", "--rows", "dataset"), "logs/feddiverse/0 and logs/uniform/0"),
        (("logs", "--output", "no/such/folder/table.md"), "no/such/folder/table.md"),
        (("logs", "--layout", "table1"), "Expected a finished run that has a cell in FedDiverse (arXiv:2504.11216), table 1"),
        (("logs", "--layout", "sensitivity"), "run sweep=sensitivity"),
    ],
)
def test_bad_input_costs_one_sentence(logs, arguments, part):
    done = report(logs, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert part in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (logs / "no").exists()


def test_the_command_that_a_refusal_proposes_works(logs):
    refused = report(logs, "logs", "--rows", "dataset")
    proposed = shlex.split(refused.stderr.partition("Ready to run: ")[2])
    assert proposed == ["python", "src/report.py", "logs", "--rows", "dataset,selector"]
    assert "Coloured MNIST / Uniform" in report(logs, *proposed[2:]).stdout


def test_hints_name_the_command_that_the_user_called(logs, monkeypatch, capsys):
    """The dispatcher of the installed command sets ``sys.argv[0]``."""
    monkeypatch.setattr(sys, "argv", ["fedfacet report"])
    assert main([str(logs / "logs"), "--rows", "dataset"]) == 2
    assert f"Ready to run: fedfacet report {logs / 'logs'} --rows dataset,selector" in capsys.readouterr().err
    assert main([str(logs / "logs")]) == 0
    assert f"Made with `fedfacet report {logs / 'logs'}`." in capsys.readouterr().out


@pytest.mark.slow
def test_so_does_that_of_the_picture(logs):
    """It asks for what these folders lack."""
    refused = report(logs, "--clients", "logs", "--rows=dataset")
    proposed = shlex.split(refused.stderr.partition("Ready to run: ")[2])
    assert proposed == ["python", "src/report.py", "--clients", "logs", "--rows", "dataset,selector"]
    assert "column `cohort`" in report(logs, *proposed[2:]).stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("--layout", "table2"),
        ("--layout", "table1", "--rows", "selector"),
        ("--layout", "table1", "--lower-is-better"),
        ("--layout", "sensitivity", "--format", "csv"),
        ("--where", "selector"),
    ],
)
def test_options_that_do_not_go_together_are_refused(logs, arguments):
    done = report(logs, "logs", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert arguments[0] in done.stderr.splitlines()[-1]


def test_where_leaves_runs_out(logs):
    lines = report(logs, "logs", "--where", "selector=uniform", "--where", "aggregator.server_lr=0.1").stdout.splitlines()
    assert [line.split("|")[1].strip() for line in lines[:3] if "---" not in line] == ["selector", "Uniform"]
    assert report(logs, "logs", "--where", "aggregator.server_lr=1e-1").stdout.startswith("| selector")
    refused = report(logs, "logs", "--where", "selector=pow_d")
    assert refused.returncode == 2
    assert refused.stderr == "error: Expected runs that fit --where, but none of 6 does: selector is feddiverse or uniform.\n"


def test_tables_pictures_and_the_page_use_the_same_names(logs):
    names = ("--names", "selector.uniform=Plain & simple", "--names", "selector=Method", "--names", "test/acc_worst_group=WGA")
    assert "| Plain & simple |" in report(logs, "logs", *names).stdout
    latex = report(logs, "logs", "--format", "latex", *names).stdout
    assert r"    Plain \& simple & 88.00" in latex
    assert r"\caption{WGA, last: " in latex
    assert "Method & Coloured" in latex
    for options in (
        ("--curves", "--picture", "a.svg"),
        ("--compare", "Plain & simple", "--forest", "b.svg"),
        ("--html", "c.html"),
    ):
        assert report(logs, "logs", *options, *names).returncode == 0
    assert [(logs / file).read_text().count("Plain &amp; simple") > 0 for file in ("a.svg", "b.svg", "c.html")] == [True] * 3
    assert "WGA" in (logs / "a.svg").read_text()
    assert report(logs, "logs", "--format", "csv", *names).stdout.count("uniform,cmnist_gsc") == 2, "csv keeps what is typed"
    refused = report(logs, "logs", "--names", "selector.unifrom=x")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.endswith("but got 'selector.unifrom': did you mean 'selector.uniform'?\n")


def test_every_option_of_a_row_or_column_has_a_name_of_its_own():
    for group in ("aggregator", "experiment", "method", "partition", "selector", "setting", "submodel"):
        options = [file.stem for file in (conf_dir() / group).glob("*.yaml")]
        names = {option_name(group, option) for option in options}
        assert None not in names, group
        assert len(names) == len(options), group


def test_help_imports_nothing_heavy_and_a_table_no_torch(logs):
    run = f"runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"
    code = f"import runpy, sys\ntry: {run}\nfinally: print(*sys.modules, file=sys.stderr)"
    for arguments, absent in ((["--help"], {"torch", "numpy", "omegaconf"}), (["logs"], {"torch", "lightning"})):
        command = [sys.executable, "-c", code, *arguments]
        done = subprocess.run(
            command, cwd=logs, capture_output=True, text=True, check=False, env={"PYTHONPATH": str(SCRIPT.parent)}
        )
        assert done.returncode == 0
        assert "argparse" in done.stderr.split()
        assert not absent & set(done.stderr.split())


def test_settings_head_the_rows_where_they_differ(logs):
    """Runs of before there were settings count as federated."""
    assert report(logs, "logs").stdout.startswith("| selector   |")
    for folder in (logs / "logs" / "uniform").iterdir():
        config = OmegaConf.load(folder / "config.yaml")
        config.choices.update({"setting": "local", "selector": "all"})
        OmegaConf.save(config, folder / "config.yaml")
    done = report(logs, "logs")
    assert [line.split("|")[1].strip() for line in done.stdout.splitlines()[:4] if "--" not in line] == [
        "setting / selector",
        "- / FedDiverse",
        "Local / All clients",
    ]
    assert report(logs, "logs", "--rows", "selector").stdout.startswith("| selector    |"), "as asked for"


@pytest.fixture
def ledgers(logs):
    """The runs' rounds as ``csv_log`` writes them: round robin asks nothing, pow-d 24 clients in each of two rounds."""
    for selector, query in (("uniform", "0,0,0"), ("feddiverse", "150,24,960")):
        for folder in (logs / "logs" / selector).iterdir():
            config = OmegaConf.load(folder / "config.yaml")
            config.federation = {"cohort_size": 2}
            config.choices.selector = {"uniform": "round_robin", "feddiverse": "pow_d"}[selector]
            OmegaConf.save(config, folder / "config.yaml")
            summary = json.loads((folder / "summary.json").read_text())
            (folder / "summary.json").write_text(json.dumps(summary | {"participation_counts": [1] * 24}))
            columns = "floats_down,floats_up,query_floats_down,query_floats_up,query_samples".replace(",", ",comm/")
            rows = "".join(f"{round},3 5,2,20,20,{query}\n" for round in (1, 2))
            (folder / "metrics.csv").write_text(f"round,cohort,num_arrived,comm/{columns}\n{rows}")
    return logs


def test_overheads_stand_beside_table_2(ledgers):
    done = report(ledgers, "logs", "--overhead", "--where", "selector=pow_d")
    assert (done.returncode, done.stderr) == (0, "")
    lines = [[cell.strip() for cell in line.replace(r"\|", "/").split("|")[1:-1]] for line in done.stdout.splitlines()[2:4]]
    assert lines == [
        ["pow-d, table 2", "every round", "1", "/θ/ if not selected", "O(n_k /θ/) if not selected", "O(K log K) ≈ 76.3"],
        [
            "`pow_d`, measured (3 runs: K = 24, κ = 2, /θ/ = 10)",
            *("every round", "24 = 1 K", "150 = 15 /θ/", "960 samples to answer", "not known"),
        ],
    ]
    assert "round_robin" not in done.stdout
    assert "`round_robin`, measured" in report(ledgers, "logs", "--overhead").stdout
    done = report(ledgers, "logs", "--overhead", "--format", "csv", "--output", "costs.csv")
    assert (done.returncode, done.stdout) == (0, "wrote costs.csv\n")
    assert [row["answers_up"] for row in csv.DictReader(io.StringIO((ledgers / "costs.csv").read_text()))] == ["24.0", "24.0"]


@pytest.mark.parametrize(
    ("more", "part"),
    [
        (("--rows", "selector"), "--overhead has a table of its own"),
        (("--format", "latex"), "--overhead has a table of its own"),
        (("--where", "selector=fedpns"), "selector is feddiverse or uniform"),
        ((), "to be as it was written"),
    ],
)
def test_overheads_cannot_be_had_of_everything(logs, more, part):
    """The fixture's own metrics.csv has no ledger."""
    for file in logs.rglob("summary.json"):
        file.write_text(json.dumps(json.loads(file.read_text()) | {"participation_counts": [1] * 24}))
    done = report(logs, "logs", "--overhead", *more)
    assert (done.returncode, done.stdout) == (2, "")
    assert part in done.stderr


def test_curves_are_drawn_and_told(logs, capsys, monkeypatch):
    monkeypatch.chdir(logs)
    assert main(["logs", "--curves", "--threshold", "90"]) == 0
    told = capsys.readouterr()
    assert told.out.splitlines()[2].split("|")[-2].strip() == "50 (3 of 3)"
    assert "wrote logs/report/curves.png" in told.err
    assert Path("logs/report/curves.png").is_file()
    twice = "--where selector=uniform --where selector=feddiverse"
    for wrong in ("--threshold 90", "--picture x.png", "--curves --at last", "--curves --picture x.jpg", twice):
        with pytest.raises(SystemExit):
            main(["logs", *wrong.split()])
