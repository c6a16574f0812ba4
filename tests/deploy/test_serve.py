"""The command: a server that is killed in the middle of a round goes on as if it had not been, and its journal proves it."""

import json
import runpy
import sys
import time

import pytest

from fedfacet import state
from fedfacet.build import load_data
from fedfacet.commands import serve
from fedfacet.deploy.pilot import write_pilot
from fedfacet.deploy.questions import known_queries
from fedfacet.parallel.processes import process_context
from fedfacet.storage import checkpoint

ROUNDS = 12
HELD_OUT = "partition.local_holdout=0.25"
OPTIONS = (
    "experiment=digits_gsc", "partition.scale=0.1", f"federation.rounds={ROUNDS}", "federation.cohort_size=3", "threads=1",
    "method=scaffold", "model.width=4", "logger=[]", "callbacks=[deployed,federated_evaluate]",
)  # fmt: skip


@pytest.mark.slow  # a server and its sites, each time with a process that starts others
def test_a_killed_server_goes_on_bit_for_bit_and_its_journal_is_replayed(
    job_of, checkout, simulated, rounds_of, capsys, monkeypatch, tmp_path
):
    pilot = tmp_path / "pilot"
    data = load_data(job_of("experiment=digits_gsc", "partition.scale=0.1", HELD_OUT))
    write_pilot(data, "digits", pilot, 2, 0.25, sorted(known_queries()))
    run_dir, here = tmp_path / "run", tmp_path / "here"
    here.mkdir()
    clients = ",".join(str(pilot / f"site_{number}" / "client.yaml") for number in (0, 1))
    command = [
        *(str(checkout / "src" / "serve.py"), *OPTIONS, f"paths.output_dir={run_dir}"),
        *(f"card={pilot / 'card.yaml'}", f"roster={pilot / 'roster.yaml'}", f"deploy.clients=[{clients}]"),
    ]
    assert serve.main(["check", *command[1:]]) == 0
    said = capsys.readouterr().out
    assert "site_0: 12 clients, 180 samples; fedfacet " in said
    assert "All fits: " in said
    assert not run_dir.exists()
    monkeypatch.setattr(sys, "argv", command)
    server = process_context().Process(target=runpy.run_path, args=command[:1], kwargs={"run_name": "__main__"})
    server.start()
    journal = run_dir / "journal.jsonl"
    while server.is_alive() and not (journal.exists() and len(journal.read_bytes().splitlines()) >= 3):
        time.sleep(0.005)
    assert server.exitcode is None
    server.kill()
    server.join()
    reached = checkpoint.load(run_dir / "checkpoints" / "last.ckpt")[0].round
    assert 1 <= reached < ROUNDS
    with open(journal, "a") as file:  # as if it had died between the journal and the checkpoint
        file.write(json.dumps({"round": reached + 1, "lost": {"0": "given up"}}) + "\n")

    assert serve.main([f"resume={run_dir}"]) == 2
    assert "give `deploy.clients` again on the command line" in capsys.readouterr().err
    assert serve.main([f"resume={run_dir}", command[-1]]) == 0
    whole = simulated(
        *("method=scaffold", f"federation.rounds={ROUNDS}", HELD_OUT, "callbacks=[csv_log,federated_evaluate]"), run_dir=here
    )
    expected = rounds_of(whole, ROUNDS)
    assert (run_dir / "metrics.csv").read_bytes() == expected
    digest = state.digest(whole.state.model)
    assert json.loads((run_dir / "summary.json").read_text())["model_digest"] == digest
    assert [json.loads(line)["round"] for line in journal.read_text().splitlines()] == list(range(1, ROUNDS + 1))
    assert "held out, average" in capsys.readouterr().out
    status = json.loads((run_dir / "status.json").read_text())
    assert (status["round"], set(status["connected"].values())) == (ROUNDS, {True})
    assert serve.main(["replay", f"run={run_dir}"]) == 0
    assert f"All {ROUNDS} rounds come to the models of the journal; the last has the digest {digest}" in capsys.readouterr().out
    assert serve.main([*command[1:], "resume=auto"]) == 0  # a supervisor that has not seen the end
    assert f"Nothing is left to do: {ROUNDS} rounds are done in {run_dir}." in capsys.readouterr().out
