"""What a command loads before it has something to say: counted, since seconds depend on the machine."""

import json
import os
import subprocess
import sys

WITNESS = """
import json, sys
from pathlib import Path
from fedfacet.callbacks.base import Callback

class Witness(Callback):
    def __init__(self, seconds_between_lines):
        pass

    def on_state_complete(self, federation):
        Path("modules.json").write_text(json.dumps(sorted(sys.modules)))
"""
WATCHED = """
import runpy, sys
sys.argv = ["train.py", *sys.argv[1:]]
try:
    runpy.run_path("{script}", run_name="__main__")
finally:
    print(sorted({{"torch", "lightning", "numpy", "matplotlib"}} & set(sys.modules)))
"""


def run(checkout, folder, *command):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(checkout / "src"), str(folder)])}
    return subprocess.run([sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_the_first_round_is_done_without_what_it_does_not_need(checkout, tmp_path):
    """Pictures, and other people's metrics, models, tables and optimizers, come later or never."""
    (tmp_path / "witness.py").write_text(WITNESS)
    witness = "callbacks.progress._target_=witness.Witness"  # before pictures in the list
    ended = run(checkout, tmp_path, str(checkout / "src" / "train.py"), "federation.rounds=1", "threads=1", witness)
    assert ended.returncode == 0, ended.stderr
    assert any(tmp_path.glob("logs/train/runs/*/partition.png"))
    loaded = set(json.loads((tmp_path / "modules.json").read_text()))
    others = {"matplotlib", "sklearn", "pandas", "transformers", "torchvision", "wandb", "optuna", "opacus"}
    assert not loaded & (others | {"scipy.signal", "scipy.stats", "scipy.optimize", "scipy.spatial", "torchmetrics.text"})
    assert len(loaded) < 3400, "there were 4,900 once, and 1.7 seconds more"


def test_a_number_out_of_range_is_refused_before_libraries_load(checkout, tmp_path):
    program = WATCHED.format(script=checkout / "src" / "train.py")
    for given, said in (
        ("federation.rounds=-1", "`federation.rounds` to be a whole number, 1 or larger, but got -1."),
        ("seed=-1", "`seed` to be 0 or larger, but got -1."),
        ("partition.local_holdout=1.5", "`partition.local_holdout` in [0, 1), but got 1.5."),
        ("partition.held_out_clients=[-1]", "`partition.held_out_clients` to be a whole number, 0 or larger, but got -1."),
    ):
        ended = run(checkout, tmp_path, "-c", program, given)
        assert (ended.returncode, ended.stderr) == (2, f"error: Expected {said}\n")
        assert ended.stdout.splitlines() == ["[]"]
    assert [path.name for path in tmp_path.iterdir()] == []
