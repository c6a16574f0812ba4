"""Runs of several processes: the same numbers as one, whoever started them, whatever happens to them."""

import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedfacet.parallel.ranks import MAX_RANKS_WITH_0

DISTRIBUTED = ("engine=distributed", "engine.timeout_seconds=60")
ESTIMATED = (
    "threads=1", "model.width=2", "model.hidden=4", "~callbacks.figures", "federation.rounds=4", "local.unit=steps",
    "local.amount=4", "heterogeneity.bias_steps=4", "heterogeneity.attribute_steps=4",
)  # fmt: skip
"""A short run in whose first round every client estimates how heterogeneous it is."""

ENDLESS = "federation.rounds=1000000"


def results(run):
    """What must not depend on who ran the clients."""
    summary = json.loads((run / "summary.json").read_text())
    kept = {name: summary[name] for name in ("status", "rounds", "final", "best", "model_digest", "query_bytes_up")}
    return kept | {name: (run / name).read_bytes() for name in ("metrics.csv", "model/model.safetensors", "partition.json")}


def num_rounds(run):
    file = run / "metrics.csv"
    return file.read_text().count("\n") - 1 if file.exists() else 0


@pytest.fixture
def start_ranks(start, tmp_path):
    """Return a function that starts the ranks of a run, in the environment that torchrun would give them."""

    def start_ranks(number, *arguments, **how):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": number, "LOCAL_WORLD_SIZE": number}
        return [
            start(
                *arguments,
                fast=False,
                **how,
                out=tmp_path / f".{port}-{rank}.out",
                err=tmp_path / f".{port}-{rank}.err",
                env={name: str(value) for name, value in common.items()}
                | {"TORCHELASTIC_RUN_ID": "test", "RANK": str(rank), "LOCAL_RANK": str(rank)},
            )
            for rank in range(number)
        ]

    return start_ranks


@pytest.fixture(scope="module")
def sequential(start_in, tmp_path_factory):
    """Return the results of the run by the sequential engine."""
    folder = tmp_path_factory.mktemp("sequential")
    process = start_in(folder, *ESTIMATED, "paths.output_dir=run", fast=False)
    assert process.wait() == 0, process.err.read_text()
    return results(folder / "run")


@pytest.fixture(scope="module")
def summed_run(start_in, tmp_path_factory):
    """The folder of the run by one process that adds up along the tree."""
    folder = tmp_path_factory.mktemp("summed")
    process = start_in(folder, "engine=distributed", "engine.sums=tree", *ESTIMATED, "paths.output_dir=run", fast=False)
    assert process.wait() == 0, process.err.read_text()
    return folder / "run"


@pytest.fixture(scope="module")
def summed(summed_run):
    """Return its results."""
    return results(summed_run)


def check_ranks(run, printed, expected):
    """Ranks have left what one process leaves, and one of them has told of it."""
    assert results(run) == expected
    assert [path.name for path in run.parent.iterdir() if not path.name.startswith(".")] == ["run"]
    assert json.loads((run / "summary.json").read_text())["engine"] == "DistributedEngine"
    assert printed.count("Test accuracy") == 1
    assert (run / "train.log").read_text().count("Finished round 4.") == 1


@pytest.mark.slow
def test_two_ranks_of_torchrun_give_the_numbers_of_one_process(checkout, tmp_path, sequential):
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    result = subprocess.run(
        [sys.executable, *launcher, str(checkout / "src" / "train.py"), *DISTRIBUTED, *ESTIMATED, "paths.output_dir=run"],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    check_ranks(tmp_path / "run", result.stdout, sequential)


@pytest.mark.slow
def test_a_sweep_runs_all_its_jobs_one_after_another(start_ranks, tmp_path):
    command = (*DISTRIBUTED, *ESTIMATED, "-m", "selector=uniform,all", "paths.sweep_dir=sweep", "federation.rounds=1")
    ranks = start_ranks(2, *command)
    assert [rank.wait() for rank in ranks] == [0, 0], [rank.err.read_text() for rank in ranks]
    summaries = [json.loads(file.read_text()) for file in sorted((tmp_path / "sweep").glob("*/summary.json"))]
    assert [summary["status"] for summary in summaries] == ["finished", "finished"]


def test_what_is_refused_is_reported_once(start_ranks, tmp_path):
    ranks = start_ranks(2, *DISTRIBUTED, "federation.round=3")
    assert [rank.wait() for rank in ranks] == [2, 2]
    assert [rank.err.read_text().count("error: ") for rank in ranks] == [1, 0]


@pytest.mark.slow
def test_torchrun_starts_a_run_again_that_lost_a_rank(checkout, tmp_path, sequential):
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "3"]
    command = [*DISTRIBUTED, *ESTIMATED, "local.amount=4", "paths.output_dir=run", "resume=auto"]
    launched = subprocess.Popen(
        [sys.executable, *launcher, str(checkout / "src" / "train.py"), *command],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        stderr=subprocess.PIPE,
        text=True,
    )
    while num_rounds(tmp_path / "run") < 1:
        assert launched.poll() is None
        time.sleep(0.05)
    ranks = Path(f"/proc/{launched.pid}/task/{launched.pid}/children").read_text().split()
    os.kill(int(ranks[-1]), signal.SIGKILL)
    _, said = launched.communicate(timeout=300)
    assert launched.returncode == 0, said
    assert results(tmp_path / "run") == sequential


def test_a_run_killed_on_two_ranks_goes_on_with_three(start_ranks, tmp_path, sequential):
    run = tmp_path / "run"
    ranks = start_ranks(2, *DISTRIBUTED, *ESTIMATED, "local.amount=4", "paths.output_dir=run")
    ranks[0].wait_until(lambda: num_rounds(run) >= 1)
    for rank in ranks:
        rank.kill(signal.SIGKILL)
        rank.wait()
    assert not (run / "summary.json").exists()
    ranks = start_ranks(3, "resume=run")
    assert [rank.wait() for rank in ranks] == [0, 0, 0], [rank.err.read_text() for rank in ranks]
    check_ranks(run, "".join(rank.out.read_text() for rank in ranks), sequential)


def test_a_run_ends_with_rank_0(start_ranks, tmp_path):
    run = tmp_path / "run"
    ranks = start_ranks(2, *DISTRIBUTED, *ESTIMATED, ENDLESS, f"paths.output_dir={run.name}")
    ranks[0].wait_until(lambda: num_rounds(run) >= 1)
    ranks[0].kill(signal.SIGKILL)
    left = ranks[1].result()
    assert left.status == 2
    lost = r"^error: Expected rank 0 to (go on|take a message), but the connection is lost: "
    assert re.search(lost, left.err, re.M), left.err
    assert "Traceback" not in left.err
    assert (run / "checkpoints" / "last.ckpt").exists()


@pytest.mark.parametrize(
    ("seed", "sums"),
    [
        pytest.param(seed, sums, marks=[] if (seed, sums) == (4, "cohort") else pytest.mark.slow)
        for seed in range(10)
        for sums in ("cohort", "tree")
    ],
)
def test_ranks_killed_at_random_change_nothing(start_ranks, tmp_path, sequential, summed, seed, sums):
    draw, run = random.Random(seed), tmp_path / "run"
    number = draw.choice([3, 5, 7])
    victims = draw.sample(range(1, number), draw.randint(1, number - 1))
    ranks = start_ranks(number, *DISTRIBUTED, *ESTIMATED, f"engine.sums={sums}", "paths.output_dir=run")
    ranks[0].wait_until(lambda: (run / "config.yaml").exists())
    for victim in victims:
        time.sleep(draw.uniform(0, 0.3))
        ranks[victim].kill(signal.SIGKILL)
    assert ranks[0].wait() == 0, ranks[0].err.read_text()
    assert results(run) == (summed if sums == "tree" else sequential)
    told = (run / "train.log").read_text()
    for rank in range(1, number):
        assert told.count(f"Rank {rank} is lost: ") <= (rank in victims), told
    assert "Traceback" not in told + ranks[0].err.read_text()


@pytest.mark.parametrize(
    ("number", "with_0"), [(3, 2), *(pytest.param(number, 8, marks=pytest.mark.slow) for number in (2, 3, 8, 9))]
)
def test_any_number_of_ranks_adds_up_to_the_same_bits(number, with_0, start_ranks, checkout, tmp_path, summed):
    """Along the tree; all that is counted is as in a run that adds up in cohort order."""
    assert MAX_RANKS_WITH_0 == 8
    script = tmp_path / ".script.py"
    script.write_text(f"""
import runpy, sys
import fedfacet.parallel.ranks
fedfacet.parallel.ranks.MAX_RANKS_WITH_0 = {with_0}
sys.argv[0] = {str(checkout / "src" / "train.py")!r}
runpy.run_path(sys.argv[0], run_name="__main__")
""")
    ranks = start_ranks(number, *DISTRIBUTED, *ESTIMATED, "engine.sums=tree", "paths.output_dir=run", script=script)
    assert [rank.wait() for rank in ranks] == [0] * number, ranks[0].err.read_text()
    assert results(tmp_path / "run") == summed
    assert ("rank 0 does not train" in (tmp_path / "run" / "train.log").read_text()) == (number > with_0)


def test_sums_along_the_tree_stay_so(start, tmp_path, sequential, summed_run):
    summed = results(summed_run)
    shutil.copytree(summed_run, tmp_path / "run")
    refused = start("resume=run", "federation.rounds=5", "engine.sums=cohort", fast=False).result()
    assert refused.status == 2
    assert "error: The run was started with engine.sums=tree, and engine.sums=cohort adds up in another order: " in refused.err
    assert summed["query_bytes_up"] == sequential["query_bytes_up"]
    assert summed["model_digest"] != sequential["model_digest"], "equal by chance: give the clients more to do"


@pytest.mark.slow
def test_a_rank_that_says_nothing_is_lost(start_ranks, tmp_path, sequential):
    ranks = start_ranks(3, "engine=distributed", "engine.timeout_seconds=10", *ESTIMATED, "paths.output_dir=run")
    ranks[0].wait_until(lambda: num_rounds(tmp_path / "run") >= 1)
    ranks[1].kill(signal.SIGSTOP)
    assert ranks[0].wait() == 0, ranks[0].err.read_text()
    assert results(tmp_path / "run") == sequential


def test_a_signal_to_all_ranks_stops_them_after_the_client_in_progress(start_ranks, tmp_path):
    """As torchrun and SLURM send it."""
    ranks = start_ranks(2, *DISTRIBUTED, *ESTIMATED, ENDLESS, "paths.output_dir=run")
    ranks[0].wait_until(lambda: num_rounds(tmp_path / "run") >= 1)
    for rank in reversed(ranks):
        rank.kill(signal.SIGTERM)
    first, second = (rank.result() for rank in ranks)
    assert first.status == 143, first.err
    assert re.search(rf"Stopped; to go on:\n  \S*python\S* \S*src/train\.py resume={tmp_path / 'run'}\n$", first.err)
    assert (second.status, second.err) == (0, "")


def test_torchrun_without_the_engine_is_refused(refused, monkeypatch):
    for name, value in {"TORCHELASTIC_RUN_ID": "test", "RANK": "1", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    assert "engine=distributed where torchrun starts 2 processes" in refused("threads=1")
