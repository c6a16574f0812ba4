"""Runs killed at any moment, in any way, over engines and methods, end as if nobody had killed them."""

import json
import shutil
import signal
import time

import pytest

pytestmark = pytest.mark.slow

KILLS = [signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT]
RUNS = {
    "feddiverse": (),
    "dropouts": ("participation=dropouts", "selector=round_robin", "aggregator=fedavg"),
    "every fifth": ("selector=pow_d", "callbacks.save_checkpoint.every_n_rounds=5", "scheduler=step"),
    "workers": ("engine=workers", "engine.workers=2", "selector=uniform"),
    "workers kept": ("engine=workers", "engine.workers=2", "personal=head", "local.keep_optimizer=true"),
    "vectorized": ("engine=vectorized", "selector=fedpns"),
    "scaffold": ("method=scaffold", "participation=stragglers"),
    "ditto": ("method=ditto", "callbacks=[default,evaluate_clients]"),
    "fedpac": ("method=fedpac",),
    "hcsfed": ("method=hcsfed", "scheduler=plateau", "aggregator=fedadam"),
}
ROUNDS = "federation.rounds=20"
MOST = 10


@pytest.mark.parametrize("name", RUNS)
def test_kills(name, draw, attack, start, uninterrupted, results, tmp_path):
    method, run = (*RUNS[name], ROUNDS), tmp_path / "run"
    expected, kills = uninterrupted(*method), 0
    while kills < MOST:
        if (run / "checkpoints" / "last.ckpt").exists():
            process = start("resume=run", fast=False)
        else:
            shutil.rmtree(run, ignore_errors=True)
            process = start(*method, "paths.output_dir=run")
        number = draw.choice(KILLS)
        with attack(f"kill {kills} by {number.name}") as came:
            time.sleep(draw.uniform(0.5, 5))
            process.kill(number)
            status = process.wait()
            said = process.err.read_text()
            assert "Traceback" not in said, said
            came(f"ended {status}")
            kills += status != 0
        if is_finished(run):  # even where the kill came between the last word and the end of the process
            assert results(run) == expected
            shutil.rmtree(run)
    if (run / "checkpoints" / "last.ckpt").exists():
        assert start("resume=run", fast=False).wait(300) == 0
        assert is_finished(run)
        assert results(run) == expected
    assert not list(tmp_path.rglob("*.part"))


def is_finished(run):
    """Tell whether a run says that it has done all its rounds."""
    summary = run / "summary.json"
    told = json.loads(summary.read_text()) if summary.exists() else {}
    return told.get("status") == "finished" and told["rounds"] == 20
