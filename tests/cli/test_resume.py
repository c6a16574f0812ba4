"""Stopping a run, at any moment and in any way, and going on with it."""

import json
import random
import re
import shlex
import shutil
import signal
import time
from pathlib import Path

import pytest

from fedfacet import load_run
from fedfacet.errors import FedFacetError
from fedfacet.storage import checkpoint

ROUNDS = "federation.rounds=12"
EVERY_3 = "callbacks.save_checkpoint.every_n_rounds=3"
ENDLESS = "local.amount=1000000"
"""A client that never comes to an end."""

KEEPS = (
    ROUNDS, "personal=head", "local.keep_optimizer=true", "scheduler=cosine", "partition.held_out_clients=0.25",
    "partition.local_holdout=0.25", "callbacks=[default,client_fairness,personal_evaluate]",
)  # fmt: skip
"""A run whose clients keep something, some of whom are held out, and whose learning rate depends on the number of rounds."""


def rounds_in(file):
    """The rounds that a csv file has whole rows of."""
    return [int(line.split(b",")[0]) for line in file.read_bytes().split(b"\n")[1:-1]] if file.exists() else []


def saved_round(run):
    return checkpoint.load(run / "checkpoints" / "last.ckpt")[0].round


def held_up(process, seconds=1.1):
    """Let time pass for a process without having it work."""
    process.kill(signal.SIGSTOP)
    time.sleep(seconds)
    process.kill(signal.SIGCONT)


def commands_in(text):
    """The overrides of every command that a message names, each on a line of its own."""
    return [shlex.split(command) for command in re.findall(r"\n  \S*python\S* \S*src/train\.py (.+)(?=\n)", text)]


def command_in(text):
    """Those of the command that it ends with."""
    return commands_in(text)[-1]


def test_a_stopped_run_saves_says_how_to_go_on_and_ends_as_if_it_had_not_been(start, uninterrupted, tmp_path, results):
    run, rounds = tmp_path / "run", 1
    process = start(ROUNDS, "paths.output_dir=run", "callbacks.save_checkpoint.every_n_rounds=1000")
    for number, status in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        process.wait_until(lambda before=rounds: len(rounds_in(run / "metrics.csv")) > before)
        process.kill(number)
        stopped = process.result()
        assert stopped.status == status, stopped.err
        assert f"{number.name}: stopping after the client in progress" in stopped.err
        assert "Traceback" not in stopped.err
        assert saved_round(run) == len(rounds_in(run / "metrics.csv")) > rounds
        assert json.loads((run / "summary.json").read_text())["status"] == "interrupted"
        assert not (run / "model").exists()
        assert command_in(stopped.err) == [f"resume={run}"]
        rounds = saved_round(run)
        process = start(*command_in(stopped.err), fast=False)
    resumed = process.result()
    assert resumed.status == 0, resumed.err
    assert results(run) == uninterrupted(ROUNDS)
    assert rounds_in(run / "timing.csv") == rounds_in(run / "metrics.csv")


def test_the_same_command_begins_a_run_and_goes_on_with_it_by_itself(start, train, trained, uninterrupted, tmp_path, results):
    """And cuts back the rows beyond its checkpoint."""
    run, command = tmp_path / "run", (ROUNDS, EVERY_3, "paths.output_dir=run", "resume=auto")
    first = start(*command)
    first.wait_until(lambda: len(rounds_in(run / "metrics.csv")) >= 7)  # a checkpoint is written beside the next rounds
    first.kill(signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL
    assert saved_round(run) in (3, 6, 9)
    with open(run / "metrics.csv", "a") as file:
        file.write("11,torn row")  # what a death in the middle of a write would leave
    trained(*command)
    assert results(run) == uninterrupted(ROUNDS)
    for file in (*run.glob("checkpoints/*"), *run.glob("*.csv"), run / "summary.json"):
        file.unlink()  # as if it had been killed before its first checkpoint
    shutil.rmtree(run / "model")
    trained(*command)
    assert results(run) == uninterrupted(ROUNDS)
    again = train(*command)  # by a supervisor that has not seen the end
    assert (again.status, again.err) == (0, "")
    assert again.out == f"Nothing is left to do: {ROUNDS.partition('=')[2]} rounds are done in run.\n"
    assert results(run) == uninterrupted(ROUNDS)


def test_a_run_that_goes_on_by_itself_must_know_where_it_lies(refused):
    assert "Expected paths.output_dir with resume=auto" in refused("resume=auto")


@pytest.mark.parametrize("damage", ["missing", "memory"])
def test_where_the_last_checkpoint_is_damaged_a_run_goes_on_from_the_one_before(
    refused, trained, whole, tmp_path, damage, results
):
    run = Path(shutil.copytree(whole(*KEEPS), tmp_path / "run"))
    before = results(run)
    last = run / "checkpoints" / "last.ckpt"
    newest = max((run / "clients" / "memory").glob("0*.pt"), key=lambda file: file.stat().st_mtime_ns)
    damaged = newest if damage == "memory" else last
    content = damaged.read_bytes()
    damaged.unlink()
    if damage == "memory":
        damaged.write_bytes(content[:1000] + bytes([content[1000] ^ 4]) + content[1001:])
    (run / "summary.json").unlink()
    sentence = refused("resume=run")
    assert damaged.name in sentence
    (command,) = re.findall(r"go on after round 11 with (resume=.+/checkpoints/previous\.ckpt)\.$", sentence)
    trained(command, fast=False)
    assert results(run) == before
    assert saved_round(run) == 12
    assert rounds_in(run / "timing.csv") == rounds_in(run / "metrics.csv") == list(range(1, 13))


def test_an_edited_table_is_refused_and_nothing_is_written(refused, run):
    table = run / "metrics.csv"
    table.write_bytes(table.read_bytes().replace(b"1", b"2", 1))
    assert re.match(
        r"Expected \S+/metrics\.csv to begin with the 2 rows .*, but they have been changed",
        refused("resume=run", "federation.rounds=3"),
    )


def test_a_run_whose_folder_is_removed_ends_with_a_sentence(start, tmp_path):
    run = tmp_path / "run"
    process = start("federation.rounds=1000000", "paths.output_dir=run")
    process.wait_until(lambda: len(rounds_in(run / "metrics.csv")) >= 2)
    run.rename(tmp_path / "elsewhere")
    ended = process.result()
    assert ended.status == 2, ended.err
    assert "Expected the folder" in ended.err
    assert "was removed while the run went on" in ended.err
    assert "Traceback" not in ended.err
    assert not run.exists()


def test_a_run_that_another_process_works_at_is_left_alone(start, uninterrupted, tmp_path, results):
    run = tmp_path / "run"
    process = start(ROUNDS, EVERY_3, "paths.output_dir=run")
    process.wait_until((run / "checkpoints" / "last.ckpt").exists)
    process.kill(signal.SIGSTOP)
    with pytest.raises(FedFacetError, match=r"^Expected a run that nobody works at, but another process is at "):
        load_run(run).resume()
    process.kill(signal.SIGCONT)
    assert process.wait() == 0
    assert results(run) == uninterrupted(ROUNDS)


def test_a_learning_rate_planned_over_all_rounds_is_not_stretched_afterwards(refused, whole, tmp_path):
    shutil.copytree(whole(*KEEPS), tmp_path / "run")
    assert "`scheduler.rounds` was 12 and is now 14" in refused("resume=run", "federation.rounds=14")


def test_an_engine_that_sums_in_another_order_neither_takes_over_nor_hands_over(run, trained):
    trained("federation.rounds=1", "paths.output_dir=stacked", "engine=vectorized")
    with pytest.raises(FedFacetError, match="Expected an engine that is exact to the last bit"):
        load_run(run).resume("engine=vectorized", "federation.rounds=3")
    with pytest.raises(FedFacetError, match="Expected engine=vectorized, as the run was started with"):
        load_run("stacked").resume("engine=sequential", "federation.rounds=2")
    trained("resume=stacked", "federation.rounds=2", fast=False)


@pytest.mark.parametrize("options", [pytest.param((ROUNDS,), marks=pytest.mark.slow), KEEPS], ids=["nothing", "memory"])
def test_a_run_killed_again_and_again_ends_the_same(options, start, refused, whole, tmp_path, results):
    """And holds out the same clients, whose number cannot be changed on the way."""
    run, moments = tmp_path / "run", random.Random(0)
    process = start(*options, EVERY_3, "paths.output_dir=run")
    process.wait_until((run / "checkpoints" / "last.ckpt").exists)
    for _ in range(2):
        time.sleep(moments.uniform(0, 0.2))
        process.kill(signal.SIGKILL)
        process.wait()
        if (run / "summary.json").exists():
            break
        assert "partition.held_out_clients" in refused("resume=run", "partition.held_out_clients=0.5")
        before = (run / ".hydra" / "overrides.yaml").stat().st_mtime_ns
        process = start("resume=run", fast=False)
        process.wait_until(lambda before=before: (run / ".hydra" / "overrides.yaml").stat().st_mtime_ns > before)
    assert process.wait() in (0, -signal.SIGKILL)
    assert results(run) == results(whole(*options))
    assert not list(run.rglob("*.part"))
    assert (run / "clients" / "memory").exists() == (options == KEEPS)
    if options == KEEPS:
        never = json.loads((run / "partition.json").read_text())["held_out_clients"]
        assert len(never["numbers"]) == len(never["indices"]) == len(never["local_holdout"]) == 6
        assert len(json.loads((run / "summary.json").read_text())["participation_counts"]) == 18


def test_a_run_killed_after_its_last_round_is_completed(trained, whole, tmp_path, results):
    run = Path(shutil.copytree(whole(ROUNDS), tmp_path / "run"))
    (run / "summary.json").unlink()
    shutil.rmtree(run / "model")
    result = trained("resume=run", fast=False)
    assert results(run) == results(whole(ROUNDS))
    assert "Test accuracy" in result.out


def test_a_run_killed_before_its_configuration_was_written_starts_again_in_its_folder(start, trained, tmp_path):
    run = tmp_path / "run"
    process = start(ROUNDS, "paths.output_dir=run")
    process.wait_until((run / ".hydra").exists)
    process.kill(signal.SIGKILL)
    process.wait()
    for leftover in ("config.yaml", "partition.json", "checkpoints"):  # had it been a little later
        assert not (run / leftover).exists()
    trained("federation.rounds=1", "paths.output_dir=run")


@pytest.mark.slow
def test_a_run_stopped_before_its_first_round_goes_on(start, trained, uninterrupted, tmp_path, results):
    run = tmp_path / "run"
    process = start(ROUNDS, EVERY_3, "paths.output_dir=run")
    process.wait_until((run / "checkpoints" / "last.ckpt").exists)
    process.kill(signal.SIGKILL)
    process.wait()
    assert saved_round(run) == 0
    process = start("resume=run", fast=False)
    process.wait_until(lambda: "resume=" in (run / ".hydra" / "overrides.yaml").read_text())
    process.kill(signal.SIGTERM)
    process.wait()
    trained("resume=run", fast=False)
    assert results(run) == uninterrupted(ROUNDS)


@pytest.mark.slow
def test_a_longer_run_is_the_same_as_one_that_was_long_from_the_start(trained, uninterrupted, tmp_path, results):
    """And what no number depends on may change on the way."""
    run = tmp_path / "run"
    trained("federation.rounds=3", "paths.output_dir=run")
    shutil.move(run, tmp_path / "elsewhere")
    trained("resume=elsewhere", "federation.rounds=6", EVERY_3, "logger=[]", "task=other", fast=False)
    trained(f"resume={tmp_path / 'elsewhere' / 'checkpoints' / 'last.ckpt'}", ROUNDS, fast=False)
    assert results(tmp_path / "elsewhere") == uninterrupted(ROUNDS)
    assert not run.exists()


@pytest.mark.slow
def test_a_folder_of_any_name_can_be_resumed(start, trained, tmp_path):
    name = "my run, a=b (1) 'x'"
    quoted = name.replace("'", "\\'")
    process = start(ROUNDS, f"paths.output_dir='{tmp_path}/{quoted}'")
    process.wait_until(lambda: rounds_in(tmp_path / name / "metrics.csv"))
    process.kill(signal.SIGINT)
    assert process.wait() == 130
    trained(*command_in(process.err.read_text()), fast=False)
    assert len(rounds_in(tmp_path / name / "metrics.csv")) == int(ROUNDS.partition("=")[2])


@pytest.mark.slow
def test_a_stopped_sweep_begins_no_further_job_and_its_jobs_can_be_resumed(start, trained, uninterrupted, tmp_path, results):
    sweep = tmp_path / "sweep"
    process = start(ROUNDS, "seed=0,1", "paths.sweep_dir=sweep", "-m")
    process.wait_until(lambda: rounds_in(sweep / "0" / "metrics.csv"))
    process.kill(signal.SIGINT)
    stopped = process.result()
    assert stopped.status == 130
    assert not (sweep / "1").exists()
    resume, (*_, seed, folder, place) = commands_in(stopped.err)
    assert resume == [f"resume={sweep / '0'}"]
    assert (seed, folder, place) == ("seed=1", "paths.sweep_dir=sweep", f"paths.output_dir={sweep / '1'}")
    trained(*resume, fast=False)
    assert results(sweep / "0") == uninterrupted(ROUNDS)


@pytest.mark.parametrize("seconds", [0.15, 0.6])
def test_ctrl_c_before_the_first_round_is_no_traceback(start, tmp_path, seconds):
    process = start(ENDLESS, "paths.output_dir=run")
    process.wait_until(process.err.exists)
    time.sleep(seconds)
    process.kill(signal.SIGINT)
    while process.poll() is None and "SIGINT: stopping" not in process.err.read_text():
        time.sleep(0.01)
    held_up(process)
    process.kill(signal.SIGINT)  # if it came late, a client is training
    stopped = process.result()
    assert stopped.status == 130, stopped.err
    assert "Traceback" not in stopped.err


def test_a_second_ctrl_c_stops_at_once(start, tmp_path):
    process = start(ENDLESS, "paths.output_dir=run")
    process.wait_until((tmp_path / "run" / "checkpoints" / "last.ckpt").exists)
    time.sleep(0.3)  # until the first client trains
    process.kill(signal.SIGINT)
    process.wait_until(lambda: "once more to stop at once" in process.err.read_text())
    held_up(process)
    assert process.poll() is None
    process.kill(signal.SIGINT)
    stopped = process.result()
    assert stopped.status == 130
    assert "Stopped at once" in stopped.err
    assert "Traceback" not in stopped.err
    assert command_in(stopped.err) == [f"resume={tmp_path / 'run'}"]


def test_a_signal_delivered_twice_does_not_lose_the_rounds(start, tmp_path):
    """``kill -TERM -PGID`` reaches make and the run, and make passes its own on to the run."""
    run = tmp_path / "run"
    long = ("selector=uniform", "federation.cohort_size=2", "local.amount=100")
    process = start(ROUNDS, *long, "paths.output_dir=run", "callbacks.save_checkpoint.every_n_rounds=1000")
    process.wait_until(lambda: len(rounds_in(run / "metrics.csv")) >= 1)
    process.kill(signal.SIGTERM)
    process.wait_until(lambda: "SIGTERM: stopping" in process.err.read_text())
    process.kill(signal.SIGTERM)
    assert process.wait() == 143
    assert saved_round(run) == len(rounds_in(run / "metrics.csv")) >= 1
