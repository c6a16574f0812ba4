import json
import subprocess
import sys
from pathlib import Path

import pytest

from fedfacet.commands import describe

CONF = Path(__file__).parents[1] / "conf"
FEDERATIONS = ("gsc", "gci", "gai", "waterbirds_dist", "spawrious4", "gci_100")


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Call the script in an empty folder; returns status, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("FEDFACET_DATA", raising=False)  # what is refused for want of data must be so wherever data lie

    def run(*arguments):
        status = describe.main(arguments)
        return status, *capsys.readouterr()

    return run


def files(folder):
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


@pytest.mark.parametrize("partition", ["spawrious4", "gci_100"])
def test_text_of_every_federation_fits_into_80_columns(run, tmp_path, partition):
    status, out, err = run(
        f"partition={partition}", "simulate.selector=feddiverse", "simulate.rounds=5", "paths.output_dir=out"
    )
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in out
    assert lines[-3:] == ["wrote out/partition.png", "wrote out/triplets.png", "wrote out/selection.png"]
    assert files(tmp_path) == ["out/partition.png", "out/selection.png", "out/triplets.png"]


def test_text_holds_measures_clients_and_shares(run):
    _, out, _ = run("partition=waterbirds_dist", "simulate.selector=feddiverse", "simulate.rounds=50")
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines() if line.startswith("│")]
    assert ["spurious correlation (SC)", "0.67", "0.76"] in rows
    assert ["5-13", "126 1 / 1 31", "159", "0.28", "0.28", "0.87", "SC"] in rows
    assert ["CI", "3", "33.3", "10.0", "100.0"] in rows
    assert "logs/describe/runs/" in out.replace("\n", "")


def test_json_is_one_document_and_nothing_else(tmp_path, start_script):
    arguments = ["partition=gci", "output=json", "simulate.selector=feddiverse", "simulate.rounds=20"]
    done = start_script(tmp_path, "describe.py", *arguments).result()
    assert done.status == 0
    described = json.loads(done.out)
    assert list(described) == ["num_clients", "global", "client_mean", "class_distances", "clients", "selection"]
    assert described["num_clients"] == len(described["clients"]) == len(described["selection"]["per_client"]) == 24
    measures = ["class_imbalance", "attribute_imbalance", "spurious_correlation"]
    assert list(described["global"]) == list(described["client_mean"]) == measures
    assert list(described["clients"][0]) == ["id", "counts", *measures, "type"]
    assert list(described["selection"]) == ["share", "rounds_with_every_client_of_type", "per_client"]
    assert described["selection"]["share"] == pytest.approx({"CI": 1 / 3, "AI": 1 / 3, "SC": 1 / 3})
    assert [line.split("/")[-1] for line in done.err.splitlines()] == ["partition.png", "triplets.png", "selection.png"]


def test_a_data_set_is_dealt_for_real(run):
    status, out, _ = run("partition=gsc", "partition.scale=0.2", "dataset=digits", "output=json")
    described = json.loads(out)
    assert status == 0
    assert "selection" not in described
    assert [cell["wanted"] for cell in described["feasibility"]] == [352, 128, 128, 352]
    assert described["clients"][0]["counts"] == [[18, 18], [2, 2]]
    assert described["global"]["spurious_correlation"] == pytest.approx(0.163, abs=1e-3)


def test_a_recipe_says_what_is_dealt(run):
    asked = (
        "output=json",
        "partition.num_clients=5",
        "simulate.selector=uniform",
        "simulate.rounds=3",
        "simulate.cohort_size=2",
    )
    _, out, err = run("experiment=digits_gsc", "partition=iid", "model.width=8", *asked)
    described = json.loads(out)
    _, out, _ = run("dataset=digits", "partition=iid", *asked)
    assert described == json.loads(out)
    assert run("experiment=digits", "output=json")[2].startswith(
        "error: Expected a known option of `experiment`, but got `digits`"
    )
    *_, err = run("experiment=digits_gsc", "partition=iid", "model.with=8")
    assert err.startswith("error: Expected a known option, but got `model.with`: the nearest are `model.width`.")


def test_a_recipe_goes_with_options_of_ones_own(run, tmp_path):
    mine = tmp_path / "my_conf" / "selector" / "mine.yaml"
    mine.parent.mkdir(parents=True)
    mine.write_text("_target_: fedfacet.selectors.uniform.UniformSelector\n")
    own = (f"hydra.searchpath=['file://{tmp_path / 'my_conf'}']", "experiment=digits_gsc")
    simulated = ("simulate.rounds=2", "output=json")
    status, ours, _ = run(*own, "simulate.selector=mine", *simulated)
    _, theirs, _ = run("experiment=digits_gsc", "simulate.selector=uniform", *simulated)
    assert status == 0
    assert json.loads(ours)["selection"] == json.loads(theirs)["selection"]


@pytest.mark.parametrize("partition", ["iid", "dirichlet"])
def test_partitions_of_labels_need_a_data_set(run, tmp_path, partition):
    status, out, err = run(f"partition={partition}")
    assert (status, out) == (2, "")
    assert "dataset=digits" in err
    assert not files(tmp_path)
    status, out, _ = run(f"partition={partition}", "partition.num_clients=5", "dataset=digits")
    assert status == 0
    assert "Heterogeneity of 5 clients" in out
    assert "held out for validation" in out


def test_the_selectors_options_are_its_own(run):
    def share(*options):
        arguments = ("partition=gsc", "output=json", "simulate.rounds=60", "simulate.selector=feddiverse", *options)
        return json.loads(run(*arguments)[1])["selection"]["share"]["SC"]

    assert share() == pytest.approx(1 / 3)
    signed = share("simulate.selector.orthogonal=signed")
    assert signed > 0.4
    assert share("selector.orthogonal=signed", "simulate.seed=1") != signed


def test_no_selector_no_simulation(run, tmp_path):
    status, out, _ = run("simulate.selector=null", "paths.output_dir=out")
    assert status == 0
    assert "Simulated" not in out
    assert files(tmp_path) == ["out/partition.png", "out/triplets.png"]


@pytest.mark.slow
def test_several_selectors_are_told_one_after_the_other(run, tmp_path):
    arguments = ("partition=gai", "simulate.selector=uniform,feddiverse", "simulate.rounds=40", "paths.output_dir=out")
    alone = json.loads(run(*arguments[::2], "simulate.selector=feddiverse", "output=json", "paths.output_dir=alone")[1])
    described = json.loads(run(*arguments, "output=json")[1])
    assert list(described["selections"]) == ["uniform", "feddiverse"]
    assert described["selections"]["feddiverse"] == alone["selection"]
    assert "selection" not in described
    _, out, _ = run(*arguments)
    assert out.index("by uniform (%)") < out.index("by feddiverse (%)")
    assert out.count("wrote out/selection.png") == 1
    pictures = [(tmp_path / folder / "selection.png").read_bytes() for folder in ("out", "alone")]
    assert pictures[0] != pictures[1]


def test_several_partitions_are_put_side_by_side(run, tmp_path):
    status, out, err = run(f"partition={','.join(FEDERATIONS)}", "paths.output_dir=out")
    assert (status, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines() if line.startswith("│")]
    assert [row[0] for row in rows] == list(FEDERATIONS)
    assert ["waterbirds_dist", "30", "4795", "0.22  0.18  0.67", "0.26  0.26  0.76"] in rows
    assert files(tmp_path) == ["out/federations.png"]
    described = json.loads(run("partition=gsc,gci", "output=json")[1])["federations"]
    assert {name: len(federation["clients"]) for name, federation in described.items()} == {"gsc": 24, "gci": 24}


ALIKE = {"all", "diversity_score", "poisson", "round_robin", "size_weighted"}
"""Selectors that are simulated and drawn as ``uniform`` is."""


@pytest.mark.parametrize(
    "selector",
    [
        pytest.param(file.stem, marks=pytest.mark.slow if file.stem in ALIKE else ())
        for file in sorted((CONF / "selector").glob("*.yaml"))
    ],
)
def test_every_selector_can_be_simulated_or_says_why_not(run, selector):
    few = ("partition.clients=[{count: 3, matrix: [[45, 45], [5, 5]]}]", "simulate.cohort_size=2")
    status, out, err = run(f"simulate.selector={selector}", *few, "simulate.rounds=3", "output=json")
    assert "selection" in json.loads(out) if status == 0 else "simulate another selector" in err


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("partition=gsk",), "`partition=gsc`"),
        (("partition=gsc,gck",), "`partition=gsc`"),
        (("partition=gsc,gci", "simulate.selector=uniform"), "one by one"),
        (("simulate.selector=uniform,fedivers",), "`selector=feddiverse`"),
        (("partition.scal=0.2",), "`partition.scale`"),
        (("partition.scale=wide",), "wide"),
        (("partition.scale=0.07",), "partition.scale"),
        (("~partition",), "partition=gsc"),
        (("simulate.selector=fedivers",), "`selector=feddiverse`"),
        (("simulate.selector=feddiverse", "simulate.selector.orthogonl=signed"), "selector.orthogonl"),
        (("simulate.selector=feddiverse", "+simulate.selector.orthogonl=signed"), "`selector.orthogonal`"),
        (("simulate.selector=feddiverse", "simulate.selector.orthogonal=up"), "'up'"),
        (("simulate.selector=uniform", "simulate.cohort_size=25"), "24 clients"),
        (("simulate.selector=uniform", "simulate.rounds=0"), "rounds"),
        (("simulate.round=10",), "`simulate.rounds`"),
        (("+simulate.colour=red",), "simulate.colour"),
        (("output=yaml",), "text or json"),
        (("dataset=digit",), "`dataset=digits`"),
        (("partition=gsc", "dataset=digits"), "partition.scale"),
        (("dataset=cmnist",), "mnist"),
        (("gsc",), "key=value"),
    ],
)
def test_bad_input_costs_one_sentence_and_writes_nothing(run, tmp_path, arguments, part):
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert part in err
    assert err.startswith("error: ")
    assert not files(tmp_path)


def test_a_run_folder_is_left_alone(run, tmp_path):
    (tmp_path / "config.yaml").write_text("seed: 0\n")
    status, out, err = run(f"paths.output_dir={tmp_path}")
    assert (status, out) == (2, "")
    assert "holds a run" in err
    assert files(tmp_path) == ["config.yaml"]


def test_help_imports_nothing_heavy_and_names_the_options(tmp_path, checkout):
    run = f"runpy.run_path({str(checkout / 'src' / 'describe.py')!r}, run_name='__main__')"
    code = f"import runpy, sys\ntry: {run}\nfinally: print(*sys.modules, file=sys.stderr)"
    command, env = [sys.executable, "-c", code, "--help"], {"PYTHONPATH": str(checkout / "src")}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0
    assert not {"torch", "numpy", "hydra", "omegaconf", "rich"} & set(done.stderr.split())
    assert all(name in done.stdout for name in (*FEDERATIONS, "iid", "digits", "round_robin"))
    assert not files(tmp_path)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("selektors", "selectors"),
        ("submodls", "submodels"),
        ("estimate", "estimation"),
        ("decompositon=logs", "decomposition="),
    ],
)
def test_a_command_that_is_close_to_a_known_one_is_corrected(run, typed, meant):
    status, out, err = run(typed)
    assert (status, out) == (2, "")
    assert err.endswith(f"but got '{typed}': did you mean {meant}?\n")


def firsts(out):
    """Return the first cells of a table's rows, and on a narrow terminal of its blocks."""
    return {line.split("│")[1].strip() if line.startswith("│") else line for line in out.splitlines()}


@pytest.mark.parametrize("columns", ["80", "100", None])
def test_selectors_fit_the_terminal_and_lose_nothing(run, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns) if columns else monkeypatch.delenv("COLUMNS")
    _, out, _ = run("selectors")
    assert "…" not in out
    assert max(map(len, out.splitlines())) <= int(columns or 160)
    assert firsts(out) >= {file.stem for file in (CONF / "selector").glob("*.yaml")}
    assert [word for word in ("good-intent", "probability", "interpretation", "heterogeneity") if word not in out] == []


def test_selectors_are_shown_in_the_thesis_taxonomy(run, tmp_path, monkeypatch):
    """A row for every option, in text without a word cut, and the same six fields in JSON."""
    monkeypatch.setenv("COLUMNS", "160")
    status, out, err = run("selectors")
    assert (status, err) == (0, "")
    assert "…" not in out
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines() if line.startswith("│")]
    assert [row[0] for row in rows if row[0]] == sorted(file.stem for file in (CONF / "selector").glob("*.yaml"))
    assert ["pow_d", "efficiency", "DRT", "θ, |D|, loss", "loss", "ranking", "accuracy reached", "paper"] in rows, (
        "the thesis' own row"
    )
    assert "S statefulness" in " ".join(out.split())
    assert not files(tmp_path)

    status, out, _ = run("selectors", "output=json")
    described = json.loads(out)
    assert status == 0
    assert {name: described["pow_d"][name] for name in list(described["pow_d"])[:6]} == {
        "policy": "efficiency",
        "client_characteristics": "DRT",
        "shared_information": ["θ", "|D|", "loss"],
        "value_generation": "loss",
        "value_interpretation": "ranking",
        "termination_condition": "accuracy reached",
    }
    assert all(list(row) == list(described["pow_d"]) for row in described.values())


@pytest.mark.parametrize("more", ["output=yaml", "partition=gsc", "uniform", "rounds=3", "table=4", "cost=guessed"])
def test_other_words_after_selectors_are_named(run, more):
    status, out, err = run("selectors", more)
    assert (status, out) == (2, "")
    assert more.partition("=")[0] in err


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("polcy=efficiency", "did you mean policy=...?"),
        ("policy=eficiency", "did you mean efficiency?"),
        ("compare=oort,fedcz", "did you mean fedcs?"),
        ("cost=measured rounds=0", "from 1 to 1000"),
        ("table=thesis shares=loss", "by itself"),
        ("compare=oort,fedcs policy=efficiency", "without filters"),
        ("policy=efficiency policy=incentives", "`policy` once"),
        ("cost=measured kind=valuation", "a selector for cost=measured"),
    ],
)
def test_misspelt_filters_are_answered_with_the_nearest(run, typed, meant):
    status, out, err = run("selectors", *typed.split())
    assert (status, out) == (2, "")
    assert meant in err


def test_filters_must_all_hold_and_cards_are_compared(run):
    _, out, _ = run("selectors", "policy=efficiency", "without=S", "shares=loss", "output=json")
    assert list(json.loads(out)) == ["pow_d"]
    _, out, _ = run("selectors", "devices=yes", "output=json")
    assert {"fedcs", "fmore", "flame"} <= set(json.loads(out))
    assert "oort" not in json.loads(out)
    _, out, _ = run("selectors", "compare=oort,aggregator=ddaba", "output=markdown")
    head, _, *rows = out.splitlines()
    assert [cell.strip() for cell in head.split("|")[2:-1]] == ["oort", "aggregator=ddaba"]
    assert any("defence against attacks" in row for row in rows)


def test_nothing_on_a_terminal_is_markup(run):
    _, cards, _ = run("selectors", "output=json")
    for asked in (["table=thesis"], ["compare=" + ",".join(json.loads(cards))], []):
        status, out, _ = run("selectors", *asked)
        assert status == 0
        assert "`" not in out


def test_costs_are_counted(run):
    status, out, _ = run("selectors", "compare=pow_d,uniform", "cost=measured", "rounds=2", "output=json")
    assert status == 0
    told = json.loads(out)
    assert told["uniform"]["floats_up"] == told["uniform"]["samples_asked"] == 0
    assert told["pow_d"]["disclosed"] == {"loss": 12.0}, "all twelve are candidates"


@pytest.mark.parametrize("columns", ["80", None])
def test_submodels_are_shown_in_the_thesis_taxonomy(run, tmp_path, monkeypatch, columns):
    """A row for every option that cuts a model, a block of lines on a narrow terminal; and the same fields in JSON."""
    monkeypatch.setenv("COLUMNS", columns) if columns else monkeypatch.setenv("COLUMNS", "160")
    status, out, err = run("submodels")
    assert (status, err) == (0, "")
    assert "…" not in out
    assert firsts(out) >= {file.stem for file in (CONF / "submodel").glob("*.yaml")} - {"whole"}
    assert not files(tmp_path)
    status, out, _ = run("submodels", "output=json")
    described = json.loads(out)
    assert described["heterofl"] == {
        "code": "OFM",
        "grouping": "one",
        "dynamics": "fixed",
        "policy": "blocks",
        "known_as": "HeteroFL, arXiv:2010.01264",
        "again": "every",
    }
    codes = {name: one["code"] for name, one in described.items()}
    published = {"heterofl": "OFM", "fed_dropout": "USR", "fedrolex": "-"}
    assert codes == published | {name: name.upper() for name in ("ofr", "osm", "osr", "gfm", "gfr", "gsr", "ufr")}


@pytest.mark.parametrize("more", ["output=yaml", "submodel=gfm"])
def test_submodels_take_no_further_options(run, more):
    status, out, err = run("submodels", more)
    assert (status, out) == (2, "")
    assert more in err


def test_estimation_asks_the_clients_of_a_federation_and_reads_it_back(run, tmp_path):
    """The attribute of coloured digits is plain to see: the clustered estimate is right."""
    few = "partition.clients=[{count: 2, matrix: [[45, 45], [5, 5]]}, {count: 2, matrix: [[45, 5], [5, 45]]}]"
    given = (few, "federation.cohort_size=2", "paths.output_dir=out", "output=json")
    status, out, err = run("estimation", "heterogeneity=clustered", *given)
    assert (status, err) == (0, "wrote out/heterogeneity.png\n")
    error = json.loads(out)
    assert error["clients"] == 4
    assert error["distance_mean"] < 0.05
    assert files(tmp_path) == ["out/heterogeneity.csv", "out/heterogeneity.png"]
    (tmp_path / "out" / "heterogeneity.png").unlink()
    status, out, err = run("estimation", "run=out")
    assert (status, err) == (0, "")
    assert out.splitlines()[-1] == "wrote out/heterogeneity.png"
    assert max(map(len, out.splitlines())) <= 80
    assert (tmp_path / "out" / "heterogeneity.png").read_bytes().startswith(b"\x89PNG")


def test_estimation_of_clients_that_tell_the_truth_has_no_error(run):
    two_alike = ("partition.clients=[{count: 2, matrix: [[45, 45], [5, 5]]}]", "federation.cohort_size=1")
    _, out, _ = run("estimation", "heterogeneity=true", *two_alike, "output=json")
    error = json.loads(out)
    assert (error["clients"], error["distance_max"]) == (2, 0)
    assert error["correlation"]["class_imbalance"] is None, "both clients are alike"


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("run=nowhere",), "heterogeneity.csv"),
        (("run=nowhere", "seed=1"), "nothing else"),
        (("heterogeneity=clusterd",), "`heterogeneity=clustered`"),
    ],
)
def test_estimation_of_nothing_is_refused(run, tmp_path, arguments, part):
    status, out, err = run("estimation", *arguments)
    assert (status, out) == (2, "")
    assert part in err
    assert not files(tmp_path)


PARTS = ("model=scaler_cnn", "dataset=cifar10", "debug=smoke", "partition=quantity_skew", "paths.output_dir=out")


def test_parts_of_the_model_before_any_training(run, tmp_path):
    """The multiply-adds are the 1.107 and 3.983 million of the thesis; GFM deals four blocks, OFM the first for ever."""
    status, out, err = run("capacity=largest", "submodel=gfm", *PARTS, "output=json")
    assert (status, err.splitlines()[-1]) == (0, "wrote out/holders.png")
    told = json.loads(out)
    assert {(one["rate"], one["floats"], one["multiply_adds"]) for one in told["clients"]} == {
        (1.0, 99_210, 3_982_592), (0.5, 25_418, 1_106_560)
    }  # fmt: skip
    weak = sum(one["rate"] < 1 for one in told["clients"])
    inner = next(one for one in told["tensors"] if one["tensor"] == "backbone.5.weight")
    assert inner["holders_mean"] == len(told["clients"]) - weak + weak / 4
    assert 0 < inner["holders_min"] < inner["holders_max"] < len(told["clients"])
    assert files(tmp_path) == ["out/holders.png"]
    status, out, _ = run("capacity=largest", "capacity.num_whole=0", "submodel=heterofl", *PARTS, "output=json")
    inner = next(one for one in json.loads(out)["tensors"] if one["tensor"] == "backbone.5.weight")
    assert inner["never_held"] == inner["entries"] * 3 / 4


def test_parts_as_text_fit_into_80_columns(run):
    status, out, _ = run("capacity=largest", "submodel=fed_dropout", *PARTS)
    assert status == 0
    assert max(map(len, out.splitlines())) <= 80
    assert "99,210" in out
    status, _, err = run("capacity=whole", *PARTS)
    assert status == 2
    assert "choose capacity=largest and a submodel" in err
