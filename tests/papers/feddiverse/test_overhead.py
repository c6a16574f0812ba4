import csv
import io
import json
import math

import numpy as np
import pytest
from omegaconf import OmegaConf

from fedfacet import state
from fedfacet.analysis.runs import find_runs
from fedfacet.analysis.writers import to_csv, to_markdown
from fedfacet.build import build, load_data
from fedfacet.config import compose_job, plain
from fedfacet.errors import FedFacetError
from fedfacet.papers.feddiverse.overhead import PAPER, measure_overheads, operations_of, overhead_table

K, COHORT = 24, 9
SMALL = (
    *("federation.rounds=3", "local.unit=steps", "local.amount=1", "callbacks=[csv_log,summary]"),
    *("heterogeneity.bias_steps=2", "heterogeneity.attribute_steps=3", "threads=1"),
)
METHODS = {
    "feddiverse": ("selector=feddiverse",),
    "round_robin": ("selector=round_robin",),
    "pow_d": ("selector=pow_d",),
    "fewer": ("selector=pow_d", "selector.num_candidates=12"),
    "fedrk": ("selector=fedrk",),
    "fedpns": ("selector=fedpns",),
    "hcsfed": ("selector=hcsfed",),
    "fednova": ("selector=all", "aggregator=fednova"),
}


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    """Three rounds of each method on the digits, for real: run folders, and what is known of the federation besides."""
    folder = tmp_path_factory.mktemp("logs")
    for name, overrides in METHODS.items():
        run_dir = folder / name
        run_dir.mkdir()
        config, _ = compose_job("train", [*SMALL, *overrides, f"paths.output_dir={run_dir}"])
        OmegaConf.save(OmegaConf.create(plain(config)), run_dir / "config.yaml")
        federation = build(config, run_dir)
        federation.fit()
    sizes = np.array([len(client) for client in load_data(config).partition.indices])
    return folder, state.num_floats(federation.state.model), sizes


@pytest.fixture(scope="module")
def measured(logs):
    overheads, unread = measure_overheads(find_runs([logs[0]]))
    assert unread == []
    return {overhead.method: overhead for overhead in overheads}


def test_methods_come_in_the_order_of_table_2_and_settings_tell_them_apart(measured):
    candidates = ("pow_d, num_candidates=12", "pow_d, num_candidates=null")
    assert list(measured) == ["feddiverse", "round_robin", "fednova", *candidates, "fedpns", "hcsfed", "fedrk"]
    assert [overhead.paper["name"] for overhead in measured.values() if overhead.paper] == [
        *("FedDiverse", "Round robin", "FedNova", "pow-d", "pow-d", "FedPNS", "HCSFed")
    ]


def test_what_a_federation_is_like(measured, logs):
    for overhead in measured.values():
        assert (overhead.num_clients, overhead.cohort_size, overhead.model_floats) == (K, COHORT, logs[1])
        assert (overhead.runs, overhead.num_rounds, overhead.differing) == (1, 3, ())
        assert len(overhead.milliseconds) == 3
        assert all(value > 0 for value in overhead.milliseconds)


def test_feddiverse_costs_three_floats_a_client_once_and_a_round_of_all(measured, logs):
    """2 steps of at most 28 samples and one pass over the data on every client; the 3 of the head see its stored features."""
    overhead, theta, sizes = measured["feddiverse"], logs[1], logs[2]
    assert overhead.rounds == (1, 2)
    assert overhead.more_clients == (K - COHORT, 0), "all pre-train in round 1"
    assert overhead.more_up == overhead.more_down == ((K - COHORT) * theta, 0)
    assert overhead.answers_up == (0, 3 * K), "and are asked afterwards"
    assert overhead.questions_down == (0, (K - COHORT) * theta)
    assert overhead.samples == (0, sum(2 * np.minimum(28, sizes) + sizes))


def test_pow_d_costs_a_float_of_all_and_the_model_of_those_not_selected_in_every_round(measured, logs):
    overhead, theta, sizes = measured["pow_d, num_candidates=null"], logs[1], logs[2]
    assert overhead.rounds == (1, 2, 3)
    assert overhead.answers_up == (K,) * 3
    assert overhead.questions_down == ((K - COHORT) * theta,) * 3
    assert overhead.samples == (sizes.sum(),) * 3
    assert overhead.more_clients == overhead.more_up == overhead.more_down == (0, 0, 0)


def test_pow_d_with_fewer_candidates_costs_less_and_all_sizes_once(measured, logs):
    overhead, theta = measured["pow_d, num_candidates=12"], logs[1]
    assert overhead.answers_up == (K + 12, 12, 12)
    assert overhead.questions_down == ((12 - COHORT) * theta,) * 3


def test_fednova_trains_all(measured, logs):
    overhead, theta = measured["fednova"], logs[1]
    assert overhead.rounds == (1, 2, 3)
    assert overhead.more_clients == (K - COHORT,) * 3
    assert overhead.more_up == overhead.more_down == ((K - COHORT) * theta,) * 3
    assert overhead.answers_up == overhead.samples == (0, 0, 0)


def test_hcsfed_trains_all_once_and_asks_nothing(measured, logs):
    """It compresses the whole updates of the first round on the server, so that nothing is sent besides them."""
    overhead, theta = measured["hcsfed"], logs[1]
    assert overhead.rounds == (1,)
    assert overhead.more_clients == (K - COHORT,)
    assert overhead.more_up == overhead.more_down == ((K - COHORT) * theta,)
    assert overhead.answers_up == overhead.questions_down == overhead.samples == (0,)


def test_round_robin_and_fedpns_cost_nothing_and_fedrk_its_matrices(measured):
    assert measured["round_robin"].rounds == measured["fedpns"].rounds == ()
    assert measured["fedrk"].rounds == (1, 2)
    assert measured["fedrk"].answers_up == (0, 4 * K)


def test_the_table_has_the_papers_line_above_each_measured_one(measured, logs):
    text = to_markdown(overhead_table(list(measured.values()), command="report"))
    rows = [
        [cell.strip().replace("\\", "") for cell in line[2:-2].split(" | ")] for line in text.splitlines() if line[0:1] == "|"
    ]
    theta, extra = f"{logs[1]:,}", f"{(K - COHORT) * logs[1]:,}"
    assert {len(row) for row in rows} == {6}
    heads = [row[0] for row in rows[2:]]
    assert heads[:4] == [
        "FedDiverse, table 2",
        f"`feddiverse`, measured (1 run: K = 24, κ = 9, |θ| = {theta})",
        "Round robin, table 2",
        f"`round_robin`, measured (1 run: K = 24, κ = 9, |θ| = {theta})",
    ]
    assert len(heads) == 2 * 7 + 1, "fedrk is not in the paper's table"
    cells = {row[0].split(" (")[0]: row[1:5] for row in rows[2:]}
    assert cells["`round_robin`, measured"] == cells["`fedpns`, measured"] == ["never", "0", "0", "0"]
    assert cells["`hcsfed`, measured"] == [*("t = 1", f"{extra} = 15 |θ|", f"{extra} = 15 |θ|", "training of 15 more clients")]
    assert cells["`pow_d, num_candidates=null`, measured"] == [
        *("every round", "24 = 1 K", f"{extra} = 15 |θ|", f"{logs[2].sum()} samples to answer")
    ]
    assert cells["`pow_d, num_candidates=12`, measured"][:2] == ["every round", "36 at t = 1, then 12"]
    assert cells["`feddiverse`, measured"][:2] == ["t = 1 to 2", f"{extra} at t = 1, then 72"]
    assert cells["`fednova`, measured"] == [
        "every round",
        f"{extra} = 15 |θ|",
        f"{extra} = 15 |θ|",
        "training of 15 more clients",
    ]
    assert "Made with `report`." in text


def test_the_papers_server_operations_are_worked_out_for_the_run():
    """For 24 clients of MobileNetV2; FedPNS' K² |θ|² comes to 2.9e15."""
    theta = 2_230_000
    operations = {name: operations_of(row, 24, theta) for name, row in PAPER.items()}
    assert operations["fedpns"] == pytest.approx(2.9e15, rel=0.02)
    assert operations["pow_d"] == pytest.approx(24 * math.log(24))
    assert operations["hcsfed"] == pytest.approx(24 * 22.3)
    assert operations["feddiverse"] == operations["fednova"] == 24
    assert operations["round_robin"] == 1


def test_csv_has_every_round_with_an_overhead(measured, logs):
    lines = list(csv.DictReader(io.StringIO(to_csv(overhead_table(list(measured.values()))))))
    assert len(lines) == 2 + 0 + 3 + 3 + 3 + 0 + 1 + 2
    told = [line for line in lines if line["method"] == "feddiverse"]
    assert [(line["round"], float(line["answers_up"]), float(line["more_clients"])) for line in told] == [
        ("1", 0, 15),
        ("2", 72, 0),
    ]


# Run folders as they may be found


@pytest.fixture
def run_folder(tmp_path):
    """Return a function that writes a run folder: rounds with (selected, arrived, floats down, up, query down, up, samples)."""

    def write(name, rounds, *, seed=0, ask=True, summary=True, selector="pow_d", **settings):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        config = {"seed": seed, "federation": {"cohort_size": 2}, "choices": {"selector": selector}, **settings}
        OmegaConf.save(OmegaConf.create(config), folder / "config.yaml")
        names = ("floats_down", "floats_up", "query_floats_down", "query_floats_up", "query_samples")
        metrics = ["round,cohort,num_arrived," + ",".join(f"comm/{column}" for column in names)]
        timing = ["round,seconds," + ("seconds/ask," if ask else "") + "seconds/select"]
        for round, (selected, *numbers) in enumerate(rounds, 1):
            metrics.append(f"{round},{' '.join(map(str, range(selected)))},{','.join(map(str, numbers))}")
            timing.append(f"{round},1," + ("0.5," if ask else "") + f"{0.001 * round}")
        (folder / "metrics.csv").write_text("\n".join(metrics) + "\n")
        (folder / "timing.csv").write_text("\n".join(timing) + "\n")
        if summary:
            (folder / "summary.json").write_text(json.dumps({"status": "finished", "participation_counts": [1] * 6}))
        return folder

    return write


PLAIN = (2, 2, 20, 20, 0, 0, 0)


def measure(*folders):
    overheads, unread = measure_overheads(find_runs(folders))
    return overheads, unread


def test_settings_without_selection_go_by_their_names(run_folder):
    settings = ("centralized", "local", "federated")
    folders = [run_folder(setting, [PLAIN], choices={"selector": "all", "setting": setting}) for setting in settings]
    overheads, _ = measure(*folders)
    assert [overhead.method for overhead in overheads] == ["all", "centralized", "local"]


def test_seeds_are_averaged(run_folder):
    first = run_folder("a", [PLAIN, (2, 2, 20, 20, 10, 3, 30)], seed=0)
    second = run_folder("b", [PLAIN, (2, 2, 20, 20, 30, 5, 50)], seed=1)
    ((overhead,), _) = measure(first, second)
    assert (overhead.runs, overhead.rounds) == (2, (2,))
    assert (overhead.answers_up, overhead.questions_down, overhead.samples) == ((4,), (20,), (40,))
    assert overhead.milliseconds == pytest.approx([1, 2])
    assert "| t = 2 " in to_markdown(overhead_table([overhead]))


def test_updates_that_did_not_arrive_cost_nothing_up(run_folder):
    """Five were selected where two are asked for; three updates arrived, so one is beyond."""
    ((overhead,), _) = measure(run_folder("a", [(5, 3, 50, 30, 0, 0, 0), (2, 0, 20, 0, 0, 0, 0), (0, 0, 0, 0, 0, 0, 0)]))
    assert (overhead.more_clients, overhead.more_down, overhead.more_up) == ((3,), (30,), (10,))


def test_where_the_wait_for_answers_was_not_told_apart_nothing_is_said_of_the_server(run_folder):
    ((overhead,), _) = measure(run_folder("a", [PLAIN], ask=False))
    assert overhead.milliseconds == ()
    assert "not known" in to_markdown(overhead_table([overhead]))


def test_runs_without_numbers_are_named(run_folder):
    good, ended = run_folder("a", [PLAIN]), run_folder("b", [PLAIN], summary=False)
    (good / "timing.csv").unlink()
    empty = run_folder("c", [])
    overheads, unread = measure(good, ended, empty)
    assert [run.path for run in unread] == [ended, empty]
    assert f"Left out because metrics.csv or summary.json is missing: `{ended}`, `{empty}`." in to_markdown(
        overhead_table(overheads, unread)
    )


def test_runs_that_differ_beyond_the_seed_are_noted(run_folder):
    folders = [run_folder(name, [PLAIN], seed=seed, local={"amount": seed}) for seed, name in enumerate("ab")]
    ((overhead,), _) = measure(*folders)
    assert overhead.differing == ("local.amount",)
    assert "averages runs that differ in `local.amount`" in to_markdown(overhead_table([overhead]))
    drawn = [run_folder(name, [PLAIN], seed=seed, partition={"seed": seed}) for seed, name in enumerate("cd")]
    ((overhead,), _) = measure(*drawn)
    assert overhead.differing == (), "every seed draws a federation of its own"


def test_a_damaged_table_is_refused_by_name(run_folder):
    folder = run_folder("a", [PLAIN])
    (folder / "metrics.csv").write_text("round,cohort,num_arrived\n1,0 1,many\n")
    with pytest.raises(FedFacetError, match=r"metrics\.csv to be as it was written"):
        measure(folder)
